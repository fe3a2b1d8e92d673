//! L3: the world of a run over the nodes of an allocation. Each node has a world of its own, reached through a [`NodeLink`];
//! this one hands each action to the node that is to do it, passes on its events, and reports what a lost node takes with it.
//! docs/internals/cluster.md, "The parts", "A node that is lost".

mod calls;
mod chains;
mod connection;
mod dispatch;
mod error;
mod event_queue;
mod external_queue;
mod file_check;
mod link;
mod lost;
mod measure;
mod notifications;
mod orders;
mod parts;
mod remote_tiers;
mod returning;
mod store;
mod world;

pub use error::NodeCallError;
pub use event_queue::EventQueue;
pub use link::{NoAnswer, NodeLink, ReachableNode, Relink};
pub use measure::{MeasureError, NodeLinkMeasurement, measure, measure_links, sweep, tier_usage};
pub use remote_tiers::{MAX_BORROWERS, RemoteTierAttachment, RemoteTierError, attach_remote_tiers};
pub use world::{AllocationWorld, Config};

use std::time::Duration;

/// For an answer that needs no more than a look.
const QUICK: Duration = Duration::from_secs(60);
/// For a node to export a part of a tier, or to attach one and to measure it: each has limits of its own, of 20 s.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(90);
/// For an answer that may need every byte on a node to be read or removed.
const THOROUGH: Duration = Duration::from_secs(30 * 60);
/// For a node to learn that the run is over.
const GOODBYE: Duration = Duration::from_secs(5);
/// The usual time for which a node may take no message before it is given up.
pub const STUCK: Duration = Duration::from_secs(60);
/// The usual time between two tries to reach a lost node again.
pub const RETRY: Duration = Duration::from_secs(2);
/// For a transfer that was given up to end, once the run is to stop.
const ABANDONED: Duration = Duration::from_secs(10);
/// Between two questions to the nodes about space that a run waits for, while it does nothing else.
const ASK_IDLE: Duration = Duration::from_secs(2);
/// How often home is polled for events while nothing else happens: a signal may wait so long.
const LOOK: Duration = Duration::from_millis(50);
/// The same while home owes an outcome.
const LOOK_OFTEN: Duration = Duration::from_millis(5);
/// Messages that wait for one node. The engine's orders are bounded by what it has under way; so many are a node that hangs.
const MAX_QUEUED: usize = 1 << 20;
/// Looks at files of steps that are under way or hang: one for each node under way, and those that a file system has kept.
const MAX_LOOKS: usize = 8192;
/// Notifications of one node that wait for the loop, each of at most some megabytes; then that node's session waits.
const MAX_UNHEARD: usize = 1024;
