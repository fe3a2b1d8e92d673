//! One cluster of the properties that nodes report.

mod common;
use common::*;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tarn_cluster::{
    MeasureError, NoAnswer, NodeCallError, NodeLink, NodeLinkMeasurement, ReachableNode, measure,
    measure_links,
};
use tarn_proto::node::{self, NodeReply, NodeRequest, VERSION};
use tarn_types::cluster::Cluster;
use tarn_types::nodes::{PathAppearance, SharedPath};

/// The time that measuring one link takes.
const LINK: Duration = Duration::from_millis(50);

type Responder = Box<dyn Fn(&NodeRequest) -> Option<NodeReply> + Send + Sync>;

struct One(Responder);

impl NodeLink for One {
    fn send_command(&self, _: Vec<u8>) -> bool {
        false
    }
    fn call(&self, request: Vec<u8>, timeout: Option<Duration>) -> Result<Vec<u8>, NoAnswer> {
        let timeout = timeout.expect("a deadline");
        let answer = (self.0)(&node::decode(&request).unwrap());
        let answer = answer.ok_or(NoAnswer::Late(timeout))?;
        Ok(node::encode(answer).unwrap())
    }
    fn over(&self) -> Option<String> {
        None
    }
    fn end(&self) {}
}

fn linked(
    name: &str,
    respond: impl Fn(&NodeRequest) -> Option<NodeReply> + Send + Sync + 'static,
) -> ReachableNode {
    ReachableNode {
        name: name.into(),
        link: Arc::new(One(Box::new(respond))),
        data: (name.into(), 1),
    }
}

/// The cluster that node `n` reports.
fn own(n: u32, host: &str) -> Cluster {
    let mut cluster = cluster_of(1);
    cluster.nodes[0].name = format!("node{n}");
    cluster.nodes[0].cores = 1 + n;
    cluster.hosts[0].name = host.into();
    cluster
}

fn honest(n: u32, host: &'static str) -> ReachableNode {
    linked(&format!("n{n}"), move |_| {
        Some(NodeReply::Cluster(own(n, host)))
    })
}

fn measured(links: &[ReachableNode]) -> Result<Cluster, MeasureError> {
    let state = tempfile::tempdir().unwrap();
    let mut external = cluster_of(1).external;
    external.streams = 9;
    let sights = [SharedPath {
        title: "the state folder".into(),
        path: state.path().into(),
        look: PathAppearance::Other,
    }];
    measure(
        links,
        &["fast=/tier".into()],
        &external,
        state.path(),
        &sights,
    )
}

#[test]
fn hosts_and_nodes_are_in_the_order_of_the_links() {
    let cluster = measured(&[honest(2, "b"), honest(0, "a"), honest(1, "b")]).unwrap();
    let nodes = cluster
        .nodes
        .iter()
        .map(|n| (n.name.as_str(), n.host, n.cores));
    assert_eq!(
        nodes.collect::<Vec<_>>(),
        [("node2", 0, 3), ("node0", 1, 1), ("node1", 0, 2)]
    );
    let hosts: Vec<_> = cluster.hosts.iter().map(|h| h.name.as_str()).collect();
    assert_eq!((hosts, cluster.external.streams), (vec!["b", "a"], 9));
}

#[test]
fn every_node_is_asked_what_it_sees() {
    let sees = linked("n", |call| {
        let NodeRequest::Measure {
            version,
            tiers,
            state,
            sights,
            ..
        } = call
        else {
            return None;
        };
        assert_eq!((*version, tiers.len(), sights.len()), (VERSION, 1, 1));
        assert_eq!(sights[0].path, *state);
        Some(NodeReply::Cluster(own(0, "a")))
    });
    measured(&[sees]).unwrap();
}

#[test]
fn something_may_stand_in_for_a_tier_unless_no_node_has_it() {
    let without = |n: u32| {
        linked(&format!("n{n}"), move |_| {
            let mut own = own(n, &format!("h{n}"));
            own.nodes[0].tiers[0].root = format!("/dev/shm/{n}.stand-in").into();
            Some(NodeReply::Cluster(own))
        })
    };
    let cluster = measured(&[without(1), honest(0, "a"), without(2), honest(3, "b")]).unwrap();
    let stand_in = cluster.nodes.iter().map(|n| n.tiers[0].stands_in());
    assert_eq!(stand_in.collect::<Vec<_>>(), [true, false, true, false]);
    let why = measured(&[without(1), without(2)]).unwrap_err().to_string();
    assert!(
        why.contains("tier fast=/tier") && why.contains("none of the nodes"),
        "{why}"
    );
}

