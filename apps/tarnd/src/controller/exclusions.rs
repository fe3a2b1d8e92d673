//! Waiting jobs are kept from nodes without space for them, by a thread of its own. Of the nodes that a job excludes, those that
//! its user chose stay. docs/admin/site.md, "Free space".

use super::ControllerInput;
use super::mode::SharedSiteMode;
use super::reader::{SlurmReader, SlurmReading};
use super::slurm::SlurmNotifier;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tarn_proto::site::{Excluded, SlurmJobId};
use tarn_slurm::{Preference, SlurmError, exclusion, held_without_nodes, set_exclusion};

/// Jobs whose exclusions are changed at a time: two clients of Slurm each, some 20 ms.
const MAX_EXCLUSIONS: usize = 64;
/// Lists of a job that are remembered as tarn's: a reading may still have an earlier one.
const MAX_REMEMBERED: usize = 4;
/// Between two releases of the same job that Slurm holds.
const HELD_AGAIN: Duration = Duration::from_secs(3600);
/// For the preferences restored at a time: exclusions wait for it.
const RESTORING: Duration = Duration::from_secs(2);

/// A job that waits for nodes, and those that it is not to get.
pub(super) type WaitingJob = (SlurmJobId, Excluded);

/// The nodes that tarn has had jobs exclude: another list is their user's.
#[derive(Debug, Clone, Default)]
pub(super) struct SetExclusions(Arc<Mutex<ExclusionLists>>);

#[derive(Debug, Default)]
struct ExclusionLists {
    /// Of each job the last ones, the newest last, and when that was noted.
    of_jobs: BTreeMap<SlurmJobId, (Instant, Vec<BTreeSet<String>>)>,
    /// Jobs that an earlier controller knew: what that set is seen at the first reading.
    older: BTreeSet<SlurmJobId>,
}

impl SetExclusions {
    /// None yet; these jobs may have some of an earlier controller.
    pub(super) fn new(older: impl Iterator<Item = SlurmJobId>) -> Self {
        let lists = ExclusionLists {
            of_jobs: BTreeMap::new(),
            older: older.collect(),
        };
        Self(Arc::new(Mutex::new(lists)))
    }

    fn lists(&self) -> MutexGuard<'_, ExclusionLists> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// tarn has a job exclude these from now on.
    pub(super) fn note(&self, job: SlurmJobId, nodes: BTreeSet<String>) {
        self.lists().note(job, nodes);
    }

    /// Keeps those of jobs that `is_there`, by a reading that began at `began`; a job may have come since.
    fn retain(&self, began: Instant, is_there: impl Fn(&SlurmJobId) -> bool) {
        let mut lists = self.lists();
        lists
            .of_jobs
            .retain(|job, (noted, _)| is_there(job) || *noted >= began);
        lists.older.retain(is_there);
    }
}

impl ExclusionLists {
    fn note(&mut self, job: SlurmJobId, nodes: BTreeSet<String>) {
        let now = Instant::now();
        let (noted, of_job) = self.of_jobs.entry(job).or_insert((now, Vec::new()));
        *noted = now;
        if of_job.last() != Some(&nodes) {
            of_job.push(nodes);
        }
        let excess = of_job.len().saturating_sub(MAX_REMEMBERED);
        of_job.drain(..excess);
    }

    /// Whether a job excludes nodes `now` that its user has chosen since `own` was.
    fn is_changed(&mut self, job: SlurmJobId, own: &[String], now: &BTreeSet<String>) -> bool {
        let own: BTreeSet<String> = own.iter().cloned().collect();
        if self.older.remove(&job) && own.is_subset(now) {
            self.note(job, now.clone());
        }
        let lists = self.of_jobs.get(&job);
        *now != own && !lists.is_some_and(|(_, lists)| lists.contains(now))
    }
}

/// Keeps waiting jobs from nodes without space for them.
pub(super) fn exclusions(
    reader: &SlurmReader,
    mode: &SharedSiteMode,
    set: &SetExclusions,
    inputs: Sender<ControllerInput>,
) -> SlurmNotifier<Vec<WaitingJob>> {
    let (reader, mode, set) = (reader.clone(), mode.clone(), set.clone());
    SlurmNotifier::start("exclusions", move |updates| {
        exclude_all(updates, (&reader, &mode), &set, &inputs)
    })
}

