//! Partitions of jobs.

use super::sealed::Which;
use super::{Store, hidden};
use rustix::fs::Mode;
use tarn_partitions::Folder;
use tarn_proto::local::Refusal;
use tarn_proto::site::{Job, Worked};

impl Store {
    /// Makes a partition for a job in a store, in a folder of its own, which has its name when that is whole.
    pub(super) fn lend(
        &self,
        (job, name): (Job, &str),
        store: &str,
        (size, unit): (u64, u32),
    ) -> Result<Worked, Refusal> {
        let root = self.root_of(store)?;
        let held = self.of_job(job, Which::Lent, name, (Some(root), true))?;
        if held.stat()?.is_some() {
            return Ok(Worked::Done);
        }
        let whole = hidden(held.name(), "whole");
        self.clear(&held, &whole)?;
        let made = rustix::fs::mkdirat(held.folder(), &whole[..], Mode::RWXU);
        made.map_err(|e| held.failed("make", e))?;
        let folder = Folder::open(&held.path_of(&whole))?;
        let made = folder.create(name, size, Some(unit), self.user, Vec::new());
        if let Err(why) = made {
            self.clear(&held, &whole)?;
            return Err(why);
        }
        held.rename(&whole, &held, false)?;
        Ok(Worked::Done)
    }
}
