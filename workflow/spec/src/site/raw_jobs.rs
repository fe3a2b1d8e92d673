//! Data and jobs of a workload file as written.

use crate::section::Located;
use crate::site::draft::DraftJob;
use tarn_types::site::Spread;
use tarn_types::units::Time;

/// Data as written.
pub(crate) struct RawWorkItem {
    pub(crate) name: Located<String>,
    pub(crate) bytes: u64,
    pub(crate) outside: bool,
    pub(crate) keep: bool,
    pub(crate) spread: Spread,
}

/// A job as written.
pub(crate) struct RawJob {
    pub(crate) name: Located<String>,
    pub(crate) flow: Option<Located<String>>,
    pub(crate) arrives: Option<Located<Time>>,
    pub(crate) draft: DraftJob,
    /// No limit is written.
    pub(crate) no_limit: bool,
    pub(crate) reads: Vec<Located<String>>,
    pub(crate) writes: Vec<Located<String>>,
    pub(crate) after: Vec<Located<String>>,
}
