//! When the nodes that a job may have come free: of a whole class, or of a part of it.

use super::forecast::{ALL_NODES, class_index};
use super::nodes::node_of;
use super::state::PlannerState;
use super::timeline::Timeline;
use super::view::Shadow;
use std::collections::BTreeMap;
use tarn_types::id::NodeId;
use tarn_types::site::{Job, JobId, Mode, NodeMask};
use tarn_types::units::Time;

/// The ends of jobs on nodes that a job may have.
pub(super) enum EndsFor<'a> {
    /// All of a class.
    Class(&'a Timeline),
    /// Those in a mask: in order, with the number of nodes that have come free by then.
    Some(Vec<(Time, u64)>),
}

impl EndsFor<'_> {
    /// When so many nodes (at least 1) have come free.
    pub(super) fn earliest(&self, want: u64) -> Option<Time> {
        match self {
            Self::Class(timeline) => timeline.earliest(want).map(|(at, _)| at),
            Self::Some(ends) => {
                let first = ends.partition_point(|(_, sum)| *sum < want);
                ends.get(first).map(|(at, _)| *at)
            }
        }
    }

    /// Nodes that have come free by then.
    pub(super) fn by(&self, at: Time) -> u64 {
        match self {
            Self::Class(timeline) => timeline.by(at),
            Self::Some(ends) => {
                let after = ends.partition_point(|(end, _)| *end <= at);
                let last = after.checked_sub(1).and_then(|last| ends.get(last));
                last.map_or(0, |(_, sum)| *sum)
            }
        }
    }
}

impl PlannerState {
    /// When nodes of a class come free that a job may have.
    pub(super) fn ends_for(&self, job: &Job, island: usize, mode: Mode) -> EndsFor<'_> {
        match self.nodes.mask_of(job, island) {
            None => EndsFor::Class(&self.nodes.class(island, mode).ends),
            Some(mask) => EndsFor::Some(self.masked_ends(mask, island, mode)),
        }
    }

    fn masked_ends(&self, mask: &NodeMask, island: usize, mode: Mode) -> Vec<(Time, u64)> {
        let (mut ends, mut sum) = (Vec::new(), 0);
        // A job has several ends if some of its nodes are reserved for its successor.
        let mut counted: BTreeMap<u64, usize> = BTreeMap::new();
        for (at, who, count) in self.nodes.class(island, mode).ends.iter() {
            let more = match node_of(who) {
                Some(node) => u64::from(mask.contains(node)),
                None => {
                    let before = counted.entry(who).or_default();
                    let nodes = self.nodes.counted_by(JobId(who as u32), island, mode);
                    let nodes = nodes.skip(*before).take(count as usize);
                    *before += count as usize;
                    nodes.filter(|n| mask.contains(*n)).count() as u64
                }
            };
            sum += more;
            if more > 0 {
                ends.push((at, sum));
            }
        }
        ends
    }

    /// When the first node of a class has the resources that a job asks for; `taken`: nodes that another takes until a
    /// time before.
    pub(crate) fn node_earliest(
        &self,
        job: &Job,
        island: usize,
        mode: Mode,
        taken: Option<(&[NodeId], Time, &Job)>,
    ) -> Option<Shadow> {
        let class = self.nodes.class(island, mode);
        let mask = self.nodes.mask_of(job, island);
        let may = |n: &NodeId| mask.is_none_or(|m| m.contains(*n));
        let takes = |n: &NodeId| taken.is_some_and(|(nodes, ..)| nodes.contains(n));
        // A mask may leave out those that come first.
        let looked_at = match mask {
            None => 2 * ALL_NODES,
            Some(_) => usize::MAX,
        };
        let ends = || class.ends.iter().take(looked_at);
        let shared = ends().filter_map(|e| node_of(e.1)).filter(may);
        let shared = shared.take(ALL_NODES);
        let idle = class.idle.iter_in(mask).find(|n| !takes(n));
        let later = taken.and_then(|(nodes, ..)| nodes.first().copied());
        let later = later.filter(|n| self.class_of(*n) == class_index(island, mode) && may(n));
        let by_name = shared
            .chain(idle)
            .chain(later)
            .map(|n| {
                let guest = taken.filter(|_| takes(&n));
                let at = self.limit_free_at(n, job, guest.map(|(_, until, job)| (until, job)));
                let at = at.max(self.nodes.node(n).closed.unwrap_or(0));
                (at, n)
            })
            .min();
        let gives = |who: u64| {
            let mut nodes = self.nodes.counted_by(JobId(who as u32), island, mode);
            mask.is_none() || nodes.any(|n| may(&n))
        };
        let mut whole = ends().filter(|e| node_of(e.1).is_none() && gives(e.1));
        let whole = whole.next().map(|e| e.0);
        let index = class_index(island, mode);
        match (by_name, whole) {
            (Some((at, node)), whole) if whole.is_none_or(|w| at <= w) => Some(Shadow {
                at: at.max(self.now + 1),
                class: index,
                extra: u32::MAX,
                keeps: vec![node],
            }),
            (_, Some(at)) => Some(Shadow {
                at: at.max(self.now + 1),
                class: index,
                extra: 0,
                keeps: Vec::new(),
            }),
            _ => None,
        }
    }
}
