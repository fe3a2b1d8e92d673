//! Three sentences on what `drive` would change.

use tarn_report::site::SiteSummary;
use tarn_types::units::{Bytes, Elapsed, Nanos};

/// The same time three times.
pub(super) struct Replays {
    /// The figures of what happened.
    pub(super) recorded: SiteSummary,
    /// The simulation of what happened.
    pub(super) as_it_was: SiteSummary,
    /// The simulation under `drive`.
    pub(super) drive: SiteSummary,
}

/// How good the replay is, what workflows would gain, and what others would pay.
pub(super) fn sentences(replays: &Replays) -> [String; 3] {
    let Replays {
        recorded,
        as_it_was,
        drive,
    } = replays;
    let jobs = recorded.ordinary_jobs.done + recorded.workflow_jobs.done;
    let replay = format!(
        "Replayed as it was, the {jobs} jobs take {} ({} against what happened) and wait {} on average ({}).",
        time(as_it_was.makespan_s),
        change(recorded.makespan_s, as_it_was.makespan_s),
        time(as_it_was.mean_wait_s),
        change(recorded.mean_wait_s, as_it_was.mean_wait_s),
    );
    [
        replay,
        of_workflows(as_it_was, drive),
        of_others(as_it_was, drive),
    ]
}

fn of_workflows(as_it_was: &SiteSummary, drive: &SiteSummary) -> String {
    let Some((was, would)) = mean_time(as_it_was).zip(mean_time(drive)) else {
        return "No job had data that tarn moved, so `drive` has no workflow to shorten."
            .to_owned();
    };
    format!(
        "With `drive`, workflows ({}) take {} on average instead of {} ({}), and read {} from outside instead of {}.",
        drive.workflows.len(),
        time(would),
        time(was),
        change(was, would),
        Bytes(drive.bytes.external_in),
        Bytes(as_it_was.bytes.external_in),
    )
}

fn of_others(as_it_was: &SiteSummary, drive: &SiteSummary) -> String {
    let (was, would) = (&as_it_was.ordinary_jobs, &drive.ordinary_jobs);
    if would.done == 0 {
        return "There are no other jobs, which could wait longer for that.".to_owned();
    }
    format!(
        "Other jobs ({}) wait {} on average instead of {} ({}), and {} at most instead of {}.",
        would.done,
        time(would.wait_s.mean),
        time(was.wait_s.mean),
        change(was.wait_s.mean, would.wait_s.mean),
        time(would.wait_s.max),
        time(was.wait_s.max),
    )
}

/// The mean time to solution of workflows.
fn mean_time(summary: &SiteSummary) -> Option<f64> {
    let flows = &summary.workflows;
    let sum: f64 = flows.values().map(|flow| flow.time_s).sum();
    (!flows.is_empty()).then(|| sum / flows.len() as f64)
}

fn time(seconds: f64) -> String {
    Elapsed((seconds * 1e9).round() as Nanos).to_string()
}

/// A change in percent, with its sign.
fn change(before: f64, after: f64) -> String {
    if before > 0.0 {
        return format!("{:+.1} %", (after / before - 1.0) * 100.0);
    }
    let text = if after > 0.0 {
        "before none"
    } else {
        "no change"
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_report::site::SiteRun;
    use tarn_types::site::{
        Fate, Flow, FlowId, Job, JobResult, Machine, SiteResult, Store, Submit, WorkJob, Workload,
    };
    use tarn_types::units::SECOND;

    fn workload(has_flow: bool) -> Workload {
        let job = Job {
            flow: has_flow.then_some(FlowId(0)),
            nodes: 1,
            cores: 0,
            memory: 0,
            gpus: 0,
            mode: None,
            limit: SECOND,
            expect: 0,
            after: Vec::new(),
            continues: None,
            reads: Vec::new(),
            writes: Vec::new(),
            submitted: None,
            place: None,
            on: None,
            not_before: 0,
        };
        let flow = Flow {
            name: "workflow-0".into(),
            arrives: 0,
        };
        Workload {
            jobs: vec![WorkJob {
                job: job.into(),
                name: "".into(),
                submit: Submit::At(0),
                compute: SECOND,
            }],
            flows: Vec::from_iter(has_flow.then_some(flow)),
            ..Workload::default()
        }
    }

    fn summary(has_flow: bool, begun: u64, released: u64) -> SiteSummary {
        let machine = Machine {
            name: "m".into(),
            islands: Vec::new(),
            store: Store {
                rates: Default::default(),
                client: Default::default(),
                saturates: 1,
            },
        };
        let result = SiteResult {
            jobs: vec![JobResult {
                begun: begun * SECOND,
                released: released * SECOND,
                fate: Fate::Done,
                ..JobResult::default()
            }],
            delivered: vec![None; usize::from(has_flow)],
            end: released * SECOND,
            ..SiteResult::default()
        };
        SiteSummary::of(&SiteRun {
            policy: "p",
            machine: &machine,
            workload: &workload(has_flow),
            result: &result,
            lower_bound: 0,
            flow_bounds: &[],
            wall_s: 0.0,
        })
    }

    #[test]
    fn gains_and_losses_are_named() {
        let replays = |has_flow| Replays {
            recorded: summary(has_flow, 10, 100),
            as_it_was: summary(has_flow, 11, 102),
            drive: summary(has_flow, 5, 51),
        };
        let [replay, flows, others] = sentences(&replays(true));
        assert!(
            replay.contains("+2.0 %") && replay.contains("+10.0 %"),
            "{replay}"
        );
        assert!(flows.contains("-50.0 %"), "{flows}");
        assert!(others.contains("no other jobs"), "{others}");
        let [_, flows, others] = sentences(&replays(false));
        assert!(flows.contains("no workflow to shorten"), "{flows}");
        assert!(others.contains("-54.5 %"), "{others}");
        assert_eq!(change(0.0, 0.0), "no change");
        assert_eq!(change(0.0, 1.0), "before none");
    }
}
