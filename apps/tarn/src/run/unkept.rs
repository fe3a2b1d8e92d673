//! Datasets that are to be kept and are not there any more, though no step has to run: `keep` came, or became longer, after they had gone.

use crate::clock::wall;
use crate::data::missing::run_again;
use crate::state;
use std::collections::BTreeSet;
use tarn_journal::{ChangeKind, runs};
use tarn_types::bounds::CACHE_LEASE;
use tarn_types::event::Start;
use tarn_types::history::{History, InstanceState};
use tarn_types::id::{DataId, InstanceId};
use tarn_types::layout::StateDir;
use tarn_types::part::{PartInfo, PartRef, Place, StoreKey};
use tarn_types::units::SECOND;
use tarn_types::workflow::Keep;

/// The notes on them when a run, or its plan, has come to its end.
pub(crate) fn notes(state: &StateDir, start: &Start, history: &History) -> Vec<String> {
    let w = &start.workflow;
    let all = (0u32..).map(DataId).zip(&w.data);
    // A dataset with a `dest` is there.
    let kept = all.filter(|(_, d)| seconds(d.keep).is_some() && d.dest.is_none());
    let gone = kept.map(|(id, d)| (id, d, gone(start, history, id)));
    let mut gone = gone.filter(|(.., parts)| !parts.is_empty()).peekable();
    if gone.peek().is_none() {
        return Vec::new();
    }
    let Some(past) = Past::read(state, start) else {
        return Vec::new();
    };
    let late = gone.filter(|(id, d, parts)| {
        parts
            .iter()
            .any(|info| past.came_late(start, *id, d.keep, info))
    });
    let note = |(id, d, parts): (DataId, &tarn_types::workflow::Dataset, Vec<&PartInfo>)| {
        let (name, version) = (&d.name, w.last_version(id));
        let step = w.producer(id, version)?;
        let all = if parts.len() == history.parts_of(id, version).count() {
            ""
        } else {
            "all of "
        };
        Some(format!(
            "[data.{name}] has `keep`, but no node holds {all}`{name}` any more. `tarn run` does not make it again, because nothing that \
             step `{}` depends on has changed. {}",
            w.step(step).name,
            run_again(w, id)?
        ))
    };
    late.filter_map(note).collect()
}

/// The parts of the last version of a dataset that an earlier run made, and that no node has.
fn gone<'a>(start: &Start, history: &'a History, data: DataId) -> Vec<&'a PartInfo> {
    let version = start.workflow.last_version(data);
    let Some(step) = start.workflow.producer(data, version) else {
        return Vec::new();
    };
    let was_made_before = |part: PartRef| {
        let id = InstanceId {
            step,
            index: part.origin,
        };
        let maker = history.instances.get(&id);
        maker.is_some_and(|i| i.state == InstanceState::Reused)
    };
    let parts = history.parts_of(data, version);
    let gone = parts.filter(|(part, _)| was_made_before(*part) && !is_there(history, *part));
    gone.map(|(_, info)| info).collect()
}

fn is_there(history: &History, part: PartRef) -> bool {
    let mut places = history.replicas.get(&part).into_iter().flatten();
    places.any(|(at, _)| matches!(at, Place::Node(_) | Place::Drained))
}

/// How long a dataset is kept after its run, in seconds; `None` for one that does not outlive it.
fn seconds(keep: Keep) -> Option<u64> {
    match keep {
        Keep::UntilConsumed | Keep::Workflow => None,
        Keep::For(time) => Some(time / SECOND),
        Keep::Forever => Some(u64::MAX),
    }
}

/// The earlier runs of a workflow.
struct Past<'a> {
    state: &'a StateDir,
    /// Newest first.
    starts: Vec<Start>,
    /// Parts of which replicas were removed outside any run.
    removed: BTreeSet<StoreKey>,
}

impl<'a> Past<'a> {
    /// `None` if it cannot be read: then there is no note.
    fn read(state: &'a StateDir, start: &Start) -> Option<Self> {
        let mut listed = runs::list(state).ok()?;
        listed.retain(|r| r.workflow == start.workflow.name && r.name != start.run);
        let starts = listed.iter().rev();
        let starts = starts.filter_map(|r| state::started(state, &r.name).ok());
        let changes = tarn_journal::changes::read(state).ok()?.into_iter();
        let removed = changes.filter(|c| c.change == ChangeKind::Removed);
        let removed = removed.map(|c| c.key).collect();
        Some(Self {
            state,
            starts: starts.collect(),
            removed,
        })
    }

    /// Whether `keep` came, or became longer, only after a part had gone, which nobody had removed by a command.
    fn came_late(&self, start: &Start, data: DataId, keep: Keep, info: &PartInfo) -> bool {
        let name = &start.workflow.dataset(data).name;
        let keep_in = |start: &Start| {
            let data = start.workflow.data.iter().find(|d| d.name == *name)?;
            seconds(data.keep)
        };
        // `STEP.INDEX.RUN.ATTEMPT.PART`
        let is_of = |s: &&Start| info.key.0.contains(&format!(".{}.", s.run));
        let Some(maker) = self.starts.iter().find(is_of) else {
            return false;
        };
        let stays = keep_in(maker).unwrap_or(CACHE_LEASE);
        // A command has removed data that is gone before its time.
        let is_due = wall() >= maker.wall.saturating_add(stays);
        if !is_due && self.removed.contains(&info.key) {
            return false;
        }
        let was_kept = |s: &Start| keep_in(s) >= seconds(keep);
        let mut since = self.starts.iter().take_while(|s| s.run != maker.run);
        let held = |s: &Start| {
            let history = runs::history(self.state, &s.run).ok();
            history.is_some_and(|h| {
                let parts = h.parts.iter().filter(|(_, i)| i.key == info.key);
                parts.map(|(part, _)| *part).any(|part| is_there(&h, part))
            })
        };
        !was_kept(maker) && !since.any(|s| was_kept(s) && held(s))
    }
}
