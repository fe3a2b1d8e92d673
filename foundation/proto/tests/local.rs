//! Packets of the local socket: written packets are read, and nothing else is.

use proptest::collection::vec;
use proptest::prelude::*;
use tarn_proto::local::*;
use tarn_types::grant::{Grant, Grantee};
use tarn_types::id::{InstanceId, NodeId, StepId};

fn path() -> impl Strategy<Value = PathBytes> {
    vec(any::<u8>(), 0..40).prop_map(PathBytes)
}

fn place() -> impl Strategy<Value = TaskLocation> {
    prop_oneof![
        ("[a-z]{0,9}", path()).prop_map(|(name, path)| TaskLocation::Space { name, path }),
        (any::<u32>(), any::<u64>(), any::<u64>()).prop_map(|(region, offset, length)| {
            TaskLocation::Memory {
                region,
                offset,
                length,
            }
        }),
        ("[a-z]{0,9}", "[a-z]{0,9}", path()).prop_map(|(node, space, path)| TaskLocation::Node {
            node,
            space,
            path
        }),
        path().prop_map(TaskLocation::External),
    ]
}

fn allocation() -> impl Strategy<Value = Allocation> {
    let who = prop_oneof![
        any::<u32>().prop_map(Grantee::User),
        any::<u32>().prop_map(Grantee::Group)
    ];
    let grant = (who, any::<bool>()).prop_map(|(who, write)| Grant { who, write });
    prop_oneof![
        (vec(grant, 0..5), any::<Option<u32>>())
            .prop_map(|(grants, unit)| Allocation::Make { grants, unit }),
        Just(Allocation::Resize),
        Just(Allocation::Grow),
        vec(any::<u8>(), 0..9).prop_map(|first| Allocation::MakeWith { first }),
    ]
}

fn task() -> impl Strategy<Value = TaskSpec> {
    let kind = prop_oneof![
        Just(TaskOperation::Nothing),
        (place(), place()).prop_map(|(from, to)| TaskOperation::Copy { from, to }),
        (place(), place()).prop_map(|(from, to)| TaskOperation::Move { from, to }),
        place().prop_map(|at| TaskOperation::Remove { at }),
        (place(), any::<u64>(), allocation())
            .prop_map(|(at, bytes, how)| TaskOperation::Allocate { at, bytes, how }),
    ];
    let rest = (
        any::<u8>(),
        any::<Option<u64>>(),
        any::<u64>(),
        any::<(bool, bool)>(),
        vec(any::<u64>(), 0..4),
    );
    (kind, rest).prop_map(
        |(kind, (priority, deadline, rate, flags, after))| TaskSpec {
            priority,
            deadline,
            rate,
            durable: flags.0,
            replace: flags.1,
            after,
            ..TaskSpec::new(kind)
        },
    )
}

fn scope() -> impl Strategy<Value = Scope> {
    prop_oneof![
        vec(any::<u64>(), 0..9).prop_map(Scope::Tasks),
        any::<u64>().prop_map(Scope::Job),
        Just(Scope::All),
    ]
}

fn request() -> impl Strategy<Value = LocalRequest> {
    prop_oneof![
        (any::<u16>(), any::<u16>(), any::<Option<u64>>()).prop_map(|(oldest, newest, job)| {
            LocalRequest::Hello {
                oldest,
                newest,
                job,
            }
        }),
        vec(task(), 0..8).prop_map(LocalRequest::Submit),
        (vec(any::<u64>(), 0..9), any::<bool>(), any::<u64>())
            .prop_map(|(ids, any, timeout)| LocalRequest::Wait { ids, any, timeout }),
        any::<u64>().prop_map(|length| LocalRequest::Register { length }),
        Just(LocalRequest::Spaces),
        scope().prop_map(LocalRequest::Pause),
        scope().prop_map(LocalRequest::Resume),
        (any::<Option<u8>>(), "[a-z]{0,9}", path(), any::<bool>()).prop_map(
            |(node, space, path, write)| LocalRequest::Open {
                node: node.map(|n| format!("n{n}")),
                space,
                path,
                write
            }
        ),
        (any::<Option<u8>>(), "[a-z]{0,9}", path(), "[a-z]{0,9}").prop_map(
            |(node, space, path, after)| LocalRequest::Partitions {
                node: node.map(|n| format!("n{n}")),
                space,
                path,
                after
            }
        ),
    ]
}

proptest! {
    #[test]
    fn requests_come_back(request in request(), number in any::<u32>()) {
        let mut bytes = vec![7];
        encode(VERSION, number, &request, &mut bytes).unwrap();
        let packet: Packet<LocalRequest> = decode(&bytes).unwrap();
        prop_assert_eq!((packet.version, packet.number, packet.message), (VERSION, number, request));
    }

    #[test]
    fn a_cut_or_longer_packet_is_refused(request in request(), cut in any::<proptest::sample::Index>()) {
        let mut bytes = Vec::new();
        encode(VERSION, 1, &request, &mut bytes).unwrap();
        let shorter = &bytes[..cut.index(bytes.len())];
        prop_assert!(decode::<LocalRequest>(shorter).is_err());
        bytes.push(0);
        prop_assert!(decode::<LocalRequest>(&bytes).is_err());
    }

    #[test]
    fn garbage_never_panics(bytes in vec(any::<u8>(), 0..300)) {
        let mut packet = vec![1, 0, 0, 0, 0, 0];
        packet.extend_from_slice(&bytes);
        let _ = decode::<LocalRequest>(&packet);
        let _ = decode::<Reply>(&packet);
        let _ = decode::<Reply>(&bytes);
    }

    #[test]
    fn one_changed_byte_never_panics(request in request(), at in any::<proptest::sample::Index>(), to in any::<u8>()) {
        let mut bytes = Vec::new();
        encode(VERSION, 1, &request, &mut bytes).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = to;
        let _ = decode::<LocalRequest>(&bytes);
    }
}