#[test]
fn what_is_no_cluster_is_refused_with_names() {
    let error = |links: &[ReachableNode]| measured(links).unwrap_err().to_string();
    let other = linked("n1", |_| {
        let mut own = own(1, "b");
        own.nodes[0].tiers[0].root = "/scratch".into();
        Some(NodeReply::Cluster(own))
    });
    let why = error(&[honest(0, "a"), other]);
    assert!(
        why.contains("node0 has fast=/tier, node1 has fast=/scratch"),
        "{why}"
    );
    let old = linked("n1", |_| {
        Some(NodeReply::Failed("tarnd is 0.0.9, this tarn 0.1.0".into()))
    });
    let why = error(&[honest(0, "a"), old]);
    assert_eq!(
        why,
        "node n1 cannot be used: tarnd is 0.0.9, this tarn 0.1.0"
    );
    let why = error(&[honest(0, "a"), linked("n1", |_| None)]);
    assert!(
        why.contains("n1") && why.contains("did not answer within"),
        "{why}"
    );
    let why = error(&[linked("n1", |_| Some(NodeReply::Done))]);
    assert!(why.contains("it sent a message that"), "{why}");
    assert!(error(&[honest(0, "a"), honest(0, "b")]).contains("have the name node0"));
    assert!(matches!(measured(&[]), Err(MeasureError::None)));
}

/// Nodes each of which takes some time to measure a link and reports its `rate`.
fn ring(
    nodes: usize,
    rate: impl Fn(usize) -> Result<u64, String> + Clone + Send + Sync + 'static,
) -> (Vec<NodeLinkMeasurement>, Cluster) {
    let mut cluster = cluster_of(nodes as u32);
    (cluster.peer.read, cluster.peer.write) = (1000, 500);
    let busy: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let links: Vec<ReachableNode> = (0..nodes)
        .map(|n| {
            let (busy, rate) = (Arc::clone(&busy), rate.clone());
            linked(&format!("node{n}"), move |call| {
                let NodeRequest::Link { from, at, state } = call else {
                    return None;
                };
                assert_eq!((&at.0, &**state), (from, Path::new("/state")));
                let both = [format!("node{n}"), from.clone()];
                {
                    let mut busy = busy.lock().unwrap();
                    for one in &both {
                        assert!(busy.insert(one.clone()), "{one} does two things at once");
                    }
                }
                std::thread::sleep(LINK);
                busy.lock().unwrap().retain(|one| !both.contains(one));
                Some(rate(n).map_or_else(NodeReply::Failed, NodeReply::Rate))
            })
        })
        .collect();
    let between = measure_links(&links, &mut cluster, Path::new("/state"));
    (between, cluster)
}

#[test]
fn links_are_measured_in_rounds_and_the_median_is_taken() {
    for nodes in 2..8 {
        let (between, cluster) = ring(nodes, |n| Ok(100 + n as u64));
        let seen = between
            .iter()
            .map(|b| (b.to.clone(), b.from.clone(), b.rate.clone()));
        let wanted = (0..nodes).map(|n| {
            let from = format!("node{}", (n + 1) % nodes);
            (format!("node{n}"), from, Ok(100 + n as u64))
        });
        assert!(seen.eq(wanted), "{between:?}");
        let median = 100 + (nodes as u64 - 1) / 2;
        assert_eq!((cluster.peer.read, cluster.peer.write), (median, median));
    }
    // As long as three rounds take, not as long as 64 links do.
    let began = Instant::now();
    let (between, cluster) = ring(63, |_| Ok(700));
    assert!(began.elapsed() < 63 * LINK);
    assert_eq!(between.len(), 63);
    // A copy is no faster than the tiers at its ends.
    assert_eq!((cluster.peer.read, cluster.peer.write), (700, 500));
    let (between, cluster) = ring(1, |_| Ok(1));
    assert_eq!((between, cluster.peer.read), (vec![], 1000));
}

#[test]
fn a_link_that_cannot_be_measured_is_said_and_decides_nothing() {
    let (between, cluster) = ring(4, |n| match n {
        2 => Err("node3 is silent".into()),
        n => Ok(100 + n as u64),
    });
    let refused = NodeCallError::Refused("node3 is silent".into());
    assert_eq!(between[2].rate, Err(refused));
    assert_eq!(cluster.peer.read, 101);
    let (between, cluster) = ring(3, |_| Err("no".into()));
    assert!(between.iter().all(|b| b.rate.is_err()));
    assert_eq!((cluster.peer.read, cluster.peer.write), (1000, 500));
}
