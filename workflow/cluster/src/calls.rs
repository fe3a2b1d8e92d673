//! Requests of `tarn run` to all nodes at once, before and after its loop. A node that is lost meanwhile does not reply: tarn
//! does not find its data, and does not report it as missing.

use crate::dispatch::on;
use crate::error::{NodeCallError, NodeReplyResult};
use crate::world::AllocationWorld;
use crate::{QUICK, THOROUGH};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use tarn_ports::{CapabilityError, NodeWorld, Progress, WorldError};
use tarn_proto::node::{NodeCommand, NodeConfig, NodeReply, NodeRequest};
use tarn_types::event::PriorInstance;
use tarn_types::id::NodeId;
use tarn_types::layout::TierDir;
use tarn_types::nodes::{Cleaned, Staying};
use tarn_types::part::{PartInfo, PartRef, Place, StoreKey, Transfer};

/// Answers that are awaited, and for how long.
struct PendingNodeReplies {
    answers: Vec<(NodeId, Receiver<NodeReplyResult>)>,
    until: Instant,
}

/// The world that sees a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sees {
    Home,
    Node(NodeId),
    /// A folder of a node that this cluster does not have: its disk is not known.
    Anybody,
}

/// The folders of a run on tiers.
struct RunTierFolders {
    nodes: BTreeMap<PathBuf, NodeId>,
    tiers: BTreeSet<PathBuf>,
}

impl RunTierFolders {
    fn of(node_config: &NodeConfig) -> Self {
        let (mut nodes, mut tiers) = (BTreeMap::new(), BTreeSet::new());
        for (n, node) in (0..).map(NodeId).zip(&node_config.cluster.nodes) {
            for tier in &node.tiers {
                let TierDir(own) = TierDir::new(&tier.root, &node_config.workspace, &node.name);
                tiers.extend(own.parent().map(Path::to_owned));
                nodes.insert(own, n);
            }
        }
        Self { nodes, tiers }
    }

    fn whose(&self, folder: &Path) -> Sees {
        let mut above = folder.ancestors();
        match above.find_map(|a| self.nodes.get(a)) {
            Some(n) => Sees::Node(*n),
            None if folder.ancestors().any(|a| self.tiers.contains(a)) => Sees::Anybody,
            None => Sees::Home,
        }
    }
}

impl AllocationWorld {
    /// Sends requests to nodes, all at once, and waits for all replies.
    ///
    /// # Errors
    /// When a node replies that it cannot.
    pub(crate) fn call_nodes(
        &mut self,
        calls: Vec<(NodeId, NodeRequest)>,
        timeout: Duration,
    ) -> Result<Vec<(NodeId, NodeReply)>, WorldError> {
        let pending = self.send_requests(calls, timeout);
        self.await_replies(pending)
    }

    fn send_requests(
        &self,
        calls: Vec<(NodeId, NodeRequest)>,
        timeout: Duration,
    ) -> PendingNodeReplies {
        let mut answers = Vec::new();
        for (n, call) in calls {
            if let Some(connection) = self.node(n).and_then(|node| node.connection.as_ref()) {
                answers.push((n, connection.call(call, timeout)));
            }
        }
        // Commands that are queued before a request are sent first.
        let until = Instant::now() + timeout + QUICK;
        PendingNodeReplies { answers, until }
    }

    fn await_replies(
        &mut self,
        pending: PendingNodeReplies,
    ) -> Result<Vec<(NodeId, NodeReply)>, WorldError> {
        let mut answers = Vec::new();
        let mut refused = None;
        for (n, answer) in pending.answers {
            let left = pending.until.saturating_duration_since(Instant::now());
            match answer.recv_timeout(left) {
                Ok(Ok(answer)) => answers.push((n, answer)),
                Ok(Err(NodeCallError::Refused(why))) => {
                    refused.get_or_insert_with(|| format!("node {}: {why}", self.name(n)));
                }
                Ok(Err(why)) => self.lose(n, why.to_string()),
                Err(_) => self.lose(n, "it took too long to answer".into()),
            }
        }
        match refused {
            None => Ok(answers),
            Some(why) => Err(WorldError(why)),
        }
    }

    fn requests_to_all(&self, call: impl Fn(NodeId) -> NodeRequest) -> Vec<(NodeId, NodeRequest)> {
        self.up().map(|n| (n, call(n))).collect()
    }

    /// The positions of the folders that each node sees, and of those that home does.
    fn split_by_node(&self, folders: &[PathBuf]) -> (BTreeMap<NodeId, Vec<usize>>, Vec<usize>) {
        let sees = RunTierFolders::of(&self.node_config);
        let (mut nodes, mut home) = (BTreeMap::<_, Vec<_>>::new(), Vec::new());
        for (i, folder) in folders.iter().enumerate() {
            match sees.whose(folder) {
                Sees::Home => home.push(i),
                Sees::Node(n) if self.is_up(n) => nodes.entry(n).or_default().push(i),
                Sees::Node(_) => {}
                Sees::Anybody => self.up().for_each(|n| nodes.entry(n).or_default().push(i)),
            }
        }
        (nodes, home)
    }
}

