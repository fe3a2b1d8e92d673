//! Waits until a version has a level on all ranks.

use super::{RECENT, Rank, RankContext, Replicate};
use crate::arena::{PersistenceLevel, VersionId};
use crate::fault::{CheckpointError, CheckpointErrorCode};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tarn_ports::{RankProgress, Vault};

impl<T: Vault + 'static, M: Vault + 'static> Rank<T, M> {
    /// Waits until a version has a level, on all ranks.
    ///
    /// # Errors
    /// When it has not within the time, or never will.
    pub fn wait(
        &self,
        id: VersionId,
        level: PersistenceLevel,
        within: Duration,
    ) -> Result<(), CheckpointError> {
        let shared = &self.shared;
        if level == PersistenceLevel::Flushed {
            return shared.wait_flushed(id, within);
        }
        let replicated = level == PersistenceLevel::Replicated;
        if replicated {
            shared.check_replicates(id)?;
        }
        if id.generation < shared.world.start.generation {
            return self.check_restorable(id, replicated);
        }
        shared.check_recent(id)?;
        let mut least = RankProgress {
            committed: id.number,
            ..RankProgress::default()
        };
        if level >= PersistenceLevel::Durable {
            least.durable = id.number;
            if self.helper.is_none() {
                shared.take().destage(shared)?;
            }
        }
        if replicated {
            least.replicated = id.number;
        }
        shared.ranks.wait(least, within)?;
        shared.check_reached(id, replicated)
    }

    /// A version of an earlier start. Restorable versions were completed as this start began.
    fn check_restorable(&self, id: VersionId, replicated: bool) -> Result<(), CheckpointError> {
        if replicated {
            let why = " of this start: of earlier ones it is not known which nodes have them";
            return Err(no_version(id, why));
        }
        if self.restorable().iter().any(|v| v.id == id) {
            Ok(())
        } else {
            Err(no_version(id, ""))
        }
    }
}

impl<T: Vault, M: Vault> RankContext<T, M> {
    /// This start keeps that version on other nodes.
    fn check_replicates(&self, id: VersionId) -> Result<(), CheckpointError> {
        if self.options.replicate == Replicate::None {
            let text = "versions are not kept on other nodes: it was not asked for";
            return Err(CheckpointError::new(CheckpointErrorCode::Unsupported, text));
        }
        if !self.is_replicated(id.number) {
            let text = format!(
                "version {id} is not kept on other nodes: every {}th is",
                self.options.replicate_every
            );
            return Err(CheckpointError::new(CheckpointErrorCode::NotFound, text));
        }
        Ok(())
    }

    /// This start has begun that version, and still knows which ranks lack it.
    fn check_recent(&self, id: VersionId) -> Result<(), CheckpointError> {
        let begun = self.number.load(Ordering::Acquire);
        if id.generation > self.world.start.generation || id.number > begun {
            return Err(no_version(id, " yet"));
        }
        if begun - id.number >= RECENT {
            return Err(no_version(id, " any more"));
        }
        Ok(())
    }

    /// No rank lacks a version that all ranks have come to.
    fn check_reached(&self, id: VersionId, replicated: bool) -> Result<(), CheckpointError> {
        let progress = self.ranks.common_progress();
        let place = id.number / self.options.replicate_every.max(1) % 64;
        if replicated && progress.bare & 1 << place != 0 {
            let text = format!(
                "version {id} is not on other nodes: there are too few, or a rank could not keep it"
            );
            return Err(CheckpointError::new(CheckpointErrorCode::NoSpace, text));
        }
        if progress.lacks(id.number) {
            let why = ": a rank could not commit it, or it was damaged before it was de-staged";
            return Err(no_version(id, why));
        }
        Ok(())
    }
}

fn no_version(id: VersionId, why: &str) -> CheckpointError {
    let text = format!("there is no version {id}{why}");
    CheckpointError::new(CheckpointErrorCode::NotFound, text)
}
