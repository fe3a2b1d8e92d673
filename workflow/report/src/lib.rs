//! The story of a run, from its log alone: totals ([`Summary`]), a page to look at ([`html()`]),
//! answers to why ([`why()`]) and the state of a run ([`RunStatus`]). Nothing here is measured or guessed:
//! every figure is a sum over logged records, and estimates are marked. A log may be damaged, so sums of
//! its figures saturate. docs/guide/report.md defines each figure.
//!
//! Reading order: [`trace`] (the fold), [`summary`] and [`summarize`] (totals), [`mod@why`], [`mod@status`], [`mod@html`].

mod count;
pub mod evidence;
mod figure;
pub mod html;
mod names;
mod shares;
pub mod site;
mod status;
mod suggest;
mod summarize;
pub mod summary;
mod trace;
mod why;

pub use count::InstanceCounts;
pub use html::{PageLinks, html, link};
pub use names::partition_texts;
pub use status::{
    ActiveTransferStatus, LastFailure, LiveStatus, MAX_FAILURES, NodeNow, RunStatus,
    RunningAttemptStatus, TierFillStatus, TransferKindBytes, status,
};
pub use summary::{Emulated, EnergyTotal, LostNode, NotRescued, OutcomeName, SkippedStep, Summary};
pub use why::{LoggedReason, WhyError, render, why};

/// The records do not make up a log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// There is no `started` record.
    #[error(
        "the log has no `started` record: the run died before it began, or the log is not whole; \
         there is nothing to report (`tarn run` starts again)"
    )]
    NotStarted,
}
