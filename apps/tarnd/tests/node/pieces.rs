//! A partition over two nodes: the programs that have its pieces, for how long, and those that have not.

use crate::Test;
use crate::bed::*;
use crate::peers::{shim, until_ended};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;
use tarn_client::Client as Program;
use tarn_data_plane::{ContentTransport, DataClient as Peer, DataClientTimeouts, Key};
use tarn_ports::Control;
use tarn_proto::local::{
    Code, PeerTarndReply, PeerTarndRequest, RequestError, TaskOperation, TaskSpec, pack, unpack,
};
use tarn_proto::node::{NodeReply, NodeRequest};
use tarn_proto::storage::{self, Verb};
use tarn_types::action::PartitionAssignment;
use tarn_types::event::AttemptOutcome;
use tarn_types::id::PartitionId;
use tarn_types::nodes::Staying;
use tarn_types::part::StoreKey;
use tarn_types::workflow::{KeepPartition, StoragePartition};

pub(crate) const TESTS: &[Test] = &[
    (
        "pieces::a_step_has_those_of_both_nodes_and_nobody_else_has_any",
        a_step_has_those_of_both_nodes,
    ),
    (
        "pieces::what_is_sealed_between_nodes_is_sealed_to_pieces_too",
        what_is_sealed,
    ),
    (
        "pieces::where_nodes_have_libfabric_a_piece_has_a_window",
        what_has_a_window,
    ),
];

/// Bytes of the partition, and of a block.
const SIZE: u64 = 64 << 10;
const BLOCK: u64 = 8 << 10;
/// The name of its piece there.
const FILE: &[u8] = b"field.partition";
const STEP: &str = "@step";

/// Two nodes of a run with a partition that [`PAIR`] uses.
struct Two {
    nodes: [Node; 2],
    clients: [Client; 2],
}

/// None where a step cannot have several nodes.
fn two(bed: &Bed, transport: &str) -> Option<Two> {
    let nodes = ["n1", "n2"].map(|name| bed.start_reading_by(name, transport));
    let clients = [0, 1].map(|at: usize| bed.connect(&nodes[at].started));
    let both = [(&nodes[0], &clients[0]), (&nodes[1], &clients[1])];
    let openings = [bed.node_config(&both, 0), bed.node_config(&both, 1)];
    for (client, mut node_config) in clients.iter().zip(openings) {
        node_config.workflow.partitions = vec![StoragePartition {
            name: "field".into(),
            size: SIZE,
            unit: None,
            tier: None,
            spread: Some(BLOCK),
            keep: KeepPartition::Step,
            steps: vec![tarn_types::id::StepId(PAIR)],
        }];
        match client.call(NodeRequest::Open(Box::new(node_config))) {
            NodeReply::Opened { several: None, .. } => {}
            NodeReply::Opened { several, .. } => {
                eprintln!("SKIPPED: {several:?}");
                return None;
            }
            other => panic!("{other:?}"),
        }
        client.clean(Staying::default());
    }
    Some(Two { nodes, clients })
}

impl Two {
    /// Begins the step, which waits, does `meanwhile`, and lets it end.
    fn run(&self, bed: &Bed, attempt: u32, meanwhile: impl FnOnce()) {
        std::fs::write(bed.path("wait"), "").unwrap();
        let [first, second] = &self.clients;
        let exported = PartitionAssignment {
            partition: PartitionId(0),
            key: StoreKey("field.s3.0.1".into()),
            tier_refs: vec![tier_ref(0), tier_ref(1)],
            filled: false,
        };
        first.begin_with(PAIR, attempt, &[0, 1], vec![exported]);
        let mut meanwhile = Some(meanwhile);
        let ended = until_ended(first, second, |after| {
            let there = ["n1", "n2"]
                .iter()
                .all(|n| socket(bed, n, attempt).exists());
            if there
                && after > Duration::from_millis(300)
                && let Some(does) = meanwhile.take()
            {
                does();
                std::fs::remove_file(bed.path("wait")).unwrap();
            }
        });
        match ended {
            AttemptOutcome::Committed { .. } => {}
            AttemptOutcome::Failed {
                failure, log_tail, ..
            } => panic!("{failure:?}\n{log_tail}"),
        }
        for node in ["n1", "n2"] {
            assert!(!socket(bed, node, attempt).exists());
        }
    }

