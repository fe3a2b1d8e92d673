//! Simulated node daemons: they hold parts of data, and carry out the site service's orders over links with bandwidths.

use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{
    Holding, NodeOrder, Origin, Part, Proof, Report, Slice, SlurmJobId, StoreCapacity,
    StoreContent, Uid, Work, WorkResult,
};
use tarn_simulator::site::StreamWay;
use tarn_types::hash::Hash;
use tarn_types::id::NodeId;

/// The port of every simulated worker.
const PORT: u16 = 7000;
/// Ranks of each job and dataset: enough for a share of each node that is equal to a per mille.
pub(crate) const RANKS: u32 = 1 << 16;

/// A node's daemon, and its store.
#[derive(Debug, Default)]
struct Daemon {
    capacity: u64,
    is_up: bool,
    parts: BTreeMap<Part, (Uid, Proof)>,
    /// Jobs with folders here, and what their folders take beside parts.
    jobs: BTreeMap<(Uid, SlurmJobId), u64>,
    /// The datasets that a job's tasks may read or write here.
    admitted: BTreeMap<SlurmJobId, BTreeSet<String>>,
    /// Bytes that it had after its last order, and the most.
    last: u64,
    peak: u64,
}

/// The bytes that a job writes of a dataset on each of its nodes.
pub(crate) type OutputBytes = BTreeMap<(SlurmJobId, String), u64>;

/// An order that takes effect when its streams have ended.
#[derive(Debug)]
pub(crate) struct OrderInHand {
    order: NodeOrder,
    /// Bytes and ways, first.
    pub(crate) streams: Vec<(u64, StreamWay)>,
    /// The other nodes that it reads from.
    pub(crate) peers: Vec<String>,
}

/// All daemons.
#[derive(Debug)]
pub(crate) struct NodeDaemons {
    nodes: BTreeMap<String, Daemon>,
    numbers: BTreeMap<String, NodeId>,
    pub(crate) outputs: OutputBytes,
    /// Bytes on all nodes, and the most.
    total: u64,
    peak: u64,
}

impl NodeDaemons {
    pub(crate) fn new(names: &[String], capacity_of: impl Fn(usize) -> u64) -> Self {
        let nodes = names.iter().enumerate().map(|(at, name)| {
            let daemon = Daemon {
                capacity: capacity_of(at),
                ..Daemon::default()
            };
            (name.clone(), daemon)
        });
        Self {
            nodes: nodes.collect(),
            numbers: (0..)
                .map(NodeId)
                .zip(names)
                .map(|(id, n)| (n.clone(), id))
                .collect(),
            outputs: OutputBytes::new(),
            total: 0,
            peak: 0,
        }
    }

    pub(crate) fn is_up(&self, node: &str) -> bool {
        self.nodes.get(node).is_some_and(|daemon| daemon.is_up)
    }

    /// A node's first word.
    pub(crate) fn open(
        &mut self,
        node: &str,
    ) -> (StoreCapacity, Vec<(Uid, Holding)>, Vec<SlurmJobId>) {
        let Some(daemon) = self.nodes.get_mut(node) else {
            return (capacity(0, 0), Vec::new(), Vec::new());
        };
        daemon.is_up = true;
        let holding = |held: StoreContent, proof: Option<&Proof>| Holding {
            held,
            proof: proof.cloned(),
            stored: proof.map_or(0, |proof| proof.bytes),
            is_behind: false,
            store: String::new(),
        };
        let parts = daemon.parts.iter().map(|(part, (user, proof))| {
            (
                *user,
                holding(StoreContent::Part(part.clone()), Some(proof)),
            )
        });
        let jobs = daemon.jobs.keys();
        let jobs = jobs.map(|(user, job)| (*user, holding(StoreContent::Job(*job), None)));
        let holds = parts.chain(jobs).collect();
        let free = daemon.capacity.saturating_sub(daemon.used());
        let admitted = daemon.admitted.keys().copied().collect();
        (capacity(daemon.capacity, free), holds, admitted)
    }

