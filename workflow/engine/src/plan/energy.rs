//! Idle nodes sleep: with `energy` as far as that pays and the stated slow-down allows it, else after a stated time.

use super::leeway::{cost, earned};
use super::nodes::{MODES, PlannerNode};
use super::queue::{Fit, QueuedJob};
use super::state::PlannerState;
use std::collections::BTreeMap;
use tarn_types::account::{add, sub};
use tarn_types::id::NodeId;
use tarn_types::ledger::NodeAvailability;
use tarn_types::policy::{Order, Policy};
use tarn_types::site::{Job, JobId, Mode, NodeKind, SiteAction};
use tarn_types::units::{Nanos, SECOND, Time};

/// A node is idle for at least so long before it sleeps.
const SLEEPS_AFTER: Nanos = 120 * SECOND;
/// Waiting jobs for which a node is kept awake; behind more of them none goes to sleep.
const LOOKED_AT: usize = 32;
/// When idling has cost a node as much as waking costs: the moment to sleep that never costs more than twice the
/// optimum of one who knows the future (ski rental; Karlin et al. 1990). `None` if it saves nothing.
///
/// With another policy it is what the site says.
fn sleeps_after(kind: &NodeKind, policy: &Policy) -> Option<Nanos> {
    if policy.order != Order::Energy {
        return policy.sleep;
    }
    let least = policy.sleep.unwrap_or(SLEEPS_AFTER);
    let saves = kind.power.idle - kind.power.asleep;
    let wakes = kind.power.wake as f64 * kind.power.boot;
    // Saturates where a node draws little less asleep.
    (saves > 0.0).then(|| least.max((wakes / saves) as Nanos))
}

impl PlannerState {
    /// The longest that a node takes to wake up.
    fn waking_takes(&self) -> Nanos {
        let kinds = self.nodes.islands.iter().map(|i| &i.kind);
        let sleep = kinds.filter(|k| sleeps_after(k, &self.policy).is_some());
        sleep.map(|k| k.power.wake).max().unwrap_or(0)
    }

    /// A job has its nodes: it has waited for sleepers, or not.
    pub(crate) fn pay_for_wait(&mut self, id: JobId) {
        let (Some(since), Some(job)) = (self.leeway.held_since(), self.job(id)) else {
            return;
        };
        let held = self.now.saturating_sub(since.max(job.ready));
        let cost = cost(held, job.job.expect);
        self.leeway.pay(cost);
        if let Some(job) = self.job_mut(id) {
            job.held = held;
        }
    }

    /// A job has ended: it earns leeway, and its payment is settled by its real run time.
    pub(crate) fn earn_leeway(&mut self, id: JobId) {
        if self.policy.order != Order::Energy {
            return;
        }
        let Some(job) = self.job(id) else {
            return;
        };
        let run = self.now.saturating_sub(job.began);
        let settled = cost(job.held, job.job.expect) - cost(job.held, run);
        let waking = cost(self.waking_takes(), run);
        let amount = earned(self.policy.slow_down) + settled;
        self.leeway.earn(amount, waking);
    }

    /// Idle nodes sleep after a while when nobody waits; they are woken for those that do.
    pub(crate) fn sleep_and_wake(&mut self) {
        let waits = self.queue.len() > 0;
        let is_free = self.policy.order != Order::Energy;
        let wakes = |n: &PlannerNode| n.availability() == NodeAvailability::Waking;
        let any_wakes = |s: &Self| s.nodes.all.iter().any(|(_, n)| wakes(n));
        let held = waits && self.wake_for_first() || any_wakes(self);
        self.leeway.note_held(held, self.now);
        if is_free || self.leeway.allows_sleep() {
            self.sleep();
        }
    }

    /// A node sleeps by a decision of the host's, or one that was to wake up does not.
    pub(crate) fn found_asleep(&mut self, node: NodeId) {
        match self.nodes.node(node).availability() {
            NodeAvailability::Up if self.nodes.node(node).guests.is_empty() => {}
            NodeAvailability::Waking => sub(&mut self.under_way, 1, "things under way"),
            _ => return,
        }
        let planned: Vec<JobId> = self.nodes.node(node).planned.iter().copied().collect();
        for id in planned {
            self.unplan(id);
            self.enqueue(id);
        }
        self.nodes.set_availability(node, NodeAvailability::Asleep);
    }

    /// The host has something on a node, or has not any more: it is idle from then on.
    pub(crate) fn needed(&mut self, node: NodeId, is_needed: bool) {
        let now = self.now;
        let node = self.nodes.node_mut(node);
        (node.needed, node.idle_since) = (is_needed, now);
    }

    /// The first jobs that wait; `None` where there are more.
    fn first_waiting(&self) -> Option<Vec<Job>> {
        if self.queue.len() > LOOKED_AT {
            return None;
        }
        let all = Fit::without_time_limit(u32::MAX, u32::MAX);
        let mut after: Option<QueuedJob> = None;
        let mut jobs = Vec::new();
        while let Some(w) = self.queue.next(after.as_ref(), &all) {
            after = Some(w);
            jobs.extend(self.job(w.job).map(|s| Job::clone(&s.job)));
        }
        Some(jobs)
    }

