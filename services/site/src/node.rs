//! Nodes come and go. The content that a node reports is compared with the log.

use crate::MAX_NODES;
use crate::model::catalog::stored_size;
use crate::model::job::SiteJobPhase;
use crate::model::node::{PartMigration, SiteNode, SiteNodeStore};
use crate::model::orders::{OrderPurpose, Ordered};
use crate::model::queue::QueueReading;
use crate::state::Site;
use std::collections::BTreeSet;
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{
    Epoch, Holding, NodeOrder, NodeStoreReport, Owner, Part, Proof, SlurmJobId, StoreCapacity,
    StoreContent, Uid,
};
use tarn_types::energy::Draw;

impl Site {
    /// A node that takes orders reports its power, and for how many cores that is. This is no event: no state follows
    /// from it.
    pub fn measured(&mut self, node: &str, draw: Draw, cores: u32) {
        self.draws.insert(node.to_owned(), (draw, cores));
    }

    /// A controller begins: orders under way get no report any more, and all waiting connections are gone.
    pub(crate) fn began(&mut self, epoch: Epoch, rules: u32) {
        self.rules = rules;
        self.epoch = self.epoch.max(epoch);
        self.orders.clear();
        self.waiting.clear();
        self.verifying.clear();
        // Its planner keeps nothing yet.
        self.reserved.clear();
        // Slurm's scripts repeat their requests, and its queue is read again.
        self.arriving.clear();
        self.refused.clear();
        self.queue = QueueReading::default();
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        self.forget_exports(None);
        for name in names {
            self.cut_off(&name);
        }
    }

    /// A node takes orders.
    pub(crate) fn opened(
        &mut self,
        name: &str,
        (capacity, stores): (StoreCapacity, Vec<NodeStoreReport>),
        (holds, partial): (Vec<(Uid, Holding)>, &[Owner]),
        jobs: &[SlurmJobId],
    ) {
        if self.nodes.len() >= MAX_NODES && !self.nodes.contains_key(name) {
            return;
        }
        // Orders of an earlier session get no report.
        self.closed(name);
        let now = self.now;
        let node = self.nodes.entry(name.to_owned()).or_default();
        node.levels = SiteNodeStore::all(&capacity, &stores);
        let lone = capacity.free;
        node.capacity = Some(capacity);
        node.is_up = true;
        node.since = now;
        node.stuck.clear();
        // Content in a store that the node has no more is found when it has it again.
        let levels = &node.levels;
        node.doomed.retain(|(_, held)| match held {
            StoreContent::Copy(_, store) => levels.iter().any(|level| level.name == *store),
            _ => true,
        });
        let doomed = node.doomed.clone();
        self.compare(name, (holds, partial), &doomed);
        let free = |store: &str| {
            let report = stores.iter().find(|s| s.name == store);
            report.map_or(lone, |store| store.capacity.free)
        };
        if let Some(node) = self.nodes.get_mut(name) {
            node.find_foreign(free);
        }
        for (user, held) in doomed {
            self.doom(name, user, held);
        }
        self.resume_moves(name);
        for job in jobs {
            let is_live = self.jobs.get(job).is_some_and(|j| {
                j.phase != SiteJobPhase::Ended && j.nodes.iter().any(|node| node == name)
            });
            match is_live {
                true => self.advance_running(*job),
                false => self.order(name, OrderPurpose::Forget(*job), NodeOrder::Dismiss(*job)),
            }
        }
        self.advance_waiting();
    }

