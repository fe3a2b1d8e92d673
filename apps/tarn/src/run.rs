//! `tarn run` and `tarn resume`: everything around the loop. `begin.rs` and `resume.rs` prepare a run, `prepared.rs` has the
//! loop.

pub(crate) mod allocation;
mod begin;
mod cached;
pub(crate) mod changes;
pub(crate) mod dropped;
mod energy;
pub(crate) mod file_content;
pub(crate) mod files;
mod finish;
mod fleet;
mod kept;
pub(crate) mod lock;
pub(crate) mod margin;
pub(crate) mod new_run;
mod opened;
pub(crate) mod orphans;
pub(crate) mod others;
pub(crate) mod pinned;
mod places;
mod prepared;
pub(crate) mod prior;
mod resume;
mod stale;
pub(crate) mod unkept;
mod variables;
pub(crate) mod world;

pub(crate) use begin::{run, start};
pub(crate) use resume::resume;
