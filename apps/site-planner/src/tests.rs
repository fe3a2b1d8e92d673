//! Snapshots of small clusters, and what the planner makes of them.

mod clock;
mod data;
mod limits;
mod modes;
mod power;
mod promised;
mod random;
mod reserve;
mod scale;
mod seniority;

use crate::jobs::KnownStage;
use crate::{RebuildReason, SitePlanner, SiteRates};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tarn_site::PlanningView;
use tarn_slurm::{
    NodeNames, PartitionState, PendingReason, SlurmJob, SlurmJobState, SlurmNode, SlurmNodeState,
    SlurmPartition, SlurmSettings, SlurmSnapshot,
};
use tarn_types::id::NodeId;
use tarn_types::policy::{Order, Policy};
use tarn_types::units::{SECOND, Time};

pub(crate) const START: u64 = 1_700_000_000;
const GIB: u64 = 1 << 30;

pub(crate) fn names(list: &[&str]) -> NodeNames {
    list.iter().map(|name| (*name).to_owned()).collect()
}

pub(crate) fn node(name: &str, cpus: u32) -> SlurmNode {
    SlurmNode {
        name: name.to_owned(),
        state: SlurmNodeState::parse("idle"),
        cpus,
        cpus_allocated: 0,
        memory: 64 * GIB,
        memory_allocated: 0,
        gres: String::new(),
        features: vec![name.to_owned()],
        active_features: vec![name.to_owned()],
        partitions: BTreeSet::from(["all".to_owned()]),
        reason: String::new(),
        extra: String::new(),
        is_incomplete: false,
    }
}

/// A cluster of so many nodes with 8 processors, `n0` and so on, in one partition.
pub(crate) fn cluster(nodes: usize) -> SlurmSnapshot {
    let all: Vec<String> = (0..nodes).map(|n| format!("n{n}")).collect();
    let partition = SlurmPartition {
        name: "all".to_owned(),
        nodes: Arc::from(&all[..]),
        max_time: None,
        tier: 1,
        state: PartitionState::Up,
        is_default: true,
        oversubscribe: "NO".to_owned(),
    };
    SlurmSnapshot {
        read_at: START,
        nodes: all.iter().map(|n| (n.clone(), node(n, 8))).collect(),
        jobs: BTreeMap::new(),
        partitions: BTreeMap::from([("all".to_owned(), partition)]),
        reservations: BTreeMap::new(),
        licences: BTreeMap::new(),
        settings: SlurmSettings {
            version: "24.11.5".to_owned(),
            boot_time: Some(START - 1_000),
            scheduler_type: "sched/backfill".to_owned(),
            scheduler_parameters: Vec::new(),
            priority_type: "priority/basic".to_owned(),
            min_job_age: Some(300),
            reservation_overrun: Some(0),
            job_completion_type: String::new(),
            energy_type: String::new(),
        },
    }
}

/// A job that waits for so many whole nodes, for at most 1,000 s.
pub(crate) fn waiting(number: u32, nodes: u32) -> SlurmJob {
    SlurmJob {
        number,
        array: None,
        het: None,
        user: 1000,
        user_name: "alice".to_owned(),
        partitions: vec!["all".to_owned()],
        qos: "normal".to_owned(),
        account: "science".to_owned(),
        state: SlurmJobState::Pending,
        reason: PendingReason::Priority,
        description: String::new(),
        priority: 1_000_000 - number,
        nice: 0,
        submitted: Some(START - 20_000 + u64::from(number)),
        eligible: Some(START - 20_000 + u64::from(number)),
        start: None,
        end: None,
        limit: Some(1_000),
        min_nodes: nodes,
        max_nodes: nodes,
        cpus: 8 * nodes,
        memory: None,
        tres_per_node: String::new(),
        is_exclusive: true,
        features: String::new(),
        preferred: String::new(),
        excluded: names(&[]),
        required: names(&[]),
        nodes: names(&[]),
        planned: names(&[]),
        reservation: String::new(),
        licences: String::new(),
        dependency: String::new(),
        has_burst_buffer: false,
        admin_comment: String::new(),
        lacks_exclusions: false,
        is_incomplete: false,
    }
}

/// The job once it has begun on these nodes.
pub(crate) fn running(job: SlurmJob, on: &[&str], since: u64) -> SlurmJob {
    SlurmJob {
        state: SlurmJobState::Running,
        reason: PendingReason::None,
        start: Some(since),
        end: job.limit.map(|limit| since + limit),
        nodes: names(on),
        min_nodes: on.len() as u32,
        ..job
    }
}

