//! Orders without a report, found by their numbers and by their purposes: a job may have thousands of orders under way,
//! and each report makes it look at all that it has.

use crate::model::job::NodeJobTask;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::site::{Part, Proof, SlurmJobId, StoreContent, Uid};
use tarn_types::units::Time;

/// An order under way.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ordered {
    pub(crate) node: String,
    pub(crate) why: OrderPurpose,
    /// The store that it is about.
    #[serde(default)]
    pub(crate) store: String,
    /// When it was given.
    #[serde(default)]
    pub(crate) since: Time,
}

/// The purpose of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OrderPurpose {
    /// Something of a job; with the node that it takes bytes from.
    Job(SlurmJobId, NodeJobTask, Option<(String, Uid)>),
    /// To know where a user's worker serves.
    Port(Uid),
    /// Removal of unneeded content.
    Reclaim(Uid, StoreContent),
    /// Checks whether content that was given up is unchanged.
    Check(Part, Proof),
    /// Verifies for a requester whether a replica is still this. It is the one at this position in the reply.
    Verify(usize, Part, Proof),
    /// A job that is over is let in no more.
    Forget(SlurmJobId),
    /// A part goes from one store of the node to another.
    Move(Part),
}

/// Orders under way.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(from = "BTreeMap<u64, Ordered>", into = "BTreeMap<u64, Ordered>")]
pub(crate) struct OrderTable {
    all: BTreeMap<u64, Ordered>,
    /// Those of jobs.
    of_steps: BTreeMap<NodeJobTask, BTreeSet<u64>>,
}

fn step_of(ordered: &Ordered) -> Option<&NodeJobTask> {
    match &ordered.why {
        OrderPurpose::Job(_, step, _) => Some(step),
        _ => None,
    }
}

impl OrderTable {
    pub(crate) fn get(&self, number: &u64) -> Option<&Ordered> {
        self.all.get(number)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&u64, &Ordered)> {
        self.all.iter()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Ordered> {
        self.all.values()
    }

    /// Those of all jobs for a step, on any node.
    pub(crate) fn of<'a>(
        &'a self,
        step: &NodeJobTask,
    ) -> impl Iterator<Item = &'a Ordered> + use<'a> {
        let numbers = self.of_steps.get(step).into_iter().flatten();
        numbers.filter_map(|number| self.all.get(number))
    }

    /// Whether a step of a job is under way on a node.
    pub(crate) fn is_under_way(&self, id: SlurmJobId, node: &str, step: &NodeJobTask) -> bool {
        let mut orders = self.of(step);
        orders.any(|o| o.node == node && matches!(&o.why, OrderPurpose::Job(job, ..) if *job == id))
    }

    /// Whether a step of a job is under way on some node.
    pub(crate) fn is_under_way_anywhere(&self, id: SlurmJobId, step: &NodeJobTask) -> bool {
        let mut orders = self.of(step);
        orders.any(|o| matches!(&o.why, OrderPurpose::Job(job, ..) if *job == id))
    }

    pub(crate) fn is_fetched(&self, node: &str, part: &Part) -> bool {
        let mut fetches = self.of(&NodeJobTask::Fetch(part.clone()));
        fetches.any(|o| o.node == node)
    }

    /// Whether a copy of a part is being removed from a node.
    pub(crate) fn is_removed(&self, node: &str, part: &Part) -> bool {
        let mut all = self.values();
        all.any(|o| match &o.why {
            OrderPurpose::Reclaim(_, held) => o.node == node && held.part() == Some(part),
            _ => false,
        })
    }

    pub(crate) fn is_fetched_anywhere(&self, part: &Part) -> bool {
        self.of(&NodeJobTask::Fetch(part.clone())).next().is_some()
    }

    /// Transfers under way that take bytes from a node.
    pub(crate) fn count_from(&self, node: &str) -> usize {
        let from =
            |why: &OrderPurpose| matches!(why, OrderPurpose::Job(_, _, Some((n, _))) if n == node);
        self.values().filter(|o| from(&o.why)).count()
    }

    pub(crate) fn is_port_requested(&self, node: &str, user: Uid) -> bool {
        let mut all = self.values();
        all.any(|o| o.node == node && o.why == OrderPurpose::Port(user))
    }

    pub(crate) fn insert(&mut self, number: u64, ordered: Ordered) {
        self.remove(&number);
        if let Some(step) = step_of(&ordered) {
            let of_step = self.of_steps.entry(step.clone()).or_default();
            of_step.insert(number);
        }
        self.all.insert(number, ordered);
    }

    pub(crate) fn remove(&mut self, number: &u64) -> Option<Ordered> {
        let ordered = self.all.remove(number)?;
        if let Some(step) = step_of(&ordered)
            && let Some(of_step) = self.of_steps.get_mut(step)
        {
            of_step.remove(number);
            if of_step.is_empty() {
                self.of_steps.remove(step);
            }
        }
        Some(ordered)
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl From<BTreeMap<u64, Ordered>> for OrderTable {
    fn from(all: BTreeMap<u64, Ordered>) -> Self {
        let mut orders = Self::default();
        for (number, ordered) in all {
            orders.insert(number, ordered);
        }
        orders
    }
}

impl From<OrderTable> for BTreeMap<u64, Ordered> {
    fn from(orders: OrderTable) -> Self {
        orders.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_found_by_their_step_as_long_as_they_are_under_way() {
        let ordered = |why| Ordered {
            node: "n1".into(),
            why,
            store: String::new(),
            since: 0,
        };
        let step = |name: &str| NodeJobTask::Prepare(name.into());
        let mut orders = OrderTable::default();
        for (number, name) in [(1, "x"), (2, "y"), (3, "x")] {
            orders.insert(number, ordered(OrderPurpose::Job(7, step(name), None)));
        }
        orders.insert(4, ordered(OrderPurpose::Port(1000)));
        // A number that is given again is of the last order alone.
        orders.insert(3, ordered(OrderPurpose::Job(8, step("y"), None)));
        let text = serde_json::to_string(&orders).unwrap();
        let mut again: OrderTable = serde_json::from_str(&text).unwrap();
        for orders in [&mut orders, &mut again] {
            assert_eq!(orders.of(&step("x")).count(), 1);
            assert_eq!(orders.of(&step("y")).count(), 2);
            assert!(orders.remove(&1).is_some() && orders.remove(&1).is_none());
            assert_eq!(orders.of(&step("x")).count(), 0);
            assert_eq!((orders.values().count(), orders.of_steps.len()), (3, 1));
        }
    }
}
