//! The state: datasets, jobs, nodes, orders, usage. Each part has its own state; nothing here decides.

pub(crate) mod catalog;
pub(crate) mod checkpoints;
pub(crate) mod flow;
pub(crate) mod job;
pub(crate) mod node;
pub(crate) mod orders;
pub(crate) mod progress;
pub(crate) mod queue;
pub(crate) mod records;
pub(crate) mod requester;
pub(crate) mod reserved;
pub(crate) mod space;
pub(crate) mod usage;
pub(crate) mod verification;
