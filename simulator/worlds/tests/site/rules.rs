//! Every rule that the checker knows, broken.

use crate::common::*;
use std::sync::Arc;
use tarn_simulator::site::SimulatedSite;
use tarn_types::id::NodeId;
use tarn_types::site::{
    AllocationReason, FlowId, JobId, Mode, MoveId, SiteAction, Submit, Where, Workload,
};
use tarn_types::units::SECOND;

/// Item 0 outside, item 1 made by job 1. Job 0 reads item 0; job 1 makes item 1 on two nodes; job 2 reads it, after job
/// 1; job 3 wants one core, and half of a node's memory, of a node in mode 2LM; job 4 continues in the allocation of job 1;
/// job 5 wants three cores.
fn work() -> Arc<Workload> {
    let mut two = with_data(job(2), &[1], &[]);
    two.after = vec![JobId(1)];
    let mut three = job(1);
    (three.cores, three.mode) = (1, Some(Mode::TwoLevel));
    let mut four = job(1);
    four.continues = Some(JobId(1));
    let mut five = job(1);
    five.cores = 3;
    Work::default()
        .item(60 * GB, true, false)
        .item(80 * GB, false, true)
        .job(with_data(job(1), &[0], &[]))
        .job(with_data(job(2), &[], &[1]))
        .job(two)
        .job(three)
        .job(four)
        .job(five.clone())
        .job(five)
        .done()
}

const SUBMISSIONS: usize = 7;

/// Plays actions with `None` for the next event; the last action must break this rule.
fn breaks(rule: &str, script: Script) {
    let mut site = SimulatedSite::new(&machine(4), work())
        .expect("a workload")
        .checked();
    let mut all: Script = vec![None; SUBMISSIONS];
    let last = script.len() - 1;
    all.extend(script[..last].iter().cloned());
    play(&mut site, all).unwrap_or_else(|e| panic!("too early: {e}"));
    let error = play(&mut site, script[last..].to_vec()).expect_err(rule);
    assert!(error.starts_with(&format!("rule `{rule}`")), "{error}");
}

fn outside() -> Where {
    Where::Outside
}

/// Job 1 has made item 1 on nodes 0 and 1 and released them.
fn made() -> Script {
    vec![
        Some(allocate(1, &[0, 1])),
        Some(run(1, 0, 80 * GB)),
        None,
        Some(release(1)),
    ]
}

fn then(mut script: Script, more: &[SiteAction]) -> Script {
    script.extend(more.iter().cloned().map(Some));
    script
}

#[test]
fn nodes_and_their_capacity() {
    breaks("nodes", then(vec![], &[allocate(0, &[0, 1])]));
    breaks("nodes", then(vec![], &[allocate(1, &[0, 0])]));
    breaks("known ids", then(vec![], &[allocate(0, &[9])]));
    breaks("known ids", then(vec![], &[allocate(99, &[0])]));
    breaks(
        "one allocation",
        then(vec![], &[allocate(0, &[0]), allocate(0, &[1])]),
    );
    let whole = "whole nodes are nobody else's";
    breaks(whole, then(vec![], &[allocate(0, &[0]), allocate(5, &[0])]));
    breaks(whole, then(vec![], &[allocate(5, &[0]), allocate(0, &[0])]));
    breaks(
        "node capacity",
        then(vec![], &[allocate(5, &[0]), allocate(6, &[0])]),
    );
    breaks("memory mode", then(vec![], &[allocate(3, &[0])]));
}

#[test]
fn nodes_that_cannot_be_used() {
    let [node, mode] = [NodeId(0), NodeId(1)];
    let sleep = SiteAction::Sleep { node };
    let reboot = SiteAction::SetMode {
        node: mode,
        mode: Mode::TwoLevel,
    };
    breaks(
        "nodes are up",
        then(vec![], &[sleep.clone(), allocate(0, &[0])]),
    );
    breaks(
        "nodes are up",
        then(vec![], &[reboot.clone(), allocate(0, &[1])]),
    );
    let to = moves(1, 0, 60 * GB, outside(), on(&[0]));
    breaks("nodes are up", then(vec![], &[sleep.clone(), to.clone()]));
    breaks(
        "only idle nodes",
        then(vec![], &[allocate(0, &[0]), sleep.clone()]),
    );
    breaks("only idle nodes", then(vec![], &[to, sleep]));
    breaks(
        "only idle nodes",
        then(vec![], &[allocate(0, &[1]), reboot]),
    );
    let same = SiteAction::SetMode {
        node,
        mode: Mode::OneLevel,
    };
    breaks("memory mode", then(vec![], &[same]));
    breaks("known ids", then(vec![], &[SiteAction::Wake { node }]));
}