    fn data(&self, node: usize) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.nodes[node].started.data))
    }

    /// The reply of a node's data server to a client with this key.
    fn call_data_server(
        &self,
        bed: &Bed,
        key: [u8; 32],
        ask: &PeerTarndRequest,
    ) -> Result<PeerTarndReply, String> {
        let peer = Peer {
            node: "n2".into(),
            address: self.data(1),
            others: Vec::new(),
            run: bed.data.0.to_le_bytes(),
            key: Key(key),
            timeout: DataClientTimeouts {
                crowded: Duration::from_secs(1),
                ..DataClientTimeouts::default()
            },
            way: ContentTransport::Clear,
        };
        let body = pack(ask).unwrap();
        let reply = peer.call(&body, &Control::default());
        unpack(&reply.map_err(|e| e.failure.message)?).map_err(|e| e.to_string())
    }
}

fn socket(bed: &Bed, node: &str, attempt: u32) -> PathBuf {
    let work = bed.tier(node).work();
    work.join(format!("s{PAIR}.0.{attempt}")).join("door/tarnd")
}

fn export(space: &str, file: &[u8]) -> PeerTarndRequest {
    PeerTarndRequest::Export {
        space: space.into(),
        path: file.into(),
        write: true,
    }
}

fn refused<T>(result: Result<T, RequestError>) -> Code {
    result.err().expect("it is refused").code
}

