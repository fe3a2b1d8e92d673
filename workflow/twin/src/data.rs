//! Versions become items, workflows get numbers.

use crate::history::VersionUse;
use crate::order::OrderedJob;
use std::collections::{BTreeSet, HashMap, HashSet};
use tarn_types::site::{Flow, FlowId, Input, Item, ItemId, Spread, WorkItem};
use tarn_types::units::Time;

/// The items and workflows of a history while its jobs are added in their order.
pub(crate) struct TwinData<'h> {
    pub(crate) items: Vec<WorkItem>,
    pub(crate) flows: Vec<Flow>,
    /// Of each workflow: when the last of its results was outside.
    pub(crate) delivered: Vec<Option<Time>>,
    /// Versions with several names for the same are one item for each workflow that uses them.
    by_name: HashMap<(FlowId, &'h str), ItemId>,
    by_flow: HashMap<&'h str, FlowId>,
    /// Versions that a job of the history makes, and in which workflow.
    makers: HashMap<&'h str, &'h str>,
    /// Versions that a job reads which came when their maker had ended.
    read_late: HashSet<&'h str>,
    /// Versions that were on nodes before the history began, or came from another workflow.
    pub(crate) from_before: BTreeSet<&'h str>,
}

impl<'h> TwinData<'h> {
    pub(crate) fn new(jobs: &[OrderedJob<'h>]) -> Self {
        let mut makers = HashMap::new();
        let mut ends: HashMap<&str, Time> = HashMap::new();
        let mut read_late = HashSet::new();
        for ordered in jobs {
            let Some(data) = &ordered.job.data else {
                continue;
            };
            for version in &data.reads {
                let end = ends.get(&*version.version);
                if end.is_some_and(|end| *end <= ordered.at) {
                    read_late.insert(&*version.version);
                }
            }
            for version in &data.writes {
                makers.entry(&*version.version).or_insert(&*data.workflow);
                ends.insert(&version.version, ordered.job.ended);
            }
        }
        Self {
            items: Vec::new(),
            flows: Vec::new(),
            delivered: Vec::new(),
            by_name: HashMap::new(),
            by_flow: HashMap::new(),
            makers,
            read_late,
            from_before: BTreeSet::new(),
        }
    }

    /// The workflow of a job that comes now.
    pub(crate) fn flow(&mut self, name: &'h str, arrives: Time) -> FlowId {
        if let Some(known) = self.by_flow.get(name) {
            return *known;
        }
        let id = FlowId(self.flows.len() as u32);
        self.flows.push(Flow {
            name: format!("workflow-{}", id.0),
            arrives,
        });
        self.delivered.push(None);
        self.by_flow.insert(name, id);
        id
    }

    /// A job's input.
    pub(crate) fn input(&mut self, flow: FlowId, workflow: &str, used: &'h VersionUse) -> Input {
        let is_made = self.makers.get(&*used.version).copied() == Some(workflow)
            && self.by_name.contains_key(&(flow, &*used.version));
        if !is_made {
            self.from_before.insert(&used.version);
        }
        let item = self.item(flow, used, !is_made);
        let spread = if used.is_whole {
            Spread::Whole
        } else {
            Spread::Share
        };
        Input { item, spread }
    }

    /// A job's output; `None` if another job has made it already, or it was read before it was made.
    pub(crate) fn output(&mut self, flow: FlowId, used: &'h VersionUse) -> Option<ItemId> {
        if self.by_name.contains_key(&(flow, &*used.version)) {
            return None;
        }
        Some(self.item(flow, used, false))
    }

    fn item(&mut self, flow: FlowId, used: &'h VersionUse, outside: bool) -> ItemId {
        let next = ItemId(self.items.len() as u32);
        let id = *self.by_name.entry((flow, &used.version)).or_insert(next);
        if id == next {
            let late = self.read_late.contains(&*used.version);
            self.items.push(WorkItem {
                item: Item {
                    bytes: used.bytes,
                    outside,
                    keep: !outside && (used.keep || late),
                },
                name: "".into(),
                bytes: used.bytes,
            });
        }
        id
    }
}
