//! One attempt of a step on its nodes.
//!
//! Reading order: `step` (from the views to the commit), `team` and `member` (its nodes), `local_node` and `remote_node` (one of
//! this world, one of another), `follower` (the other side of `remote_node`), `node_task`, `message`, `envelope_queue` and
//! `relay` (messages between nodes), `prepare` and `commit` (before and after the command), `node_context` (shared by all
//! attempts).

pub(crate) mod commit;
pub(crate) mod env;
pub(crate) mod envelope_queue;
pub(crate) mod follower;
pub(crate) mod handle;
pub(crate) mod hints;
pub(crate) mod jobs;
pub(crate) mod launchers;
pub(crate) mod local_node;
pub(crate) mod member;
pub(crate) mod message;
pub(crate) mod node_context;
pub(crate) mod node_task;
pub(crate) mod partitions;
pub(crate) mod prepare;
pub(crate) mod relay;
pub(crate) mod remote_node;
pub(crate) mod step;
pub(crate) mod step_needs;
pub(crate) mod step_tmpfs;
pub(crate) mod step_view;
pub(crate) mod team;
pub(crate) mod writers;
