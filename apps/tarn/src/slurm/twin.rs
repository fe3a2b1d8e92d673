//! `tarn slurm export` and `tarn slurm advise`: the site's own history as a workload. docs/internals/digital-twin.md.

mod advise;
mod export;
mod gather;
mod sentences;
mod sources;

pub(crate) use advise::AdviseArgs;
pub(super) use advise::advise;
pub(crate) use export::ExportArgs;
pub(super) use export::export;

/// The policy that is what a site does today: Slurm schedules with backfilling, and tarn keeps data on nodes.
const AS_IT_WAS: &str = "conservative+keep";
/// The policy that would drive the site.
const DRIVE: &str = "data";
