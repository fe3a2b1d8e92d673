//! Nodes that sleep, as snapshots have them.

use super::*;
use crate::{PowerOrder, PowerWish, SeenChanges, SitePower};

/// A planner, and a view of a site on which every node is spare.
fn site(policy: &str, power: SitePower) -> (SitePlanner, PlanningView) {
    let policy: Policy = policy.parse().expect("a policy");
    let planner = SitePlanner::new(policy, SiteRates::default()).with_power(power);
    let cluster = cluster(3);
    let view = PlanningView {
        spare: cluster.nodes.keys().cloned().collect(),
        ..empty_view(&cluster)
    };
    (planner, view)
}

/// The cluster so many seconds later, with nodes in these states.
fn later(seconds: u64, states: &[(&str, &str)]) -> SlurmSnapshot {
    let mut snapshot = cluster(3);
    snapshot.read_at = START + seconds;
    for (name, state) in states {
        let node = snapshot.nodes.get_mut(*name).expect("a node");
        node.state = SlurmNodeState::parse(state);
    }
    snapshot
}

fn seen_at(
    planner: &mut SitePlanner,
    snapshot: &SlurmSnapshot,
    view: &PlanningView,
) -> SeenChanges {
    let seen = planner.see(snapshot, view, snapshot.read_at * SECOND);
    assert_eq!(seen.refused, Vec::<String>::new());
    seen
}

/// The nodes that are to sleep, and those that are to wake, after a snapshot.
fn orders(
    planner: &mut SitePlanner,
    snapshot: &SlurmSnapshot,
    view: &PlanningView,
) -> (Vec<String>, Vec<String>) {
    let seen = seen_at(planner, snapshot, view);
    let orders = planner.power_orders(&seen.actions);
    let of = |wish: PowerWish| {
        let all = orders
            .iter()
            .filter(|order: &&PowerOrder| order.wish == wish);
        all.map(|order| order.node.clone()).collect()
    };
    (of(PowerWish::Sleep), of(PowerWish::Wake))
}

fn nothing() -> (Vec<String>, Vec<String>) {
    (Vec::new(), Vec::new())
}

fn to_sleep(nodes: &[&str]) -> (Vec<String>, Vec<String>) {
    (nodes.iter().map(|n| (*n).to_owned()).collect(), Vec::new())
}

#[test]
fn a_decision_is_repeated_only_when_slurm_has_not_followed_for_some_time() {
    let (mut planner, mut view) = site("data:sleep=100s", SitePower::default());
    view.spare.remove("n0");
    assert_eq!(orders(&mut planner, &later(0, &[]), &view), nothing());
    let due = START * SECOND + 100 * SECOND;
    assert_eq!(planner.deadline(), Some(due));
    let actions = planner.pass(due);
    assert_eq!(planner.power_orders(&actions).len(), 2, "n0 has data");
    // Slurm is read before it has followed: no second order.
    assert_eq!(orders(&mut planner, &later(101, &[]), &view), nothing());
    let one = [("n1", "idle%")];
    assert_eq!(orders(&mut planner, &later(110, &one), &view), nothing());
    // n2 is as it was after 30 s: it is idle from then on.
    assert_eq!(orders(&mut planner, &later(131, &one), &view), nothing());
    assert_eq!(orders(&mut planner, &later(230, &one), &view), nothing());
    assert_eq!(
        orders(&mut planner, &later(231, &one), &view),
        to_sleep(&["n2"])
    );
}

