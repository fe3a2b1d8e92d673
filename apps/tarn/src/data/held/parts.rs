//! The parts of a version, as a run has made it.

use super::super::missing::{Missing, how_kept, run_again};
use std::collections::{BTreeMap, BTreeSet};
use tarn_journal::ReplicaRow;
use tarn_types::event::Start;
use tarn_types::history::History;
use tarn_types::id::DataId;
use tarn_types::part::{PartInfo, StoreKey};

/// The parts of a version, with their content.
pub(in crate::data) type VersionParts = BTreeMap<StoreKey, PartInfo>;

/// Why a version is not whole, and its parts that are there.
pub(in crate::data) struct IncompleteVersion {
    pub(in crate::data) why: String,
    pub(super) made: VersionParts,
    /// Which of it can be copied, or was.
    pub(in crate::data) rest: String,
    /// How to get the missing rest: begins a sentence.
    pub(in crate::data) remedy: String,
    /// All of it had been made.
    pub(in crate::data) was_whole: bool,
}

impl IncompleteVersion {
    fn of(why: String) -> Self {
        Self {
            why,
            made: VersionParts::new(),
            rest: "what is there".into(),
            remedy: "`tarn run` makes what is missing".into(),
            was_whole: false,
        }
    }

    /// The message once the available parts have been copied.
    pub(in crate::data) fn after_copy(&self) -> String {
        let was = if self.rest.ends_with("parts") {
            "were"
        } else {
            "was"
        };
        format!("{}; {} {was} copied. {}", self.why, self.rest, self.remedy)
    }
}

/// The keys of all parts that a run says the version has, or why it is not all there. `resumes`: the run can be resumed, as it is the
/// newest of its workflow.
pub(super) fn parts_in(
    rows: &[ReplicaRow],
    history: &History,
    resumes: bool,
) -> Result<VersionParts, IncompleteVersion> {
    let there: BTreeSet<&StoreKey> = rows.iter().map(|r| &r.key).collect();
    let (Some(row), Some(start)) = (rows.first(), &history.start) else {
        return Err(IncompleteVersion::of("nothing of it is there".into()));
    };
    let (name, version) = (&row.dataset, row.version);
    let known = start.workflow.data.iter().position(|d| d.name == *name);
    let Some(data) = known.map(|at| DataId(at as u32)) else {
        let why = format!("{} knows no dataset `{name}`", start.run);
        return Err(IncompleteVersion::of(why));
    };
    let parts = history.parts_of(data, version);
    let mut keys: VersionParts = parts.map(|(_, i)| (i.key.clone(), i.clone())).collect();
    let was_whole = history.is_sealed(data, version);
    let all = keys.len();
    keys.retain(|key, _| there.contains(key));
    let gone = all - keys.len();
    if was_whole && gone == 0 {
        return Ok(keys);
    }
    let missing = Missing::of(history, data, version, |_, i| there.contains(&i.key));
    let lack = if was_whole {
        parts_gone(start, (data, version), (all, gone), missing.named)
    } else {
        instances_missing(history, start, (data, version), missing.text, resumes)
    };
    Err(IncompleteVersion { made: keys, ..lack })
}

/// All of the version had been made, and `gone` of `all` parts are not there any more.
fn parts_gone(
    start: &Start,
    (data, version): (DataId, u32),
    (all, gone): (usize, usize),
    named: Option<String>,
) -> IncompleteVersion {
    assert!(
        0 < gone && gone <= all,
        "a version that had been made is incomplete by parts that are gone: {gone} of {all}"
    );
    let are = if gone == 1 { "is" } else { "are" };
    let those = if gone == 1 { "that" } else { "those" };
    let named = named.map_or(String::new(), |named| format!(", {those} of {named}"));
    let why = format!(
        "`{}` (version {version}, made by {}) is incomplete: {gone} of its {all} parts {are} gone{named}",
        start.workflow.dataset(data).name,
        start.run
    );
    let lack = IncompleteVersion::of(why);
    IncompleteVersion {
        rest: match all - gone {
            1 => "the other part".into(),
            left => format!("the other {left} parts"),
        },
        remedy: run_again(&start.workflow, data).unwrap_or(lack.remedy),
        was_whole: true,
        ..lack
    }
}

/// Some instances of the step that makes the version have not ended well; `gone`: some output of others is not there.
fn instances_missing(
    history: &History,
    start: &Start,
    (data, version): (DataId, u32),
    gone: Option<String>,
    resumes: bool,
) -> IncompleteVersion {
    let step = start.workflow.producer(data, version);
    let step = step.map_or("its source", |s| &start.workflow.step(s).name);
    let (done, all) = history.makers(data, version);
    let of = all.map_or(String::new(), |all| format!(" of {all}"));
    let (have, rest) = match done {
        1 => ("has", "its output"),
        _ => ("have", "their output"),
    };
    let dataset = start.workflow.dataset(data);
    let (gone, rest) = match gone {
        Some(gone) => (format!("; {gone}{}", how_kept(dataset)), "what is there"),
        None => (String::new(), rest),
    };
    let why = format!(
        "`{}` is incomplete: {done}{of} instances of `{step}` {have} finished in {}{gone}",
        dataset.name, start.run
    );
    let remedy = if resumes {
        "`tarn resume` runs the other instances"
    } else {
        "`tarn run` runs the other instances"
    };
    IncompleteVersion {
        rest: rest.into(),
        remedy: remedy.into(),
        ..IncompleteVersion::of(why)
    }
}