    /// Those go to sleep that nobody could use and that have been idle for long enough.
    fn sleep(&mut self) {
        let Some(waiting) = self.first_waiting() else {
            return;
        };
        let mut may: Vec<(Time, NodeId)> = Vec::new();
        let mut at_of: Vec<Option<Nanos>> = Vec::new();
        for (at, island) in self.nodes.islands.iter().enumerate() {
            let after = sleeps_after(&island.kind, &self.policy);
            at_of.push(after);
            if after.is_none() {
                continue;
            }
            for (class, mode) in island.classes.iter().zip(MODES) {
                let here = waiting.iter().filter(|j| self.nodes.suits(j, at, mode));
                let here: Vec<&Job> = here.collect();
                for id in class.idle.iter() {
                    let node = self.nodes.node(id);
                    // Its data would not be there for others.
                    let is_empty = node.planned.is_empty() && node.held.is_empty() && !node.needed;
                    if is_empty && !here.iter().any(|job| job.may_have(id)) {
                        may.push((node.idle_since, id));
                    }
                }
            }
        }
        // Those that were busy last stay awake.
        may.sort_unstable();
        may.truncate(may.len().saturating_sub(self.policy.awake as usize));
        let mut next: Option<Time> = None;
        for (idle_since, id) in may {
            let island = usize::from(self.nodes.node(id).island);
            let Some(after) = at_of.get(island).copied().flatten() else {
                continue;
            };
            let at = idle_since.saturating_add(after);
            if at <= self.now {
                self.nodes.set_availability(id, NodeAvailability::Asleep);
                self.emit(SiteAction::Sleep { node: id });
            } else {
                next = Some(next.map_or(at, |n| n.min(at)));
            }
        }
        self.deadline = [self.deadline, next].into_iter().flatten().min();
    }

    /// Whether nodes that run will be free for a job before it has been put off too long.
    fn worth_putting_off(&mut self, w: &QueuedJob) -> bool {
        let Some(state) = self.job(w.job).filter(|_| self.under_way > 0) else {
            return false;
        };
        if self.policy.order != Order::Energy {
            return false;
        }
        let most = state.job.expect / 100 * u64::from(self.policy.slow_down);
        let latest = state.ready.saturating_add(most);
        let soon = self.earliest(w).is_some_and(|s| s.at <= latest);
        if soon && self.now < latest {
            self.remind(latest);
        }
        soon && self.now < latest
    }

    /// Wakes as many nodes as the first in the queue lacks, or puts it off. False if no sleeping node could help it.
    fn wake_for_first(&mut self) -> bool {
        let all = Fit::without_time_limit(u32::MAX, u32::MAX);
        let Some(w) = self.queue.next(None, &all) else {
            return false;
        };
        let Some(job) = self.job(w.job).map(|s| s.job.clone()) else {
            return false;
        };
        // One look at each node, however many islands there are.
        let mut coming_to: BTreeMap<(usize, Mode), u32> = BTreeMap::new();
        let mut asleep_in: BTreeMap<(usize, Mode), u32> = BTreeMap::new();
        for (id, n) in self.nodes.all.iter() {
            let counted = match n.availability() {
                NodeAvailability::Up | NodeAvailability::Waking => &mut coming_to,
                NodeAvailability::Asleep => &mut asleep_in,
                NodeAvailability::Booting(_) | NodeAvailability::Away | NodeAvailability::Lost => {
                    continue;
                }
            };
            if n.guests.is_empty() && n.closed().is_none() && job.may_have(id) {
                *counted.entry((usize::from(n.island), n.mode)).or_default() += 1;
            }
        }
        if asleep_in.is_empty() {
            return false;
        }
        let of = |counts: &BTreeMap<(usize, Mode), u32>, p: &(usize, Mode)| {
            counts.get(p).copied().unwrap_or(0)
        };
        let places: Vec<(usize, Mode)> = (0..self.nodes.islands.len())
            .flat_map(|i| MODES.iter().map(move |m| (i, *m)))
            .filter(|(i, m)| self.nodes.suits(&job, *i, *m))
            .collect();
        let coming = |p: &(usize, Mode)| of(&coming_to, p);
        if places.iter().any(|p| coming(p) >= job.nodes) {
            return false;
        }
        let enough = places
            .iter()
            .find(|p| coming(p) + of(&asleep_in, p) >= job.nodes);
        let islands: Vec<usize> = places.iter().map(|p| p.0).collect();
        let (wanted, lack): (Vec<(usize, Mode)>, u32) = match enough {
            Some(p) => (vec![*p], job.nodes - coming(p)),
            // Nodes have to come free, or to be rebooted: all of them may be.
            None => (
                islands
                    .into_iter()
                    .flat_map(|i| MODES.iter().map(move |m| (i, *m)))
                    .collect(),
                job.nodes,
            ),
        };
        let nodes = self.nodes.all.iter();
        let asleep = nodes.filter(|(id, n)| {
            let helps = n.closed().is_none() && job.may_have(*id);
            let asleep = n.availability() == NodeAvailability::Asleep && helps;
            asleep && wanted.contains(&(usize::from(n.island), n.mode))
        });
        // Those that cannot be woken yet are the last, and are woken once they can be.
        let mut asleep: Vec<(bool, NodeId)> = asleep.map(|(id, n)| (!n.wakeable, id)).collect();
        asleep.sort_unstable();
        asleep.truncate(lack as usize);
        if asleep.is_empty() || self.worth_putting_off(&w) {
            return !asleep.is_empty();
        }
        for (_, node) in asleep.into_iter().filter(|(must_wait, _)| !must_wait) {
            self.nodes.set_availability(node, NodeAvailability::Waking);
            add(&mut self.under_way, 1, "things under way");
            self.emit(SiteAction::Wake { node });
        }
        true
    }
}
