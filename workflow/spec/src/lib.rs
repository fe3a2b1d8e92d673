//! L2: workflow, cluster and workload files: strict parsing, checks and diagnostics.
//!
//! docs/reference/workflow-file.md is the grammar. A file is accepted whole or rejected with all that is
//! wrong with it, each problem with its place, a stable code and what to do. Nothing is read, looked up or
//! started here.
//!
//! ```
//! use tarn_spec::{FindingCode, parse};
//!
//! let text = r#"
//!     name = "words"
//!     [data.text]
//!     source = "books"
//!     [data.total]
//!     dest = "result"
//!     [[step]]
//!     name = "count"
//!     run = "cat $TARN_text/* | wc -w > $TARN_total/words"
//!     in = ["text"]
//!     out = ["total"]
//! "#;
//! let parsed = parse("words.toml", text, "/home/me".as_ref())?;
//! assert_eq!((&*parsed.workflow.name, parsed.workflow.steps.len()), ("words", 1));
//!
//! let typo = text.replace("dest", "dst");
//! let rejected = parse("words.toml", &typo, "/home/me".as_ref()).unwrap_err();
//! let problem = &rejected.problems()[0];
//! assert_eq!(problem.kind(), FindingCode::UnknownKey);
//! assert_eq!(problem.position(), Some((6, 5)));
//! # Ok::<(), tarn_spec::SpecError>(())
//! ```
//! Reading order: `parsed` (the stages of a check), `section` and `namerule` (typed reading of a table),
//! `data`, `step`, `item` and `foreach` (the tables), `paths`, `resolve`, `versions`, `parts` and `graph`
//! (how they fit together), `partition` (partitions, and which steps use them), `cluster`, `space_check` and
//! `partition_check` (requirements on the machine), `code` (the identity of a step), `script` (sbatch
//! scripts), `variables`, `calls` and `unset` (variables that scripts read and nobody sets), `diag`, `text`,
//! `suggest` and `notes` (how problems are kept and shown). [`site`] reads the files of a simulated site.

mod calls;
mod chain;
mod cluster;
mod code;
mod data;
mod diag;
mod distribution;
mod elsewhere;
mod foreach;
mod foreach_check;
mod graph;
mod item;
mod jobs;
mod namerule;
mod notes;
mod parsed;
mod partition;
mod partition_check;
mod parts;
mod paths;
mod resolve;
mod schedulers;
mod script;
mod section;
pub mod site;
mod space_check;
mod spans;
mod step;
mod suggest;
mod text;
mod tier_names;
mod unset;
mod variable_read;
mod variables;
mod versions;

pub use chain::ChainOptions;
pub use cluster::{Abilities, Inability, check_cluster, check_site};
pub use code::code_hash;
pub use diag::{Finding, FindingCode, MAX_FINDINGS, Note, SpecError};
pub use jobs::{StepJob, step_jobs};
pub use notes::needs_external;
pub use parsed::{Parsed, parse};
pub use script::{JobScript, SbatchScript, parse_job, parse_scripts, without_directives};
pub use suggest::did_you_mean;
pub use unset::{StepText, UnsetVariable, needs_job, unset};
