//! L2: what a site did, from its accounting and from tarn's records, as a machine and a workload that `tarn sim` replays:
//! the site's digital twin. docs/internals/digital-twin.md.
//!
//! Reading order: `history` (what is known of a site), `data` (items and workflows), `order` (which job comes when),
//! `machine`, [`twin()`] (all of it together).

mod data;
mod history;
mod machine;
mod order;
mod twin;

pub use history::{JobDataHistory, NodeHistory, PastJob, SiteHistory, StoreHistory, VersionUse};
pub use twin::{SiteTwin, twin};

/// Jobs of a history; of more, those that ended last.
pub const MAX_JOBS: usize = 1 << 20;