fn ask() -> impl Strategy<Value = PeerTarndRequest> {
    let space = || "[a-z]{0,9}";
    prop_oneof![
        (space(), path(), any::<bool>()).prop_map(|(space, path, hashes)| PeerTarndRequest::List {
            space,
            path,
            hashes
        }),
        (space(), path(), space(), any::<(u64, u128)>()).prop_map(
            |(space, path, node, (task, print))| PeerTarndRequest::Release {
                space,
                path,
                node,
                task,
                print
            }
        ),
        task().prop_map(|t| PeerTarndRequest::Submit(Box::new(t))),
        any::<u64>().prop_map(PeerTarndRequest::Look),
        (
            any::<[u32; 4]>(),
            any::<[u64; 3]>(),
            any::<[bool; 2]>(),
            vec(any::<u8>(), 0..99)
        )
            .prop_map(|([from, step, index, attempt], numbers, ends, piece)| {
                PeerTarndRequest::Step(StepMessage {
                    from: NodeId(from),
                    epoch: numbers[0],
                    number: numbers[1],
                    after: numbers[2],
                    step: (
                        InstanceId {
                            step: StepId(step),
                            index,
                        },
                        attempt,
                    ),
                    first: ends[0],
                    last: ends[1],
                    piece,
                })
            }),
        (space(), path(), space()).prop_map(|(space, path, after)| PeerTarndRequest::Partitions {
            space,
            path,
            after
        }),
    ]
}

proptest! {
    /// Messages between nodes come back, and nothing else is understood.
    #[test]
    fn messages_of_nodes_come_back(ask in ask(), garbage in vec(any::<u8>(), 0..200)) {
        let mut bytes = pack(&ask).unwrap();
        prop_assert_eq!(unpack::<PeerTarndRequest>(&bytes), Ok(ask));
        prop_assert!(unpack::<PeerTarndRequest>(&bytes[..bytes.len() - 1]).is_err());
        bytes.push(0);
        prop_assert!(unpack::<PeerTarndRequest>(&bytes).is_err());
        bytes[0] ^= 0x40;
        prop_assert!(unpack::<PeerTarndRequest>(&bytes).unwrap_err().to_string().contains("version"));
        let _ = unpack::<PeerTarndRequest>(&garbage);
        let _ = unpack::<PeerTarndReply>(&[&PEER_VERSION.to_le_bytes()[..], &garbage].concat());
    }
}

/// A false length must not make the parser take the memory it names.
#[test]
fn lying_lengths_are_refused() {
    // Submit with 2^60 tasks, and with a path of 2^60 bytes.
    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f];
    let mut many = vec![1, 0, 0, 0, 0, 0, 1];
    many.extend_from_slice(&huge);
    assert_eq!(decode::<LocalRequest>(&many), Err(PacketError::Garbage));
    let mut long = vec![1, 0, 0, 0, 0, 0, 1, 1, 3, 3];
    long.extend_from_slice(&huge);
    assert_eq!(decode::<LocalRequest>(&long), Err(PacketError::Garbage));
}

#[test]
fn versions_and_sizes_have_bounds() {
    assert_eq!(versions(1, 1), Some(1));
    assert_eq!(versions(1, 99), Some(VERSION));
    assert_eq!(versions(VERSION + 1, 99), None);
    assert_eq!(versions(0, 0), None);
    let mut bytes = Vec::new();
    encode(VERSION, 0, &LocalRequest::Stats, &mut bytes).unwrap();
    bytes[0] = 9;
    assert_eq!(decode::<LocalRequest>(&bytes), Err(PacketError::Version(9)));
    let many = vec![
        TaskSpec::new(TaskOperation::Remove {
            at: TaskLocation::External(vec![b'x'; 300].into())
        });
        MAX_BATCH
    ];
    assert_eq!(
        encode(VERSION, 0, &LocalRequest::Submit(many), &mut bytes),
        Err(PacketError::TooLarge)
    );
    assert_eq!(
        decode::<LocalRequest>(&vec![0; MAX_PACKET + 1]),
        Err(PacketError::TooLarge)
    );
}

/// Fixed packets: the layout of version 1 never changes.
#[test]
fn version_1_stays_as_it_is() {
    let mut bytes = Vec::new();
    let hello = LocalRequest::Hello {
        oldest: 1,
        newest: 1,
        job: Some(7),
    };
    encode(1, 2, &hello, &mut bytes).unwrap();
    assert_eq!(bytes, [1, 0, 2, 0, 0, 0, 0, 1, 1, 1, 7]);
    let task = TaskSpec::new(TaskOperation::Copy {
        from: TaskLocation::Space {
            name: "a".into(),
            path: b"x".into(),
        },
        to: TaskLocation::Memory {
            region: 3,
            offset: 0,
            length: 4,
        },
    });
    encode(1, 0, &LocalRequest::Submit(vec![task]), &mut bytes).unwrap();
    let body = [
        1, 1, 1, 0, 1, b'a', 1, b'x', 1, 3, 0, 4, 100, 0, 1, 0, 0, 0, 0,
    ];
    assert_eq!(bytes[6..], body);
    let outcome = TaskOutcome {
        id: 9,
        end: TaskEnd::Done,
        bytes: 1,
        nanos: 2,
        late: false,
        checksum: None,
    };
    encode(1, 0, &Reply::Outcomes(vec![outcome]), &mut bytes).unwrap();
    assert_eq!(bytes[6..], [4, 1, 9, 0, 1, 2, 0, 0]);
}
