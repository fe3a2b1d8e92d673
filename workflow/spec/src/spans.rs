//! The places of a workflow file's statements.

use miette::SourceSpan;
use std::path::PathBuf;

/// The places of requirements on a machine.
#[derive(Debug, Clone)]
pub(crate) struct Spans {
    pub(crate) erase: Option<SourceSpan>,
    pub(crate) data: Vec<DataSpans>,
    pub(crate) partitions: Vec<PartitionSpans>,
    pub(crate) steps: Vec<StepSpans>,
}

#[derive(Debug, Clone)]
pub(crate) struct DataSpans {
    pub(crate) size: Option<SourceSpan>,
    pub(crate) copies: Option<SourceSpan>,
    pub(crate) tier: Option<SourceSpan>,
    pub(crate) encrypt: Option<SourceSpan>,
    pub(crate) elsewhere: Option<SourceSpan>,
}

#[derive(Debug, Clone)]
pub(crate) struct PartitionSpans {
    pub(crate) name: SourceSpan,
    pub(crate) size: SourceSpan,
    pub(crate) tier: Option<SourceSpan>,
    pub(crate) spread: Option<SourceSpan>,
    pub(crate) keep: Option<SourceSpan>,
    /// The place in each step that uses it.
    pub(crate) steps: Vec<SourceSpan>,
}

#[derive(Debug, Clone)]
pub(crate) struct StepSpans {
    pub(crate) name: SourceSpan,
    pub(crate) nodes: Option<SourceSpan>,
    pub(crate) cores: Option<SourceSpan>,
    pub(crate) memory: Option<SourceSpan>,
    pub(crate) gpus: Option<SourceSpan>,
    pub(crate) tier: Option<SourceSpan>,
    pub(crate) restart: Option<SourceSpan>,
    /// Of each use, and whether it is `shared`.
    pub(crate) uses: Vec<(SourceSpan, bool)>,
    /// The watched files beside those that its command names.
    pub(crate) files: Vec<PathBuf>,
}
