//! Events as they stand in logs.

use tarn_types::event::{Event, IntactReplica, RunErrorKind};
use tarn_types::id::{DataId, NodeId, TierId};
use tarn_types::part::{PartRef, StoreKey};

#[test]
fn a_log_says_by_name_which_node_was_lost_and_which_is_back() {
    let lost = Event::NodeLost {
        node: NodeId(1),
        why: "no heartbeat for 10 s".into(),
    };
    let back = Event::NodeBack {
        node: NodeId(1),
        capacities: vec![5, 6],
        whole: vec![IntactReplica {
            part: PartRef {
                data: DataId(0),
                version: 1,
                origin: 0,
                seq: 0,
            },
            key: StoreKey("a.0.w-1.1.0".into()),
            tier: TierId(1),
            stored: 4096,
        }],
    };
    assert_eq!(
        serde_json::to_string(&lost).unwrap(),
        r#"{"event":"node-lost","node":1,"why":"no heartbeat for 10 s"}"#
    );
    let text = r#"{"event":"node-back","node":1,"capacities":[5,6],"whole":[{"part":{"data":0,"version":1,"origin":0,"seq":0},"key":"a.0.w-1.1.0","tier":1,"stored":4096}]}"#;
    assert_eq!(serde_json::to_string(&back).unwrap(), text);
    assert_eq!(serde_json::from_str::<Event>(text).unwrap(), back);
    assert_eq!(
        serde_json::to_string(&RunErrorKind::NodeLost).unwrap(),
        r#""node-lost""#
    );
}
