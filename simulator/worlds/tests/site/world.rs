//! The times of events, and the measured figures.

use crate::common::*;
use tarn_ports::SiteWorld;
use tarn_simulator::site::{SimulatedSite, SiteFaults};
use tarn_types::id::NodeId;
use tarn_types::site::{
    BytesByWay, Fate, Flow, FlowId, ItemId, JobId, Machine, Mode, MoveId, SiteAction, SiteEvent,
    SpanOf, Submit, TierKind,
};
use tarn_types::units::SECOND;

/// A job that reads 40 GB from outside on 4 nodes and writes 120 GB there, as a part of Weiland's Table 4.
#[test]
fn a_job_that_stages_through_takes_what_it_takes() {
    let work = Work::default()
        .flow("w")
        .item(40 * GB, true, false)
        .item(120 * GB, false, true)
        .job(in_flow(with_data(job(4), &[0], &[1])))
        .done();
    let mut machine = machine(4);
    machine.store.rates = rate(0);
    let mut site = SimulatedSite::new(&machine, work)
        .expect("a workload")
        .with_spans()
        .checked();
    let four = &[0, 1, 2, 3];
    let script = vec![
        None,
        Some(allocate(0, four)),
        Some(direct(1, 0, 0, 40 * GB, on(&[]), on(four))),
    ];
    assert!(play(&mut site, script).is_err(), "nodes that are none");
    let script = vec![
        Some(direct(
            2,
            0,
            0,
            40 * GB,
            tarn_types::site::Where::Outside,
            on(four),
        )),
        None,
        Some(run(0, 0, 0)),
        None,
        Some(direct(
            3,
            0,
            1,
            120 * GB,
            on(four),
            tarn_types::site::Where::Outside,
        )),
        None,
        Some(release(0)),
        None,
    ];
    let events = play(&mut site, script).expect("follows the rules");
    assert_eq!(seconds(&events), [10, 110, 140]);
    let result = site.into_inner().into_result();
    let done = result.jobs[0];
    assert_eq!(done.fate, Fate::Done);
    assert_eq!((done.begun, done.released), (0, 140 * SECOND));
    assert_eq!((done.io, done.node_time), (40 * SECOND, 560 * SECOND));
    assert_eq!(result.end, 140 * SECOND);
    assert_eq!(result.delivered, [Some(140 * SECOND)]);
    let bytes = BytesByWay {
        external_in: 40 * GB,
        external_out: 120 * GB,
        peer: 0,
        retained: 0,
    };
    assert_eq!(result.bytes, bytes);
    // Idle for 40 s, busy for 100 s.
    assert_eq!(result.energy, 4.0 * (40.0 * 100.0 + 100.0 * 300.0));
    assert_eq!(result.tier_peak_all, 0, "memory is no tier");
    let kinds: Vec<SpanOf> = result.spans.iter().map(|s| s.what).collect();
    let id = JobId(0);
    assert_eq!(
        kinds,
        [
            SpanOf::StageIn(id),
            SpanOf::Run(id),
            SpanOf::StageOut(id),
            SpanOf::Held(id)
        ]
    );
    assert_eq!(result.spans[1].nodes, [(0, 4)]);
}

/// Data that stays: the second job reads the output of the first one.
#[test]
fn data_stays_on_the_tiers_of_its_nodes() {
    let work = Work::default()
        .item(40 * GB, false, false)
        .job(with_data(job(2), &[], &[0]))
        .job(with_data(job(2), &[0], &[]))
        .done();
    let mut site = SimulatedSite::new(&machine(2), work)
        .expect("a workload")
        .checked();
    let script = vec![
        None,
        None,
        Some(allocate(0, &[0, 1])),
        Some(run(0, 0, 40 * GB)),
        None,
        Some(release(0)),
        Some(allocate(1, &[0, 1])),
        Some(run(1, 40 * GB, 0)),
        None,
        Some(release(1)),
        Some(drop_item(0, &[0, 1])),
        None,
    ];
    let events = play(&mut site, script).expect("follows the rules");
    assert_eq!(
        seconds(&events),
        [0, 0, 102, 204],
        "20 GB a node at 10 GB/s"
    );
    let result = site.into_inner().into_result();
    assert_eq!(result.bytes.retained, 40 * GB);
    assert_eq!(result.jobs[1].io, 2 * SECOND);
    assert_eq!(
        result.jobs[1].wait(),
        0,
        "it could begin when its input was there"
    );
    assert_eq!(result.tier_peaks, [20 * GB, 20 * GB]);
    assert_eq!(result.tier_peak_all, 40 * GB);
}

