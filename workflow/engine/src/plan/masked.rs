//! When the nodes that a job may have come free: of a whole class, or of a part of it.

use super::forecast::{ALL_NODES, class_index};
use super::nodes::node_of;
use super::state::PlannerState;
use super::timeline::Timeline;
use super::view::Shadow;
use tarn_types::id::NodeId;
use tarn_types::site::{Job, JobId, Mode};
use tarn_types::units::Time;

/// The ends of jobs on nodes that a job may have.
pub(super) enum EndsFor<'a> {
    /// All of a class.
    Class(&'a Timeline),
    /// A class but for a few nodes: when these come free, in order.
    Without(&'a Timeline, Vec<Time>),
    /// A few nodes: when they come free, in order.
    Only(Vec<Time>),
}

/// How many of these have come by then.
fn come_by(ends: &[Time], at: Time) -> u64 {
    ends.partition_point(|end| *end <= at) as u64
}

impl EndsFor<'_> {
    /// When so many nodes (at least 1) have come free.
    pub(super) fn earliest(&self, want: u64) -> Option<Time> {
        match self {
            Self::Class(timeline) => timeline.earliest(want).map(|(at, _)| at),
            Self::Without(timeline, left_out) => {
                // Those left out that come free until then are no help, so it is later, and then there may be more.
                let mut useless = 0;
                loop {
                    let (at, _) = timeline.earliest(want + useless)?;
                    let more = come_by(left_out, at);
                    if more <= useless {
                        return Some(at);
                    }
                    useless = more;
                }
            }
            Self::Only(ends) => {
                let last = usize::try_from(want).ok()?.checked_sub(1)?;
                ends.get(last).copied()
            }
        }
    }

    /// Nodes that have come free by then.
    pub(super) fn by(&self, at: Time) -> u64 {
        match self {
            Self::Class(timeline) => timeline.by(at),
            Self::Without(timeline, left_out) => {
                timeline.by(at).saturating_sub(come_by(left_out, at))
            }
            Self::Only(ends) => come_by(ends, at),
        }
    }
}

impl PlannerState {
    /// When nodes of a class come free that a job may have. Takes time by the nodes that it may have, or by those that it
    /// may not have, whichever are fewer.
    pub(super) fn ends_for(&self, job: &Job, island: usize, mode: Mode) -> EndsFor<'_> {
        let timeline = &self.nodes.class(island, mode).ends;
        let Some(mask) = self.nodes.mask_of(job, island) else {
            return EndsFor::Class(timeline);
        };
        let range = self.nodes.islands[island].range();
        let few = mask.count_in(range.clone()) <= range.len() as u32 / 2;
        let nodes = mask.nodes_in(range, few);
        let nodes = nodes.filter(|n| self.nodes.node(*n).mode == mode);
        // A job may give back some nodes before others, and which is not known: its own are the last, others' the first.
        let ends = nodes.filter_map(|n| self.nodes.node(n).comes_free(few));
        let mut ends: Vec<Time> = ends.collect();
        ends.sort_unstable();
        match few {
            true => EndsFor::Only(ends),
            false => EndsFor::Without(timeline, ends),
        }
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
                let at = at.max(self.nodes.node(n).closed().unwrap_or(0));
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
