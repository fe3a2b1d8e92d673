//! Why a step cannot be bound to its inputs.

/// Why the instances of a step, or the inputs of one of them, cannot be known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BindError {
    /// More entries match than the step may have instances.
    #[error(
        "step {step}: {dataset} has {entries} entries that match {pattern}, more than max = {max}; raise max or make fewer"
    )]
    TooMany {
        step: String,
        dataset: String,
        entries: usize,
        pattern: String,
        max: u32,
    },
    /// No entry matches the pattern of `foreach`.
    #[error(
        "step {step}: no entry of {dataset} matches {pattern:?}, and {dataset} {}; correct the pattern of `foreach`, or write \
         `allow_empty = true` if no instance at all is right",
        listed(entries)
    )]
    NoMatch {
        step: String,
        dataset: String,
        pattern: String,
        /// All that there are.
        entries: Vec<String>,
    },
    /// An instance reads an entry that is not there.
    #[error(
        "step {step}: {dataset} has no entry {entry:?}; check the names that its producer makes"
    )]
    NoEntry {
        step: String,
        dataset: String,
        entry: String,
    },
}

fn listed(entries: &[String]) -> String {
    match entries {
        [] => "has no entries".to_owned(),
        [one] => format!("has one entry, {one:?}"),
        [first, .., last] => format!("has {} entries, from {first:?} to {last:?}", entries.len()),
    }
}
