//! What batch schedulers do: strict order, whatever fits, and backfilling.

use super::super::desk::{Desk, Shadow};
use super::super::queue::{Fit, Waiting};
use super::{LOOKED_AT, Rule};
use tarn_base::site::Why;
use tarn_base::units::{Nanos, Time};

/// First come, first served: nobody overtakes.
pub(super) struct Fcfs;

impl<D: Desk> Rule<D> for Fcfs {
    fn decide(&self, desk: &mut D) {
        let all = Fit::room(u32::MAX, u32::MAX);
        while let Some(w) = desk.next(None, &all) {
            let Some(nodes) = desk.nodes_for(&w, &[], Time::MAX) else {
                return;
            };
            if !desk.start(&w, &nodes, Why::First) {
                return;
            }
        }
    }
}

/// Whatever fits begins, in the order of the queue (list scheduling). With patience, a job that has waited longer is not
/// overtaken any more.
pub(super) struct Greedy {
    pub(super) patience: Option<Nanos>,
}

impl<D: Desk> Rule<D> for Greedy {
    fn decide(&self, desk: &mut D) {
        let mut after: Option<Waiting> = None;
        for _ in 0..LOOKED_AT {
            let fit = match self.patience {
                // Who does not fit has to be seen too.
                Some(_) => Fit::room(u32::MAX, u32::MAX),
                None => desk.free(),
            };
            let Some(w) = desk.next(after.as_ref(), &fit) else {
                return;
            };
            let started = match desk.nodes_for(&w, &[], Time::MAX) {
                Some(nodes) => desk.start(&w, &nodes, Why::Fits),
                None => false,
            };
            if !started && self.patience.is_some_and(|p| desk.waited(&w) >= p) {
                return;
            }
            after = Some(w);
        }
    }
}

/// Backfilling: what does not delay the first in the queue may begin before it (Lifka 1995; Mu'alem and Feitelson 2001).
pub(super) struct Easy;

impl<D: Desk> Rule<D> for Easy {
    fn decide(&self, desk: &mut D) {
        let all = Fit::room(u32::MAX, u32::MAX);
        let head = loop {
            let Some(w) = desk.next(None, &all) else {
                return;
            };
            let started = match desk.nodes_for(&w, &[], Time::MAX) {
                Some(nodes) => desk.start(&w, &nodes, Why::First),
                None => false,
            };
            if !started {
                break w;
            }
        };
        if let Some(mut shadow) = desk.earliest(&head) {
            backfill(desk, &head, &mut shadow, LOOKED_AT);
        }
    }
}

/// Starts what neither runs beyond the shadow's time nor takes nodes that the job waiting for it needs.
pub(super) fn backfill<D: Desk>(
    desk: &mut D,
    head: &Waiting,
    shadow: &mut Shadow,
    looked_at: usize,
) {
    let mut after = *head;
    for _ in 0..looked_at {
        let Some(w) = desk.next(Some(&after), &fit_before(desk, shadow)) else {
            return;
        };
        after = w;
        if let Some(nodes) = allowed(desk, &w, shadow)
            && desk.start(&w, &nodes, Why::Backfill)
        {
            charge(desk, &w, &nodes, shadow);
        }
    }
}

/// What could begin at all before a shadow. Nodes of other classes do not count against it, so with several classes
/// each job is looked at.
pub(super) fn fit_before<D: Desk>(desk: &D, shadow: &Shadow) -> Fit {
    let free = desk.free();
    Fit {
        limit: shadow.at.saturating_sub(desk.now()),
        extra: match desk.one_class() {
            true => shadow.extra,
            false => u32::MAX,
        },
        ..free
    }
}

/// The nodes that a job may have before a shadow.
pub(super) fn allowed<D: Desk>(
    desk: &D,
    w: &Waiting,
    shadow: &Shadow,
) -> Option<Vec<tarn_base::id::NodeId>> {
    let ends = desk.now().saturating_add(w.limit);
    let late = ends > shadow.at && w.nodes > shadow.extra;
    if late && desk.class_for(w) == Some(shadow.class) {
        return None;
    }
    let nodes = desk.nodes_for(w, &shadow.keeps, shadow.at)?;
    let other = desk.class_of(*nodes.first()?) != shadow.class;
    let free = other || ends <= shadow.at || w.nodes <= shadow.extra;
    free.then_some(nodes)
}

/// Counts nodes that are kept beyond a shadow's time.
pub(super) fn charge<D: Desk>(
    desk: &D,
    w: &Waiting,
    nodes: &[tarn_base::id::NodeId],
    shadow: &mut Shadow,
) {
    let same = nodes
        .first()
        .is_some_and(|n| desk.class_of(*n) == shadow.class);
    if same && desk.now().saturating_add(w.limit) > shadow.at {
        shadow.extra = shadow.extra.saturating_sub(w.nodes);
    }
}
