//! L2: a site: its datasets, jobs and nodes, and the orders to nodes. docs/internals/site.md.
//!
//! [`Site::step`] takes an event and returns actions; it does nothing itself. Its state follows from its events alone,
//! so the log of events is the truth, and a controller that starts again replays it.
//!
//! The actions for a job are not kept as a list of steps but derived, after each event, from the present and the
//! required state ([`stage`]): so it does not matter in which order nodes answer, fail or come back.
//!
//! Reading order: `event`, `model` (the state), `state`, `submit` (a job comes), `requests` (its stages; at `PreRun`,
//! the gate, it waits), `stage` (transfers and their sources), `ahead` (those before a job has nodes), `reported` (results of orders), `finish`, `keep`,
//! `space`. Queries have types of their own: `resolve` (a job's versions), `placement` (its nodes), `stock` and
//! `relief` (space).

mod ahead;
mod audit;
mod capacity;
mod checkpoints;
mod data;
mod event;
mod figures;
mod finish;
mod keep;
mod model;
mod moves;
mod node;
mod partitions;
mod placement;
mod planning;
mod records;
mod relief;
mod reported;
mod requests;
mod resolve;
mod slices;
mod space;
mod stage;
mod state;
mod stock;
mod submit;
mod usage;
mod verify;
mod views;

pub use event::{Config, SiteRequest, SiteServiceAction, SiteServiceEvent, Token};
pub use figures::{FlowSums, SiteFigures, TIME_CLASSES, WantedAccount};
pub use planning::{PlanningJob, PlanningKey, PlanningVersion, PlanningView};
pub use state::Site;

use model::queue::QueueReading;
use tarn_types::units::Time;

/// Jobs that are known at a time, those that have ended lately included.
pub const MAX_JOBS: usize = 100_000;
/// Datasets of one owner.
pub const MAX_DATASETS: usize = 10_000;
/// Others who may read one dataset.
pub const MAX_READERS: usize = 64;
/// Jobs that are advised again when their inputs are there.
pub const MAX_ADVISED: usize = 256;
/// Jobs that nodes are kept for at a time.
pub const MAX_RESERVED_JOBS: usize = 1024;
/// Nodes.
pub const MAX_NODES: usize = tarn_types::bounds::MAX_NODES;
/// Versions, and orphans, in one reply.
pub const MAX_LISTED: usize = 20_000;
/// Replicas that one question has read again.
pub const MAX_VERIFIED: usize = 4_096;
/// Jobs with data that have ended and whose records are kept: the newest stay.
pub const MAX_RECORDS: usize = 100_000;
/// Lines of a job's history: the newest stay.
pub const MAX_HISTORY: usize = 64;
/// Moves between stores of one node at a time that only make space: their bandwidth is missing to jobs there.
pub const MAX_MOVES: usize = 4;

impl Site {
    /// Applies an event, and returns the actions that follow from it.
    pub fn step(
        &mut self,
        now: Time,
        event: SiteServiceEvent,
        actions: &mut Vec<SiteServiceAction>,
    ) {
        self.now = self.now.max(now);
        self.actions.clear();
        match event {
            SiteServiceEvent::Began { epoch, rules } => self.began(epoch, rules),
            SiteServiceEvent::Requested(request) => self.handle_request(request),
            SiteServiceEvent::Found { job, submission } => self.find(job, *submission),
            SiteServiceEvent::Listed {
                began,
                unknown,
                gone,
            } => self.list(QueueReading { began, unknown }, &gone),
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
            SiteServiceEvent::Accounted { jobs } => self.accounted(&jobs),
            SiteServiceEvent::Excludes { job, nodes } => self.excludes(job, nodes),
            SiteServiceEvent::Advised { job, nodes } => self.advised(job, nodes),
            SiteServiceEvent::Passed => self.expire(),
        }
        actions.append(&mut self.actions);
        if cfg!(debug_assertions) {
            self.recount();
        }
    }
}
