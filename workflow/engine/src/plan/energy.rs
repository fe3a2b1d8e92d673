//! `energy`: idle nodes sleep, as far as the slow-down allows that is stated.

use super::leeway::{cost, earned};
use super::nodes::{MODES, NodePowerState, PlannerNode};
use super::queue::{Fit, QueuedJob};
use super::state::PlannerState;
use tarn_types::account::add;
use tarn_types::id::NodeId;
use tarn_types::policy::Order;
use tarn_types::site::{JobId, Mode, NodeKind, SiteAction};
use tarn_types::units::{Nanos, SECOND, Time};

/// A node is idle for at least so long before it sleeps.
const SLEEPS_AFTER: Nanos = 120 * SECOND;
/// When idling has cost a node as much as waking costs: the moment to sleep that never costs more than twice the
/// optimum of one who knows the future (ski rental; Karlin et al. 1990). `None` if it saves nothing.
fn sleeps_after(kind: &NodeKind) -> Option<Nanos> {
    let saves = kind.power.idle - kind.power.asleep;
    let wakes = kind.power.wake as f64 * kind.power.boot;
    // Saturates where a node draws little less asleep.
    (saves > 0.0).then(|| SLEEPS_AFTER.max((wakes / saves) as Nanos))
}

impl PlannerState {
    /// The longest that a node takes to wake up.
    fn waking_takes(&self) -> Nanos {
        let kinds = self.nodes.islands.iter().map(|i| &i.kind);
        let sleep = kinds.filter(|k| sleeps_after(k).is_some());
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
        let wakes = |n: &PlannerNode| n.power == NodePowerState::Waking;
        let held = waits && self.wake_for_first() || self.nodes.all.iter().any(wakes);
        self.leeway.note_held(held, self.now);
        if !waits && self.leeway.allows_sleep() {
            self.sleep();
        }
    }

    fn sleep(&mut self) {
        let mut next: Option<Time> = None;
        let mut sleepers = Vec::new();
        for island in &self.nodes.islands {
            let Some(after) = sleeps_after(&island.kind) else {
                continue;
            };
            for class in &island.classes {
                for id in class.idle.iter() {
                    let node = self.nodes.node(id);
                    let at = node.idle_since.saturating_add(after);
                    // Its data would not be there for others.
                    if !node.planned.is_empty() || !node.held.is_empty() {
                        continue;
                    }
                    if at <= self.now {
                        sleepers.push(id);
                    } else {
                        next = Some(next.map_or(at, |n| n.min(at)));
                    }
                }
            }
        }
        for id in sleepers {
            self.nodes.set_power(id, NodePowerState::Asleep);
            self.emit(SiteAction::Sleep { node: id });
        }
        self.deadline = [self.deadline, next].into_iter().flatten().min();
    }

    /// Whether nodes that run will be free for a job before it has been put off too long.
    fn worth_putting_off(&mut self, w: &QueuedJob) -> bool {
        let Some(state) = self.job(w.job).filter(|_| self.under_way > 0) else {
            return false;
        };
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
        let count = |island: usize, mode: Mode, power: NodePowerState| {
            let nodes = (0u32..).map(NodeId).zip(&self.nodes.all);
            let there = nodes.filter(|(id, n)| {
                let free = n.guests.is_empty() && n.power == power && n.closed.is_none();
                usize::from(n.island) == island && n.mode == mode && free && job.may_have(*id)
            });
            there.count() as u32
        };
        let places: Vec<(usize, Mode)> = (0..self.nodes.islands.len())
            .flat_map(|i| MODES.iter().map(move |m| (i, *m)))
            .filter(|(i, m)| self.nodes.suits(&job, *i, *m))
            .collect();
        let coming = |p: &(usize, Mode)| {
            count(p.0, p.1, NodePowerState::Up) + count(p.0, p.1, NodePowerState::Waking)
        };
        if places.iter().any(|p| coming(p) >= job.nodes) {
            return false;
        }
        let enough = places
            .iter()
            .find(|p| coming(p) + count(p.0, p.1, NodePowerState::Asleep) >= job.nodes);
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
        let nodes = (0u32..).map(NodeId).zip(&self.nodes.all);
        let asleep = nodes.filter(|(id, n)| {
            let helps = n.closed.is_none() && job.may_have(*id);
            let asleep = n.power == NodePowerState::Asleep && helps;
            asleep && wanted.contains(&(usize::from(n.island), n.mode))
        });
        let asleep: Vec<NodeId> = asleep.map(|(id, _)| id).take(lack as usize).collect();
        if asleep.is_empty() || self.worth_putting_off(&w) {
            return !asleep.is_empty();
        }
        for node in asleep {
            self.nodes.set_power(node, NodePowerState::Waking);
            add(&mut self.under_way, 1, "things under way");
            self.emit(SiteAction::Wake { node });
        }
        true
    }
}
