//! Nodes that a host puts to sleep and wakes.

use super::*;
use crate::plan::Wakefulness;

/// A site on which nodes sleep when they were idle for 100 s.
fn site(policy: &str) -> Site {
    Site::with(policy.parse().expect("a policy"))
}

impl Site {
    fn at(&mut self, seconds: u64, event: SiteEvent) -> Vec<SiteAction> {
        self.now = seconds * SECOND;
        self.event(event);
        self.actions.clone()
    }
}

fn asleep(actions: &[SiteAction]) -> Vec<u32> {
    let nodes = actions.iter().filter_map(|action| match action {
        SiteAction::Sleep { node } => Some(node.0),
        _ => None,
    });
    nodes.collect()
}

fn woken(actions: &[SiteAction]) -> Vec<NodeId> {
    let woken = actions.iter().filter_map(|action| match action {
        SiteAction::Wake { node } => Some(*node),
        _ => None,
    });
    woken.collect()
}

fn needed(node: u32, is_needed: bool) -> SiteEvent {
    SiteEvent::Needed {
        node: NodeId(node),
        is_needed,
    }
}

#[test]
fn idle_nodes_sleep_after_the_time_that_the_site_gives() {
    let mut site = site("data:sleep=100s,awake=2");
    assert!(asleep(&site.at(0, needed(0, true))).is_empty());
    assert_eq!(site.planner.deadline(), Some(100 * SECOND));
    assert!(asleep(&site.at(99, SiteEvent::Timer)).is_empty());
    // Node 0 has something of the host's; of the others two stay awake, those that were busy last.
    let slept = asleep(&site.at(100, SiteEvent::Timer));
    assert_eq!(slept, [1, 2, 3]);
    assert_eq!(
        site.planner.wakefulness(NodeId(1)),
        Some(Wakefulness::Asleep)
    );
    // It is idle from now on, so it is one of the two.
    assert_eq!(asleep(&site.at(150, needed(0, false))), [4]);
    assert!(asleep(&site.at(300, SiteEvent::Timer)).is_empty());
}

#[test]
fn a_node_that_a_waiting_job_could_have_stays_awake() {
    let mut site = site("data:sleep=100s");
    // Five nodes of 4 cores or more, of which there are only four in one island: it waits for ever on the others.
    let mask: NodeMask = (0..4).map(NodeId).collect();
    let large = Job {
        on: Some(Arc::new(mask)),
        ..job(4, 4)
    };
    site.submit(&[(0, large.clone()), (1, large)]);
    let slept = asleep(&site.at(200, SiteEvent::Timer));
    assert_eq!(slept, [4, 5], "those that neither job may have");
}

#[test]
fn a_job_wakes_the_nodes_that_it_lacks() {
    let mut site = site("data:sleep=100s");
    assert_eq!(asleep(&site.at(100, SiteEvent::Timer)).len(), 6);
    site.submit(&[(0, job(2, 4))]);
    let first = woken(&site.actions);
    assert_eq!(first.len(), 2);
    // One of them is found asleep: the wish was not followed, and comes again.
    site.at(140, SiteEvent::Asleep { node: first[0] });
    assert_eq!(woken(&site.actions), [first[0]]);
    for node in first {
        site.at(150, SiteEvent::Awake { node });
    }
    assert_eq!(site.allocated(0).map(|nodes| nodes.len()), Some(2));
}

#[test]
fn nodes_that_are_being_powered_down_are_woken_last_and_once_they_are_off() {
    let mut site = site("data:sleep=100s");
    let all = asleep(&site.at(100, SiteEvent::Timer));
    assert_eq!(all.len(), 6);
    let wakeable = |node, is_wakeable| SiteEvent::Wakeable {
        node: NodeId(node),
        is_wakeable,
    };
    // Of the island whose nodes have four cores, one is off.
    for node in [0, 1, 3] {
        site.at(101, wakeable(node, false));
    }
    site.submit(&[(0, job(2, 4))]);
    assert_eq!(woken(&site.actions), [NodeId(2)]);
    let actions = site.at(110, wakeable(3, true));
    assert_eq!(woken(&actions), [NodeId(3)]);
    assert_eq!(woken(&site.at(120, wakeable(0, true))), []);
    for node in [2, 3].map(NodeId) {
        site.at(150, SiteEvent::Awake { node });
    }
    assert_eq!(site.allocated(0), Some(vec![2, 3]));
}

#[test]
fn a_host_puts_nodes_to_sleep_and_wakes_them_as_it_likes() {
    let mut site = site("energy");
    site.at(0, SiteEvent::Asleep { node: NodeId(3) });
    assert_eq!(
        site.planner.wakefulness(NodeId(3)),
        Some(Wakefulness::Asleep)
    );
    // The host begins a job there: it is awake.
    site.submit(&[(0, job(1, 4))]);
    assert_ne!(site.allocated(0), Some(vec![3]));
    site.began(0, &[3], WHOLE).expect("the host may");
    assert_eq!(
        site.planner.wakefulness(NodeId(3)),
        Some(Wakefulness::Awake)
    );
    // Nothing follows of one that has a job.
    site.at(10, SiteEvent::Asleep { node: NodeId(3) });
    assert_eq!(
        site.planner.wakefulness(NodeId(3)),
        Some(Wakefulness::Awake)
    );
}