pub(crate) fn with(mut snapshot: SlurmSnapshot, jobs: Vec<SlurmJob>) -> SlurmSnapshot {
    snapshot.jobs = jobs.into_iter().map(|job| (job.number, job)).collect();
    snapshot
}

/// A site whose nodes have 100 GiB each.
pub(crate) fn empty_view(snapshot: &SlurmSnapshot) -> PlanningView {
    let capacity = |name: &String| (name.clone(), 100 * GIB);
    PlanningView {
        capacities: snapshot.nodes.keys().map(capacity).collect(),
        ..PlanningView::default()
    }
}

pub(crate) fn planner() -> SitePlanner {
    SitePlanner::new(Policy::new(Order::Data, None), SiteRates::default())
}

/// Has a planner see a snapshot at the time that it was read. It must not be refused anything.
pub(crate) fn see(planner: &mut SitePlanner, snapshot: &SlurmSnapshot, view: &PlanningView) {
    let seen = planner.see(snapshot, view, snapshot.read_at * SECOND);
    assert_eq!(seen.refused, Vec::<String>::new());
}

/// The state of its host that a planner believes in, beside its own wishes.
#[derive(Debug, PartialEq)]
pub(crate) struct HostFacts {
    running: BTreeMap<u32, BTreeSet<NodeId>>,
    /// Free cores of each node.
    free: Vec<u32>,
    /// Jobs that wait for nodes, first to last.
    queue: Vec<u32>,
    /// Bytes of data on each node.
    used: Vec<u64>,
}

pub(crate) fn facts(planner: &SitePlanner) -> HostFacts {
    let nodes = || (0..planner.topology.len() as u32).map(NodeId);
    let mut free: Vec<u32> = nodes()
        .map(|n| planner.planner.free(n).map_or(0, |f| f.cores))
        .collect();
    let mut running = BTreeMap::new();
    let mut order = Vec::new();
    for (number, known) in &planner.jobs.jobs {
        let has = known
            .ids
            .iter()
            .filter_map(|id| planner.planner.nodes_of(*id));
        let has: BTreeSet<NodeId> = has.flat_map(|nodes| nodes.iter().copied()).collect();
        match &known.stage {
            KnownStage::Has { .. } => {
                running.insert(*number, has);
            }
            KnownStage::Waits => {
                // A wish takes nothing of the host.
                for node in has {
                    let all = planner
                        .topology
                        .shape_of(node)
                        .map_or(0, |shape| shape.cores);
                    free[node.at()] += if known.spec.cores == 0 {
                        all
                    } else {
                        known.spec.cores
                    };
                }
                order.extend(
                    known
                        .ids
                        .iter()
                        .map(|id| (planner.planner.place(*id), *number)),
                );
            }
            KnownStage::Refused(_) => {}
        }
    }
    order.sort_unstable();
    HostFacts {
        running,
        free,
        queue: order.into_iter().map(|(_, number)| number).collect(),
        used: used(planner),
    }
}

fn used(planner: &SitePlanner) -> Vec<u64> {
    let mut used = vec![0; planner.topology.len()];
    for item in planner.data.items.values() {
        for (nodes, _, bytes) in planner.planner.layouts(*item) {
            nodes.iter().for_each(|node| used[node.at()] += bytes);
        }
    }
    used
}

pub(crate) fn planned(planner: &mut SitePlanner) -> BTreeMap<u32, (Vec<String>, Time)> {
    let plan = planner.plan(100 * 3600 * SECOND);
    let jobs = plan.jobs.into_iter();
    jobs.map(|job| (job.job, (job.nodes, job.begin / SECOND)))
        .collect()
}

#[test]
fn jobs_wait_for_those_that_run_as_long_as_these_are_expected_to() {
    let first = running(waiting(1, 2), &["n0", "n1"], START - 100);
    let snapshot = with(cluster(2), vec![first, waiting(2, 2), waiting(3, 1)]);
    let mut planner = planner();
    see(&mut planner, &snapshot, &empty_view(&snapshot));
    let plan = planned(&mut planner);
    // Half of the limit of 1,000 s.
    assert_eq!(plan[&1].1, START - 100);
    assert_eq!(plan[&2].1, START + 400);
    assert_eq!(plan[&3].1, START + 900);
    assert_eq!(plan[&2].0, ["n0", "n1"]);
}

