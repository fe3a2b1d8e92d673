//! The log of plans: lines for people and programs, one for each change. docs/internals/site.md, "The log of plans".

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tarn_site_planner::{JobTransition, PlannedJob, PowerOrder, PowerWish, SitePlan, UnplannedJob};
use tarn_types::text::second;
use tarn_types::units::{Nanos, SECOND, Time};

/// The first line of each file: format and version.
const FORMAT: &str = "tarn-plans 1\n";
/// Bytes of a file; then it takes the place of the older one, and another begins.
const MAX_BYTES: u64 = 32 << 20;
/// Lines that one plan adds: the changes of the jobs that begin first.
const MAX_LINES: usize = 1_000;
/// Nodes that a line names.
const MAX_NODES: usize = 64;
/// A plan that moves a begin by less is the same.
const SAME_BEGIN: Nanos = 60 * SECOND;

/// The log, and what it says of each job.
pub(super) struct PlanLog {
    path: PathBuf,
    file: Option<(File, u64)>,
    planned: BTreeMap<u32, (Time, Vec<String>)>,
    unplanned: BTreeMap<u32, String>,
    has_failed: bool,
}

impl PlanLog {
    /// The log in a state folder. It is opened when there is something to write.
    pub(super) fn new(state: &Path) -> Self {
        Self {
            path: state.join("plan.log"),
            file: None,
            planned: BTreeMap::new(),
            unplanned: BTreeMap::new(),
            has_failed: false,
        }
    }

    /// A planner was built from nothing, and why.
    pub(super) fn note_rebuilt(&mut self, now: Time, why: &str) {
        self.write(&format!("{} rebuilt why={why:?}\n", time(now)));
    }

    /// A call of drive, or why there is none.
    pub(super) fn note_mark(&mut self, now: Time, what: &str) {
        self.write(&format!("{} drive what={what:?}\n", time(now)));
    }

    /// Nodes that are to sleep or to wake up.
    pub(super) fn note_power(&mut self, now: Time, orders: &[PowerOrder]) {
        let texts = [
            (PowerWish::Sleep, "sleep", "no job and no data"),
            (PowerWish::Wake, "wake", "a job waits for nodes"),
        ];
        for (wish, word, why) in texts {
            let nodes = orders.iter().filter(|order| order.wish == wish);
            let nodes: Vec<String> = nodes.map(|order| order.node.clone()).collect();
            if !nodes.is_empty() {
                let nodes = some_of(&nodes);
                self.write(&format!("{} {word} nodes={nodes} why={why:?}\n", time(now)));
            }
        }
    }

    /// Jobs that began or ended.
    pub(super) fn note_transitions(&mut self, now: Time, transitions: &[JobTransition]) {
        let mut lines = String::new();
        for change in transitions {
            let job = change.job;
            let _ = match change.ended {
                None => {
                    let first = self.planned.remove(&job);
                    let planned = first.map_or_else(|| "none".to_owned(), |(at, _)| time(at));
                    let began = time(change.began);
                    writeln!(
                        lines,
                        "{} began job={job} begin={began} planned={planned}",
                        time(now)
                    )
                }
                Some(ended) => writeln!(
                    lines,
                    "{} ended job={job} begin={} end={}",
                    time(now),
                    time(change.began),
                    time(ended)
                ),
            };
        }
        self.write(&lines);
    }

    /// A new plan: what differs from the one before is written.
    pub(super) fn note_plan(&mut self, plan: &SitePlan) {
        let mut lines = String::new();
        let mut left = MAX_LINES;
        for job in plan.jobs.iter().filter(|job| !job.has_begun) {
            let before = self.planned.get(&job.job);
            if before.is_some_and(|before| is_same(before, job)) {
                continue;
            }
            if left == 0 {
                break;
            }
            left -= 1;
            let what = if before.is_some() {
                "changed"
            } else {
                "planned"
            };
            planned_line(&mut lines, plan.made, what, job);
            self.unplanned.remove(&job.job);
            self.planned.insert(job.job, (job.begin, job.nodes.clone()));
        }
        for UnplannedJob { job, user, why } in &plan.unplanned {
            if left == 0 || self.unplanned.get(job) == Some(why) {
                continue;
            }
            left -= 1;
            let _ = writeln!(
                lines,
                "{} unplanned job={job} user={user} why={why:?}",
                time(plan.made)
            );
            self.planned.remove(job);
            self.unplanned.insert(*job, why.clone());
        }
        let live: BTreeSet<u32> = plan.jobs.iter().map(|job| job.job).collect();
        let waits: BTreeSet<u32> = plan.unplanned.iter().map(|job| job.job).collect();
        self.planned
            .retain(|job, _| live.contains(job) || waits.contains(job));
        self.unplanned
            .retain(|job, _| live.contains(job) || waits.contains(job));
        self.write(&lines);
    }

