//! `data`: jobs go to their data. Online HEFT (Topcuoglu 2002) for what takes parts of nodes: the job with the longest
//! way to go first, where `max(node free, data there)` is least, waiting for a busy node when that ends sooner than
//! bringing the data elsewhere (bounded waiting after Zaharia et al., EuroSys 2010). Backfilling for what takes nodes
//! as a whole, in the order in which workflows and jobs came: a workflow keeps the place of its first step.

use super::super::desk::{Candidate, Desk, Shadow};
use super::super::queue::{Fit, Waiting};
use super::queueing::{allowed, charge, fit_before};
use super::{LOOKED_AT, Rule};
use tarn_base::site::Why;
use tarn_base::units::{Nanos, SECOND, Time};

/// Nodes that the jobs looked at for one event may ask for together: choosing them is what costs time.
const NODES_LOOKED_AT: u32 = 16_384;

/// The rule.
pub(super) struct Data {
    /// The most that workflows may delay the first ordinary job against its promise.
    pub(super) bound: Nanos,
}

impl<D: Desk> Rule<D> for Data {
    fn decide(&self, desk: &mut D) {
        let mut shadow: Option<Shadow> = None;
        let mut after: Option<Waiting> = None;
        let mut looked_at = 0u32;
        for _ in 0..LOOKED_AT {
            if looked_at > NODES_LOOKED_AT {
                return;
            }
            let fit = match &shadow {
                Some(shadow) => fit_before(desk, shadow),
                None => Fit::room(u32::MAX, u32::MAX),
            };
            let Some(w) = desk.next(after.as_ref(), &fit) else {
                return;
            };
            after = Some(w);
            looked_at = looked_at.saturating_add(w.nodes);
            if self.would_delay(desk, &w) {
                continue;
            }
            let waits = match (w.nodes, w.cores) {
                (1, 1..) => place(desk, &w, &shadow),
                _ => start(desk, &w, &mut shadow),
            };
            if let Some(own) = waits
                && shadow.is_none()
            {
                if !desk.in_flow(&w) && desk.promised().is_none() {
                    desk.promise(&w, own.at);
                }
                desk.bring_ahead(&w, &own);
                shadow = Some(own);
            }
        }
    }
}

impl Data {
    /// Whether a step of a workflow that goes before the first ordinary job would delay it beyond the bound.
    fn would_delay<D: Desk>(&self, desk: &D, w: &Waiting) -> bool {
        let Some((first, begin)) = desk.promised() else {
            return false;
        };
        if first.job == w.job || w.key > first.key || !desk.in_flow(w) {
            return false;
        }
        let Some(class) = desk.class_for(w) else {
            return false;
        };
        let Some(now) = desk.earliest(&first) else {
            return false;
        };
        let until = desk.now().saturating_add(w.limit);
        let then = desk.earliest_behind(&first, class, w.nodes, until);
        let latest = begin.saturating_add(self.bound);
        then.is_none_or(|then| then.at > now.at && then.at > latest)
    }
}

/// Starts a job that takes several or whole nodes. What it waits for, if it has to.
fn start<D: Desk>(desk: &mut D, w: &Waiting, shadow: &mut Option<Shadow>) -> Option<Shadow> {
    let nodes = match shadow {
        Some(shadow) => allowed(desk, w, shadow),
        None => desk.nodes_for(w, &[], Time::MAX),
    };
    let Some(nodes) = nodes else {
        return desk.earliest(w);
    };
    if let Some(own) = desk.worth_waiting(w, &nodes) {
        return Some(own);
    }
    let why = match shadow {
        Some(_) => Why::Backfill,
        None => Why::First,
    };
    if !desk.start(w, &nodes, why) {
        return desk.when_room(w);
    }
    if let Some(shadow) = shadow {
        charge(desk, w, &nodes, shadow);
    }
    None
}

/// Places a job that takes a part of one node.
fn place<D: Desk>(desk: &mut D, w: &Waiting, shadow: &Option<Shadow>) -> Option<Shadow> {
    let ends = |c: &Candidate| {
        let begin = desk.now().saturating_add(c.begin());
        begin.saturating_add(w.limit)
    };
    let may = |c: &Candidate| {
        shadow.as_ref().is_none_or(|s| {
            ends(c) <= s.at
                || desk.class_of(c.node) != s.class
                || s.extra > 0 && !s.keeps.contains(&c.node)
        })
    };
    let best = desk.best(w, &may)?;
    // Data is brought to a busy node when it would else come too late, not before: until then, another may be free sooner.
    let ahead = best.data_in.saturating_mul(2).saturating_add(SECOND);
    if best.open && (best.free_in == 0 || best.missing > 0 && best.free_in <= ahead) {
        return match desk.plan(w, &best) {
            true => None,
            false => desk.when_room(w),
        };
    }
    if best.open && best.missing > 0 {
        let at = desk
            .now()
            .saturating_add(best.free_in.saturating_sub(ahead));
        desk.remind(at);
    }
    Some(Shadow {
        at: desk.now().saturating_add(best.begin()),
        class: desk.class_of(best.node),
        extra: u32::MAX,
        keeps: Vec::new(),
    })
}
