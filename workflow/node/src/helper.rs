//! The process that a step runs in, and what it is made of.
//!
//! Reading order: `protocol`, `launch` (tarn's side), `runner` (the helper's side), `command` (what it starts), `tmp` (a /tmp of its
//! own), `image` (images of its processes), `provider` (one namespace over the nodes of a step), `exec` (`tarn exec`).

pub(crate) mod command;
pub mod exec;
pub(crate) mod exec_budget;
pub(crate) mod exec_env;
pub(crate) mod exec_listener;
pub(crate) mod guests;
pub mod image;
pub(crate) mod launch;
pub(crate) mod log;
pub(crate) mod namespaces;
pub(crate) mod protocol;
pub(crate) mod provider;
pub mod runner;
pub(crate) mod tmp;
