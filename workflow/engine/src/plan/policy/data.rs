//! `data`: jobs go to their data. Online HEFT (Topcuoglu 2002) for jobs that take parts of nodes: the job with the
//! longest way to go first, where `max(node free, data there)` is least, waiting for a busy node when that ends sooner
//! than bringing the data elsewhere (bounded waiting after Zaharia et al., EuroSys 2010). Backfilling for jobs that
//! take whole nodes, in the order in which workflows and jobs came: a workflow keeps the place of its first step.

use super::super::queue::{Fit, QueuedJob};
use super::super::view::{Candidate, SchedulerView, Shadow};
use super::queueing::{allowed, charge, fit_before};
use super::{LOOKED_AT, SchedulingPolicy};
use tarn_types::id::NodeId;
use tarn_types::site::AllocationReason;
use tarn_types::units::{SECOND, Time};

/// Nodes that the jobs looked at for one event may ask for together: choosing them costs the time.
const NODES_LOOKED_AT: u32 = 16_384;

/// Nodes that are tried for a job before it is passed over for the job with the promise.
const TRIED: usize = 8;

/// The rule.
pub(super) struct DataAwarePolicy;

/// The result for a job that was looked at.
enum JobTrialResult {
    /// It has its nodes, or knows them.
    Placed,
    /// It waits for nodes.
    Waits(Shadow),
    /// It could begin, and does not because of others.
    PassedOver,
}

impl<D: SchedulerView> SchedulingPolicy<D> for DataAwarePolicy {
    fn decide(&self, view: &mut D) {
        let mut shadow: Option<Shadow> = None;
        let mut after: Option<QueuedJob> = None;
        let mut looked_at = 0u32;
        for _ in 0..LOOKED_AT {
            if looked_at > NODES_LOOKED_AT {
                break;
            }
            let fit = match &shadow {
                Some(shadow) => fit_before(view, shadow),
                None => Fit::without_time_limit(u32::MAX, u32::MAX),
            };
            let Some(w) = view.next(after.as_ref(), &fit) else {
                return;
            };
            after = Some(w);
            looked_at = looked_at.saturating_add(w.nodes);
            look_at(view, &w, &mut shadow);
        }
        // Those before it may be so many that the job with the promise was not looked at.
        let behind = |w: &QueuedJob| after.is_some_and(|a| w.key > a.key);
        if let Some(w) = view.promised().filter(behind) {
            look_at(view, &w, &mut shadow);
        }
    }
}

fn look_at<D: SchedulerView>(view: &mut D, w: &QueuedJob, shadow: &mut Option<Shadow>) {
    let turn = match (w.nodes, w.cores) {
        (1, 1..) => place(view, w, shadow),
        _ => start(view, w, shadow),
    };
    if let JobTrialResult::Waits(own) = turn
        && shadow.is_none()
        && !view.shadow_breaks_promise(w, &own)
    {
        view.bring_ahead(w, &own);
        *shadow = Some(own);
    }
}

/// Starts a job that takes several or whole nodes.
fn start<D: SchedulerView>(
    view: &mut D,
    w: &QueuedJob,
    shadow: &mut Option<Shadow>,
) -> JobTrialResult {
    let nodes = match shadow {
        Some(shadow) => allowed(view, w, shadow),
        None => view.nodes_for(w, &[], Time::MAX),
    };
    let Some(nodes) = nodes else {
        return waits(view.earliest(w));
    };
    let until = view.now().saturating_add(w.limit);
    if view.breaks_promise(w, &nodes, until) {
        return JobTrialResult::PassedOver;
    }
    if let Some(own) = view.worth_waiting(w, &nodes) {
        return JobTrialResult::Waits(own);
    }
    let why = match shadow {
        Some(_) => AllocationReason::Backfill,
        None => AllocationReason::First,
    };
    if !view.start(w, &nodes, why) {
        return waits(view.space_shadow(w));
    }
    if let Some(shadow) = shadow {
        charge(view, w, &nodes, shadow);
    }
    JobTrialResult::Placed
}

fn waits(shadow: Option<Shadow>) -> JobTrialResult {
    shadow.map_or(JobTrialResult::PassedOver, JobTrialResult::Waits)
}

/// Places a job that takes a part of one node.
fn place<D: SchedulerView>(view: &mut D, w: &QueuedJob, shadow: &Option<Shadow>) -> JobTrialResult {
    let (best, due) = loop {
        let Some((best, due)) = best_kept(view, w, shadow) else {
            return JobTrialResult::PassedOver;
        };
        let native = (best.missing > 0 && !due).then(|| view.native(w, best.node));
        let Some(native) = native.flatten() else {
            break (best, due);
        };
        // The node is left to a job whose data is there. The first loses nothing by it but its turn among its like.
        if best.free_in > 0 {
            return JobTrialResult::Waits(shadow_of(view, &best));
        }
        let home = view.best(&native, &|c| c.node == best.node);
        let home = home.filter(|home| home.open);
        if !home.is_some_and(|home| view.plan(&native, &home)) {
            break (best, due);
        }
    };
    // Data is brought to a busy node when it would else come too late, not before: until then, another may be free sooner.
    let ahead = best.data_in.saturating_mul(2).saturating_add(SECOND);
    let soon = best.free_in == 0 || best.missing > 0 && best.free_in <= ahead;
    if due || best.open && soon {
        return match view.plan(w, &best) {
            true => JobTrialResult::Placed,
            false => waits(view.space_shadow(w)),
        };
    }
    if best.open && best.missing > 0 {
        let at = view
            .now()
            .saturating_add(best.free_in.saturating_sub(ahead));
        view.remind(at);
    }
    JobTrialResult::Waits(shadow_of(view, &best))
}

fn shadow_of<D: SchedulerView>(view: &D, on: &Candidate) -> Shadow {
    Shadow {
        at: view.now().saturating_add(on.begin()),
        class: view.class_of(on.node),
        extra: u32::MAX,
        keeps: Vec::new(),
    }
}

/// The place where a job computes first without delaying the shadow's owner or the job with the promise; whether it was
/// promised to have begun by now, and takes the first free node.
fn best_kept<D: SchedulerView>(
    view: &mut D,
    w: &QueuedJob,
    shadow: &Option<Shadow>,
) -> Option<(Candidate, bool)> {
    let promised = view.promised().is_some_and(|p| p.key == w.key);
    let mut tried: Vec<NodeId> = Vec::new();
    while tried.len() < TRIED {
        let may = |c: &Candidate| {
            let spared = shadow.as_ref().is_none_or(|s| {
                ends_at(view, w, c) <= s.at
                    || view.class_of(c.node) != s.class
                    || s.extra > 0 && !s.keeps.contains(&c.node)
            });
            spared && !tried.contains(&c.node)
        };
        let due = |c: &Candidate| view.is_due(w, c.node) && may(c);
        let first = promised.then(|| view.best(w, &due)).flatten();
        let found = match first {
            Some(found) => (found, true),
            None => (view.best(w, &may)?, false),
        };
        let until = ends_at(view, w, &found.0);
        if !view.breaks_promise(w, &[found.0.node], until) {
            return Some(found);
        }
        tried.push(found.0.node);
    }
    None
}

/// When a job that begins on a node as soon as it can has given it back.
fn ends_at<D: SchedulerView>(view: &D, w: &QueuedJob, on: &Candidate) -> Time {
    let begin = view.now().saturating_add(on.begin());
    begin.saturating_add(w.limit)
}