fn select_folders(folders: &[PathBuf], which: &[usize]) -> Vec<PathBuf> {
    which
        .iter()
        .filter_map(|i| folders.get(*i).cloned())
        .collect()
}

fn on_node(n: NodeId, all: &BTreeSet<(StoreKey, Place)>) -> BTreeSet<(StoreKey, Place)> {
    let here = all.iter().filter(|(_, place)| on(place) == Some(n));
    here.cloned().collect()
}

impl NodeWorld for AllocationWorld {
    fn multi_node(&self) -> Result<(), CapabilityError> {
        self.multi_node.clone()
    }

    fn one_namespace(&self) -> Result<(), CapabilityError> {
        self.one_namespace.clone()
    }

    fn images(&self) -> Result<(), CapabilityError> {
        self.images.clone()
    }

    fn progress(&self) -> Progress {
        self.progress.clone()
    }

    fn pace(&mut self, _: u32, _: u32) {
        // All transfers of the run are its own.
    }

    fn offer(
        &mut self,
        prior: Vec<PriorInstance>,
        there: &BTreeSet<(StoreKey, Place)>,
        protected: &BTreeSet<PathBuf>,
    ) -> Result<(), WorldError> {
        self.node_config.prior = prior.clone();
        self.offered = Some(there.clone());
        self.protected = protected.clone();
        let calls = self.requests_to_all(|n| NodeRequest::Offer {
            prior: prior.clone(),
            there: on_node(n, there),
            protected: protected.clone(),
        });
        let pending = self.send_requests(calls, QUICK);
        self.home.offer(prior, there, protected)?;
        self.await_replies(pending).map(drop)
    }

    fn know(&mut self, parts: Vec<(PartRef, PartInfo)>) -> Result<(), WorldError> {
        for (part, info) in &parts {
            self.parts.learn(*part, info.clone());
        }
        let names = parts.iter().map(|(part, _)| *part);
        let unsent = self.parts.take_unsent_parts(names, &mut self.home_knows);
        self.home.know(unsent)
    }

    fn inventory(
        &mut self,
        wanted: &[(PartRef, StoreKey, Place)],
    ) -> Result<Vec<(PartRef, Place)>, WorldError> {
        let mut shares: BTreeMap<Option<NodeId>, Vec<_>> = BTreeMap::new();
        for w in wanted {
            shares.entry(on(&w.2)).or_default().push(w.clone());
        }
        let home = shares.remove(&None).unwrap_or_default();
        // Every node gets a request, even an empty one: it notes that it has been looked at since its start.
        let mut calls = Vec::new();
        for n in self.up().collect::<Vec<_>>() {
            let share = shares.remove(&Some(n)).unwrap_or_default();
            let current = |(part, key, _): &(PartRef, StoreKey, Place)| {
                let same = self.parts.get(*part).is_some_and(|i| i.key == *key);
                same.then_some(*part)
            };
            let names: Vec<_> = share.iter().filter_map(current).collect();
            if let Some(node) = self.node_table.nodes.get_mut(n.at()) {
                let unsent = self.parts.take_unsent_parts(names, &mut node.knows);
                if !unsent.is_empty() {
                    self.send_command(n, NodeCommand::Know(unsent));
                }
            }
            calls.push((n, NodeRequest::Inventory(share)));
        }
        let pending = self.send_requests(calls, THOROUGH);
        let mut found: BTreeSet<_> = self.home.inventory(&home)?.into_iter().collect();
        for (n, answer) in self.await_replies(pending)? {
            match answer {
                NodeReply::Found(there) => {
                    found.extend(there.into_iter().filter(|(_, at)| on(at) == Some(n)));
                }
                _ => self.lose_for_invalid_message(n),
            }
        }
        let mut all = Vec::new();
        for (part, key, place) in wanted {
            if !found.contains(&(*part, place.clone())) {
                continue;
            }
            all.push((*part, place.clone()));
            // Under a name that stands for something else it is none of this run's parts.
            if let Some(info) = self.parts.get(*part).filter(|i| i.key == *key)
                && let Place::Node(tier_ref) = place
                && let Some(node) = self.node_table.nodes.get_mut(tier_ref.node.at())
            {
                let stored = (*part, tier_ref.tier, key.clone());
                node.holds.insert(stored, info.stored);
            }
        }
        Ok(all)
    }

