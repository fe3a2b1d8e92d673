//! L3: the world of N nodes on one machine. Nodes are folders on tiers; steps are real processes, each step in
//! namespaces of its own where the machine allows it. docs/internals/local-world.md tells how and what can go wrong.
//!
//! Reading order: `world` (actions in, events out), `step` (one attempt), `member` (one node of it), `here` and `far` (an
//! own one, and one that another world owns), `follower` (the other side of `far`), `message`, `envelope_queue` and `relay` (how they talk),
//! `prepare` and `commit` (before and after the command), `command` (what starts it), `launch` and `runner` (tarn's side and the helper's side of a
//! running step), `tmp` (a /tmp of its own), `image` (images of its processes), `provider` (one namespace over its nodes), `topology` and `sockets` (where they run), `pool` and `transfer` (movement), `ledger` (tiers shared by several runs), `inventory` (after a crash), `untouched` (whether somebody has changed a replica),
//! `sweep` (what dead runs have left), `drained` (where the external store has what no tier has room for).

pub mod borrowed;
mod capability;
mod command;
mod commit;
mod data_context;
mod dests;
mod drained;
mod durable;
mod env;
mod envelope_queue;
pub mod exec;
mod exec_budget;
mod exec_listener;
mod far;
mod fds;
mod follower;
mod guests;
mod handle;
mod here;
mod hints;
pub mod image;
mod inventory;
mod jobs;
mod kept;
pub mod keys;
mod launch;
mod launchers;
mod ledger;
pub mod lent;
pub mod location;
mod log;
pub mod machine;
mod member;
mod message;
mod namespaces;
mod node_context;
mod node_task;
mod partitions;
mod pool;
mod prepare;
mod protocol;
mod provider;
mod relay;
mod room;
mod run_facts;
pub mod runner;
pub mod sight;
pub mod sockets;
mod source_memory;
mod sources;
mod stage;
mod step;
mod step_needs;
mod step_view;
mod store;
mod sweep;
mod team;
mod tier_folder;
mod tiers;
mod tmp;
mod topology;
mod transfer;
pub mod untouched;
mod world;
mod writers;

pub use capability::CapabilityError;
pub use command::with_shells;
pub use dests::{
    Destination, Intent, check_destination, destination_holds, destination_intact,
    destination_lacks, probe_destination, real_folder,
};

pub use drained::{is_there, remove_drained};
pub use durable::sync_file_systems;
pub use kept::staged;
pub use launch::GRACE;
pub use launchers::RANK_ARGUMENT;
pub use ledger::{held_by_others, held_of, uncache_replicas, vacate};
pub use machine::MAX_MOVING;
pub use namespaces::{Namespaces, probe_multi_node, probe_shared};
pub use protocol::HELPER_ARGUMENT;
pub use provider::ProviderAddress;
pub use sources::{
    RereadScope, SourceLook, check_source, look_at_source, look_at_source_since, why_unreadable,
};
pub use store::{looks_like, write_manifests};
pub use sweep::{sweep, sweep_drained};
pub use tarn_sys::memory::{Memory, memory};
pub use tiers::{TiersError, apart};
pub use world::{Config, Local, Waker, leave_tiers};