#[test]
fn a_job_wakes_nodes_and_is_planned_on_them() {
    let (mut planner, view) = site("data:sleep=100s", SitePower::default());
    let states = [("n0", "idle~"), ("n1", "idle~"), ("n2", "idle~")];
    assert_eq!(orders(&mut planner, &later(0, &states), &view), nothing());
    let snapshot = with(later(1, &states), vec![waiting(7, 2)]);
    let (_, woken) = orders(&mut planner, &snapshot, &view);
    assert_eq!(woken, ["n0", "n1"]);
    let plan = planner.plan(1_000 * SECOND);
    assert_eq!(plan.jobs.len(), 1, "it is planned on nodes that wake up");
    // Slurm wakes two others for it, and says so.
    let states = [("n0", "idle~"), ("n1", "allocated#"), ("n2", "allocated#")];
    let job = running(waiting(7, 2), &["n1", "n2"], START + 2);
    let snapshot = with(later(3, &states), vec![job.clone()]);
    let (_, woken) = orders(&mut planner, &snapshot, &view);
    assert_eq!(woken, Vec::<String>::new());
    let states = [("n0", "idle~"), ("n1", "allocated"), ("n2", "allocated")];
    let seen = seen_at(&mut planner, &with(later(60, &states), vec![job]), &view);
    assert_eq!(
        (seen.rebuilt, planner.power_orders(&seen.actions)),
        (None, Vec::new())
    );
}

#[test]
fn energy_sleeps_when_it_pays_by_what_is_measured() {
    // Waking costs 60 s of 400 W: 300 s of the 80 W that sleeping saves.
    let given = SitePower {
        asleep: Some(20.0),
        boot: Some(400.0),
        wake: Some(60 * SECOND),
        ..SitePower::default()
    };
    let (mut planner, mut view) = site("energy:slow-down=10000%", given);
    view.drawn = (0..3).map(|n| (format!("n{n}"), 100_000)).collect();
    // A job earns what sleep may cost.
    let job = running(waiting(7, 1), &["n0"], START - 10);
    seen_at(
        &mut planner,
        &with(later(0, &[("n0", "allocated")]), vec![job]),
        &view,
    );
    seen_at(&mut planner, &later(10, &[]), &view);
    let slept_at = |planner: &mut SitePlanner, view: &PlanningView| {
        (1..100).find(|minute| {
            let (sleep, _) = orders(planner, &later(10 + minute * 60, &[]), view);
            !sleep.is_empty()
        })
    };
    assert_eq!(
        slept_at(&mut planner, &view),
        Some(5),
        "300 s after the job, or the start"
    );
    // Nothing is saved where nothing is known of the draw.
    let (mut planner, view) = site("energy:slow-down=10000%", given);
    assert_eq!(slept_at(&mut planner, &view), None);
}

#[test]
fn the_draw_of_full_nodes_is_estimated_only_until_one_is_measured() {
    let (mut planner, mut view) = site("data:sleep=100s", SitePower::default());
    let mut busy_at = |seconds, state: &str, milliwatts| {
        view.drawn = [("n0".to_owned(), milliwatts)].into();
        seen_at(&mut planner, &later(seconds, &[("n0", state)]), &view);
        planner.power.models[0].busy
    };
    // As if idle, whatever that is.
    assert_eq!(busy_at(0, "idle", 100_000), 100.0);
    assert_eq!(busy_at(10, "idle", 1_000_000), 1000.0);
    assert_eq!(busy_at(20, "allocated", 10_000_000), 10_000.0);
    assert_eq!(busy_at(30, "idle", 100_000), 10_000.0);
}

#[test]
fn nodes_that_are_off_are_woken_before_those_that_are_being_powered_down() {
    let (mut planner, view) = site("data:sleep=100s", SitePower::default());
    let states = [("n0", "idle%"), ("n1", "idle!"), ("n2", "idle~")];
    assert_eq!(orders(&mut planner, &later(0, &states), &view), nothing());
    let job = || vec![waiting(7, 2)];
    let (_, woken) = orders(&mut planner, &with(later(1, &states), job()), &view);
    assert_eq!(woken, ["n2"]);
    // Slurm takes no order for one that it powers down.
    let states = [("n0", "idle%"), ("n1", "idle%"), ("n2", "idle#")];
    let snapshot = with(later(20, &states), job());
    assert_eq!(orders(&mut planner, &snapshot, &view), nothing());
    let states = [("n0", "idle%"), ("n1", "idle~"), ("n2", "idle#")];
    let (_, woken) = orders(&mut planner, &with(later(40, &states), job()), &view);
    assert_eq!(woken, ["n1"]);
}