    /// A node is lost, and with it its content if `with_data`.
    pub(crate) fn lose(&mut self, node: &str, with_data: bool) {
        if let Some(daemon) = self.nodes.get_mut(node) {
            daemon.is_up = false;
            daemon.admitted.clear();
            if with_data {
                daemon.parts.clear();
                daemon.jobs.clear();
            }
            self.measure(node);
        }
    }

    /// Takes an order. `None`: the node does not answer.
    pub(crate) fn take(&self, node: &str, order: NodeOrder) -> Option<OrderInHand> {
        let own = self.nodes.get(node).filter(|daemon| daemon.is_up)?;
        let to = *self.numbers.get(node)?;
        let (mut streams, mut peers) = (Vec::new(), Vec::new());
        if let NodeOrder::Do { work, .. } = &order {
            match &**work {
                Work::Fetch {
                    part,
                    from: Origin::Peer(peer),
                    ..
                } if !own.parts.contains_key(part) => {
                    let bytes = self.bytes_of(&peer.node, part);
                    streams.extend(self.between(&peer.node, to, bytes));
                    peers.push(peer.node.clone());
                }
                Work::Slice { parts, slice, .. } => {
                    for (part, origin, proof) in parts {
                        if let (Some(Origin::Peer(peer)), Some(proof)) = (origin, proof) {
                            let bytes = self.share_of(part, proof.bytes, slice);
                            streams.extend(self.between(&peer.node, to, bytes));
                            peers.push(peer.node.clone());
                        }
                    }
                }
                Work::Send { parts, .. } => {
                    for (part, peer, proof) in parts {
                        if let Some(peer) = peer {
                            streams.extend(self.between(&peer.node, to, proof.bytes));
                            peers.push(peer.node.clone());
                        }
                        let way = StreamWay::Out {
                            from: to,
                            on_tier: own.parts.contains_key(part),
                        };
                        streams.push((proof.bytes, way));
                    }
                }
                _ => {}
            }
        }
        Some(OrderInHand {
            order,
            streams,
            peers,
        })
    }

    fn between(&self, peer: &str, to: NodeId, bytes: u64) -> Option<(u64, StreamWay)> {
        let from = *self.numbers.get(peer)?;
        Some((bytes, StreamWay::Between { from, to }))
    }

    fn bytes_of(&self, node: &str, part: &Part) -> u64 {
        let found = self.nodes.get(node).and_then(|d| d.parts.get(part));
        found.map_or(0, |(_, proof)| proof.bytes)
    }

    /// The bytes of a part that are in a slice: parts are equal shares of the ranks, in order.
    fn share_of(&self, part: &Part, bytes: u64, slice: &Slice) -> u64 {
        let parts = self
            .nodes
            .values()
            .flat_map(|d| d.parts.keys())
            .filter(|p| p.dataset == part.dataset && p.version == part.version)
            .filter(|p| p.owner == part.owner && p.workflow == part.workflow);
        let count = parts.map(|p| p.part + 1).max().unwrap_or(1);
        let block = RANKS.div_ceil(count).max(1);
        let (first, last) = (
            part.part.saturating_mul(block),
            (part.part + 1).saturating_mul(block).min(RANKS),
        );
        let (from, until) = (first.max(slice.first), last.min(slice.end));
        let overlap = u64::from(until.saturating_sub(from));
        let all = u64::from(last.saturating_sub(first)).max(1);
        (u128::from(bytes) * u128::from(overlap) / u128::from(all)) as u64
    }

    /// An order's streams have ended: it takes effect.
    pub(crate) fn finish(&mut self, node: &str, number: u64, in_hand: OrderInHand) -> Report {
        let what = match in_hand.order {
            NodeOrder::Serve { .. } => return Report::Serving { number, port: PORT },
            NodeOrder::Do { user, work, .. } => self.work(node, user, *work),
            NodeOrder::Admit { job, mounts, .. } => {
                if let Some(daemon) = self.nodes.get_mut(node) {
                    let names = mounts.into_iter().map(|mount| mount.dataset);
                    daemon.admitted.insert(job, names.collect());
                }
                WorkResult::Done
            }
            NodeOrder::Dismiss(job) => {
                if let Some(daemon) = self.nodes.get_mut(node) {
                    daemon.admitted.remove(&job);
                }
                WorkResult::Done
            }
            NodeOrder::Stop(_) | NodeOrder::Look | NodeOrder::Beat => WorkResult::Done,
        };
        self.measure(node);
        Report::Worked { number, what }
    }

