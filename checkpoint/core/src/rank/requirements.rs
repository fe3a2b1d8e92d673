//! The requirements that objects make of versions. A version is whole or none: all of it has one level, is kept as long, and its
//! staged bytes have as many copies. So a requirement of an object holds for the versions that it is in, and the most that any
//! requires counts.

use super::{Committed, MAX_KEPT, Rank, Replicate, buddy};
use crate::arena::PersistenceLevel;
use crate::fault::{CheckpointError, CheckpointErrorCode};
use std::time::Instant;
use tarn_ports::Vault;

/// Most copies of staged bytes, or of all of a version, on other nodes.
pub const MAX_REPLICAS: u32 = 3;
/// Most ranks of a set with parity.
pub const MAX_SET: usize = 16;

/// The requirements that one object makes of versions, or all objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VersionRequirements {
    /// How many are kept.
    pub versions: usize,
    /// Copies of the staged bytes, each on another node.
    pub replicas: usize,
    /// The level of a version when its commit returns. From [`PersistenceLevel::Durable`] on nothing is staged.
    pub persistence: PersistenceLevel,
}

impl VersionRequirements {
    /// The most that either requires.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            versions: self.versions.max(other.versions),
            replicas: self.replicas.max(other.replicas),
            persistence: self.persistence.max(other.persistence),
        }
    }
}

impl<T: Vault + 'static, M: Vault + 'static> Rank<T, M> {
    /// Requires this of versions from now on. Ranks may require different things: each stages, copies and waits by its own
    /// requirements.
    ///
    /// # Errors
    /// When this start can never give it: nothing changes then. As many replicas as the options have are never refused: if there
    /// are too few nodes for them, each commit reports that.
    pub fn require(&mut self, requirements: VersionRequirements) -> Result<(), CheckpointError> {
        let shared = &self.shared;
        let options = &shared.options;
        let versions = requirements.versions;
        if versions == 0 || versions > MAX_KEPT {
            let text = format!("{versions} versions cannot be kept; 1 to {MAX_KEPT} can");
            return Err(CheckpointError::new(CheckpointErrorCode::Invalid, text));
        }
        if requirements.replicas > options.buddies {
            let me = shared.ranks.rank();
            let possible = shared.nodes.replicas(me, options.same_node);
            if requirements.replicas > possible {
                return Err(buddy::few(requirements.replicas, possible));
            }
        }
        // Every how many-eth version comes to that; 0: none.
        let every = match requirements.persistence {
            PersistenceLevel::Committed | PersistenceLevel::Durable => 1,
            PersistenceLevel::Replicated if options.replicate == Replicate::None => 0,
            PersistenceLevel::Replicated => options.replicate_every.max(1),
            PersistenceLevel::Flushed => options.external.as_ref().map_or(0, |e| e.every),
        };
        if every != 1 {
            let text = never(requirements.persistence, every);
            return Err(CheckpointError::new(CheckpointErrorCode::Invalid, text));
        }
        shared.take().requirements = requirements;
        self.persistence = requirements.persistence;
        Ok(())
    }

    /// Waits until a version that was committed meets its requirements; if it does not come to that, it has fewer copies than were
    /// requested.
    pub(super) fn reach(&self, committed: &mut Committed) {
        let level = self.persistence;
        // All of this rank's part is durable already.
        if level <= PersistenceLevel::Durable {
            return;
        }
        let began = Instant::now();
        let waited = self.wait(committed.id, level, self.shared.options.timeout);
        let took = began.elapsed();
        let mut stats = self.shared.stats();
        stats.commit += took;
        stats.last_commit += took;
        stats.waited += took;
        if let Err(fault) = waited {
            stats.degraded += u64::from(committed.degraded.is_none());
            let (id, place) = (committed.id, place(level));
            let why = format!("version {id} is not {place} yet: {}", fault.text);
            let before = committed.degraded.take();
            committed.degraded = Some(match before {
                Some(before) => format!("{before}; {why}"),
                None => why,
            });
        }
    }
}

/// The place of versions of a level, for the text of a wait.
fn place(level: PersistenceLevel) -> &'static str {
    match level {
        PersistenceLevel::Flushed => "on the external store",
        _ => "on other nodes",
    }
}

/// Why versions cannot be there when their commit returns.
fn never(level: PersistenceLevel, every: u64) -> String {
    let some = match every {
        0 => "none is".into(),
        every => format!("only every {every}. one is"),
    };
    let how = match level {
        PersistenceLevel::Flushed => {
            "name an external store, and flush each version (flush_every = 1)"
        }
        _ => "ask for copies or parity of each version (replicate_every = 1)",
    };
    let place = place(level);
    format!(
        "an object asks for versions that are {place} when their commit returns, and {some} at all: {how}"
    )
}
