//! How far something is that a job needs.

use tarn_proto::local::Refusal;

/// How far something is that a job needs.
pub(crate) enum Progress {
    /// Something is under way, or was ordered.
    Pending,
    /// Nothing is missing.
    Complete,
    /// It cannot be done.
    Failed(Refusal),
}