    /// Writes lines. A log that cannot be written stops nothing.
    fn write(&mut self, lines: &str) {
        if lines.is_empty() {
            return;
        }
        match self.append(lines) {
            Ok(()) => self.has_failed = false,
            Err(e) => {
                if !self.has_failed {
                    tracing::warn!("plans are not logged: {}: {e}", self.path.display());
                }
                self.has_failed = true;
                self.file = None;
            }
        }
    }

    fn append(&mut self, lines: &str) -> io::Result<()> {
        let (mut file, mut bytes) = match self.file.take() {
            Some(open) => open,
            None => self.open()?,
        };
        if bytes >= MAX_BYTES {
            std::fs::rename(&self.path, self.path.with_extension("log.1"))?;
            (file, bytes) = self.open()?;
        }
        file.write_all(lines.as_bytes())?;
        self.file = Some((file, bytes + lines.len() as u64));
        Ok(())
    }

    /// Opens the file at its end. A line that was cut by a crash is ended.
    fn open(&self) -> io::Result<(File, u64)> {
        let mut options = OpenOptions::new();
        let mut file = options
            .append(true)
            .create(true)
            .mode(0o600)
            // The folder is root's; its file is followed nowhere else all the same.
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
            .open(&self.path)?;
        let bytes = file.metadata()?.len();
        let first = if bytes == 0 { FORMAT } else { "\n" };
        file.write_all(first.as_bytes())?;
        Ok((file, bytes + first.len() as u64))
    }
}

fn is_same((begin, nodes): &(Time, Vec<String>), job: &PlannedJob) -> bool {
    begin.abs_diff(job.begin) < SAME_BEGIN && *nodes == job.nodes
}

/// The first of these nodes, and how many more there are.
fn some_of(nodes: &[String]) -> String {
    let mut text = nodes[..nodes.len().min(MAX_NODES)].join(",");
    if nodes.len() > MAX_NODES {
        let _ = write!(text, ",+{}", nodes.len() - MAX_NODES);
    }
    text
}

fn planned_line(lines: &mut String, now: Time, what: &str, job: &PlannedJob) {
    let nodes = some_of(&job.nodes);
    let _ = writeln!(
        lines,
        "{} {what} job={} user={} begin={} end={} nodes={nodes} why={:?}",
        time(now),
        job.job,
        job.user,
        time(job.begin),
        time(job.end),
        job.why
    );
}

fn time(at: Time) -> String {
    second(at / SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(job: u32, begin: u64, node: &str) -> PlannedJob {
        PlannedJob {
            job,
            user: 1000,
            workflow: None,
            nodes: vec![node.to_owned()],
            has_begun: false,
            begin: begin * SECOND,
            end: (begin + 60) * SECOND,
            why: "its data is there".to_owned(),
        }
    }

    fn plan(jobs: Vec<PlannedJob>, unplanned: &[(u32, &str)]) -> SitePlan {
        let unplanned = unplanned.iter().map(|(job, why)| UnplannedJob {
            job: *job,
            user: 7,
            why: (*why).to_owned(),
        });
        SitePlan {
            made: 1_000 * SECOND,
            until: 0,
            nodes: Vec::new(),
            jobs,
            unplanned: unplanned.collect(),
        }
    }

    #[test]
    fn each_change_is_a_line_and_nothing_is_there_twice() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = PlanLog::new(folder.path());
        let held = [(18, "its user holds \"it\"")];
        log.note_plan(&plan(vec![job(17, 1_100, "n1")], &held));
        log.note_plan(&plan(vec![job(17, 1_130, "n1")], &held));
        log.note_plan(&plan(vec![job(17, 1_100, "n2")], &held));
        log.note_transitions(
            1_200 * SECOND,
            &[JobTransition {
                job: 17,
                began: 1_150 * SECOND,
                ended: None,
            }],
        );
        let text = std::fs::read_to_string(folder.path().join("plan.log")).unwrap();
        let expected = "tarn-plans 1\n\
            1970-01-01T00:16:40Z planned job=17 user=1000 begin=1970-01-01T00:18:20Z end=1970-01-01T00:19:20Z nodes=n1 why=\"its data is there\"\n\
            1970-01-01T00:16:40Z unplanned job=18 user=7 why=\"its user holds \\\"it\\\"\"\n\
            1970-01-01T00:16:40Z changed job=17 user=1000 begin=1970-01-01T00:18:20Z end=1970-01-01T00:19:20Z nodes=n2 why=\"its data is there\"\n\
            1970-01-01T00:20:00Z began job=17 begin=1970-01-01T00:19:10Z planned=1970-01-01T00:18:20Z\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_long_log_makes_way_for_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.log");
        let full = File::create(&path).unwrap();
        full.set_len(MAX_BYTES).unwrap();
        let mut log = PlanLog::new(folder.path());
        log.note_rebuilt(0, "there was none");
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            "tarn-plans 1\n1970-01-01T00:00:00Z rebuilt why=\"there was none\"\n"
        );
        let older = std::fs::metadata(folder.path().join("plan.log.1")).unwrap();
        assert_eq!(older.len(), MAX_BYTES + 1);
    }
}
