//! Slurm's queue, as far as it is about jobs that the site does not know yet.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::site::{Owner, SlurmJobId, Uid};
use tarn_types::units::Time;

/// The newest reading of Slurm's queue. A job that arrived before it began knows from it all jobs that were submitted before itself:
/// Slurm numbers jobs in the order of their submission.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QueueReading {
    /// When it began.
    pub(crate) began: Time,
    /// The waiting jobs with data lines that the site did not know, by user.
    pub(crate) unknown: BTreeMap<Uid, BTreeSet<SlurmJobId>>,
}

impl QueueReading {
    /// Whether a job of this user's with a lower number exists and is not known.
    pub(crate) fn lacks_lower(&self, user: Uid, job: SlurmJobId) -> bool {
        let own = self.unknown.get(&user);
        own.is_some_and(|jobs| jobs.first().is_some_and(|first| *first < job))
    }

    /// The same of jobs that may make this owner's data: a member of a project may be any user.
    pub(crate) fn lacks_lower_of(&self, owner: Owner, job: SlurmJobId) -> bool {
        match owner {
            Owner::User(user) => self.lacks_lower(user, job),
            Owner::Project(_) => {
                let mut users = self.unknown.keys();
                users.any(|user| self.lacks_lower(*user, job))
            }
        }
    }

    /// The site knows a job from now on.
    pub(crate) fn found(&mut self, user: Uid, job: SlurmJobId) {
        if let Some(jobs) = self.unknown.get_mut(&user) {
            jobs.remove(&job);
        }
    }
}
