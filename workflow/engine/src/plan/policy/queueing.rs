//! The orders of batch schedulers: strict order, any job that fits, and backfilling.

use super::super::queue::{Fit, QueuedJob};
use super::super::view::{HeldNodes, SchedulerView, Shadow};
use super::{LOOKED_AT, SchedulingPolicy};
use tarn_types::site::AllocationReason;
use tarn_types::units::{Nanos, Time};

/// First come, first served: nobody overtakes.
pub(super) struct Fcfs;

impl<D: SchedulerView> SchedulingPolicy<D> for Fcfs {
    fn decide(&self, view: &mut D) {
        let all = Fit::without_time_limit(u32::MAX, u32::MAX);
        while let Some(w) = view.next(None, &all) {
            let Some(nodes) = view.nodes_for(&w, &[], Time::MAX) else {
                return;
            };
            if !view.start(&w, &nodes, AllocationReason::First) {
                return;
            }
        }
    }
}

/// Any job that fits begins, in the order of the queue (list scheduling). With max_wait, a job that has waited longer
/// is not overtaken any more.
pub(super) struct Greedy {
    pub(super) max_wait: Option<Nanos>,
}

impl<D: SchedulerView> SchedulingPolicy<D> for Greedy {
    fn decide(&self, view: &mut D) {
        let mut after: Option<QueuedJob> = None;
        for _ in 0..LOOKED_AT {
            let fit = match self.max_wait {
                // Jobs that do not fit have to be seen too.
                Some(_) => Fit::without_time_limit(u32::MAX, u32::MAX),
                None => view.free(),
            };
            let Some(w) = view.next(after.as_ref(), &fit) else {
                return;
            };
            let started = match view.nodes_for(&w, &[], Time::MAX) {
                Some(nodes) => view.start(&w, &nodes, AllocationReason::Fits),
                None => false,
            };
            if !started && self.max_wait.is_some_and(|p| view.waited(&w) >= p) {
                return;
            }
            after = Some(w);
        }
    }
}

/// Backfilling: a job that does not delay the first in the queue may begin before it (Lifka 1995; Mu'alem and Feitelson
/// 2001).
pub(super) struct Easy;

impl<D: SchedulerView> SchedulingPolicy<D> for Easy {
    fn decide(&self, view: &mut D) {
        let all = Fit::without_time_limit(u32::MAX, u32::MAX);
        let head = loop {
            let Some(w) = view.next(None, &all) else {
                return;
            };
            let started = match view.nodes_for(&w, &[], Time::MAX) {
                Some(nodes) => view.start(&w, &nodes, AllocationReason::First),
                None => false,
            };
            if !started {
                break w;
            }
        };
        if let Some(mut shadow) = view.earliest(&head) {
            backfill(view, &head, &mut shadow, LOOKED_AT);
        }
    }
}

/// Conservative backfilling (Mu'alem and Feitelson 2001), as Slurm's: each job that waits has a reservation, in the order
/// of the queue, and no job begins that would delay one before it. Where a view plans for the first job only, it is
/// [`Easy`].
pub(super) struct Conservative;

impl<D: SchedulerView> SchedulingPolicy<D> for Conservative {
    fn decide(&self, view: &mut D) {
        let all = Fit::without_time_limit(u32::MAX, u32::MAX);
        let mut held = HeldNodes::default();
        let mut after: Option<QueuedJob> = None;
        for _ in 0..LOOKED_AT {
            let free = view.free();
            // Reservations are made again for each event: without anything free now, nothing begins.
            if free.nodes == 0 && free.cores == 0 {
                return;
            }
            let Some(w) = view.next(after.as_ref(), &all) else {
                return;
            };
            let is_first = after.replace(w).is_none();
            let why = if is_first {
                AllocationReason::First
            } else {
                AllocationReason::Backfill
            };
            let Some((at, nodes, holds)) = view.beside(&w, &held) else {
                if is_first {
                    return Easy.decide(view);
                }
                continue;
            };
            let has_begun = at <= view.now() && view.start(&w, &nodes, why);
            if !has_begun {
                held.add(&holds);
            }
        }
    }
}

/// Starts jobs that neither run beyond the shadow's time nor take nodes that the job waiting for it needs.
pub(super) fn backfill<D: SchedulerView>(
    view: &mut D,
    head: &QueuedJob,
    shadow: &mut Shadow,
    looked_at: usize,
) {
    let mut after = *head;
    for _ in 0..looked_at {
        let Some(w) = view.next(Some(&after), &fit_before(view, shadow)) else {
            return;
        };
        after = w;
        if let Some(nodes) = allowed(view, &w, shadow)
            && view.start(&w, &nodes, AllocationReason::Backfill)
        {
            charge(view, &w, &nodes, shadow);
        }
    }
}

/// The jobs that could begin at all before a shadow. Nodes of other classes do not count against it, so with several
/// classes each job is looked at.
pub(super) fn fit_before<D: SchedulerView>(view: &D, shadow: &Shadow) -> Fit {
    let free = view.free();
    Fit {
        limit: shadow.at.saturating_sub(view.now()),
        extra: match view.one_class() {
            true => shadow.extra,
            false => u32::MAX,
        },
        ..free
    }
}

/// The nodes that a job may have before a shadow.
pub(super) fn allowed<D: SchedulerView>(
    view: &D,
    w: &QueuedJob,
    shadow: &Shadow,
) -> Option<Vec<tarn_types::id::NodeId>> {
    let ends = view.now().saturating_add(w.limit);
    let late = ends > shadow.at && w.nodes > shadow.extra;
    if late && view.class_for(w) == Some(shadow.class) {
        return None;
    }
    let nodes = view.nodes_for(w, &shadow.keeps, shadow.at)?;
    let other = view.class_of(*nodes.first()?) != shadow.class;
    let free = other || ends <= shadow.at || w.nodes <= shadow.extra;
    free.then_some(nodes)
}

/// Counts nodes that are kept beyond a shadow's time.
pub(super) fn charge<D: SchedulerView>(
    view: &D,
    w: &QueuedJob,
    nodes: &[tarn_types::id::NodeId],
    shadow: &mut Shadow,
) {
    let same = nodes
        .first()
        .is_some_and(|n| view.class_of(*n) == shadow.class);
    if same && view.now().saturating_add(w.limit) > shadow.at {
        shadow.extra = shadow.extra.saturating_sub(w.nodes);
    }
}
