//! Memory modes and sleep: nodes are rebooted for who needs another mode, few at a time; with `energy` idle nodes sleep.

use super::nodes::{MODES, Power, memory_in};
use super::queue::{Fit, Waiting};
use super::state::State;
use tarn_base::id::NodeId;
use tarn_base::policy::Order;
use tarn_base::site::{Job, Mode, SiteAction};
use tarn_base::units::{SECOND, Time};

/// Waiting jobs that are looked at for a mode that they lack.
const LOOKED_AT: usize = 32;
/// With `energy`: how long a node is idle before it sleeps. Shorter, it would be woken too often.
const SLEEPS_AFTER: u64 = 120 * SECOND;

impl State {
    /// After every decision: modes and sleep.
    pub(crate) fn housekeeping(&mut self) {
        self.change_modes();
        if self.policy.order == Order::Energy {
            self.sleep_and_wake();
        }
    }

    /// Reboots idle nodes for jobs that too few nodes are in the right mode for. Simple orders look at the first in the
    /// queue only. `data` groups: a node leaves its mode only while no waiting job could use it as it is, so that jobs of
    /// one mode run together and reboots are few.
    fn change_modes(&mut self) {
        let changeable = |i: &super::nodes::Island| i.kind.mode_change.is_some();
        if !self.nodes.islands.iter().any(changeable) {
            return;
        }
        let groups = matches!(self.policy.order, Order::Data | Order::Energy);
        let looked_at = if groups { LOOKED_AT } else { 1 };
        let all = Fit::room(u32::MAX, u32::MAX);
        let mut after: Option<Waiting> = None;
        for _ in 0..looked_at {
            let Some(w) = self.queue.next(after.as_ref(), &all) else {
                return;
            };
            after = Some(w);
            let Some(job) = self.job(w.job).map(|s| s.job.clone()) else {
                return;
            };
            for island in 0..self.nodes.islands.len() {
                for mode in MODES {
                    if self.lacks_mode(&job, island, mode) {
                        self.reboot_for(&job, island, mode, groups);
                        return;
                    }
                }
            }
        }
    }

    /// Whether a job needs nodes of an island to be in a mode in which too few are.
    fn lacks_mode(&self, job: &Job, island: usize, mode: Mode) -> bool {
        let other = MODES.into_iter().find(|m| *m != mode);
        let only = self.nodes.suits(job, island, mode)
            && other.is_none_or(|o| !self.nodes.suits(job, island, o));
        only && self.in_mode(island, mode) < job.nodes
    }

    /// Nodes of an island that are in a mode, or on their way into it.
    fn in_mode(&self, island: usize, mode: Mode) -> u32 {
        let there = self.nodes.all.iter().filter(|n| {
            let is = match n.power {
                Power::Booting(to) => to == mode,
                Power::Lost => false,
                _ => n.mode == mode,
            };
            usize::from(n.island) == island && is
        });
        there.count() as u32
    }

    fn reboot_for(&mut self, job: &Job, island: usize, mode: Mode, groups: bool) {
        let from = match mode {
            Mode::OneLevel => Mode::TwoLevel,
            Mode::TwoLevel => Mode::OneLevel,
        };
        if memory_in(&self.nodes.islands[island].kind, mode).is_none() {
            return;
        }
        let lack = job.nodes.saturating_sub(self.in_mode(island, mode)) as usize;
        let wanted = groups && self.wanted_as_is(island, from);
        if wanted {
            return;
        }
        // What holds data goes last: a reboot loses it.
        let mut idle: Vec<NodeId> = self.nodes.class(island, from).idle.iter().collect();
        idle.retain(|n| self.nodes.node(*n).planned.is_empty());
        idle.sort_by_key(|n| (self.nodes.node(*n).held.len(), *n));
        for node in idle.into_iter().take(lack) {
            if self.only_copy(node) {
                continue;
            }
            self.clear_tiers(node);
            self.nodes.set_power(node, Power::Booting(mode));
            self.under_way += 1;
            self.emit(SiteAction::SetMode { node, mode });
        }
    }

