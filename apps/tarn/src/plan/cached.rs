//! The cache that a run will leave on its nodes.

use std::collections::BTreeMap;
use tarn_types::action::Outcome;
use tarn_types::event::Start;
use tarn_types::history::History;
use tarn_types::part::Place;
use tarn_types::units::Bytes;
use tarn_types::workflow::Keep;

/// The cache that stays when the run has ended well, as a sentence; the run is planned to its end.
pub(super) fn note(start: &Start, history: &History) -> Option<String> {
    let w = &start.workflow;
    let done = matches!(history.outcome, Some((_, Outcome::Done)));
    if start.options.cache == 0 || !done {
        return None;
    }
    let mut cached: BTreeMap<&str, u64> = BTreeMap::new();
    for (part, places) in &history.replicas {
        let dataset = w.dataset(part.data);
        let is_kept = matches!(dataset.keep, Keep::For(_) | Keep::Forever)
            && w.last_version(part.data) == part.version;
        let here = places.iter().filter(|(at, _)| matches!(at, Place::Node(_)));
        for (_, replica) in here.filter(|_| !is_kept) {
            *cached.entry(&dataset.name).or_default() += replica.stored;
        }
    }
    let names: Vec<String> = cached.keys().map(|name| format!("`{name}`")).collect();
    let bytes = Bytes(cached.values().sum());
    (!names.is_empty()).then(|| {
        format!(
            "cached: {} ({bytes}) stays on the nodes for a week after the run, unless its space is needed: a later run that needs it does \
             not make it again; `--cache 0` leaves nothing",
            names.join(", ")
        )
    })
}
