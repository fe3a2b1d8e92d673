//! Placement: online list scheduling. Most urgent first, to the node where `max(node free, data ready) + run
//! time` is least, counting missing bytes over the contended link; waiting for the data's node when that
//! ends sooner than moving the data.

use super::Decide;
use super::sources::is_lost;
use crate::ledger::Demand;
use std::collections::{BTreeMap, BTreeSet};
use tarn_base::action::{Do, Subject};
use tarn_base::bounds::STAGE_AHEAD;
use tarn_base::id::{InstanceId, NodeId, Spot, TierId};
use tarn_base::part::PartRef;
use tarn_base::reason::Reason;
use tarn_base::units::{Bytes, Nanos};

/// Waiting instances that are looked at in one round, most urgent first: a bound on work per event. Those
/// behind it are looked at once these are placed.
const PLACE_WINDOW: usize = 1000;

/// What placing an instance on a node would mean.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    node: NodeId,
    free_in: Nanos,
    data_in: Nanos,
    missing: u64,
    local: u64,
    open: bool,
}

impl Candidate {
    fn begin(&self) -> Nanos {
        self.free_in.max(self.data_in)
    }
}

impl Decide<'_> {
    pub(super) fn place(&mut self) {
        let window: Vec<_> = self
            .state
            .steps
            .pending
            .iter()
            .take(PLACE_WINDOW)
            .map(|(_, id)| *id)
            .collect();
        // Tiers on which somebody more urgent waits for room.
        let mut claimed = BTreeSet::new();
        for id in window {
            if self.state.stop.is_some() || !self.any_open() {
                return;
            }
            self.place_one(id, &mut claimed);
        }
    }

    fn any_open(&self) -> bool {
        let nodes = 0..self.state.start.cluster.nodes.len();
        nodes.into_iter().any(|n| self.open(NodeId(n as u32), 1))
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

    fn place_one(&mut self, id: InstanceId, claimed: &mut BTreeSet<Spot>) {
        let Some(instance) = self.state.steps.instance(id) else {
            return;
        };
        let parts = instance.parts();
        if !self.obtainable(&parts) {
            return;
        }
        let step = self.state.start.workflow.step(id.step);
        let (count, demand) = (step.nodes as usize, Demand::of(step));
        let chosen = match self.choose(id, count, demand) {
            Ok(chosen) => chosen,
            Err(why) => return self.note(Subject::Instance(id), why),
        };
        let mut spots = Vec::with_capacity(count);
        let mut reserve = 0;
        for (position, candidate) in chosen.iter().enumerate() {
            match self.find_room(id, position, candidate.node, claimed) {
                Some((spot, bytes)) => {
                    reserve = reserve.max(bytes);
                    spots.push(spot);
                }
                None => return,
            }
        }
        let begin = chosen.iter().map(Candidate::begin).max().unwrap_or(0);
        let what = Do::Assign {
            instance: id,
            nodes: spots,
            reserve,
            end: self
                .state
                .now
                .saturating_add(begin)
                .saturating_add(self.state.run_time(id.step)),
        };
        let why = self.placement_reason(id, &chosen, demand);
        self.emit(what, why);
        self.stage_instance(id);
    }

    fn placement_reason(&self, id: InstanceId, chosen: &[Candidate], demand: Demand) -> Reason {
        let first = chosen[0];
        if self.stage_through() {
            return Reason::FirstFree { node: first.node };
        }
        let used: BTreeSet<_> = chosen.iter().map(|c| c.node).collect();
        let others = self.candidates(id, 0, demand);
        let next = others
            .iter()
            .filter(|c| !used.contains(&c.node))
            .min_by_key(|c| (c.begin(), c.missing, c.node));
        Reason::EarliestEnd {
            node: first.node,
            free_in: first.free_in,
            data_in: first.data_in,
            missing: chosen.iter().map(|c| c.missing).sum(),
            local: chosen.iter().map(|c| c.local).sum(),
            next: next.map(|c| (c.node, c.begin().saturating_sub(first.begin()))),
        }
    }

    /// Whether every part can be had; what is lost is ordered to be made again.
    fn obtainable(&mut self, parts: &BTreeSet<PartRef>) -> bool {
        let mut all = true;
        for name in parts {
            let Some(part) = self.state.data.part(*name) else {
                return false;
            };
            if is_lost(part) {
                self.make_again(*name);
                all = false;
            } else if self.stage_through() && self.state.external_source(part).is_none() {
                all = false;
            }
        }
        all
    }

    fn candidates(&self, id: InstanceId, position: usize, demand: Demand) -> Vec<Candidate> {
        let Some(instance) = self.state.steps.instance(id) else {
            return Vec::new();
        };
        let needs: Vec<_> = instance
            .needs
            .iter()
            .filter_map(|u| u.get(position))
            .flatten()
            .collect();
        let nodes = 0..self.state.start.cluster.nodes.len() as u32;
        nodes
            .map(NodeId)
            .filter(|n| self.could_ever(id, *n, demand))
            .map(|node| {
                let (data_in, missing, local) = self.state.data_ready(node, needs.iter().copied());
                Candidate {
                    node,
                    free_in: self.free_in(node, demand),
                    data_in,
                    missing,
                    local,
                    open: self.open(node, demand.cores),
                }
            })
            .collect()
    }

    fn could_ever(&self, id: InstanceId, node: NodeId, d: Demand) -> bool {
        let n = self.state.start.cluster.node(node);
        let tier = self.tier_of(id.step);
        let has_tier = n
            .tiers
            .iter()
            .any(|t| tier.as_ref().is_none_or(|want| *want == t.name));
        n.cores >= d.cores && n.memory >= d.memory && n.gpus >= d.gpus && has_tier
    }

    /// The nodes for an instance, position by position.
    fn choose(
        &self,
        id: InstanceId,
        count: usize,
        demand: Demand,
    ) -> Result<Vec<Candidate>, Reason> {
        let mut chosen: Vec<Candidate> = Vec::with_capacity(count);
        for position in 0..count {
            let all = self.candidates(id, position, demand);
            let rest = all
                .iter()
                .filter(|c| chosen.iter().all(|o| o.node != c.node));
            let best = if self.stage_through() {
                rest.min_by_key(|c| {
                    (
                        c.free_in,
                        self.state.steps.on_node[c.node.at()].len(),
                        c.node,
                    )
                })
            } else {
                rest.min_by_key(|c| {
                    (
                        c.begin(),
                        c.missing,
                        self.state.steps.on_node[c.node.at()].len(),
                        c.node,
                    )
                })
            };
            let Some(best) = best else {
                return Err(self.never(id));
            };
            if !best.open {
                let (node, free_in) = (best.node, best.free_in);
                let elsewhere = all.iter().any(|c| c.open && c.missing > best.missing);
                return Err(if elsewhere {
                    Reason::WaitForData { node, free_in }
                } else {
                    Reason::WaitForCores { node, free_in }
                });
            }
            chosen.push(*best);
        }
        Ok(chosen)
    }

    fn never(&self, id: InstanceId) -> Reason {
        let step = self.state.start.workflow.step(id.step);
        let message = format!(
            "step {} asks for {} node(s) with {} core(s), {} of memory and {} GPU(s) each{}; this machine has no such nodes",
            step.name,
            step.nodes,
            step.cores,
            Bytes(step.memory),
            step.gpus,
            step.tier
                .as_ref()
                .map_or(String::new(), |t| format!(" and a tier named {t}")),
        );
        Reason::Failed { message }
    }

    /// When a node has the cores, by what runs and waits there and on its host.
    fn free_in(&self, node: NodeId, demand: Demand) -> Nanos {
        let cluster = &self.state.start.cluster;
        let host = cluster.node(node).host;
        let here = self.earliest(
            cluster.node(node).cores,
            std::iter::once(node),
            demand.cores,
        );
        let sharing = (0u32..)
            .zip(&cluster.nodes)
            .filter(|(_, n)| n.host == host)
            .map(|(i, _)| NodeId(i));
        here.max(self.earliest(cluster.hosts[host as usize].cores, sharing, demand.cores))
    }

    fn earliest(&self, cores: u32, nodes: impl Iterator<Item = NodeId>, want: u32) -> Nanos {
        let mut ends = Vec::new();
        for id in nodes.flat_map(|n| &self.state.steps.on_node[n.at()]) {
            let Some(placed) = self.state.steps.instance(*id).and_then(|i| i.placed()) else {
                continue;
            };
            let taken = self.state.start.workflow.step(id.step).cores;
            ends.push((self.state.time_left(*id, placed), taken));
        }
        ends.sort_unstable();
        let mut free = i64::from(cores) - ends.iter().map(|(_, c)| i64::from(*c)).sum::<i64>();
        let mut at = 0;
        for (end, taken) in ends {
            if free >= i64::from(want) {
                break;
            }
            free += i64::from(taken);
            at = end;
        }
        at
    }

    /// A tier of the node with room for what the instance brings and writes: the fastest that can hold it at
    /// all, of those slower than the one that an earlier attempt has filled. While there is no room now, it is made.
    fn find_room(
        &mut self,
        id: InstanceId,
        position: usize,
        node: NodeId,
        claimed: &mut BTreeSet<Spot>,
    ) -> Option<(Spot, u64)> {
        let wanted = self.tier_of(id.step);
        let outgrown = self.state.steps.instance(id).and_then(|i| i.outgrown);
        let tiers = (0u32..).zip(&self.state.start.cluster.node(node).tiers);
        let mut allowed: Vec<_> = tiers
            .filter(|(_, t)| wanted.as_ref().is_none_or(|w| *w == t.name))
            .map(|(i, _)| Spot {
                node,
                tier: TierId(i),
            })
            .collect();
        // Where none is slower, the slowest: it is most likely the largest.
        allowed.sort_by_key(|s| match outgrown {
            Some(full) if s.tier <= full => (true, u32::MAX - s.tier.0),
            _ => (false, s.tier.0),
        });
        for spot in &allowed {
            let mut wants = self.bytes_by_spot(id, position, *spot);
            let (soft, hard) = self.state.output_bytes(id);
            let capacity = |s: &Spot| self.state.start.cluster.tier(*s).capacity;
            let (missing, here) = *wants.entry(*spot).or_default();
            let too_much = wants
                .iter()
                .any(|(s, (missing, here))| missing + here > capacity(s));
            let beside = capacity(spot).saturating_sub(missing + here);
            if too_much || hard > beside {
                continue;
            }
            let reserve = soft.min(beside).max(hard);
            for (at, (missing, _)) in wants {
                let want = if at == *spot {
                    missing + reserve
                } else {
                    missing
                };
                if claimed.contains(&at) || !self.make_room(at, want, id) {
                    claimed.insert(at);
                    return None;
                }
            }
            return Some((*spot, reserve));
        }
        let sizes = allowed
            .iter()
            .map(|s| self.state.start.cluster.tier(*s).capacity)
            .max()
            .unwrap_or(0);
        let message = format!(
            "step {} can never fit on {}: its inputs and outputs exceed its largest tier ({})",
            self.state.start.workflow.step(id.step).name,
            self.state.start.cluster.node(node).name,
            Bytes(sizes)
        );
        self.emit(
            Do::Note {
                about: Subject::Instance(id),
            },
            Reason::Failed { message },
        );
        None
    }

    /// The tier a step writes to, if the file names one: its own, or that of a dataset it makes.
    fn tier_of(&self, step: tarn_base::id::StepId) -> Option<String> {
        let w = &self.state.start.workflow;
        let s = w.step(step);
        let of_data = || {
            s.uses
                .iter()
                .filter(|u| u.makes.is_some())
                .find_map(|u| w.dataset(u.data).tier.clone())
        };
        s.tier.clone().or_else(of_data)
    }

    /// For each tier that a position of an instance uses: bytes that must be brought, bytes that lie there.
    fn bytes_by_spot(
        &self,
        id: InstanceId,
        position: usize,
        spot: Spot,
    ) -> BTreeMap<Spot, (u64, u64)> {
        let mut all: BTreeMap<Spot, (u64, u64)> = BTreeMap::new();
        let Some(instance) = self.state.steps.instance(id) else {
            return all;
        };
        let names: BTreeSet<_> = instance
            .needs
            .iter()
            .filter_map(|u| u.get(position))
            .flatten()
            .collect();
        for name in names {
            let Some(part) = self.state.data.part(*name) else {
                continue;
            };
            let target = self.state.target(spot, name.data);
            let entry = all.entry(target).or_default();
            match self.state.usable_on(spot.node, part) {
                Some(s) if s == target => entry.1 += part.info.stored,
                Some(s) if s.tier < target.tier => {}
                _ if part.incoming(target) => entry.1 += part.info.stored,
                _ => entry.0 += part.info.stored,
            }
        }
        all
    }
}
