//! Placement: the policy, which sees the run through its view, gives nodes to instances that wait. It also explains the
//! waits of the others.

use super::Decide;
use super::view::instance_of;
use crate::ledger::Ledger;
use crate::plan::policy;
use crate::plan::queue::{Fit, QueuedJob};
use crate::plan::view::{Candidate, SchedulerView};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use tarn_types::action::{Do, Subject};
use tarn_types::bounds::STAGE_AHEAD;
use tarn_types::energy::EnergyRank;
use tarn_types::id::{InstanceId, NodeId, TierRef};
use tarn_types::part::PartRef;
use tarn_types::placement::NodeRank;
use tarn_types::policy::Order;
use tarn_types::reason::Reason;
use tarn_types::units::{Bytes, Nanos, Time};

/// Waiting instances that are looked at in one round, in the policy's order: a bound on work per event. Those behind it
/// are looked at once these are placed.
const PLACE_WINDOW: usize = 1000;
/// Waiting instances whose waits one round explains, the first of the queue.
const EXPLAINED: usize = 16;

/// Lost nodes that a message names.
const NAMED: usize = 8;

/// The known facts while the policy decides in one round.
#[derive(Debug, Default)]
pub(super) struct PlacementRound {
    /// The rest of nodes and hosts when all instances that have a place run.
    pub(super) free: Ledger,
    /// Tiers on which an instance that goes first waits for space.
    pub(super) claimed: BTreeSet<TierRef>,
    /// Instances that found no space for their data.
    roomless: BTreeSet<InstanceId>,
    /// The first who found none although nothing is under way that could free some, and why.
    pub(super) stuck: Option<(InstanceId, Reason)>,
    /// Nobody could continue otherwise: output whose size is only guessed need not have space.
    pub(super) last_resort: bool,
    /// Of [`PLACE_WINDOW`], looked at already.
    looked_at: Cell<usize>,
    /// Parts that were found to be needed and lost.
    lost: RefCell<BTreeSet<PartRef>>,
}

impl PlacementRound {
    /// Whether one more may be looked at.
    pub(super) fn looks(&self) -> bool {
        let before = self.looked_at.get();
        self.looked_at.set(before + 1);
        before < PLACE_WINDOW
    }
}