    /// Whether somebody who waits could use idle nodes of this mode as they are.
    fn wanted_as_is(&self, island: usize, mode: Mode) -> bool {
        let idle = self.nodes.class(island, mode).idle.len() as u32;
        let fit = Fit::room(idle, self.nodes.islands[island].kind.cores);
        let mut after: Option<Waiting> = None;
        for _ in 0..LOOKED_AT {
            let Some(w) = self.queue.next(after.as_ref(), &fit) else {
                return false;
            };
            if self
                .job(w.job)
                .is_some_and(|s| self.nodes.suits(&s.job, island, mode))
            {
                return true;
            }
            after = Some(w);
        }
        false
    }

    /// Whether something that is needed lies on this node alone, or is being read there.
    fn only_copy(&self, node: NodeId) -> bool {
        self.nodes.node(node).held.iter().any(|id| {
            self.item(*id).is_some_and(|i| {
                let here = i.layouts.iter().filter(|l| l.nodes.contains(&node));
                let elsewhere = i
                    .layouts
                    .iter()
                    .any(|l| l.present() && !l.nodes.contains(&node));
                let busy = here.clone().any(|l| l.pins > 0 || !l.present());
                let needed = !i.readers.is_empty() || i.item.keep && !i.outside;
                busy || needed && !elsewhere && !i.outside
            })
        })
    }

    /// Drops all that lies on a node.
    fn clear_tiers(&mut self, node: NodeId) {
        let held: Vec<_> = self.nodes.node(node).held.iter().copied().collect();
        for id in held {
            let layouts = self.item(id).map(|i| i.layouts.clone());
            for l in layouts.unwrap_or_default() {
                if l.nodes.contains(&node) {
                    self.drop_layout(id, &l.nodes, l.spread);
                }
            }
        }
    }

    /// Idle nodes sleep after a while when nobody waits; they are woken for who does.
    fn sleep_and_wake(&mut self) {
        if self.queue.len() > 0 {
            return self.wake_for_first();
        }
        let mut next: Option<Time> = None;
        let mut sleepers = Vec::new();
        for island in &self.nodes.islands {
            if island.kind.power.asleep >= island.kind.power.idle {
                continue;
            }
            for class in &island.classes {
                for id in class.idle.iter() {
                    let node = self.nodes.node(id);
                    let at = node.idle_since.saturating_add(SLEEPS_AFTER);
                    if !node.planned.is_empty() {
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
            // Moves from and to it go on elsewhere first.
            if !self.only_copy_moves(id) {
                self.nodes.set_power(id, Power::Asleep);
                self.emit(SiteAction::Sleep { node: id });
            }
        }
        self.deadline = [self.deadline, next].into_iter().flatten().min();
    }

    fn only_copy_moves(&self, node: NodeId) -> bool {
        let held = self.nodes.node(node).held.iter();
        let mut items = held.filter_map(|id| self.item(*id));
        items.any(|i| {
            let mut here = i.layouts.iter().filter(|l| l.nodes.contains(&node));
            here.any(|l| l.pins > 0 || !l.present()) || i.item.keep && !i.outside
        })
    }

    /// Wakes as many nodes as the first in the queue lacks.
    fn wake_for_first(&mut self) {
        let all = Fit::room(u32::MAX, u32::MAX);
        let Some(w) = self.queue.next(None, &all) else {
            return;
        };
        let Some(job) = self.job(w.job).map(|s| s.job.clone()) else {
            return;
        };
        for island in 0..self.nodes.islands.len() {
            for mode in MODES {
                if !self.nodes.suits(&job, island, mode) {
                    continue;
                }
                let idle = self.nodes.class(island, mode).idle.len() as u32;
                let count = |p: Power| {
                    let nodes = self.nodes.all.iter();
                    nodes
                        .filter(|n| {
                            usize::from(n.island) == island && n.mode == mode && n.power == p
                        })
                        .count() as u32
                };
                let coming = count(Power::Waking);
                let lack = job.nodes.saturating_sub(idle).saturating_sub(coming);
                let asleep: Vec<NodeId> = (0u32..)
                    .zip(&self.nodes.all)
                    .filter(|(_, n)| {
                        usize::from(n.island) == island
                            && n.mode == mode
                            && n.power == Power::Asleep
                    })
                    .map(|(i, _)| NodeId(i))
                    .take(lack as usize)
                    .collect();
                for node in asleep {
                    self.nodes.set_power(node, Power::Waking);
                    self.under_way += 1;
                    self.emit(SiteAction::Wake { node });
                }
                if lack > 0 || coming > 0 {
                    return;
                }
            }
        }
    }
}
