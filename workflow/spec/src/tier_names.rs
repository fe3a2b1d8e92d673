//! Tiers that a file names and a cluster has not.

use crate::diag::{Finding, FindingCode, quoted};
use crate::suggest::did_you_mean;
use miette::SourceSpan;
use std::collections::BTreeSet;

/// Something wants a tier that no node has.
pub(crate) fn unknown_tier(
    what: &str,
    tier: &str,
    span: SourceSpan,
    tiers: &BTreeSet<&str>,
) -> Finding {
    let known = || match tiers.is_empty() {
        true => "no node has a tier".to_owned(),
        false => format!(
            "the tiers are {}",
            tiers.iter().copied().collect::<Vec<_>>().join(", ")
        ),
    };
    Finding::error(
        FindingCode::UnknownTier,
        format!("{what} wants tier {}, which no node has", quoted(tier)),
    )
    .at(span, "not a tier of this cluster")
    .help(did_you_mean(tier, tiers.iter().copied()).unwrap_or_else(known))
}
