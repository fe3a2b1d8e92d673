//! Memory modes: nodes are rebooted for jobs that need another mode, few at a time.

use super::items::ItemLayout;
use super::nodes::{MODES, PlannerIsland, memory_in};
use super::queue::{Fit, QueuedJob};
use super::state::PlannerState;
use tarn_types::account::add;
use tarn_types::id::NodeId;
use tarn_types::ledger::NodeAvailability;
use tarn_types::policy::Order;
use tarn_types::site::{Job, Mode, SiteAction};

/// Waiting jobs that are looked at for a mode that they lack.
const LOOKED_AT: usize = 32;

/// Nodes of an island in a mode that are spoken for.
type Claims = std::collections::BTreeMap<(usize, Mode), u32>;

impl PlannerState {
    /// After every decision: modes and sleep.
    pub(crate) fn housekeeping(&mut self) {
        self.change_modes();
        self.copy_ahead();
        if self.policy.has_sleepers() {
            self.sleep_and_wake();
        }
    }

    /// Reboots idle nodes for jobs that too few nodes are in the right mode for. Simple orders look at the first in the
    /// queue only. `data` groups: a node leaves its mode only while no waiting job could use it as it is, so that jobs of
    /// one mode run together and reboots are few.
    fn change_modes(&mut self) {
        let changeable = |i: &PlannerIsland| i.kind.mode_change.is_some();
        if !self.nodes.islands.iter().any(changeable) {
            return;
        }
        let groups = matches!(self.policy.order, Order::Data | Order::Energy);
        let looked_at = if groups { LOOKED_AT } else { 1 };
        // Nodes that those ahead wait for in the mode in which they are.
        let mut claimed: Claims = Claims::new();
        let all = Fit::without_time_limit(u32::MAX, u32::MAX);
        let mut after: Option<QueuedJob> = None;
        for _ in 0..looked_at {
            let Some(w) = self.queue.next(after.as_ref(), &all) else {
                return;
            };
            after = Some(w);
            let Some(job) = self.job(w.job).map(|s| s.job.clone()) else {
                return;
            };
            let Some((island, mode)) = self.lacks_mode(&job) else {
                self.note_claim(&job, &mut claimed);
                continue;
            };
            let patient = self
                .now
                .saturating_sub(self.job(w.job).map_or(0, |s| s.ready))
                < self.policy.bound;
            let groups = groups && patient && self.under_way > 0;
            self.reboot_for(&job, island, mode, groups, &claimed);
            return;
        }
    }

    /// The island and the mode in which a job could run if more nodes were in that mode: where fewest are missing.
    /// `None` if enough are somewhere.
    fn lacks_mode(&self, job: &Job) -> Option<(usize, Mode)> {
        let mut best: Option<(u32, usize, Mode)> = None;
        for island in 0..self.nodes.islands.len() {
            for mode in MODES {
                if !self.nodes.suits(job, island, mode) {
                    continue;
                }
                let lacks = job.nodes.saturating_sub(self.in_mode(job, island, mode));
                if lacks == 0 {
                    return None;
                }
                if best.is_none_or(|b| (lacks, island) < (b.0, b.1)) {
                    best = Some((lacks, island, mode));
                }
            }
        }
        best.map(|(_, island, mode)| (island, mode))
    }

    /// Nodes of an island that a job may have and that are in a mode, or on their way into it.
    fn in_mode(&self, job: &Job, island: usize, mode: Mode) -> u32 {
        let nodes = self.nodes.all.iter();
        let there = nodes.filter(|(id, n)| {
            let is = match n.availability() {
                NodeAvailability::Booting(to) => to == mode,
                NodeAvailability::Lost => false,
                _ => n.mode == mode,
            };
            usize::from(n.island) == island && is && n.closed().is_none() && job.may_have(*id)
        });
        there.count() as u32
    }