    /// Notes how much a node has now.
    fn measure(&mut self, node: &str) {
        if let Some(daemon) = self.nodes.get_mut(node) {
            let used = daemon.used();
            self.total = (self.total + used).saturating_sub(daemon.last);
            daemon.last = used;
            daemon.peak = daemon.peak.max(used);
            self.peak = self.peak.max(self.total);
        }
    }

    /// The most bytes of each node, in their order, and of all together.
    pub(crate) fn peaks(&self) -> (Vec<u64>, u64) {
        let peaks = self.nodes.values().map(|daemon| daemon.peak);
        (peaks.collect(), self.peak)
    }

    fn work(&mut self, node: &str, user: Uid, work: Work) -> WorkResult {
        match work {
            Work::Fetch { part, from, .. } => self.fetch(node, user, part, &from),
            Work::Slice {
                job, parts, slice, ..
            } => self.cut(node, (user, job), &parts, &slice),
            Work::Prepare { job, dataset, .. } => {
                let bytes = self.outputs.get(&(job, dataset)).copied().unwrap_or(0);
                if let Some(daemon) = self.nodes.get_mut(node) {
                    *daemon.jobs.entry((user, job)).or_default() += bytes;
                }
                WorkResult::Done
            }
            Work::View { job, parts, .. } => {
                let daemon = self.nodes.get_mut(node).filter(|daemon| {
                    let mut parts = parts.iter();
                    parts.all(|part| daemon.parts.contains_key(part))
                });
                let Some(daemon) = daemon else {
                    return WorkResult::Failed(RequestError::new(Code::Lost, "a part is gone"));
                };
                daemon.jobs.entry((user, job)).or_default();
                WorkResult::Done
            }
            Work::Publish { part, job, .. } => self.publish(node, (user, job), part),
            Work::Send { parts, .. } => {
                let sum = parts.iter().map(|(_, _, proof)| proof.bytes).sum();
                match parts.first() {
                    Some((part, ..)) => WorkResult::Proven {
                        proof: proof_of(part, sum),
                        moved: sum,
                    },
                    None => WorkResult::Done,
                }
            }
            Work::Check(part) | Work::CheckIn(part, _) => {
                let found = self.nodes.get(node).and_then(|d| d.parts.get(&part));
                match found {
                    Some((_, proof)) => WorkResult::Proven {
                        proof: proof.clone(),
                        moved: 0,
                    },
                    None => WorkResult::Failed(RequestError::new(Code::Corrupt, "not there")),
                }
            }
            Work::Remove(all) => {
                if let Some(daemon) = self.nodes.get_mut(node) {
                    all.iter().for_each(|content| daemon.remove(user, content));
                }
                WorkResult::Done
            }
            Work::Inventory(_) => WorkResult::Inventory {
                holds: Vec::new(),
                partial: Vec::new(),
            },
            Work::CheckDest { .. } | Work::WrapAnew(_) => WorkResult::Done,
            Work::Move { .. }
            | Work::Export { .. }
            | Work::Share { .. }
            | Work::Join { .. }
            | Work::Checkpoints { .. }
            | Work::Destage { .. } => {
                let text = "simulated jobs have one store, and neither partitions nor checkpoints";
                WorkResult::Failed(RequestError::new(Code::Unsupported, text))
            }
        }
    }

    /// The folder of a job with its share of some parts.
    fn cut(
        &mut self,
        node: &str,
        job: (Uid, SlurmJobId),
        parts: &[(Part, Option<Origin>, Option<Proof>)],
        slice: &Slice,
    ) -> WorkResult {
        let of_peers = parts.iter().filter_map(|(part, origin, proof)| {
            origin.as_ref()?;
            Some(self.share_of(part, proof.as_ref()?.bytes, slice))
        });
        let moved = of_peers.sum();
        let Some((part, ..)) = parts.first() else {
            return WorkResult::Failed(RequestError::new(Code::Invalid, "no parts"));
        };
        if let Some(daemon) = self.nodes.get_mut(node) {
            *daemon.jobs.entry(job).or_default() += moved;
        }
        let proof = proof_of(part, moved);
        WorkResult::Proven { proof, moved }
    }

