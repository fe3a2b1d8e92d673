//! The seniority of workflows: of each user one workflow at a time stands before ordinary jobs, as if it had come earlier
//! (`lead` of the policy). The steps of the user's other workflows stand where Slurm has them.
//!
//! - It is the workflow whose oldest job that has not ended came first, and counts from then.
//! - A job came when it was submitted, or, if the controller got to know it much later, then: neither the name of an old
//!   workflow nor a clock that jumps makes it older.
//! - Only steps count, jobs that data joins to others: a data line alone changes no place.
//! - A job counts from at most [`MAX_LEAD`] before it came itself, and one whose begin time is ahead counts for nothing:
//!   nobody keeps an old place for later jobs by one that waits or runs for long.
//! - At most [`MAX_SENIOR_JOBS`] jobs of a user have it at a time, running ones included.

use crate::arrivals::{arrival, submission};
use crate::wanted::{WantedJob, WantedStage};
use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::site::Owner;
use tarn_site::{PlanningJob, PlanningKey, PlanningView};
use tarn_slurm::SlurmSnapshot;
use tarn_types::units::{Nanos, SECOND, Time};

/// Jobs of a user that stand before ordinary jobs at a time.
pub(crate) const MAX_SENIOR_JOBS: usize = 64;
/// By so much a job may count as older than it is.
pub(crate) const MAX_LEAD: Nanos = 3600 * SECOND;

/// The steps of a user's workflow: when each came, and its number.
type WorkflowSteps = BTreeSet<(Time, u32)>;

/// Gives the steps of each user's oldest workflow their seniority. All jobs that wait must have their places.
pub(crate) fn give_seniority(
    snapshot: &SlurmSnapshot,
    view: &PlanningView,
    jobs: &mut BTreeMap<u32, WantedJob<'_>>,
) {
    for steps in oldest_workflows(snapshot, view, jobs).into_values() {
        let Some((since, _)) = steps.first().copied() else {
            continue;
        };
        for (came, number) in steps.into_iter().take(MAX_SENIOR_JOBS) {
            if let Some(job) = jobs.get_mut(&number) {
                let since = since.max(came.saturating_sub(MAX_LEAD));
                (job.spec.submitted, job.spec.place) = (Some(since), None);
            }
        }
    }
}

/// Of each user the steps of the workflow whose oldest one came first.
fn oldest_workflows(
    snapshot: &SlurmSnapshot,
    view: &PlanningView,
    jobs: &BTreeMap<u32, WantedJob<'_>>,
) -> BTreeMap<u32, WorkflowSteps> {
    let live = || {
        let live = jobs
            .iter()
            .filter(|(_, job)| !matches!(job.stage, WantedStage::Excluded(_)))
            .filter(|(_, job)| job.spec.not_before <= snapshot.read_at.saturating_mul(SECOND));
        live.filter_map(|(number, job)| Some((*number, job, job.data?)))
    };
    let links = DataLinks::of(live().map(|(_, _, data)| data), view);
    let mut workflows: BTreeMap<(u32, &(Owner, String)), WorkflowSteps> = BTreeMap::new();
    for (number, job, data) in live().filter(|(_, _, data)| links.are_of(data)) {
        let submitted = snapshot.jobs.get(&number).and_then(|job| job.submitted);
        let submitted = submission(submitted.unwrap_or(0), number);
        let steps = workflows.entry((job.user, &data.workflow)).or_default();
        steps.insert((arrival(submitted, data.arrived), number));
    }
    let mut oldest: BTreeMap<u32, WorkflowSteps> = BTreeMap::new();
    for ((user, _), steps) in workflows {
        let known = oldest.entry(user).or_insert_with(|| steps.clone());
        if steps.first() < known.first() {
            *known = steps;
        }
    }
    oldest
}

/// The data that joins jobs.
struct DataLinks<'a> {
    reads: BTreeSet<&'a PlanningKey>,
    makes: BTreeSet<&'a PlanningKey>,
    view: &'a PlanningView,
}

impl<'a> DataLinks<'a> {
    fn of(jobs: impl Iterator<Item = &'a PlanningJob>, view: &'a PlanningView) -> Self {
        let (mut reads, mut makes) = (BTreeSet::new(), BTreeSet::new());
        for job in jobs {
            reads.extend(job.reads.iter().map(|(key, _)| key));
            makes.extend(&job.makes);
        }
        Self { reads, makes, view }
    }

    /// Whether data joins this job to another: it reads what a job makes or has made, or makes what a job reads.
    fn are_of(&self, job: &PlanningJob) -> bool {
        let was_made = |key: &PlanningKey| {
            let version = self.view.versions.get(key);
            version.is_some_and(|version| version.is_made && !version.is_outside)
        };
        let mut reads = job.reads.iter().map(|(key, _)| key);
        reads.any(|key| self.makes.contains(key) || was_made(key))
            || job.makes.iter().any(|key| self.reads.contains(key))
    }
}
