//! Why this machine cannot do something.

use std::fmt::Display;

/// What this machine or its settings lack, as a sentence for people, who alone can change that.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CapabilityError(String);

impl CapabilityError {
    /// The error with this sentence.
    pub fn new(why: impl Display) -> Self {
        Self(why.to_string())
    }

    /// For what only works in namespaces, which are not to be had for this reason.
    pub(crate) fn needs_namespaces(why: &Self) -> Self {
        Self(format!("it needs namespaces: {why}"))
    }
}
