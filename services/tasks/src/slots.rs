//! Slots: how many tasks read or write at a place at a time.

use crate::task::{Task, space_of};
use std::collections::BTreeMap;
use tarn_proto::local::TaskLocation;

/// A place whose tasks are limited in number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TaskSlot {
    /// Outside of all spaces.
    External,
    /// The link to a node.
    Link(String),
    /// A node does it for this one.
    Handed(String),
    /// All that other nodes do for this one.
    HandedAll,
    /// A dataspace.
    Space(String),
}

/// The slots that are taken. A task under way has each of its slots once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Slots {
    taken: BTreeMap<TaskSlot, u32>,
}

impl Slots {
    /// How many tasks have this slot.
    pub(crate) fn taken(&self, slot: &TaskSlot) -> u32 {
        self.taken.get(slot).copied().unwrap_or(0)
    }

    pub(crate) fn take(&mut self, slots: impl IntoIterator<Item = TaskSlot>) {
        for slot in slots {
            *self.taken.entry(slot).or_default() += 1;
        }
    }

    pub(crate) fn release(&mut self, slots: &[TaskSlot]) {
        for slot in slots {
            let taken = self.taken(slot);
            assert!(taken > 0, "a slot was released that no task has: {slot:?}");
            match taken - 1 {
                0 => drop(self.taken.remove(slot)),
                left => drop(self.taken.insert(slot.clone(), left)),
            }
        }
    }
}

impl Task {
    /// The slots that it needs.
    pub(crate) fn slots(&self) -> Vec<TaskSlot> {
        if let Some(node) = self.done_by() {
            // A task that another node does takes none of this one's slots: it might itself wait there for this one.
            return vec![TaskSlot::HandedAll, TaskSlot::Handed(node.to_owned())];
        }
        let (from, to) = self.spec.kind.places();
        let slot = |place: Option<&TaskLocation>| match place {
            Some(TaskLocation::External(_)) => Some(TaskSlot::External),
            Some(TaskLocation::Node { node, .. }) => Some(TaskSlot::Link(node.clone())),
            other => space_of(other).map(|name| TaskSlot::Space(name.to_owned())),
        };
        let mut slots: Vec<TaskSlot> = [slot(from), slot(to)].into_iter().flatten().collect();
        slots.dedup();
        slots
    }
}
