//! Jobs with data lines.

use super::*;
use tarn_proto::site::Owner;
use tarn_site::{PlanningJob, PlanningKey, PlanningVersion};

pub(crate) fn key(dataset: &str) -> PlanningKey {
    (Owner::User(1000), "foam".to_owned(), dataset.to_owned(), 1)
}

pub(crate) fn stored(bytes: u64, parts: &[&[&str]]) -> PlanningVersion {
    let parts = parts
        .iter()
        .map(|part| part.iter().map(|n| (*n).to_owned()).collect());
    PlanningVersion {
        bytes,
        is_outside: false,
        is_made: true,
        parts: parts.collect(),
    }
}

pub(crate) fn reads(dataset: &str) -> PlanningJob {
    PlanningJob {
        workflow: (Owner::User(1000), "foam".to_owned()),
        arrived: (START - 600) * SECOND,
        reads: vec![(key(dataset), false)],
        makes: Vec::new(),
        is_well: false,
        is_called: true,
        is_staged: true,
    }
}

#[test]
fn a_job_is_planned_where_its_data_is() {
    let snapshot = with(cluster(4), vec![waiting(1, 1)]);
    let mut view = empty_view(&snapshot);
    view.jobs.insert(1, reads("mesh"));
    view.versions
        .insert(key("mesh"), stored(50 << 30, &[&["n2"]]));
    let mut planner = planner();
    see(&mut planner, &snapshot, &view);
    assert_eq!(planned(&mut planner)[&1], (vec!["n2".to_owned()], START));
}

#[test]
fn data_that_moves_is_followed() {
    let snapshot = with(cluster(4), vec![waiting(1, 1)]);
    let mut view = empty_view(&snapshot);
    view.jobs.insert(1, reads("mesh"));
    view.versions
        .insert(key("mesh"), stored(50 << 30, &[&["n2"]]));
    let mut planner = planner();
    see(&mut planner, &snapshot, &view);
    let each = 50 << 30;
    assert_eq!(facts(&planner).used, [0, 0, each, 0]);
    view.versions
        .insert(key("mesh"), stored(50 << 30, &[&["n1", "n2"]]));
    see(&mut planner, &snapshot, &view);
    assert_eq!(facts(&planner).used, [0, each, each, 0]);
    view.versions
        .insert(key("mesh"), stored(50 << 30, &[&["n1"]]));
    see(&mut planner, &snapshot, &view);
    assert_eq!(facts(&planner).used, [0, each, 0, 0]);
}