#[test]
fn runs_and_releases() {
    breaks("runs on its nodes", then(vec![], &[run(5, 0, 0)]));
    breaks(
        "inputs are there",
        then(vec![], &[allocate(0, &[0]), run(0, 0, 0)]),
    );
    let coming = direct(1, 0, 0, 60 * GB, outside(), on(&[0]));
    breaks(
        "inputs are there",
        then(vec![], &[allocate(0, &[0]), coming.clone(), run(0, 0, 0)]),
    );
    breaks(
        "releases what it has",
        then(vec![], &[allocate(0, &[0]), coming, release(0)]),
    );
    breaks("releases what it has", then(vec![], &[release(0)]));
    breaks(
        "releases what it has",
        then(vec![], &[allocate(5, &[0]), run(5, 0, 0), release(5)]),
    );
    breaks(
        "order of jobs",
        then(vec![], &[allocate(2, &[0, 1]), run(2, 0, 0)]),
    );
    breaks(
        "inputs are there",
        then(made(), &[allocate(2, &[1, 0]), run(2, 0, 0)]),
    );
    let second = SiteAction::Run {
        job: JobId(5),
        attempt: 2,
        local_read: 0,
        local_write: 0,
        to_tiers: false,
        retained: 0,
    };
    breaks(
        "attempts count up",
        then(vec![], &[allocate(5, &[0]), second]),
    );
    let memory_only = vec![Some(allocate(1, &[0, 1])), Some(run(1, 0, 0)), None];
    breaks("nothing needed is lost", then(memory_only, &[release(1)]));
}

#[test]
fn scripts_go_on_in_their_allocation() {
    let rule = "goes on in its allocation";
    breaks(rule, then(vec![], &[goes_on(4, &[0])]));
    breaks(
        rule,
        then(vec![], &[allocate(1, &[0, 1]), goes_on(4, &[0])]),
    );
    let ended = || vec![Some(allocate(1, &[0, 1])), Some(run(1, 0, 80 * GB)), None];
    breaks(rule, then(ended(), &[goes_on(4, &[1])]));
    breaks(rule, then(ended(), &[goes_on(4, &[0]), release(1)]));
}

#[test]
fn moves_and_space() {
    let there = |id, bytes| moves(id, 0, bytes, outside(), on(&[0]));
    breaks("known ids", then(vec![], &[there(2, GB), there(2, GB)]));
    breaks(
        "known ids",
        then(vec![], &[SiteAction::Cancel { id: MoveId(1) }]),
    );
    breaks("bytes", then(vec![], &[there(1, 61 * GB)]));
    breaks(
        "one copy a place",
        then(vec![], &[there(1, 60 * GB), there(2, 60 * GB)]),
    );
    let read = "moves read what is there";
    breaks(read, then(vec![], &[moves(1, 0, GB, on(&[0]), on(&[1]))]));
    breaks(read, then(vec![], &[moves(1, 1, GB, outside(), on(&[1]))]));
    breaks(read, then(made(), &[moves(1, 1, GB, on(&[0]), outside())]));
    let gather = moves(2, 1, 80 * GB, on(&[0, 1]), on(&[0]));
    breaks("tier capacity", then(made(), &[there(1, 60 * GB), gather]));
    let write = [allocate(1, &[0, 1]), there(1, 60 * GB), run(1, 0, 80 * GB)];
    let mut machine = machine(4);
    machine.islands[0].kind.tiers[0].capacity = 90 * GB;
    let mut site = SimulatedSite::new(&machine, work())
        .expect("a workload")
        .checked();
    let error = play(&mut site, then(vec![None; SUBMISSIONS], &write)).expect_err("no room");
    assert!(error.starts_with("rule `tier capacity`"), "{error}");
    let direct_rule = "direct moves";
    breaks(
        direct_rule,
        then(vec![], &[direct(1, 0, 0, GB, outside(), on(&[0]))]),
    );
    let elsewhere = direct(1, 0, 0, GB, outside(), on(&[1]));
    breaks(direct_rule, then(vec![], &[allocate(0, &[0]), elsewhere]));
}

