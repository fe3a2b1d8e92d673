//! The log of a run that lost a node, as the commands read it. The run itself is played in the simulated world.

mod common;

use common::Site;
use serde_json::Value;
use std::path::Path;
use tarn_engine::{Engine, drive};
use tarn_journal::LogWriter;
use tarn_simulator::{Estimates, Keeps, Outage, SimEntry, Simulation};
use tarn_types::action::Outcome;
use tarn_types::cluster::{Cluster, Host, Link, Node, Tier};
use tarn_types::event::{Event, Options, Start, Verify};
use tarn_types::id::NodeId;
use tarn_types::policy::{Order, Policy};
use tarn_types::units::SECOND;

const WORKFLOW: &str = r#"
name = "w"
[data.a]
[data.b]
dest = "b"
[[step]]
name = "make"
foreach = ["1", "2", "3", "4"]
run = "x"
out = ["a"]
[[step]]
name = "join"
run = "x"
in = ["a"]
out = ["b"]
"#;

fn start(folder: &Path) -> Start {
    let parsed = tarn_spec::parse("workflow.toml", WORKFLOW, folder);
    let mut parsed = parsed.unwrap_or_else(|e| panic!("{:?}", e.problems()));
    parsed.finish_codes(&|_| None);
    let link = Link {
        read: 1 << 30,
        write: 1 << 30,
        latency: 0,
        streams: 4,
        emulated: false,
    };
    let node = |n: u32| Node {
        name: format!("node{n}"),
        host: n,
        cores: 1,
        memory: 1 << 30,
        gpus: 0,
        tiers: vec![Tier {
            name: "t".into(),
            root: "/t".into(),
            capacity: 1 << 30,
            read: 1 << 30,
            write: 1 << 30,
            lender: None,
        }],
    };
    let host = |n: u32| Host {
        name: format!("host{n}"),
        cores: 1,
        memory: 1 << 30,
        sockets: Vec::new(),
        draw: Default::default(),
    };
    Start {
        run: "w-1".into(),
        workspace: "w".into(),
        wall: 0,
        workflow: parsed.workflow.clone(),
        cluster: Cluster {
            hosts: (0..2).map(host).collect(),
            nodes: (0..2).map(node).collect(),
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

/// Simulates a run that loses `node1`, with the first part that was made there and the steps that run there, and has it back.
fn played(site: &Site, keeps: Keeps) {
    let start = start(&site.path(""));
    let estimates = Estimates {
        run_time: Box::new(|_| 2 * SECOND),
        output: Box::new(|_, _| vec![SimEntry::file("f", 1 << 20)]),
        ..Estimates::default()
    };
    let mut sim = Simulation::new(&start, estimates);
    let lasts = Some(SECOND / 2);
    sim.lose_node(3 * SECOND, NodeId(1), Outage { lasts, keeps });
    let folder = site.path(".tarn/runs/w-1");
    std::fs::create_dir_all(&folder).expect("mkdir");
    let mut log = LogWriter::create(&folder.join("events.log")).expect("a log");
    let first = Event::Started(Box::new(start));
    let played = drive(
        &mut Engine::new(),
        &mut sim,
        &mut log,
        first,
        0,
        &mut |_| {},
    );
    assert_eq!(played.expect("the loop"), Outcome::Done);
}

#[test]
fn what_a_lost_node_led_to_is_decided_again_and_told() {
    for keeps in [Keeps::Nothing, Keeps::All] {
        let site = Site::new(WORKFLOW);
        played(&site, keeps);
        let replayed = site.tarn(&["sim", "--replay", "w-1", "--json"]).exits(0);
        let replayed = replayed.summary();
        assert_eq!(replayed["difference"], Value::Null);
        assert_eq!(replayed["agreed_records"], replayed["records"]);
        assert_eq!(replayed["recorded_by"], serde_json::json!([]));
        site.tarn(&["status", "w-1"])
            .exits(0)
            .prints("lost: node1 at 3.00 s with 1 replica(s), 1.00 MiB, and 1 running attempt(s): as the fault plan wants it; back at 3.50 s");
        let status = site.tarn(&["status", "w-1", "--json"]).exits(0).summary();
        assert_eq!(status["lost_nodes"][0]["node"], "node1");
        let why = site.tarn(&["why", "--run", "w-1", "node1"]).exits(0);
        why.prints("node1 is lost").prints("node1 is back");
    }
}