/// Restores the features by which own jobs prefer nodes, where Slurm has forgotten them: it holds such jobs, or never starts them.
#[derive(Default)]
struct Preferences {
    /// When a held job was last released.
    released: BTreeMap<SlurmJobId, Instant>,
    /// When Slurm's controller has started, and the jobs that waited then and are still to be looked at.
    started: Option<u64>,
    unchecked: BTreeSet<SlurmJobId>,
    /// At which a look has ended with an error: they come last, so that no job keeps others waiting.
    refused: BTreeSet<SlurmJobId>,
}

impl Preferences {
    /// Takes [`RESTORING`] at most, or one answer of Slurm: the rest comes the next time.
    fn restore(
        &mut self,
        own: &BTreeSet<SlurmJobId>,
        reading: &SlurmReading,
        mode: &SharedSiteMode,
    ) {
        self.released.retain(|_, then| then.elapsed() < HELD_AGAIN);
        self.unchecked.retain(|job| own.contains(job));
        self.refused.retain(|job| own.contains(job));
        if let Err(e) = self.restore_until(own, reading, mode, Instant::now() + RESTORING) {
            tracing::warn!("whether Slurm knows the nodes that jobs prefer is not known: {e}");
        }
    }

    fn restore_until(
        &mut self,
        own: &BTreeSet<SlurmJobId>,
        reading: &SlurmReading,
        mode: &SharedSiteMode,
        end: Instant,
    ) -> Result<(), SlurmError> {
        let started = reading.snapshot.settings.boot_time;
        if started != self.started {
            self.started = started;
            self.unchecked.clone_from(own);
        }
        let held = held_without_nodes(&reading.snapshot);
        let to_release = held
            .intersection(own)
            .filter(|job| !self.released.contains_key(job));
        let mut jobs: Vec<(SlurmJobId, bool)> = to_release
            .map(|job| (*job, true))
            .chain(self.unchecked.difference(&held).map(|job| (*job, false)))
            .collect();
        jobs.sort_by_key(|(job, _)| self.refused.contains(job));
        for (job, is_held) in jobs {
            let Some(_call) = mode.acting_call().filter(|_| Instant::now() < end) else {
                break;
            };
            let restored = tarn_slurm::restore_preference(&reading.snapshot, job, is_held);
            let preference = restored.inspect_err(|_| {
                self.refused.insert(job);
            })?;
            self.refused.remove(&job);
            if preference == Preference::NotYet {
                continue;
            }
            self.unchecked.remove(&job);
            if is_held {
                self.released.insert(job, Instant::now());
            }
            if is_held && preference == Preference::Restored {
                tracing::info!(
                    "job {job} was held: Slurm had forgotten the features of the nodes that it prefers; they are there again"
                );
            }
        }
        Ok(())
    }
}