#[test]
fn the_slowest_tier_that_is_reached_counts() {
    let mut machine = machine(1);
    machine.islands[0].kind.tiers.push(TierKind {
        name: "disk".into(),
        capacity: 1000 * GB,
        rates: rate(1),
        app_direct: false,
    });
    let work = Work::default()
        .item(100 * GB, false, false)
        .item(GB, false, false)
        .job(with_data(job(1), &[], &[0]))
        .job(with_data(job(1), &[], &[1]))
        .done();
    let mut site = SimulatedSite::new(&machine, work)
        .expect("a workload")
        .checked();
    let script = vec![
        None,
        None,
        Some(allocate(0, &[0])),
        Some(run(0, 0, 100 * GB)),
        None,
        Some(release(0)),
        Some(allocate(1, &[0])),
        Some(run(1, 0, GB)),
        None,
        Some(release(1)),
        None,
    ];
    let events = play(&mut site, script).expect("follows the rules");
    assert_eq!(seconds(&events), [0, 0, 110, 211]);
}

#[test]
fn moves_share_the_store_and_the_links() {
    let work = |bytes| {
        let mut work = Work::default();
        for _ in 0..3 {
            work = work
                .item(bytes, true, false)
                .job(with_data(job(1), &[0], &[]));
        }
        work.done()
    };
    let outside = || tarn_types::site::Where::Outside;
    let three = |m: &Machine| {
        let mut site = SimulatedSite::new(m, work(12 * GB)).expect("a workload");
        let script = vec![
            None,
            None,
            None,
            Some(moves(1, 0, 12 * GB, outside(), on(&[0]))),
            Some(moves(2, 1, 12 * GB, outside(), on(&[0]))),
            Some(moves(3, 2, 12 * GB, outside(), on(&[1]))),
            None,
            None,
            None,
            Some(moves(4, 2, 12 * GB, on(&[1]), on(&[0]))),
            None,
        ];
        seconds(&play(&mut site, script).expect("can be done"))[3..].to_vec()
    };
    let mut m = machine(2);
    assert_eq!(
        three(&m),
        [12, 24, 24, 30],
        "1 GB/s a client, 2 GB/s a link"
    );
    m.store.rates = rate(1);
    assert_eq!(three(&m), [36, 36, 36, 42], "a third of the store each");
    (m.store.rates, m.store.saturates) = (rate(1), 4);
    assert_eq!(three(&m), [48, 48, 48, 54], "no more than a quarter each");
}

#[test]
fn jobs_come_as_they_are_submitted() {
    let after = |j| Submit::After(JobId(j));
    let mut work = Work::default()
        .flow("a")
        .item(1, true, false)
        .job_at(
            in_flow(with_data(job(1), &[0], &[])),
            Submit::At(5 * SECOND),
        )
        .job_at(job(1), Submit::At(5 * SECOND))
        .job_at(
            in_flow(with_data(job(1), &[0], &[])),
            Submit::At(5 * SECOND),
        )
        .job_at(job(1), after(1));
    work.0.flows.push(Flow {
        name: "b".into(),
        arrives: 0,
    });
    let mut of_b = job(1);
    of_b.flow = Some(FlowId(1));
    let work = work
        .job_at(of_b.clone(), after(1))
        .job_at(of_b, after(1))
        .done();
    let mut site = SimulatedSite::new(&machine(1), work).expect("a workload");
    let script = vec![
        None,
        None,
        Some(allocate(1, &[0])),
        Some(run(1, 0, 0)),
        None,
        Some(release(1)),
        None,
        None,
    ];
    let events = play(&mut site, script).expect("can be done");
    let submitted = events.iter().filter_map(|(time, e)| match e {
        SiteEvent::Submitted { jobs, items } => Some((
            time / SECOND,
            jobs.iter().map(|j| j.0.0).collect(),
            items.len(),
        )),
        _ => None,
    });
    let submitted: Vec<(u64, Vec<u32>, usize)> = submitted.collect();
    let expected = [
        (5, vec![0, 2], 1),
        (5, vec![1], 0),
        (105, vec![3], 0),
        (105, vec![4, 5], 0),
    ];
    assert_eq!(submitted, expected);
}

#[test]
fn a_script_holds_the_nodes_of_its_first_job() {
    let mut next = job(1);
    next.continues = Some(JobId(0));
    let work = Work::default().job(job(3)).job(next).done();
    let mut site = SimulatedSite::new(&machine(3), work)
        .expect("a workload")
        .checked();
    let script = vec![
        None,
        None,
        Some(allocate(0, &[2, 1, 0])),
        Some(run(0, 0, 0)),
        None,
        Some(goes_on(1, &[2])),
        Some(run(1, 0, 0)),
        None,
        Some(release(1)),
        Some(release(0)),
        None,
    ];
    play(&mut site, script).expect("follows the rules");
    let result = site.into_inner().into_result();
    let times: Vec<u64> = result.jobs.iter().map(|j| j.node_time / SECOND).collect();
    assert_eq!(times, [500, 100], "together 3 nodes for 200 s");
}

