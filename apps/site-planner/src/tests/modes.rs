//! Memory modes: jobs that would reboot nodes wait while others can use these as they are.

use super::data::reads;
use super::*;
use tarn_types::site::Mode;

/// One node that can change its mode, and is in this one.
fn one_node(seconds: u64, mode: &str, jobs: Vec<SlurmJob>) -> SlurmSnapshot {
    let mut snapshot = with(cluster(1), jobs);
    snapshot.read_at = START + seconds;
    let node = snapshot.nodes.get_mut("n0").expect("it");
    node.features = ["mode_1lm", "mode_2lm"].map(str::to_owned).to_vec();
    node.active_features = vec![mode.to_owned()];
    snapshot
}

fn requests_mode(number: u32, mode: &str) -> SlurmJob {
    SlurmJob {
        features: mode.to_owned(),
        has_burst_buffer: true,
        ..waiting(number, 1)
    }
}

/// The site service has staged all jobs with data lines; each is a workflow of its own.
fn staged_view(snapshot: &SlurmSnapshot) -> PlanningView {
    let mut view = empty_view(snapshot);
    for job in snapshot.jobs.values().filter(|job| job.has_burst_buffer) {
        let mut known = reads("mesh");
        known.reads.clear();
        known.workflow.1 = format!("flow{}", job.number);
        view.jobs.insert(job.number, known);
    }
    view
}

fn delayed(planner: &SitePlanner, snapshot: &SlurmSnapshot, view: &PlanningView) -> Vec<u32> {
    let wishes = planner.delay_wishes(snapshot, view);
    wishes.iter().map(|wish| wish.job).collect()
}

#[test]
fn jobs_of_one_mode_run_together() {
    let (one, two) = ("mode_1lm", "mode_2lm");
    let jobs = |list: &[(u32, &str)]| {
        list.iter()
            .map(|(n, m)| requests_mode(*n, m))
            .collect::<Vec<_>>()
    };
    let all = [(2, two), (3, one), (4, two), (5, one)];
    let mut planner = planner();
    // Job 1 runs in 1LM, and others wait for both modes.
    let first = running(requests_mode(1, one), &["n0"], START - 100);
    let snapshot = one_node(0, one, [vec![first], jobs(&all)].concat());
    let view = staged_view(&snapshot);
    see(&mut planner, &snapshot, &view);
    assert_eq!(
        delayed(&planner, &snapshot, &view),
        [2, 4],
        "3 and 5 reboot nothing"
    );
    // Job 1 has ended: the planner gives the node to job 3, and Slurm may not to job 2.
    let snapshot = one_node(5, one, jobs(&all));
    let view = staged_view(&snapshot);
    see(&mut planner, &snapshot, &view);
    assert_eq!(delayed(&planner, &snapshot, &view), [2, 4]);
    // They wait by begin times now, which are not in the snapshots that the planner gets.
    let late = jobs(&[(2, two), (4, two)]);
    let fifth = running(requests_mode(5, one), &["n0"], START + 20);
    let snapshot = one_node(30, one, [vec![fifth], late.clone()].concat());
    let view = staged_view(&snapshot);
    see(&mut planner, &snapshot, &view);
    assert_eq!(delayed(&planner, &snapshot, &view), [2, 4]);
    // Nobody waits for 1LM any more: one of them may have the node rebooted.
    let snapshot = one_node(40, one, late.clone());
    let view = staged_view(&snapshot);
    see(&mut planner, &snapshot, &view);
    assert_eq!(delayed(&planner, &snapshot, &view), [4]);
    // Slurm does it.
    let second = running(requests_mode(2, two), &["n0"], START + 45);
    let mut snapshot = one_node(50, one, vec![second.clone(), late[1].clone()]);
    let node = snapshot.nodes.get_mut("n0").expect("it");
    node.state = SlurmNodeState::parse("allocated+reboot_issued+powering_up");
    let view = staged_view(&snapshot);
    see(&mut planner, &snapshot, &view);
    let snapshot = one_node(90, two, vec![second, late[1].clone()]);
    let view = staged_view(&snapshot);
    see(&mut planner, &snapshot, &view);
    let node = planner.topology.number("n0").expect("it");
    assert_eq!(planner.planner.mode_of(node), Some(Mode::TwoLevel));
    // The last one begins without a reboot.
    let snapshot = one_node(120, two, vec![late[1].clone()]);
    let view = staged_view(&snapshot);
    see(&mut planner, &snapshot, &view);
    assert_eq!(delayed(&planner, &snapshot, &view), Vec::<u32>::new());
}

#[test]
fn a_node_that_slurm_does_not_reboot_is_given_back() {
    let mut planner = planner();
    let job = requests_mode(2, "mode_2lm");
    for seconds in [0, 30, 60, 61] {
        let snapshot = one_node(seconds, "mode_1lm", vec![job.clone()]);
        let view = staged_view(&snapshot);
        see(&mut planner, &snapshot, &view);
        // It is decided again each time, so the job is never delayed.
        assert_eq!(
            delayed(&planner, &snapshot, &view),
            Vec::<u32>::new(),
            "{seconds} s"
        );
    }
    // Without nodes that change, nothing is looked at.
    let snapshot = with(cluster(1), vec![job]);
    see(&mut planner, &snapshot, &empty_view(&snapshot));
    assert!(
        planner
            .delay_wishes(&snapshot, &empty_view(&snapshot))
            .is_empty()
    );
}