impl Decide<'_> {
    pub(super) fn place(&mut self) {
        if self.state.steps.pending.is_empty() || !self.any_open() {
            return;
        }
        self.decide_places(false);
        if self.turn.stuck.is_some() && self.idle() {
            self.decide_places(true);
        }
        let stuck = self.turn.stuck.take();
        if let (Some((id, why)), true) = (stuck, self.idle()) {
            self.note(Subject::Instance(id), why);
        }
        self.explain_waits();
    }

    fn decide_places(&mut self, last_resort: bool) {
        self.turn = PlacementRound {
            free: self.ledger_to_be(),
            last_resort,
            ..PlacementRound::default()
        };
        self.restart();
        let rule = policy::rule::<Self>(&self.state.start.options.policy);
        rule.decide(self);
        for part in self.turn.lost.take() {
            self.make_again(part);
        }
    }

    /// Whether the policy gives steps to nodes that are still busy, so that their data is there when they are free.
    fn places_ahead(&self) -> bool {
        let order = self.state.start.options.policy.order;
        matches!(order, Order::Data | Order::Energy)
    }

    fn any_open(&self) -> bool {
        match self.places_ahead() {
            true => self.all_nodes().any(|n| self.open(n, 1)),
            false => self
                .all_nodes()
                .any(|n| self.state.ledger.free_cores(n) > 0),
        }
    }

    /// Whether a node takes another instance: it has free cores for those that wait there, or few wait.
    fn open(&self, node: NodeId, cores: u32) -> bool {
        let steps = &self.state.steps;
        let waiting = steps.on_node[node.at()]
            .iter()
            .filter(|id| !steps.running.contains(id))
            .count();
        waiting < STAGE_AHEAD + (self.state.ledger.free_cores(node) / cores.max(1)) as usize
    }

    /// Whether every part that an instance reads can be had. Notes the lost ones: they have to be made again.
    pub(super) fn obtainable(&self, id: InstanceId) -> bool {
        let Some(instance) = self.state.steps.instance(id) else {
            return false;
        };
        if instance.forced && !self.leftovers(id).is_empty() {
            return false;
        }
        let mut all = true;
        for name in instance.needs.iter().flatten().flatten() {
            match self.state.data.part(*name) {
                Some(part) if part.is_lost() => {
                    self.turn.lost.borrow_mut().insert(*name);
                    all = false;
                }
                Some(part) if self.state.may_be_read(part) && !self.is_remade(*name) => {}
                _ => return false,
            }
        }
        all
    }

    /// Of nodes that are equal otherwise, the one with the least of this goes first.
    pub(super) fn draw(&self, node: NodeId) -> EnergyRank {
        self.state.draws.get(node.at()).copied().unwrap_or_default()
    }

    /// The places where a one-node instance could run.
    pub(super) fn candidates_of(&self, id: InstanceId) -> Vec<Candidate> {
        let demand = self.demand(id.step);
        let holds = self.holder(id, 0);
        let mut nodes = self.nodes_of_kind(id.step);
        nodes.retain(|n| holds(*n));
        let candidate = |(free_in, node): (Nanos, NodeId)| {
            let (data_in, missing, _) = self.data_at(id, 0, node);
            Candidate {
                node,
                free_in,
                data_in,
                missing,
                io: 0,
                load: self.state.steps.on_node[node.at()].len(),
                draw: self.draw(node),
                open: self.open(node, demand.cores),
            }
        };
        let free_in = self.free_in(&nodes, demand);
        free_in.into_iter().zip(nodes).map(candidate).collect()
    }

    /// Gives an instance its nodes, where it begins in `begin`, if they have space for its data.
    pub(super) fn assign(
        &mut self,
        id: InstanceId,
        nodes: &[NodeId],
        begin: Nanos,
        why: Reason,
    ) -> bool {
        let mut tier_refs = Vec::with_capacity(nodes.len());
        let mut reserve = u64::MAX;
        for (position, node) in nodes.iter().enumerate() {
            let Some((tier_ref, bytes)) = self.find_tier_space(id, position, *node) else {
                self.turn.roomless.insert(id);
                return false;
            };
            // As much as each of its tiers has for it.
            reserve = reserve.min(bytes);
            tier_refs.push(tier_ref);
        }
        self.turn.free.expect(&tier_refs, self.demand(id.step));
        self.leave_tiers(id, &tier_refs);
        let end = self.state.now.saturating_add(begin);
        let what = Do::Assign {
            instance: id,
            nodes: tier_refs,
            reserve,
            end: end.saturating_add(self.state.run_time(id.step)),
        };
        self.emit(what, why);
        self.stage_instance(id);
        true
    }

    /// Why these nodes, with `data`: when it begins there, and by how much another node would be later.
    pub(super) fn earliest_end(&self, id: InstanceId, nodes: &[NodeId]) -> Option<Reason> {
        let demand = self.demand(id.step);
        let first = *nodes.first()?;
        let free_in = *self.free_in(&[first], demand).first()?;
        let (mut data_in, mut missing, mut local) = (0, 0, 0);
        for (position, node) in nodes.iter().enumerate() {
            let data = self.data_at(id, position, *node);
            if position == 0 {
                data_in = data.0;
            }
            missing += data.1;
            local += data.2;
        }
        let all = self.candidates_of(id);
        let next = all
            .iter()
            .filter(|c| !nodes.contains(&c.node))
            .min_by_key(|c| c.rank());
        let chosen = all.iter().find(|c| c.node == first && nodes.len() == 1);
        let alike = |c: &Candidate| NodeRank {
            draw: (0, 0),
            node: first,
            ..c.rank()
        };
        let thriftier = chosen
            .zip(next)
            .is_some_and(|(chosen, next)| alike(chosen) == alike(next) && chosen.draw < next.draw);
        Some(Reason::EarliestEnd {
            node: first,
            free_in,
            data_in,
            missing,
            local,
            thriftier,
            next: next.map(|c| (c.node, c.begin().saturating_sub(free_in.max(data_in)))),
        })
    }

    /// Explains the waits of the first that wait, if there are cores that nobody has. Those that found no space have
    /// their reason already.
    fn explain_waits(&mut self) {
        let everything = Fit::without_time_limit(u32::MAX, u32::MAX);
        if self.free().cores == 0 {
            return;
        }
        self.turn.looked_at.set(0);
        let first = self.next(None, &everything);
        let mut at = first;
        for _ in 0..EXPLAINED {
            let (Some(w), Some(first)) = (at, first) else {
                return;
            };
            let id = instance_of(&w);
            let about = Subject::Instance(id);
            let mut known = self.state.notes.get(&about).is_some_and(waits_its_turn);
            // It may have waited for nodes that are lost since.
            known &= self.state.ledger.nodes.lost() == 0;
            if !known
                && !self.turn.roomless.contains(&id)
                && let Some(why) = self.why_it_waits(&w, instance_of(&first))
            {
                self.note(about, why);
            }
            at = self.next(Some(&w), &everything);
        }
    }

    fn why_it_waits(&self, w: &QueuedJob, first: InstanceId) -> Option<Reason> {
        let id = instance_of(w);
        if let Some(message) = self.never(id) {
            // Until nothing else can be done, a lost node may come back.
            return Some(match self.state.ledger.nodes.lost() {
                0 => self.state.failure(message),
                nodes => Reason::WaitForLost { nodes },
            });
        }
        if first != id && self.nodes_for(w, &[], Time::MAX).is_some() {
            return Some(Reason::WaitForTurn { first });
        }
        if self.places_ahead() && w.nodes == 1 {
            let all = self.candidates_of(id);
            let best = all.iter().min_by_key(|c| c.rank())?;
            let (node, free_in) = (best.node, best.free_in);
            let elsewhere = |c: &Candidate| c.open && c.missing > best.missing;
            return Some(match all.iter().any(elsewhere) {
                true => Reason::WaitForData { node, free_in },
                false => Reason::WaitForCores { node, free_in },
            });
        }
        let shadow = self.earliest(w)?;
        Some(Reason::WaitForCores {
            node: *shadow.keeps.first()?,
            free_in: shadow.at.saturating_sub(self.state.now),
        })
    }

    /// The first of those without a place that can never run on the nodes that are left, and why, when nothing else can be done
    /// that might change it.
    pub(super) fn stuck(&self) -> Option<(InstanceId, String)> {
        let mut pending = self.state.steps.pending.iter();
        pending.find_map(|(_, id)| {
            let too_few = || self.too_few_hold(*id).then(|| self.too_large(*id));
            Some((*id, self.never(*id).or_else(too_few)?))
        })
    }

    /// Whether there are fewer nodes than it needs that can hold the data of an instance.
    fn too_few_hold(&self, id: InstanceId) -> bool {
        let count = self.count(id);
        let holds = |n: &NodeId| (0..count).any(|position| self.holder(id, position)(*n));
        self.nodes_of_kind(id.step)
            .iter()
            .filter(|n| holds(n))
            .count()
            < count
    }

    /// Why an instance can never run on this machine, or on the nodes that are left of it, if so.
    fn never(&self, id: InstanceId) -> Option<String> {
        let step = self.state.start.workflow.step(id.step);
        if let Some(lost) = self.partition_lost(id.step) {
            return Some(lost);
        }
        let nodes = self.nodes_of_kind(id.step);
        if self.most_at_once(&nodes, self.demand(id.step)) < u64::from(step.nodes) {
            let tier = step.tier.as_ref();
            return Some(format!(
                "step {} asks for {} node(s) with {} core(s), {} of memory and {} GPU(s) each{}; {}",
                step.name,
                step.nodes,
                step.cores,
                Bytes(step.memory),
                step.gpus,
                tier.map_or(String::new(), |t| format!(" and a tier named {t}")),
                self.of_the_nodes()
                    .unwrap_or_else(|| "this machine has no such nodes".into())
            ));
        }
        let nowhere = |position| {
            let holds = self.holder(id, position);
            !nodes.iter().any(|n| holds(*n))
        };
        let held = !(0..step.nodes as usize).any(nowhere);
        (!held).then(|| self.too_large(id))
    }

    /// That the data of an instance is too large for its nodes.
    fn too_large(&self, id: InstanceId) -> String {
        let nodes = self.nodes_of_kind(id.step);
        let cluster = &self.state.start.cluster;
        let tiers = nodes.iter().flat_map(|n| &cluster.node(*n).tiers);
        let largest = Bytes(tiers.map(|t| t.capacity).max().unwrap_or(0));
        let message = format!(
            "step {} can never fit on a node: its inputs and outputs exceed the largest tier ({largest}); declare a larger tier \
             (--tier NAME=PATH:SIZE), use more nodes with scatter, or select entries",
            self.state.start.workflow.step(id.step).name,
        );
        match self.of_the_nodes() {
            Some(left) => format!("{message}; {left}"),
            None => message,
        }
    }

    /// Which nodes are left, if some are lost.
    fn of_the_nodes(&self) -> Option<String> {
        let all = &self.state.start.cluster.nodes;
        let nodes = &self.state.ledger.nodes;
        let lost: Vec<&str> = (0..)
            .map(NodeId)
            .zip(all)
            .filter(|(id, _)| nodes.is_lost(*id))
            .map(|(_, node)| node.name.as_str())
            .collect();
        let named = tarn_types::text::first_of(&lost, NAMED);
        match all.len() - lost.len() {
            _ if lost.is_empty() => None,
            0 => Some(format!(
                "all nodes of the run are lost ({named}); `tarn resume` continues when there are nodes again"
            )),
            left => Some(format!(
                "of {} node(s) {left} are left, lost are {named}; `tarn resume` continues when they are back",
                all.len()
            )),
        }
    }
}

/// Whether this reason is a wait for others, not for space.
fn waits_its_turn(why: &Reason) -> bool {
    matches!(
        why,
        Reason::WaitForCores { .. } | Reason::WaitForData { .. } | Reason::WaitForTurn { .. }
    )
}