    /// Compares the content that a node reports with the log.
    fn compare(
        &mut self,
        name: &str,
        (holds, partial): (Vec<(Uid, Holding)>, &[Owner]),
        doomed: &BTreeSet<(Uid, StoreContent)>,
    ) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        let orphans = std::mem::take(&mut node.orphans);
        let known: BTreeSet<Part> = node.parts.keys().cloned().collect();
        let mut lost = node.replicas_to_confirm(partial);
        let mut checkpoints = Vec::new();
        // Content without the name of a dataset is no part, whatever its origin.
        let is_part = |(_, holding): &(Uid, Holding)| {
            let part = holding.held.part();
            part.is_none_or(|part| part.folder().is_some())
        };
        for (user, holding) in holds.into_iter().filter(is_part) {
            let (store, stored) = (holding.store, holding.stored);
            let held = match holding.held {
                StoreContent::Part(part) => StoreContent::part_in(&part, &store),
                held => held,
            };
            let user = held.part().map_or(user, |part| Self::worker_of(part.owner));
            let whole = held
                .part()
                .map(|part| (user, StoreContent::Part(part.clone())));
            if doomed.contains(&(user, held.clone()))
                || whole.is_some_and(|all| doomed.contains(&all))
            {
                continue;
            }
            match &held {
                StoreContent::Part(part) | StoreContent::Copy(part, _) => {
                    match self.catalog.proof_of(part) {
                        Some(proof) if holding.proof.as_ref() == Some(&proof) => {
                            lost.remove(&(part.clone(), store.clone()));
                            self.found((name, &store), part, proof, known.contains(part));
                        }
                        Some(_) => self.doom(name, user, held),
                        None => {
                            let key = (user, held);
                            let since = orphans.get(&key).map_or(now, |(_, since)| *since);
                            if let Some(node) = self.nodes.get_mut(name) {
                                node.orphans.insert(key, (stored, since));
                            }
                        }
                    }
                }
                StoreContent::Checkpoints(folder) if self.knows_checkpoints(name, user, folder) => {
                    checkpoints.push((user, folder.clone()));
                }
                StoreContent::Checkpoints(_) => {
                    let key = (user, held);
                    let since = orphans.get(&key).map_or(now, |(_, since)| *since);
                    if let Some(node) = self.nodes.get_mut(name) {
                        node.orphans.insert(key, (stored, since));
                    }
                }
                StoreContent::Job(job) => {
                    let job = self.jobs.get(job);
                    if job.is_none_or(|job| job.phase == SiteJobPhase::Ended) {
                        self.doom(name, user, held);
                    }
                }
            }
        }
        self.lose_checkpoints(name, &checkpoints, partial);
        // After the findings: a part that is stored elsewhere now stays the node's.
        for (part, store) in lost {
            self.unplace((name, &store), &part);
        }
    }

    /// A node has a part that the log knows, in this store.
    fn found(&mut self, (name, store): (&str, &str), part: &Part, proof: Proof, is_known: bool) {
        if is_known {
            self.place((name, store), part, stored_size(&proof));
            return;
        }
        // The log had given it up: its word is not enough.
        let user = Self::worker_of(part.owner);
        let work = Self::check_in(part, store);
        let why = OrderPurpose::Check(part.clone(), proof);
        self.work_in((name, store), why, (user, user), work);
    }

    /// Moves between stores continue: the node has done them, does them still, or begins again.
    fn resume_moves(&mut self, name: &str) {
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        let present: BTreeSet<String> = node.present().map(|level| level.name.clone()).collect();
        let is_possible = |m: &PartMigration| present.contains(&m.from) && present.contains(&m.to);
        node.moving.retain(|_, moving| is_possible(moving));
        let parts: Vec<Part> = node.moving.keys().cloned().collect();
        for part in parts {
            match self.catalog.proof_of(&part) {
                Some(_) => self.order_move(name, &part),
                None => self.moved(name, &part),
            }
        }
    }

    /// Renews the exports between a running job's nodes: this one may have been started again.
    fn advance_running(&mut self, id: SlurmJobId) {
        if self
            .jobs
            .get(&id)
            .is_some_and(|j| j.phase == SiteJobPhase::Running)
        {
            self.advance(id);
        }
    }

    /// A node does not answer any more. Its content stays its own, and counts again when it is back.
    pub(crate) fn closed(&mut self, name: &str) {
        self.forget_exports(Some(name));
        self.cut_off(name);
    }

    fn cut_off(&mut self, name: &str) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        if node.is_up {
            node.since = now;
        }
        *node = SiteNode {
            is_up: false,
            ports: Default::default(),
            ..std::mem::take(node)
        };
        let gone = |o: &Ordered| o.node == name;
        let orders = self.orders.iter().filter(|(_, o)| gone(o));
        let orders: Vec<u64> = orders.map(|(id, _)| *id).collect();
        for id in orders {
            let text = format!("node {name} does not answer any more");
            self.unreported(id, &RequestError::new(Code::Lost, text));
        }
    }
}
