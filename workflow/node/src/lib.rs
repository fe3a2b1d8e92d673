//! L3: the world of N nodes on one machine. Nodes are folders on tiers; steps are real processes, each step in
//! namespaces of its own where the machine allows it. How, and what can go wrong: docs/internals/local-world.md.
//!
//! Reading order: `world` (actions in, events out), `remote_tiers` (tiers that nodes export and attach), `attempt` (a step on its
//! nodes), `staging` (transfers, sources, destinations), `helper` (the process that runs a step), `host` (what the machine offers),
//! `storage` (tiers, their ledger, replicas). A folder imports only from those after it. Each names at its top the file to read
//! first.

mod attempt;
mod fds;
mod helper;
mod host;
pub mod location;
mod remote_tiers;
pub mod sockets;
mod staging;
mod storage;
mod topology;
mod world;

pub use attempt::launchers::RANK_ARGUMENT;
pub use helper::command::with_shells;
pub use helper::launch::GRACE;
pub use helper::namespaces::{Namespaces, probe_multi_node, probe_shared};
pub use helper::protocol::HELPER_ARGUMENT;
pub use helper::provider::ProviderAddress;
pub use helper::{exec, image, runner};
pub use host::machine::MAX_MOVING;
pub use host::tiers::{TiersError, apart};
pub use host::{machine, sight};
pub use remote_tiers::sweep::{sweep, sweep_drained};
pub use tarn_ports::CapabilityError;
// As tarnd calls them.
pub use remote_tiers::{attached, exported};
pub use staging::dests::{
    Destination, DestinationError, ForeignContentError, Intent, check_destination,
    destination_holds, destination_intact, destination_lacks, probe_destination, real_folder,
};
pub use staging::sources::{
    RereadScope, SourceLook, check_source, look_at_source, look_at_source_since, why_unreadable,
};
pub use storage::checkpoint_folders::staged;
pub use storage::drained::{is_there, remove_drained};
pub use storage::durable::sync_file_systems;
pub use storage::ledger::{held_by_others, held_of, uncache_replicas, vacate};
pub use storage::store::{looks_like, write_manifests};
pub use storage::{keys, untouched};
pub use tarn_sys::memory::{Memory, memory};
pub use world::{Config, Local, Waker, leave_tiers};
