//! Partitions of jobs.

use super::sealed::JobFolderKind;
use super::{UserStore, hidden};
use rustix::fs::Mode;
use tarn_partitions::PartitionFolder;
use tarn_proto::local::RequestError;
use tarn_proto::site::{SlurmJobId, WorkResult};

impl UserStore {
    /// Makes a partition for a job in a store, in a folder of its own, which has its name when that is whole.
    pub(super) fn make_partition(
        &self,
        (job, name): (SlurmJobId, &str),
        store: &str,
        (size, unit): (u64, u32),
    ) -> Result<WorkResult, RequestError> {
        let root = self.root_of(store)?;
        let held = self.of_job(job, JobFolderKind::Exported, name, (Some(root), true))?;
        if held.stat()?.is_some() {
            return Ok(WorkResult::Done);
        }
        let whole = hidden(held.name(), "whole");
        self.clear(&held, &whole)?;
        let made = rustix::fs::mkdirat(held.folder(), &whole[..], Mode::RWXU);
        made.map_err(|e| held.failed("make", e))?;
        let folder = PartitionFolder::open(&held.path_of(&whole))?;
        let made = folder.create(name, size, Some(unit), self.user, Vec::new());
        if let Err(why) = made {
            self.clear(&held, &whole)?;
            return Err(why);
        }
        held.rename(&whole, &held, false)?;
        Ok(WorkResult::Done)
    }
}