fn exclude_all(
    updates: &Receiver<Vec<WaitingJob>>,
    (reader, mode): (&SlurmReader, &SharedSiteMode),
    set: &SetExclusions,
    inputs: &Sender<ControllerInput>,
) {
    let mut preferences = Preferences::default();
    // When a job's exclusions were changed last: an older reading does not show that.
    let mut changed: BTreeMap<SlurmJobId, Instant> = BTreeMap::new();
    let mut failed = false;
    // Jobs whose change Slurm has refused: the others come first, so that no job holds up those of others.
    let mut refused: BTreeSet<SlurmJobId> = BTreeSet::new();
    for mut jobs in updates {
        let Some(reading) = reader.newest() else {
            continue;
        };
        let own: BTreeSet<SlurmJobId> = jobs.iter().map(|(job, _)| *job).collect();
        refused.retain(|job| own.contains(job));
        changed.retain(|job, _| own.contains(job));
        // More jobs wait than are listed, and one that is put back waits again.
        let in_queue = |job: &SlurmJobId| {
            let job = reading.snapshot.jobs.get(job);
            job.is_some_and(|job| !job.state.has_ended())
        };
        set.retain(reading.jobs_began, in_queue);
        jobs.sort_by_key(|(job, _)| refused.contains(job));
        preferences.restore(&own, &reading, mode);
        let is_shown =
            |job: &SlurmJobId| changed.get(job).is_none_or(|at| *at < reading.jobs_began);
        jobs.retain(|(job, _)| is_shown(job));
        jobs.retain(|job| is_tarns(job, &reading, set, inputs));
        let wanted = jobs.iter().filter_map(|(job, Excluded { own, full })| {
            let seen = &reading.snapshot.jobs.get(job)?.excluded;
            let nodes = exclusion(&reading.snapshot, *job, own, full)?;
            Some((*job, seen.iter().cloned().collect(), nodes))
        });
        for (job, seen, nodes) in wanted.take(MAX_EXCLUSIONS) {
            let Some(_call) = mode.acting_call() else {
                break;
            };
            // Before it is there: its user may change it just behind.
            set.note(job, nodes.clone());
            if let Err(e) = set_exclusion(job, &seen, &nodes) {
                if !failed {
                    tracing::warn!("job {job} may get nodes without space: {e}");
                }
                failed = true;
                refused.insert(job);
                // The others next time.
                break;
            }
            failed = false;
            refused.remove(&job);
            changed.insert(job, Instant::now());
        }
    }
}

/// Whether the nodes that a job excludes are tarn's to change. The controller gets those that its user has chosen.
fn is_tarns(
    (job, wanted): &WaitingJob,
    reading: &SlurmReading,
    set: &SetExclusions,
    inputs: &Sender<ControllerInput>,
) -> bool {
    let listed = reading.snapshot.jobs.get(job);
    let Some(listed) = listed.filter(|job| !job.is_incomplete && !job.lacks_exclusions) else {
        return false;
    };
    let now: BTreeSet<String> = listed.excluded.iter().cloned().collect();
    if !set.lists().is_changed(*job, &wanted.own, &now) {
        return true;
    }
    // The send fails if the controller has ended.
    let _ = inputs.send(ControllerInput::Excludes {
        job: *job,
        nodes: now.into_iter().collect(),
    });
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_list_that_tarn_did_not_make_is_the_users() {
        let set = SetExclusions::new([7].into_iter());
        let own = ["n1".to_owned()];
        let is_changed = |job, now: &[&str]| set.lists().is_changed(job, &own, &nodes(now));
        assert!(!is_changed(8, &["n1"]));
        // Also before tarn has ever set one of it.
        assert!(is_changed(8, &["n1", "n2"]));
        for full in ["n3", "n4"] {
            set.note(8, nodes(&["n1", full]));
        }
        // A reading may be older than the last change.
        for (now, expected) in [
            (&["n1", "n4"][..], false),
            (&["n1", "n3"], false),
            (&["n1"], false),
            (&["n4"], true),
            (&[], true),
        ] {
            assert_eq!(is_changed(8, now), expected, "{now:?}");
        }
    }

    #[test]
    fn the_list_of_an_earlier_controller_is_taken_for_tarns_once() {
        let set = SetExclusions::new([7, 9].into_iter());
        let own = ["n1".to_owned()];
        let is_changed = |job, now: &[&str]| set.lists().is_changed(job, &own, &nodes(now));
        assert!(!is_changed(7, &["n1", "n2"]));
        assert!(!is_changed(7, &["n1", "n2"]));
        assert!(is_changed(7, &["n1", "n3"]));
        assert!(is_changed(9, &["n3"]), "its user's own is not among them");
        // Forgotten only when a reading that began later lacks the job.
        let read = Instant::now();
        set.note(7, nodes(&["n1", "n2"]));
        set.retain(read, |_| false);
        assert!(!is_changed(7, &["n1", "n2"]));
        set.retain(Instant::now(), |job| *job == 7);
        assert!(!is_changed(7, &["n1", "n2"]));
        set.retain(Instant::now(), |_| false);
        assert!(is_changed(7, &["n1", "n2"]));
    }
}