#[test]
fn true_sizes_are_told_at_the_end() {
    let mut work = Work::default()
        .item(10 * GB, false, false)
        .job(with_data(job(1), &[], &[0]));
    work.0.items[0].bytes = 30 * GB;
    let mut site = SimulatedSite::new(&machine(1), work.done())
        .expect("a workload")
        .checked();
    let script = vec![
        None,
        Some(allocate(0, &[0])),
        Some(run(0, 0, 10 * GB)),
        None,
    ];
    let events = play(&mut site, script).expect("follows the rules");
    let end = SiteEvent::Ended {
        job: JobId(0),
        ok: true,
        sizes: vec![(ItemId(0), 30 * GB)],
    };
    assert_eq!(
        events[1],
        (103 * SECOND, end),
        "the true bytes take their time"
    );
    assert_eq!(site.into_inner().into_result().tier_peaks, [30 * GB]);
}

#[test]
fn nodes_sleep_wake_and_reboot() {
    let work = Work::default().job(job(2)).done();
    let mut site = SimulatedSite::new(&machine(2), work)
        .expect("a workload")
        .with_spans()
        .checked();
    let [node, other] = [NodeId(0), NodeId(1)];
    let mode = Mode::TwoLevel;
    let script = vec![
        None,
        Some(SiteAction::Sleep { node }),
        Some(SiteAction::SetMode { node: other, mode }),
        Some(SiteAction::Wake { node }),
        None,
        None,
        Some(allocate(0, &[0, 1])),
        Some(run(0, 0, 0)),
        None,
        Some(release(0)),
    ];
    let events = play(&mut site, script).expect("follows the rules");
    assert_eq!(seconds(&events), [0, 50, 100, 200]);
    assert_eq!(
        events[2].1,
        SiteEvent::ModeSet {
            node: other,
            ok: true
        }
    );
    let result = site.into_inner().into_result();
    assert_eq!(result.mode_changes, 1);
    // Boot 50 s and idle 50 s; boot 100 s; both busy 100 s.
    assert_eq!(
        result.energy,
        50.0 * 200.0 + 50.0 * 100.0 + 100.0 * 200.0 + 200.0 * 300.0
    );
    let spans: Vec<SpanOf> = result.spans.iter().map(|s| s.what).collect();
    assert_eq!(spans[..2], [SpanOf::Asleep, SpanOf::Reboot]);
}

#[test]
fn a_lost_node_takes_everything_with_it() {
    let faults = SiteFaults {
        seed: 3,
        until: 100 * SECOND,
        loss_every: 30 * SECOND,
        loss_for: 7 * SECOND,
        ..SiteFaults::default()
    };
    let work = Work::default()
        .item(400 * GB, true, false)
        .item(GB, true, false)
        .job(with_data(job(1), &[0, 1], &[]))
        .done();
    let mut m = machine(1);
    m.islands[0].kind.tiers[0].capacity = 1000 * GB;
    let mut site = SimulatedSite::new(&m, work)
        .expect("a workload")
        .with_faults(faults)
        .checked();
    let outside = tarn_types::site::Where::Outside;
    let script = vec![
        None,
        Some(moves(1, 1, GB, outside.clone(), on(&[0]))),
        None,
        Some(moves(2, 0, 400 * GB, outside, on(&[0]))),
        Some(allocate(0, &[0])),
        None,
    ];
    let events = play(&mut site, script).expect("follows the rules");
    let node = NodeId(0);
    assert_eq!(events[2].1, SiteEvent::NodeLost { node });
    let script = vec![Some(release(0)), None];
    let back = play_on(&mut site, events[2].0, script).expect("follows the rules");
    assert_eq!(
        back[0],
        (events[2].0 + 7 * SECOND, SiteEvent::NodeBack { node })
    );
    let again = play_on(
        &mut site,
        back[0].0,
        vec![Some(moves(3, 1, GB, on(&[0]), on(&[0])))],
    );
    assert!(again.is_err_and(|e| e.contains("moves read what is there")));
}