    /// Notes where a job that no mode lacks for will get its nodes.
    fn note_claim(&self, job: &Job, claimed: &mut Claims) {
        let places = (0..self.nodes.islands.len()).flat_map(|i| MODES.iter().map(move |m| (i, *m)));
        let enough = |(i, m): &(usize, Mode)| {
            self.nodes.suits(job, *i, *m) && self.in_mode(job, *i, *m) >= job.nodes
        };
        if let Some(place) = places.into_iter().find(enough) {
            let nodes = claimed.entry(place).or_default();
            *nodes = (*nodes).max(job.nodes);
        }
    }

    fn reboot_for(&mut self, job: &Job, island: usize, mode: Mode, groups: bool, claimed: &Claims) {
        let from = match mode {
            Mode::OneLevel => Mode::TwoLevel,
            Mode::TwoLevel => Mode::OneLevel,
        };
        if memory_in(&self.nodes.islands[island].kind, mode).is_none() {
            return;
        }
        let kept = claimed.get(&(island, from)).copied().unwrap_or(0);
        let spare = self.in_mode(job, island, from).saturating_sub(kept);
        let lack = job
            .nodes
            .saturating_sub(self.in_mode(job, island, mode))
            .min(spare) as usize;
        let wanted = groups && self.wanted_as_is(island, from);
        if wanted {
            return;
        }
        // Nodes that hold data go last: a reboot loses it.
        let mut idle: Vec<NodeId> = self.nodes.class(island, from).idle.iter().collect();
        idle.retain(|n| job.may_have(*n) && self.nodes.node(*n).planned.is_empty());
        idle.sort_by_key(|n| (self.nodes.node(*n).held.len(), *n));
        for node in idle.into_iter().take(lack) {
            if self.only_copy(node) {
                self.evacuate(node);
                continue;
            }
            self.clear_tiers(node);
            self.nodes
                .set_availability(node, NodeAvailability::Booting(mode));
            add(&mut self.under_way, 1, "things under way");
            self.emit(SiteAction::SetMode { node, mode });
        }
    }

    /// Whether a waiting job could use idle nodes of this mode as they are.
    fn wanted_as_is(&self, island: usize, mode: Mode) -> bool {
        let idle = self.nodes.class(island, mode).idle.len() as u32;
        let fit = Fit::without_time_limit(idle, self.nodes.islands[island].kind.cores);
        let mut after: Option<QueuedJob> = None;
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

    /// Whether a needed item is on this node alone, or is being read there.
    fn only_copy(&self, node: NodeId) -> bool {
        self.nodes.node(node).held.iter().any(|id| {
            self.item(*id).is_some_and(|i| {
                let here = i.layouts.iter().filter(|l| l.has(node));
                let elsewhere = i.layouts.iter().any(|l| l.present() && !l.has(node));
                let busy = here.clone().any(|l| l.pins > 0 || !l.present());
                let needed = !i.readers.is_empty() || i.item.keep && !i.outside;
                busy || needed && !elsewhere && !i.outside
            })
        })
    }

    /// Moves away the needed items that are on this node alone.
    fn evacuate(&mut self, node: NodeId) {
        let held: Vec<_> = self.nodes.node(node).held.iter().copied().collect();
        for id in held {
            let Some(item) = self.item(id) else {
                continue;
            };
            let elsewhere = |l: &ItemLayout| l.present() && !l.has(node);
            if item.outside || item.leaving.is_some() || item.layouts.iter().any(elsewhere) {
                continue;
            }
            let here = |l: &&ItemLayout| l.present() && l.pins == 0 && l.has(node);
            if let Some(l) = item.layouts.iter().find(here).cloned() {
                self.rebalance(id, &l.nodes, l.spread, node);
            }
        }
    }

    /// Drops all items on a node.
    fn clear_tiers(&mut self, node: NodeId) {
        let held: Vec<_> = self.nodes.node(node).held.iter().copied().collect();
        for id in held {
            let layouts = self.item(id).map(|i| i.layouts.clone());
            for l in layouts.unwrap_or_default() {
                if l.has(node) {
                    self.drop_layout(id, &l.nodes, l.spread);
                }
            }
        }
    }
}
