//! The state's account of itself holds after every kind of event.

use super::*;
use tarn_types::cluster::{Cluster, Host, Link, Node, Tier};
use tarn_types::event::{Options, Output, Undeclared};
use tarn_types::hash::Hash;
use tarn_types::id::{NodeId, StepId, TierId, TierRef, TransferId};
use tarn_types::part::{PartClass, PartMove, StoreKey, Transfer, TransferKind, Verify};
use tarn_types::policy::{Order, Policy};

const TIER_REF: TierRef = TierRef {
    node: NodeId(0),
    tier: TierId(0),
};

fn start(text: &str) -> Start {
    let mut parsed = tarn_spec::parse("test.toml", text, std::path::Path::new("/w")).unwrap();
    parsed.finish_codes(&|_| None);
    let link = Link {
        read: 1,
        write: 1,
        latency: 0,
        streams: 1,
        emulated: false,
    };
    let tier = Tier {
        name: "t".into(),
        root: "/t".into(),
        capacity: 1000,
        read: 1,
        write: 1,
        lender: None,
    };
    let (cores, memory) = (1, 1);
    Start {
        run: "r".into(),
        workspace: "w".into(),
        wall: 0,
        workflow: parsed.workflow.clone(),
        cluster: Cluster {
            hosts: vec![Host {
                name: "h".into(),
                cores,
                memory,
                sockets: Vec::new(),
                draw: Default::default(),
            }],
            nodes: vec![Node {
                name: "n".into(),
                host: 0,
                cores,
                memory,
                gpus: 0,
                tiers: vec![tier],
            }],
            external: link.clone(),
            peer: link,
        },
        options: Options {
            policy: Policy::new(Order::Data, None),
            verify: Verify::Copy,
            cache: 0,
            fail_fast: false,
        },
        prior: Vec::new(),
        prior_dest: Vec::new(),
        prior_data: Vec::new(),
        allocation: None,
        sealed: false,
        pinned: Vec::new(),
        set_aside: None,
    }
}

#[test]
fn a_resumed_run_does_not_count_what_was_delivered_as_undelivered() {
    let text =
        "name = \"w\"\n[data.a]\ndest = \"/a\"\n[[step]]\nname = \"s\"\nrun = \"x\"\nout = \"a\"\n";
    let mut state = EngineState::new(0, &start(text));
    let part = PartRef {
        data: DataId(0),
        version: 1,
        origin: 0,
        seq: 0,
    };
    let info = PartInfo {
        seq: 0,
        class: PartClass::Whole,
        bytes: 1,
        stored: 1,
        files: 1,
        hash: Some(Hash(1)),
        key: StoreKey("k".into()),
    };
    let made = Output {
        data: DataId(0),
        version: 1,
        parts: vec![(info, vec![TIER_REF])],
    };
    let instance = InstanceId {
        step: StepId(0),
        index: 0,
    };
    state.assigned(instance, &[TIER_REF], 0, 0);
    let demand = Demand::of(state.start.workflow.step(instance.step));
    state.ledger.take(&[TIER_REF], demand);
    let committed = AttemptOutcome::Committed {
        outputs: vec![made],
        undeclared: Undeclared::default(),
    };
    state.ended(instance, &committed, &Usage::default());
    assert!(state.undelivered.contains(&DataId(0)));
    let to = Place::External("/a".into());
    let delivery = Transfer {
        id: TransferId(0),
        data: DataId(0),
        version: 1,
        parts: vec![PartMove {
            part,
            from: Place::Node(TIER_REF),
        }],
        to: to.clone(),
        kind: TransferKind::ExternalOut,
        verify: Verify::Copy,
        priority: 0,
    };
    state.transfer_begun(&delivery, &Reason::Deliver);
    state.transfer_done(TransferId(0), &[Hash(1)], &[1]);
    state.resumed(&[(part, to)]);
    assert!(state.undelivered.is_empty());
    state.resumed(&[(part, Place::Node(TIER_REF))]);
    assert!(state.undelivered.contains(&DataId(0)), "its dest is lost");
}