/// An open stream to a piece, as a program uses it.
fn used(stream: OwnedFd) -> TcpStream {
    let stream = TcpStream::from(stream);
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// The reply to a request on the stream.
fn answered(
    stream: &mut TcpStream,
    ask: &storage::StorageRequest,
    bytes: &[u8],
) -> storage::StorageReply {
    stream.write_all(&ask.encode()).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = [0; storage::StorageReply::BYTES];
    stream.read_exact(&mut answer).unwrap();
    storage::StorageReply::decode(answer)
}

fn a_step_has_those_of_both_nodes() {
    let bed = Bed::make();
    let Some(two) = two(&bed, "tcp") else { return };
    let mut cut = None;
    two.run(&bed, 1, || {
        let program = Program::connect(&socket(&bed, "n1", 1), None).unwrap();
        assert_eq!(program.node(), "n1");
        let open = |node, space: &str, file: &[u8]| {
            let opened = program.open_partition(node, space, file, true);
            opened.map(|(fd, far)| (fd, far.map(|far| far.info.bytes)))
        };
        // Its own is a file, the other one's a stream.
        for own in [None, Some("n1")] {
            let (file, far) = open(own, STEP, FILE).unwrap();
            let file = std::fs::File::from(file).metadata().unwrap();
            assert!(file.is_file() && far.is_none());
        }
        let (stream, far) = open(Some("n2"), STEP, FILE).unwrap();
        assert_eq!(far, Some(SIZE / 2));
        let mut stream = used(stream);
        let write = storage::StorageRequest {
            length: 5,
            at: 100,
            ..storage::StorageRequest::of(Verb::Write)
        };
        assert_eq!(answered(&mut stream, &write, b"hello").code, 0);
        // By its name on that node, and by no other path, it is the same.
        let there = Program::connect(&socket(&bed, "n2", 1), None).unwrap();
        let (file, _) = there.open_partition(None, STEP, FILE, false).unwrap();
        let mut found = [0; 5];
        let at = StoragePartition::HEAD + 100;
        rustix::io::pread(&file, &mut found, at).unwrap();
        assert_eq!(&found, b"hello");
        for (node, space, file, code) in [
            (None, STEP, &b"other.partition"[..], Code::NotFound),
            (Some("n2"), STEP, b"other.partition", Code::NotFound),
            (Some("n2"), STEP, b"../field.partition", Code::NotFound),
            (None, STEP, b"field", Code::NotFound),
            (Some("n3"), STEP, FILE, Code::NotFound),
            (None, "fast", FILE, Code::Unsupported),
            (Some("n2"), "@s3.0.1", FILE, Code::Unsupported),
        ] {
            assert_eq!(refused(open(node, space, file)), code, "{node:?} {space}");
        }
        let task = TaskSpec::new(TaskOperation::Nothing);
        assert_eq!(refused(program.submit(&[task])), Code::Unsupported);
        assert_eq!(
            refused(program.partitions(None, STEP, b"")),
            Code::Unsupported
        );
        // A client without the run's key learns nothing, a client with it only the exported pieces.
        let right = bed.data.1;
        let none = two.call_data_server(&bed, [9; 32], &export("@s3.0.1", FILE));
        assert!(none.is_err(), "{none:?}");
        assert!(matches!(
            two.call_data_server(&bed, right, &export("@s3.0.1", FILE)),
            Ok(PeerTarndReply::Exported(_))
        ));
        for (space, file) in [
            ("@s3.0.2", FILE),
            ("", FILE),
            ("@s3.0.1", b"/etc/passwd.partition"),
            ("@s3.0.1", b".partition"),
        ] {
            let reply = two.call_data_server(&bed, right, &export(space, file));
            let gone =
                matches!(&reply, Ok(PeerTarndReply::Refused(why)) if why.code == Code::NotFound);
            assert!(gone, "{reply:?}");
        }
        let list = PeerTarndRequest::Partitions {
            space: "@s3.0.1".into(),
            path: b"".into(),
            after: String::new(),
        };
        let reply = two.call_data_server(&bed, right, &list);
        assert!(
            matches!(&reply, Ok(PeerTarndReply::Refused(why)) if why.code == Code::Unsupported)
        );
        cut = Some(stream);
    });
    // A stream that outlives the step is cut, and the piece gone when the step has ended.
    let mut stream = cut.expect("it was open");
    match stream.read(&mut [0; 1]) {
        Ok(0) => {}
        Err(e) if e.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("{other:?}"),
    }
    for node in ["n1", "n2"] {
        let work = std::fs::read_dir(bed.tier(node).work());
        assert_eq!(work.into_iter().flatten().count(), 0, "on {node}");
    }
    let reply = two.call_data_server(&bed, bed.data.1, &export("@s3.0.1", FILE));
    assert!(matches!(reply, Ok(PeerTarndReply::Refused(_))), "{reply:?}");
    // Another attempt has its own.
    two.run(&bed, 2, || {
        let program = Program::connect(&socket(&bed, "n2", 2), None).unwrap();
        let (_, far) = program
            .open_partition(Some("n1"), STEP, FILE, true)
            .unwrap();
        assert!(far.is_some_and(|far| far.seal.is_none() && far.windows.is_none()));
    });
}

fn what_is_sealed() {
    let bed = Bed::make();
    let Some(two) = two(&bed, "sealed") else {
        return;
    };
    two.run(&bed, 1, || {
        let program = Program::connect(&socket(&bed, "n1", 1), None).unwrap();
        let (_, far) = program
            .open_partition(Some("n2"), STEP, FILE, true)
            .unwrap();
        assert!(far.is_some_and(|far| far.seal.is_some()));
    });
}

fn what_has_a_window() {
    let bed = Bed::make();
    if !shim(&bed) {
        return;
    }
    let Some(two) = two(&bed, "libfabric") else {
        return;
    };
    two.run(&bed, 1, || {
        let program = Program::connect(&socket(&bed, "n1", 1), None).unwrap();
        let (stream, far) = program
            .open_partition(Some("n2"), STEP, FILE, true)
            .unwrap();
        let windows = far.and_then(|far| far.windows);
        assert!(windows.is_some_and(|w| w.provider.starts_with("tcp")));
        let mut stream = used(stream);
        let offered = answered(&mut stream, &storage::StorageRequest::of(Verb::Window), b"");
        assert!(offered.code == 0 && offered.value > 0, "{offered:?}");
    });
}
