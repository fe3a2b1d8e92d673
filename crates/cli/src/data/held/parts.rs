//! The parts of a version, as a run has made it.

use super::super::missing::{Missing, how_kept, run_again};
use std::collections::{BTreeMap, BTreeSet};
use tarn_base::history::History;
use tarn_base::id::DataId;
use tarn_base::part::{PartInfo, StoreKey};
use tarn_journal::ReplicaRow;

/// The parts of a version, with their content.
pub(in crate::data) type Parts = BTreeMap<StoreKey, PartInfo>;

/// Why a version is not whole, and what there is of it.
pub(in crate::data) struct Lack {
    pub(in crate::data) why: String,
    pub(super) made: Parts,
    /// How what is missing is had.
    pub(in crate::data) remedy: String,
    /// All of it had been made.
    pub(in crate::data) was_whole: bool,
}

impl Lack {
    fn of(why: String) -> Self {
        Self {
            why,
            made: Parts::new(),
            remedy: "`tarn resume` (or `tarn run` again) makes what is missing".into(),
            was_whole: false,
        }
    }
}

/// The keys of all parts that a run says the version has, or why it is not all there.
pub(super) fn parts_in(rows: &[ReplicaRow], history: &History) -> Result<Parts, Lack> {
    let there: BTreeSet<&StoreKey> = rows.iter().map(|r| &r.key).collect();
    let (Some(row), Some(start)) = (rows.first(), &history.start) else {
        return Err(Lack::of("nothing of it is there".into()));
    };
    let (name, version) = (&row.dataset, row.version);
    let known = start.workflow.data.iter().position(|d| d.name == *name);
    let Some(data) = known.map(|at| DataId(at as u32)) else {
        let why = format!("{} knows no dataset `{name}`", start.run);
        return Err(Lack::of(why));
    };
    let parts = history.parts_of(data, version);
    let mut keys: Parts = parts.map(|(_, i)| (i.key.clone(), i.clone())).collect();
    let was_whole = history.is_sealed(data, version);
    let all = keys.len();
    keys.retain(|key, _| there.contains(key));
    let gone = all - keys.len();
    if was_whole && gone == 0 {
        return Ok(keys);
    }
    let missing = Missing::of(history, data, version, |_, i| there.contains(&i.key)).text;
    let step = start.workflow.producer(data, version);
    let step = step.map(|s| &start.workflow.step(s).name);
    if was_whole {
        let missing = missing.map_or(String::new(), |missing| format!(": {missing}"));
        let why = format!(
            "version {version} of `{name}` is not all there: {gone} of its {all} parts, as {} made them, are stored nowhere any \
             more{missing}",
            start.run
        );
        let lack = Lack::of(why);
        return Err(Lack {
            made: keys,
            remedy: run_again(&start.workflow, data).unwrap_or(lack.remedy),
            was_whole,
            ..lack
        });
    }
    let (done, all) = history.makers(data, version);
    let of = all.map_or(String::new(), |all| format!(" of {all}"));
    let missing = missing.map_or(String::new(), |missing| {
        format!(", and {missing} {}", how_kept(name))
    });
    let why = format!(
        "version {version} of `{name}` is not complete: in {}, {done}{of} instances of `{}` are committed{missing}",
        start.run,
        step.map_or("source", |s| s.as_str())
    );
    Err(Lack {
        made: keys,
        remedy: "`tarn resume` runs the other instances".into(),
        ..Lack::of(why)
    })
}