#[test]
fn a_node_that_tarn_has_just_put_to_sleep_is_woken_once_it_is_off() {
    let (mut planner, view) = site("data:sleep=100s", SitePower::default());
    seen_at(&mut planner, &later(0, &[]), &view);
    let all = to_sleep(&["n0", "n1", "n2"]);
    assert_eq!(orders(&mut planner, &later(100, &[]), &view), all);
    let job = || vec![waiting(7, 1)];
    let snapshot = with(later(101, &[]), job());
    assert_eq!(orders(&mut planner, &snapshot, &view), nothing());
    let states = [("n0", "idle%"), ("n1", "idle~"), ("n2", "idle%")];
    let (_, woken) = orders(&mut planner, &with(later(110, &states), job()), &view);
    assert_eq!(woken, ["n1"]);
}

#[test]
fn a_node_that_nobody_has_put_to_sleep_is_planned_for_a_job_soon() {
    let (mut planner, view) = site("data:sleep=100s", SitePower::default());
    seen_at(&mut planner, &later(0, &[]), &view);
    seen_at(&mut planner, &later(100, &[]), &view);
    let job = || vec![waiting(7, 1)];
    for seconds in [101, 111, 112] {
        seen_at(&mut planner, &with(later(seconds, &[]), job()), &view);
    }
    let node = planner.wishes.get(&7).and_then(|wish| wish.allocated_for);
    assert!(node.is_some(), "in mode `observe` it is awake");
}

#[test]
fn the_time_of_waking_is_measured() {
    let given = SitePower {
        idle: Some(100.0),
        boot: Some(100.0),
        ..SitePower::default()
    };
    let (mut planner, view) = site("energy:slow-down=10000%", given);
    seen_at(&mut planner, &later(0, &[("n0", "idle~")]), &view);
    seen_at(&mut planner, &later(10, &[("n0", "idle#")]), &view);
    seen_at(&mut planner, &later(200, &[("n0", "idle")]), &view);
    let kinds = planner.power.models.clone();
    assert_eq!(kinds[0].wake, 190 * SECOND);
}

#[test]
fn a_node_that_boots_wakes_no_other() {
    let (mut planner, view) = site("data:sleep=100s", SitePower::default());
    let states = [("n0", "idle~"), ("n1", "idle~"), ("n2", "idle~")];
    assert_eq!(orders(&mut planner, &later(0, &states), &view), nothing());
    let snapshot = with(later(1, &states), vec![waiting(7, 1)]);
    assert_eq!(orders(&mut planner, &snapshot, &view).1, ["n0"]);
    // As Slurm has it while it boots.
    let states = [
        ("n0", "IDLE+NOT_RESPONDING+POWERING_UP"),
        ("n1", "idle~"),
        ("n2", "idle~"),
    ];
    for seconds in [2, 20, 100] {
        let snapshot = with(later(seconds, &states), vec![waiting(7, 1)]);
        assert_eq!(orders(&mut planner, &snapshot, &view), nothing());
    }
    // It does not come up: another one is to, and that took no time that counts.
    let states = [
        ("n0", "DOWN+POWERED_DOWN"),
        ("n1", "idle~"),
        ("n2", "idle~"),
    ];
    let snapshot = with(later(400, &states), vec![waiting(7, 1)]);
    assert_eq!(orders(&mut planner, &snapshot, &view).1, ["n1"]);
    assert_eq!(planner.power.models[0].wake, 300 * SECOND, "not measured");
}

#[test]
fn a_node_that_its_administrator_drained_is_neither_put_to_sleep_nor_woken() {
    let (mut planner, view) = site("data:sleep=100s", SitePower::default());
    let states = [
        ("n0", "IDLE+DRAIN+POWERED_DOWN"),
        ("n1", "IDLE+DRAIN"),
        ("n2", "idle~"),
    ];
    assert_eq!(orders(&mut planner, &later(0, &states), &view), nothing());
    assert_eq!(orders(&mut planner, &later(200, &states), &view), nothing());
    let snapshot = with(later(201, &states), vec![waiting(7, 1)]);
    assert_eq!(orders(&mut planner, &snapshot, &view).1, ["n2"]);
}
