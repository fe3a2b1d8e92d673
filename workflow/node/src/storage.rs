//! Tiers and what is stored on them.
//!
//! Reading order: `run_facts` and `data_context` (where everything of a run is), `ledger` (tiers that several runs share), `keys`,
//! `checkpoint_folders`, `untouched` (whether somebody has changed a replica), `drained` (what no tier had space for).

pub(crate) mod checkpoint_folders;
pub(crate) mod data_context;
pub(crate) mod drained;
pub(crate) mod durable;
pub mod keys;
pub(crate) mod ledger;
pub(crate) mod run_facts;
pub(crate) mod source_memory;
pub(crate) mod stage;
pub(crate) mod store;
pub(crate) mod tier_folder;
pub mod untouched;
