//! Requests for space on a node, and their results.

use crate::model::job::Makes;
use tarn_proto::local::RequestError;
use tarn_proto::site::SlurmJobId;

/// Whether there is space on a node.
pub(crate) enum SpaceAvailability {
    /// There is, in this store.
    In(String),
    /// Something is being removed, or goes to a slower store.
    Soon,
    /// There is none.
    None(RequestError),
}

/// For whom space is needed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpaceRequest<'a> {
    pub(crate) job: SlurmJobId,
    /// The store that it had best be in.
    pub(crate) tier: Option<&'a str>,
    /// Bytes that it takes, as far as nobody knows better.
    pub(crate) size: u64,
    /// Nobody waits for it: it takes free space only.
    pub(crate) is_ahead: bool,
}

impl<'a> SpaceRequest<'a> {
    /// For an output of a job.
    pub(crate) fn of_output(job: SlurmJobId, makes: &'a Makes) -> Self {
        Self {
            job,
            tier: makes.tier.as_deref(),
            size: makes.size,
            is_ahead: false,
        }
    }
}