    /// The folder that a job wrote becomes a part.
    fn publish(&mut self, node: &str, (user, job): (Uid, SlurmJobId), part: Part) -> WorkResult {
        let key = (job, part.dataset.clone());
        let bytes = self.outputs.get(&key).copied().unwrap_or(0);
        let proof = proof_of(&part, bytes);
        if let Some(daemon) = self.nodes.get_mut(node) {
            let folder = daemon.jobs.entry((user, job)).or_default();
            *folder = folder.saturating_sub(bytes);
            daemon.parts.insert(part, (user, proof.clone()));
        }
        WorkResult::Proven { proof, moved: 0 }
    }

    fn fetch(&mut self, node: &str, user: Uid, part: Part, from: &Origin) -> WorkResult {
        let known = self.nodes.get(node).and_then(|d| d.parts.get(&part));
        if let Some((_, proof)) = known {
            let proof = proof.clone();
            return WorkResult::Proven { proof, moved: 0 };
        }
        let Origin::Peer(peer) = from else {
            let text = "simulated jobs read their sources by themselves";
            return WorkResult::Failed(RequestError::new(Code::Unsupported, text));
        };
        let there = self.nodes.get(&peer.node).filter(|daemon| daemon.is_up);
        let Some((_, proof)) = there.and_then(|d| d.parts.get(&part)).cloned() else {
            return WorkResult::Failed(RequestError::new(Code::Lost, "it is not there"));
        };
        let moved = proof.bytes;
        if let Some(daemon) = self.nodes.get_mut(node) {
            daemon.parts.insert(part, (user, proof.clone()));
        }
        WorkResult::Proven { proof, moved }
    }

    /// Whether a job's tasks see these datasets on a node.
    pub(crate) fn sees(&self, node: &str, job: SlurmJobId, dataset: &str) -> bool {
        let daemon = self.nodes.get(node).filter(|daemon| daemon.is_up);
        let admitted = daemon.and_then(|daemon| daemon.admitted.get(&job));
        admitted.is_some_and(|all| all.contains(dataset))
    }

    /// Bytes of a dataset's version that any node has, each part once.
    pub(crate) fn stored(&self, workflow: &str, dataset: &str) -> u64 {
        let parts = self.nodes.values().flat_map(|d| &d.parts);
        let own = parts.filter(|(part, _)| part.workflow == workflow && part.dataset == dataset);
        let once: BTreeMap<&Part, u64> = own.map(|(part, (_, p))| (part, p.bytes)).collect();
        once.values().sum()
    }

    /// The first node whose store has more than it holds.
    pub(crate) fn overfull(&self) -> Option<&str> {
        let mut nodes = self.nodes.iter();
        let over = nodes.find(|(_, daemon)| daemon.used() > daemon.capacity);
        over.map(|(name, _)| &name[..])
    }
}

impl Daemon {
    fn used(&self) -> u64 {
        let parts: u64 = self.parts.values().map(|(_, proof)| proof.bytes).sum();
        parts + self.jobs.values().sum::<u64>()
    }

    fn remove(&mut self, user: Uid, content: &StoreContent) {
        match content {
            StoreContent::Part(part) | StoreContent::Copy(part, _) => {
                self.parts.remove(part);
            }
            StoreContent::Job(job) => {
                self.jobs.remove(&(user, *job));
            }
            StoreContent::Checkpoints(_) => {}
        }
    }
}

fn capacity(bytes: u64, free: u64) -> StoreCapacity {
    StoreCapacity {
        root: "/store/tarn".into(),
        bytes,
        free,
        persistent: true,
    }
}

fn proof_of(part: &Part, bytes: u64) -> Proof {
    Proof {
        sealed: false,
        hash: Hash::of(part.to_string().as_bytes()),
        bytes,
        entries: 1,
        manifest: 100,
        file: None,
        origin: None,
    }
}
