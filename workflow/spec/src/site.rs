//! The files of a simulated site: the machine (docs/reference/cluster-file.md) and the jobs that are submitted to it
//! (docs/reference/workload-file.md).
//!
//! Reading order: `machine`, `read` (kinds of files), `reader` (their files), `mix`, `jobs` and `connect` (workload.toml),
//! `swf` with `model` (traces of batch jobs), `wfformat`, `instance` and `files` (recorded workflows), `steps` (workflow
//! files of tarn), `history` (what a site did), `draft` and `ways` (a workflow before it is submitted).

mod alone;
mod connect;
mod document;
mod draft;
mod files;
mod gather;
mod history;
mod instance;
mod jobs;
mod machine;
mod machine_text;
mod mix;
mod model;
mod open;
mod random;
mod raw_jobs;
mod read;
mod reader;
mod recorded;
mod steps;
mod swf;
mod values;
mod ways;
mod wfformat;

pub use gather::{Loaded, MAX_SITE_ITEMS, MAX_SITE_JOBS};
pub use history::write_history;
pub use machine::parse_machine;
pub use machine_text::machine_text;
pub use model::DataModel;
pub use open::{MAX_TRACE_BYTES, ReadFile};
pub use read::{read_workload, read_workloads};
pub use reader::ReadOptions;
pub use swf::TraceOptions;
pub use ways::{FlowOptions, SubmitWay};
