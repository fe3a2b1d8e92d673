//! Nodes come and go. What one says that it holds is compared with what the log says.

use crate::MAX_NODES;
use crate::state::{Node, Phase, Site, VersionId, VersionState, Why};
use std::collections::BTreeSet;
use tarn_base::energy::Draw;
use tarn_proto::local::{Code, Refusal};
use tarn_proto::site::{Capacity, Epoch, Held, Holding, Job, Order, Uid, Work};

impl Site {
    /// A node that takes orders says what it draws, and how many cores that is for. This is no event: no state follows from it.
    pub fn measured(&mut self, node: &str, draw: Draw, cores: u32) {
        self.draws.insert(node.to_owned(), (draw, cores));
    }

    /// A controller begins: nothing that was under way is heard of any more, and whoever waited is gone.
    pub(crate) fn began(&mut self, epoch: Epoch) {
        self.epoch = self.epoch.max(epoch);
        self.orders.clear();
        self.waiting.clear();
        // Slurm's scripts ask again.
        self.arriving.clear();
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        for name in names {
            self.closed(&name);
        }
    }

    /// A node takes orders.
    pub(crate) fn opened(
        &mut self,
        name: &str,
        capacity: Capacity,
        holds: Vec<(Uid, Holding)>,
        jobs: &[Job],
    ) {
        if self.nodes.len() >= MAX_NODES && !self.nodes.contains_key(name) {
            return;
        }
        // Whatever was ordered in an earlier session is not heard of.
        self.closed(name);
        let now = self.now;
        let node = self.nodes.entry(name.to_owned()).or_default();
        node.capacity = Some(capacity);
        node.is_up = true;
        node.since = now;
        let orphans = std::mem::take(&mut node.orphans);
        let doomed = node.doomed.clone();
        let lost: BTreeSet<_> = node.parts.keys().cloned().collect();
        let mut lost = lost;
        for (user, holding) in holds {
            let user = match &holding.held {
                Held::Part(part) => Self::worker_of(part.owner),
                Held::Job(_) => user,
            };
            if doomed.contains(&(user, holding.held.clone())) {
                continue;
            }
            let is_orphan = match &holding.held {
                Held::Part(part) => {
                    let proof = self.proof_of(part);
                    match (proof, holding.proof) {
                        (Some(known), Some(said)) if known == said => {
                            if !lost.remove(part) {
                                // The log had given it up: its word is not enough.
                                let why = Why::Check(part.clone(), known);
                                let work = Work::Check(part.clone());
                                self.work(name, why, (user, user), work);
                            }
                            false
                        }
                        (Some(_), _) => {
                            self.doom(name, user, holding.held.clone());
                            false
                        }
                        (None, _) => true,
                    }
                }
                Held::Job(job) => {
                    let is_live = self.jobs.get(job).is_some_and(|j| j.phase != Phase::Ended);
                    if !is_live {
                        self.doom(name, user, holding.held.clone());
                    }
                    false
                }
            };
            if is_orphan && let Some(node) = self.nodes.get_mut(name) {
                let key = (user, holding.held);
                let since = orphans.get(&key).map_or(now, |(_, since)| *since);
                node.orphans.insert(key, (holding.stored, since));
            }
        }
        for part in lost {
            self.displace(name, &part);
        }
        for (user, held) in doomed {
            self.doom(name, user, held);
        }
        for job in jobs {
            let is_live = self.jobs.get(job).is_some_and(|j| {
                j.phase != Phase::Ended && j.nodes.iter().any(|node| node == name)
            });
            if !is_live {
                self.order(name, Why::Forget(*job), Order::Dismiss(*job));
            }
        }
        self.jobs_that_wait();
    }

    fn proof_of(&self, part: &tarn_proto::site::Part) -> Option<tarn_proto::site::Proof> {
        let version = self.version(&VersionId::of(part))?;
        if matches!(version.state, VersionState::Failed(_)) {
            return None;
        }
        version.parts.get(&part.part).cloned()
    }

    /// A node is not heard of any more. What it has is still its own, and counts again when it is back.
    pub(crate) fn closed(&mut self, name: &str) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        if node.is_up {
            node.since = now;
        }
        *node = Node {
            is_up: false,
            ports: Default::default(),
            ..std::mem::take(node)
        };
        let gone = |o: &crate::state::Ordered| o.node == name;
        let orders = self.orders.iter().filter(|(_, o)| gone(o));
        let orders: Vec<u64> = orders.map(|(id, _)| *id).collect();
        for id in orders {
            let text = format!("node {name} is not heard of any more");
            self.unreported(id, &Refusal::new(Code::Lost, text));
        }
    }
}