    fn clean(&mut self, staying: &Staying) -> Result<Cleaned, WorldError> {
        self.protected = staying.protected.clone();
        self.pinned = staying.pinned.clone();
        let calls = self.requests_to_all(|n| {
            NodeRequest::Clean(Staying {
                keep: on_node(n, &staying.keep),
                ..staying.clone()
            })
        });
        let pending = self.send_requests(calls, THOROUGH);
        let mut all = self.home.clean(staying)?;
        for (n, answer) in self.await_replies(pending)? {
            let NodeReply::Cleaned(mut cleaned) = answer else {
                self.lose_for_invalid_message(n);
                continue;
            };
            all.removed.append(&mut cleaned.removed);
            all.trouble.append(&mut cleaned.trouble);
            let own = cleaned
                .aside
                .into_iter()
                .filter(|(tier_ref, _)| tier_ref.node == n);
            all.aside.extend(own);
        }
        // As for the engine: a node that comes back is opened with the space that it has left.
        for (tier_ref, bytes) in all.aside.iter().filter(|_| !staying.is_without) {
            let node = self.node_config.cluster.nodes.get_mut(tier_ref.node.at());
            if let Some(tier) = node.and_then(|n| n.tiers.get_mut(tier_ref.tier.at())) {
                // As nodes report it: what they keep of earlier runs may be more than a tier has now.
                tier.capacity = tier.capacity.saturating_sub(*bytes);
            }
        }
        Ok(all)
    }

    fn exist(&mut self, folders: &[PathBuf]) -> Result<Vec<Option<bool>>, WorldError> {
        let (shares, home) = self.split_by_node(folders);
        let calls = shares
            .iter()
            .map(|(n, which)| (*n, NodeRequest::Exist(select_folders(folders, which))));
        let pending = self.send_requests(calls.collect(), QUICK);
        let mut there = vec![None; folders.len()];
        let mut note = |which: &[usize], found: Vec<Option<bool>>| {
            for (i, found) in which.iter().zip(found) {
                // That somebody has it is more than that another has it not.
                there[*i] = found.max(there[*i]);
            }
        };
        note(&home, self.home.exist(&select_folders(folders, &home))?);
        for (n, answer) in self.await_replies(pending)? {
            match (answer, shares.get(&n)) {
                (NodeReply::There(found), Some(which)) => {
                    note(which, found.into_iter().map(Some).collect());
                }
                _ => self.lose_for_invalid_message(n),
            }
        }
        Ok(there)
    }

    fn remove(&mut self, folders: &[PathBuf]) -> Result<Vec<String>, WorldError> {
        let (shares, home) = self.split_by_node(folders);
        let calls = shares
            .iter()
            .map(|(n, which)| (*n, NodeRequest::Remove(select_folders(folders, which))));
        let pending = self.send_requests(calls.collect(), THOROUGH);
        let mut left = self.home.remove(&select_folders(folders, &home))?;
        for (n, answer) in self.await_replies(pending)? {
            match answer {
                NodeReply::Left(mut trouble) => left.append(&mut trouble),
                _ => self.lose_for_invalid_message(n),
            }
        }
        let sees = RunTierFolders::of(&self.node_config);
        for folder in folders {
            if let Sees::Node(n) = sees.whose(folder)
                && !self.is_up(n)
            {
                let (path, name) = (folder.display(), self.name(n));
                left.push(format!("{path} could not be removed: node {name} is lost"));
            }
        }
        Ok(left)
    }

    fn leave(mut self: Box<Self>) -> Vec<String> {
        let pending = self.send_requests(self.requests_to_all(|_| NodeRequest::Leave), THOROUGH);
        let mut left = Vec::new();
        let keys: Vec<_> = self.parts.keys().map(|(p, k)| (p, k.clone())).collect();
        for (part, key) in keys {
            self.drop_key_if_gone(part, &key);
        }
        match self.await_replies(pending) {
            Ok(answers) => {
                for (n, answer) in answers {
                    match answer {
                        NodeReply::Left(mut trouble) => left.append(&mut trouble),
                        _ => self.lose_for_invalid_message(n),
                    }
                }
            }
            Err(e) => left.push(e.0),
        }
        for n in (0..self.node_table.nodes.len() as u32).map(NodeId) {
            if !self.is_up(n) {
                let name = self.name(n);
                left.push(format!(
                    "node {name} is lost: this run's data on it stays there"
                ));
            }
        }
        let Self {
            home, node_table, ..
        } = *self;
        left.extend(home.leave());
        drop(node_table);
        left
    }

    fn gone(&mut self, _: PartRef, _: &StoreKey) {
        // All replicas of the run are its own.
    }

    fn learned(&mut self, transfer: &Transfer, began: i64) {
        self.home.learned(transfer, began);
    }
}
