//! Two nodes: what one has made is moved to the other.

use crate::Test;
use crate::bed::*;
use std::collections::BTreeMap;
use std::path::Path;
use tarn_base::action::Do;
use tarn_base::event::{Event, Failure, FailureKind};
use tarn_base::id::{DataId, NodeId, TransferId};
use tarn_base::nodes::Staying;
use tarn_base::part::{PartMove, Place, Transfer, TransferKind, Verify};
use tarn_proto::node::Told;

pub(crate) const TESTS: &[Test] = &[("peers::a_replica_is_pulled", a_replica_is_pulled)];

fn transfer(id: u64) -> Do {
    Do::Transfer(Transfer {
        id: TransferId(id),
        data: DataId(LARGE),
        version: 1,
        parts: vec![PartMove {
            part: part(LARGE),
            from: Place::Node(spot(0)),
        }],
        to: Place::Node(spot(1)),
        kind: TransferKind::Peer,
        verify: Verify::Copy,
        priority: 1,
    })
}

fn tree(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            let path = entry.path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let name = path.strip_prefix(root).unwrap().display().to_string();
                    found.insert(name, std::fs::read(&path).unwrap());
                }
            }
        }
    }
    found
}

fn failed(event: Event) -> Failure {
    match event {
        Event::TransferFailed { failure, .. } => failure,
        other => panic!("{other:?}"),
    }
}

fn a_replica_is_pulled() {
    let bed = Bed::make();
    let (one, two) = (bed.start("n1", &[]), bed.start("n2", &[]));
    let (first, second) = (bed.connect(&one.started), bed.connect(&two.started));
    let both = [(&one, &first), (&two, &second)];
    first.open(bed.opening(&both, 0));
    let mut seen = bed.opening(&both, 1);
    // What is on another node is not to be seen in the file system.
    seen.cluster.nodes[0].tiers[0].root = bed.path("elsewhere");
    second.open(seen);
    first.clean(Staying::default());
    second.clean(Staying::default());
    let large = first.run(LARGE, 0);
    second.tell(Told::Know(vec![(part(LARGE), large.clone())]));
    second.order(transfer(1));
    match second.event() {
        Event::TransferDone { bytes, hashes, .. } => {
            assert_eq!(bytes, 24_000_002);
            assert_eq!(hashes, [large.hash.unwrap()]);
        }
        other => panic!("{other:?}"),
    }
    let [from, to] = ["n1", "n2"].map(|n| tree(&bed.tier(n).part(&large.key)));
    assert_eq!(from.len(), 9);
    assert!(from == to);
    // What is withdrawn is not served any more.
    let at = Place::Node(spot(0));
    let (gone, key) = (part(LARGE), large.key.clone());
    first.order(Do::Evict {
        part: gone,
        key,
        at,
    });
    assert!(matches!(first.event(), Event::Evicted { .. }));
    second.order(transfer(2));
    let failure = failed(second.event());
    assert!(failure.message.contains("n1"), "{failure:?}");
    second.tell(Told::NodeLost(NodeId(0)));
    second.order(transfer(3));
    let failure = failed(second.event());
    assert_eq!(failure.kind, FailureKind::NodeLost, "{failure:?}");
}
