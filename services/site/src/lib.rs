//! L2: a site: its datasets, jobs and nodes, and what is ordered of whom. docs/internals/site.md.
//!
//! [`Site::step`] takes what has happened and says what is to be done; it does nothing itself. Its state follows from its events
//! alone, so the log of events is the truth, and a controller that starts again replays it.
//!
//! What is to be done for a job is not kept as a list of steps but derived, each time something has happened, from what there is and what
//! there must be ([`stage`]): so it does not matter in which order nodes answer, fail or come back.
//!
//! Reading order: `event`, `model` (what is known), `state`, `submit` (a job comes), `requests` (its stages; at `PreRun`, the gate, it
//! waits), `stage` (what is brought, from where), `reported` (what came of it), `finish`, `keep`,
//! `space`. What only looks has a type of its own: `resolve` (a job's versions), `placement` (its nodes), `stock` and `relief` (space).

mod audit;
mod capacity;
mod data;
mod event;
mod finish;
mod keep;
mod model;
mod moves;
mod node;
mod partitions;
mod placement;
mod relief;
mod reported;
mod requests;
mod resolve;
mod space;
mod stage;
mod state;
mod stock;
mod submit;
mod usage;
mod verify;
mod views;

pub use event::{Config, SiteRequest, SiteServiceAction, SiteServiceEvent, Token};
pub use state::Site;

use tarn_types::units::Time;

/// Jobs that are known at a time, those that have ended lately included.
pub const MAX_JOBS: usize = 100_000;
/// Datasets of one owner.
pub const MAX_DATASETS: usize = 10_000;
/// Others who may read one dataset.
pub const MAX_READERS: usize = 64;
/// Jobs that are advised again when what they read is there.
pub const MAX_ADVISED: usize = 256;
/// Nodes.
pub const MAX_NODES: usize = tarn_types::bounds::MAX_NODES;
/// Versions, and orphans, that one answer tells of.
pub const MAX_LISTED: usize = 20_000;
/// Replicas that one question has read again.
pub const MAX_VERIFIED: usize = 4_096;
/// Lines of a job's history: the newest stay.
pub const MAX_HISTORY: usize = 64;
/// Moves between stores of one node at a time that only make space: what they take of it, jobs there lack.
pub const MAX_MOVES: usize = 4;
/// Times that something is tried on a node for a job before the job is told that it failed.
pub const MAX_TRIES: u32 = 3;

impl Site {
    /// What has happened, and what is done about it.
    pub fn step(
        &mut self,
        now: Time,
        event: SiteServiceEvent,
        actions: &mut Vec<SiteServiceAction>,
    ) {
        self.now = self.now.max(now);
        self.actions.clear();
        match event {
            SiteServiceEvent::Began { epoch } => self.began(epoch),
            SiteServiceEvent::Asked(asked) => self.handle_request(asked),
            SiteServiceEvent::Opened {
                node,
                capacity,
                stores,
                holds,
                partial,
                jobs,
            } => self.opened(&node, (capacity, stores), (holds, &partial), &jobs),
            SiteServiceEvent::Closed { node } => self.closed(&node),
            SiteServiceEvent::Reported { order, report } => self.reported(order, report),
            SiteServiceEvent::Passed => self.expire(),
        }
        actions.append(&mut self.actions);
        if cfg!(debug_assertions) {
            self.recount();
        }
    }
}