#[test]
fn nothing_needed_goes() {
    let rule = "nothing needed is lost";
    breaks("drops what is there", then(made(), &[drop_item(1, &[0])]));
    breaks(rule, then(made(), &[drop_item(1, &[0, 1])]));
    let reboot = SiteAction::SetMode {
        node: NodeId(1),
        mode: Mode::TwoLevel,
    };
    breaks(rule, then(made(), &[reboot]));
    let leaving = moves(1, 1, 80 * GB, on(&[0, 1]), outside());
    breaks(rule, then(made(), &[leaving, drop_item(1, &[0, 1])]));
    let here = moves(1, 0, 60 * GB, outside(), on(&[0]));
    let read = then(
        vec![Some(here), None],
        &[allocate(0, &[0]), run(0, 60 * GB, 0), drop_item(0, &[0])],
    );
    breaks("inputs stay", read);
}

#[test]
fn what_a_job_counts_on_stays() {
    let rule = "leases are honoured";
    // Item 1 is on other nodes too, so that it is not lost.
    let copy = moves(2, 1, 80 * GB, on(&[0, 1]), on(&[2, 3]));
    let mut copied = then(made(), &[copy]);
    copied.push(None);
    let held = [allocate(2, &[0, 1]), drop_item(1, &[0, 1])];
    breaks(rule, then(copied.clone(), &held));
    let plan = SiteAction::Plan {
        job: JobId(2),
        nodes: nodes(&[0, 1]),
        begin: 0,
        why: AllocationReason::First,
    };
    breaks(
        rule,
        then(copied.clone(), &[plan.clone(), drop_item(1, &[0, 1])]),
    );
    // Nobody counts on it any more, and it is dropped twice.
    let unplan = SiteAction::Unplan { job: JobId(2) };
    let twice = [plan, unplan, drop_item(1, &[0, 1]), drop_item(1, &[0, 1])];
    breaks("drops what is there", then(copied, &twice));
}

/// Job 0 has two of four nodes until 1000 s; ordinary job 1 wants three from 10 s on; a workflow's job 2 and an ordinary job 3
/// want two from 20 s and from 30 s on.
fn overtaken(bound: u64, mut script: Script) -> Result<(), String> {
    let mut workflow = job(2);
    workflow.flow = Some(FlowId(0));
    let at = |seconds| Submit::At(seconds * SECOND);
    let work = Work::default()
        .flow("w")
        .job_at(job(2), at(0))
        .job_at(job(3), at(10))
        .job_at(workflow, at(20))
        .job_at(job(2), at(30))
        .job_at(job(1), at(300));
    let site = SimulatedSite::new(&machine(4), work.done()).expect("a workload");
    let mut site = site.checked().promising(bound * SECOND);
    let mut all: Script = vec![
        None,
        Some(allocate(0, &[0, 1])),
        Some(run(0, 0, 0)),
        None,
        None,
    ];
    all.append(&mut script);
    play(&mut site, all).map(drop)
}

#[test]
fn nobody_is_put_off_further_than_promised() {
    let rule = "rule `no more delay than promised`";
    // Until 1020 s by its limit: 20 s more than job 1 could rely on.
    let overtakes = || vec![Some(allocate(2, &[2, 3]))];
    overtaken(20, overtakes()).expect("within the bound");
    let error = overtaken(19, overtakes()).expect_err("beyond the bound");
    assert!(error.starts_with(rule), "{error}");
    let ordinary = vec![None, Some(allocate(3, &[2, 3]))];
    let error = overtaken(1000, ordinary).expect_err("an ordinary job may not");
    assert!(error.starts_with(rule), "{error}");
}

#[test]
fn who_was_promised_a_begin_has_it() {
    // Job 0 ends at 100 s. Job 1 could have its nodes then and does not get them.
    let waits = || vec![None, None, Some(release(0)), None];
    overtaken(200, waits()).expect("within the bound");
    let error = overtaken(100, waits()).expect_err("beyond the bound");
    assert!(error.starts_with("rule `begins as promised`"), "{error}");
}

#[test]
fn jobs_are_taken_out_for_a_reason_only() {
    let job = JobId(5);
    let lacks = "nothing".to_owned();
    breaks(
        "refused for a reason",
        then(vec![], &[SiteAction::Refuse { job, lacks }]),
    );
    breaks(
        "given up for a reason",
        then(vec![], &[SiteAction::GiveUp { job }]),
    );
    let running = [allocate(5, &[0]), run(5, 0, 0), SiteAction::GiveUp { job }];
    breaks("takes out what waits", then(vec![], &running));
}

#[test]
fn everything_ends() {
    let mut script = vec![None; SUBMISSIONS];
    script.push(None);
    let mut site = SimulatedSite::new(&machine(4), work())
        .expect("a workload")
        .checked();
    let error = play(&mut site, script).expect_err("jobs wait");
    assert!(error.starts_with("rule `everything ends`"), "{error}");
    assert!(error.contains("job j0"), "{error}");
}
