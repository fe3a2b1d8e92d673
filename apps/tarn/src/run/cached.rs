//! The cache that a run that has ended well leaves on its tiers.

use crate::clock::wall;
use crate::error::{CliResult, ExitWith};
use std::collections::BTreeSet;
use tarn_journal::Catalogue;
use tarn_types::codes::Exit;
use tarn_types::event::Start;
use tarn_types::text::{first_of, minute};
use tarn_types::units::Bytes;

/// How many datasets are named at most.
const NAMES: usize = 8;

/// Which datasets, how much and until when, in one line; `None` if there is nothing.
pub(super) fn line(catalogue: &Catalogue, start: &Start) -> CliResult<Option<String>> {
    let now = wall();
    let rows = catalogue
        .replicas(&start.workflow.name, None)
        .exit(Exit::State)?;
    let cached: Vec<_> = rows
        .iter()
        .filter(|r| r.run == start.run && r.is_cached(now))
        .collect();
    let Some(until) = cached.iter().filter_map(|r| r.kept_until).min() else {
        return Ok(None);
    };
    let names: BTreeSet<&str> = cached.iter().map(|r| r.dataset.as_str()).collect();
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    let stored: u64 = cached.iter().map(|r| r.stored).sum();
    Ok(Some(format!(
        "cached    {}: {} {} on the nodes for later runs, at least until {} unless the space is needed; `--cache 0` keeps none",
        first_of(&names, NAMES),
        Bytes(stored),
        if names.len() == 1 { "stays" } else { "stay" },
        minute(until)
    )))
}
