//! Permanent failures.

use std::collections::{BTreeMap, BTreeSet};
use tarn_types::action::Subject;
use tarn_types::event::RunErrorKind;
use tarn_types::id::NodeId;
use tarn_types::part::PartRef;

/// Whether a failure counts as a try: not if something else ended it.
pub(crate) fn counts(kind: RunErrorKind) -> bool {
    !matches!(kind, RunErrorKind::Cancelled | RunErrorKind::NodeLost)
}

/// The permanent failures of a run that continues with all that does not need them. A step that lacks data that these
/// were to make is never bound, and an instance whose lost input they were to make again finds no input: nobody has to
/// be held back.
#[derive(Debug, Default)]
pub(crate) struct GivenUp {
    /// Instances; and steps whose instances cannot be known, or made nothing.
    pub(crate) all: BTreeSet<Subject>,
    /// Those that have not been reported yet, and why they failed.
    pub(crate) untold: BTreeMap<Subject, String>,
    /// Parts that could not be brought to a node, and why: instances that need them there are given up in this round.
    pub(crate) unreachable: BTreeMap<(PartRef, NodeId), String>,
}

impl GivenUp {
    /// Gives something up, once: it has yet to be reported why.
    pub(crate) fn add(&mut self, about: Subject, message: String) {
        if self.all.insert(about) {
            self.untold.insert(about, message);
        }
    }
}