#[test]
fn what_fails_is_decided_by_the_seed() {
    let faults = SiteFaults {
        seed: 7,
        until: 1000 * SECOND,
        move_failure: 1.0,
        job_failure: 1.0,
        ..SiteFaults::default()
    };
    let work = || {
        let work = Work::default().item(10 * GB, true, false);
        work.job(job(1)).job(with_data(job(1), &[0], &[])).done()
    };
    let outside = || tarn_types::site::Where::Outside;
    let once = || {
        let site = SimulatedSite::new(&machine(2), work()).expect("a workload");
        let mut site = site.with_faults(faults).checked();
        let script = vec![
            None,
            None,
            Some(allocate(0, &[0])),
            Some(run(0, 0, 0)),
            Some(moves(1, 0, 10 * GB, outside(), on(&[1]))),
            None,
            None,
        ];
        play(&mut site, script).expect("follows the rules")
    };
    let events = once();
    assert_eq!(events, once());
    let sizes = Vec::new();
    let (job, ok, id) = (JobId(0), false, MoveId(1));
    let reported: Vec<&SiteEvent> = events.iter().map(|e| &e.1).collect();
    assert!(reported.contains(&&SiteEvent::Ended { job, ok, sizes }));
    assert!(reported.contains(&&SiteEvent::MoveFailed { id }));
}

#[test]
fn what_is_slow_becomes_fast_again() {
    let faults = SiteFaults {
        until: 10 * SECOND,
        slow_every: SECOND,
        slow_for: 50 * SECOND,
        slow_to: 0.5,
        ..SiteFaults::default()
    };
    let work = Work::default()
        .item(100 * GB, true, false)
        .job(with_data(job(1), &[0], &[]));
    let site = SimulatedSite::new(&machine(1), work.done()).expect("a workload");
    let mut site = site.with_faults(faults);
    let outside = tarn_types::site::Where::Outside;
    let script = vec![None, Some(moves(1, 0, 100 * GB, outside, on(&[0]))), None];
    let events = play(&mut site, script).expect("can be done");
    let took = events[1].0 / SECOND;
    assert!(
        (120..=135).contains(&took),
        "half as fast for 50 to 60 s: {took} s"
    );
}

#[test]
fn taking_a_job_out_takes_out_what_waits_for_it() {
    let mut later = job(1);
    later.after = vec![JobId(1)];
    let work = Work::default()
        .item(GB, false, false)
        .job(with_data(job(9), &[], &[0]))
        .job(with_data(job(1), &[0], &[]))
        .job(later)
        .job_at(job(1), Submit::After(JobId(0)))
        .job(job(1))
        .done();
    let mut site = SimulatedSite::new(&machine(1), work)
        .expect("a workload")
        .checked();
    let refuse = SiteAction::Refuse {
        job: JobId(0),
        lacks: "it asks for 9 nodes".into(),
    };
    let script = vec![
        None,
        Some(refuse),
        None,
        Some(allocate(4, &[0])),
        Some(run(4, 0, 0)),
        None,
        Some(release(4)),
    ];
    play(&mut site, script).expect("follows the rules");
    assert!(matches!(site.next(None), Ok(None)));
    let result = site.into_inner().into_result();
    let fates: Vec<Fate> = result.jobs.iter().map(|j| j.fate).collect();
    let out = Fate::TakenOut;
    assert_eq!(fates, [out, out, out, out, Fate::Done]);
    assert_eq!(result.refused.len(), 1);
    assert_eq!(
        result.refused[0].lacks.as_deref(),
        Some("it asks for 9 nodes")
    );
}

#[test]
fn timers_come_when_asked_for_but_not_for_ever() {
    let work = Work::default()
        .job_at(job(1), Submit::At(10 * SECOND))
        .done();
    let mut site = SimulatedSite::new(&machine(1), work).expect("a workload");
    let first = site.next(Some(4 * SECOND)).expect("goes on");
    assert_eq!(first, Some((4 * SECOND, SiteEvent::Timer)));
    let past = site.next(Some(SECOND)).expect("goes on");
    assert_eq!(
        past,
        Some((4 * SECOND, SiteEvent::Timer)),
        "time does not go back"
    );
    let error = (0..200_000).find_map(|_| site.next(Some(SECOND)).err());
    assert!(error.is_some_and(|e| e.to_string().contains("timers in a row")));
}

#[test]
fn a_workload_that_contradicts_itself_is_refused() {
    let cases = [
        Work::default().job(with_data(job(1), &[0], &[])),
        Work::default()
            .item(1, false, false)
            .job(with_data(job(1), &[0], &[])),
        Work::default()
            .item(1, true, false)
            .job(with_data(job(1), &[], &[0])),
        Work::default().job(job(0)),
        Work::default().job(in_flow(job(1))),
        Work::default().job_at(job(1), Submit::After(JobId(7))),
    ];
    for (number, work) in cases.into_iter().enumerate() {
        let error = SimulatedSite::new(&machine(1), work.done()).err();
        let text = error.map(|e| e.to_string()).unwrap_or_default();
        assert!(
            text.starts_with("workload: job j0"),
            "case {number}: {text}"
        );
    }
}
