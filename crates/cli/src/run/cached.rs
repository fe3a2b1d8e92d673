//! What a run that has ended well leaves on its tiers as cache.

use super::wall;
use crate::date;
use crate::error::{CliResult, ExitWith};
use std::collections::BTreeSet;
use tarn_base::codes::Exit;
use tarn_base::event::Start;
use tarn_base::units::Bytes;
use tarn_journal::Catalogue;

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
    let mut listed: Vec<String> = names
        .iter()
        .take(NAMES)
        .map(|name| format!("`{name}`"))
        .collect();
    if names.len() > NAMES {
        listed.push(format!("{} more", names.len() - NAMES));
    }
    let stored: u64 = cached.iter().map(|r| r.stored).sum();
    Ok(Some(format!(
        "cached    {}: {} on the nodes until {}, unless others need the room; `--cache 0` leaves nothing",
        listed.join(", "),
        Bytes(stored),
        date::minute(until)
    )))
}