#[test]
fn a_limit_that_changes_while_a_job_runs_counts_for_those_that_wait() {
    let first = running(waiting(1, 2), &["n0", "n1"], START - 100);
    let mut snapshot = with(cluster(2), vec![first, waiting(2, 2)]);
    let view = empty_view(&snapshot);
    let mut planner = planner();
    see(&mut planner, &snapshot, &view);
    assert_eq!(planned(&mut planner)[&2].1, START + 400);
    let first = snapshot.jobs.get_mut(&1).unwrap();
    (first.limit, first.end) = (Some(4_000), Some(START + 3_900));
    let seen = planner.see(&snapshot, &view, START * SECOND);
    assert_eq!((seen.rebuilt, seen.transitions), (None, Vec::new()));
    assert_eq!(planned(&mut planner)[&2].1, START + 1_900);
}

#[test]
fn a_job_whose_nodes_cannot_be_read_has_not_ended() {
    let first = running(waiting(1, 1), &["n0"], START - 30);
    let mut snapshot = with(cluster(1), vec![first, waiting(2, 1)]);
    let view = empty_view(&snapshot);
    let mut planner = planner();
    see(&mut planner, &snapshot, &view);
    let first = snapshot.jobs.get_mut(&1).unwrap();
    (first.nodes, first.is_incomplete) = ([].into(), true);
    let unread = planner.see(&snapshot, &view, START * SECOND);
    assert_eq!(unread.transitions, Vec::new());
}

#[test]
fn earlier_runs_of_a_kind_count() {
    let mut snapshot = with(
        cluster(1),
        vec![running(waiting(1, 1), &["n0"], START - 30)],
    );
    let view = empty_view(&snapshot);
    let mut planner = planner();
    see(&mut planner, &snapshot, &view);
    snapshot = with(snapshot, vec![waiting(2, 1), waiting(3, 1)]);
    see(&mut planner, &snapshot, &view);
    let plan = planned(&mut planner);
    assert_eq!(plan[&3].1 - plan[&2].1, 30, "as long as the first ran");
}

#[test]
fn priorities_decide_not_numbers() {
    let first = running(waiting(1, 1), &["n0"], START);
    let mut urgent = waiting(9, 1);
    urgent.priority = 2_000_000;
    let snapshot = with(cluster(1), vec![first, waiting(2, 1), urgent]);
    let mut planner = planner();
    see(&mut planner, &snapshot, &empty_view(&snapshot));
    assert_eq!(facts(&planner).queue, [9, 2]);
    let plan = planned(&mut planner);
    assert!(plan[&9].1 < plan[&2].1, "{plan:?}");
}

#[test]
fn a_plan_is_compared_with_what_happened() {
    let mut snapshot = with(
        cluster(1),
        vec![running(waiting(1, 1), &["n0"], START - 100), waiting(2, 1)],
    );
    let view = empty_view(&snapshot);
    let mut planner = planner();
    see(&mut planner, &snapshot, &view);
    assert_eq!(planned(&mut planner)[&2].1, START + 400);
    snapshot.read_at += 60;
    snapshot = with(snapshot, vec![running(waiting(2, 1), &["n0"], START + 50)]);
    see(&mut planner, &snapshot, &view);
    let accuracy = planner.accuracy();
    assert_eq!((accuracy.jobs, accuracy.on_planned_nodes), (1, 1));
    assert_eq!(accuracy.median_error, Some(350 * SECOND));
}

#[test]
fn stores_are_those_of_the_node_with_the_name() {
    let snapshot = with(cluster(12), vec![waiting(1, 1)]);
    let mut view = empty_view(&snapshot);
    let mut planner = planner();
    let first = planner.see(&snapshot, &view, START * SECOND);
    assert_eq!(first.rebuilt, Some(RebuildReason::First));
    // Nodes that Slurm does not know come before, between and behind the others.
    for name in ["a", "n10a", "z"] {
        view.capacities.insert(name.to_owned(), GIB);
        let seen = planner.see(&snapshot, &view, START * SECOND);
        assert_eq!(seen.rebuilt, None, "{name}");
    }
    for name in ["n0", "n10", "n9"] {
        let before = view.capacities.insert(name.to_owned(), 7 * GIB);
        let seen = planner.see(&snapshot, &view, START * SECOND);
        assert_eq!(seen.rebuilt, Some(RebuildReason::NodesChanged), "{name}");
        view.capacities.remove(name);
        let seen = planner.see(&snapshot, &view, START * SECOND);
        assert_eq!(seen.rebuilt, Some(RebuildReason::NodesChanged), "{name}");
        view.capacities.extend(before.map(|b| (name.to_owned(), b)));
        planner.see(&snapshot, &view, START * SECOND);
        let seen = planner.see(&snapshot, &view, START * SECOND);
        assert_eq!(seen.rebuilt, None, "{name}");
    }
}
