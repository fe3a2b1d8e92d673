//! The exit codes of `tarn`, stable and documented in docs/reference/exit-codes.md.

/// Exit code of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// All was done.
    Success = 0,
    /// A step failed, or a transfer did; the run can be resumed.
    WorkflowFailed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The workflow file is wrong; nothing was started.
    InvalidWorkflow = 3,
    /// The machine cannot meet the workflow's needs; nothing was started.
    NoSpace = 4,
    /// tarn's own state cannot be read or written, or standard output cannot.
    State = 5,
    /// Another run of this workflow is active.
    Busy = 6,
    /// The named thing does not exist.
    NotFound = 7,
    /// An error inside tarn.
    Internal = 70,
    /// Interrupted by SIGINT; the run can be resumed.
    Interrupted = 130,
    /// Terminated by SIGTERM (or `tarn cancel`) or SIGHUP; the run can be resumed.
    Terminated = 143,
}
