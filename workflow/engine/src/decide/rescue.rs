//! Rescue: datasets that ask to be drained go out when the run fails, or is ended in order; or their loss is reported.

use super::Decide;
use crate::data::{TrackedPart, TrackedVersion};
use crate::state::EngineState;
use std::path::PathBuf;
use tarn_types::action::{Do, Subject};
use tarn_types::id::{DataId, InstanceId};
use tarn_types::part::Place;
use tarn_types::reason::Reason;
use tarn_types::workflow::{Keep, OnFailure};

impl EngineState {
    /// The place to which a dataset is rescued; `None` if there is none.
    pub(crate) fn rescue_place(&self, data: DataId) -> Option<Place> {
        let w = &self.start.workflow;
        let dataset = w.dataset(data);
        let beside = || dataset.dest.as_ref()?.parent().map(Into::into);
        let external: PathBuf = w.external.clone().or_else(beside)?;
        let folder = external.join(format!("rescued-{}", self.start.run));
        Some(Place::External(folder.join(&dataset.name)))
    }
}

impl Decide<'_> {
    /// After a failure: of each dataset that asks for it, [`version_to_rescue`] goes out, unless it is on its way to
    /// its `dest`. An incomplete version goes out when no further instance can add to it.
    pub(super) fn rescue(&mut self) {
        for i in 0..self.state.start.workflow.data.len() {
            let data = DataId(i as u32);
            let dataset = self.state.start.workflow.dataset(data);
            if dataset.on_failure != OnFailure::Drain {
                continue;
            }
            let there = |part: &TrackedPart| part.rescued_from().is_some();
            let whole = |_, v: &TrackedVersion| v.sealed && v.parts.values().all(there);
            let ends = self.state.steps.running.is_empty();
            let in_part = |v: &TrackedVersion| ends && v.parts.values().any(there);
            let newest = version_to_rescue(self.versions(data), whole, in_part);
            let Some(newest) = newest else { continue };
            let Some(to) = self.state.rescue_place(data) else {
                continue;
            };
            let version = self.state.data.version(data, newest);
            if !version.delivered && !version.rescued && !self.delivering(data) {
                self.send_out(data, newest, to, Reason::Rescue);
            }
        }
    }

    /// Whether a dataset is on its way to its `dest`.
    fn delivering(&self, data: DataId) -> bool {
        let mut transfers = self.state.transfers.values().map(|t| &t.transfer);
        transfers.any(|t| t.data == data && self.state.delivers(t))
    }

    /// Whether a rescue is still under way.
    pub(super) fn rescuing(&self) -> bool {
        self.state.transfers.values().any(|t| t.rescue)
    }

    /// At the end of a run that rescues: reports of each dataset that asks for it why nothing, only an older version or
    /// only some parts of it went out.
    pub(super) fn report_unrescued(&mut self) {
        for (data, dataset) in (0..)
            .map(DataId)
            .zip(self.state.start.workflow.data.clone())
        {
            if dataset.on_failure != OnFailure::Drain {
                continue;
            }
            let why = match self.newest_outside(data) {
                None => self.not_rescued(data),
                Some(outside) => self
                    .newer_is_lost(data, outside)
                    .or_else(|| self.rescued_in_part(data, outside)),
            };
            if let Some(why) = why {
                let about = Subject::Data(data);
                self.emit(Do::Note { about }, why);
            }
        }
    }

    /// Whether a part was rescued.
    fn is_copied(&self, data: DataId, part: &TrackedPart) -> bool {
        let place = self.state.rescue_place(data);
        part.present().any(|(at, _)| Some(at) == place.as_ref())
    }

    /// The newest version of a dataset that is stored outside: rescued, if only in part, or at its `dest`.
    fn newest_outside(&self, data: DataId) -> Option<u32> {
        let is_outside = |v: &TrackedVersion| {
            let mut parts = v.parts.values();
            v.delivered || v.rescued && parts.any(|p| self.is_copied(data, p))
        };
        let outside = self.versions(data).filter(|(_, v)| is_outside(v));
        outside.map(|(number, _)| number).last()
    }

    /// Why a version that is complete was not rescued, where an older one was.
    fn newer_is_lost(&self, data: DataId, outside: u32) -> Option<Reason> {
        let is_newer = |(number, v): &(u32, &TrackedVersion)| {
            *number > outside && v.sealed && !v.parts.is_empty()
        };
        let (number, newest) = self.versions(data).filter(is_newer).last()?;
        let message = format!(
            "version {outside} was copied, and version {number}, which is newer, was not: {}",
            self.why_lost(data, newest)
        );
        Some(Reason::NotRescued { message })
    }

    /// Why a version of which all had been made was rescued only in part.
    fn rescued_in_part(&self, data: DataId, outside: u32) -> Option<Reason> {
        let version = self.state.data.version(data, outside);
        let copied = version.parts.values().filter(|p| self.is_copied(data, p));
        let (copied, parts) = (copied.count(), version.parts.len());
        let is_part = version.sealed && !version.delivered && copied < parts;
        let (gone, are, they) = match parts - copied {
            1 => ("other 1".to_owned(), "is", "it was"),
            gone => (format!("other {gone}"), "are", "they were"),
        };
        is_part.then(|| {
            let why = match version.thinned.is_empty() {
                true => format!("the {gone} {are} gone (a node was lost, or {they} damaged)"),
                false => format!("no node holds the {gone} any more{}", self.how_kept(data)),
            };
            Reason::RescuedInPart {
                message: format!(
                    "{copied} of its {parts} parts were copied{}; {why}",
                    self.newer_parts(data, outside)
                ),
            }
        })
    }

    /// The parts of newer versions than the one that was copied, none of which is complete.
    fn newer_parts(&self, data: DataId, outside: u32) -> String {
        let newer = self.versions(data).filter(|(n, _)| *n > outside);
        let left = newer.filter_map(|(number, version)| {
            let there = |p: &&TrackedPart| p.rescued_from().is_some();
            match version.parts.values().filter(there).count() {
                0 => None,
                1 => Some(format!(", 1 part of version {number} is on the nodes")),
                n => Some(format!(", {n} parts of version {number} are on the nodes")),
            }
        });
        let left: String = left.collect();
        match left.is_empty() {
            true => left,
            false => format!(" (version {outside}, which was complete{left})"),
        }
    }

    fn versions(&self, data: DataId) -> impl Iterator<Item = (u32, &TrackedVersion)> {
        let versions = 1..=self.state.start.workflow.last_version(data);
        versions.map(move |v| (v, self.state.data.version(data, v)))
    }

    /// Why nothing of a dataset was rescued; `None` if this run has made nothing of it.
    fn not_rescued(&self, data: DataId) -> Option<Reason> {
        let made = |(number, version): &(u32, &TrackedVersion)| {
            let producer = self.state.start.workflow.producer(data, *number);
            version.parts.keys().any(|key| {
                let id = producer.map(|step| InstanceId { step, index: key.0 });
                let ran = id.and_then(|id| self.state.steps.instance(id));
                version.thinned.contains(key) || ran.is_some_and(|i| i.attempts > 0)
            })
        };
        let (_, newest) = self.versions(data).filter(made).last()?;
        let message = self.why_lost(data, newest);
        Some(Reason::NotRescued { message })
    }

    /// Why a version of which all had been made, or a part, was not rescued.
    fn why_lost(&self, data: DataId, version: &TrackedVersion) -> String {
        if let Some(message) = &version.refusal {
            return message.clone();
        }
        let parts = version.parts.len();
        let there = |p: &&TrackedPart| p.rescued_from().is_some();
        let holds = match version.parts.values().filter(there).count() {
            0 => "no node holds it any more".to_owned(),
            left => format!("the nodes hold only {left} of its {parts} parts"),
        };
        match version.thinned.is_empty() {
            true => format!("{holds}: a node was lost, or it was damaged"),
            false => format!("{holds}{}", self.how_kept(data)),
        }
    }

    /// Advice on how to keep consumed data on the nodes; empty if it is kept already.
    fn how_kept(&self, data: DataId) -> &'static str {
        match self.state.start.workflow.dataset(data).keep {
            Keep::UntilConsumed => {
                ". tarn may remove data once its last reader has ended; `keep = \"workflow\"` prevents that"
            }
            _ => "",
        }
    }
}

/// Which of a dataset's versions a rescue copies: the newest whole one; if none is whole, the rest of the newest that
/// was complete once; if none was, the parts of the newest.
pub(super) fn version_to_rescue<'a>(
    versions: impl Iterator<Item = (u32, &'a TrackedVersion)>,
    is_whole: impl Fn(u32, &TrackedVersion) -> bool,
    has_part: impl Fn(&TrackedVersion) -> bool,
) -> Option<u32> {
    let ranked = versions.filter_map(|(number, version)| {
        let rank = match version.sealed {
            _ if is_whole(number, version) => 2,
            _ if !has_part(version) => return None,
            was_complete => u8::from(was_complete),
        };
        Some((rank, number))
    });
    ranked.max().map(|(_, number)| number)
}
