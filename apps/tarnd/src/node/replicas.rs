//! Replicas: those of this node for peers, also while they arrive, and those of peers for this node's transfers.

use super::paced::Paced;
use super::step_inbox::StepInbox;
use crate::pieces::{self, ExportedPieces};
use anyhow::{anyhow, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tarn_data_plane::{
    Arriving, Called, ContentTransport, DataClient, DataClientTimeouts, DataServer, Key, Limits,
    MAX_ADDRESSES, Registry, RegistryError, RunId, Served, Tree,
};
use tarn_mover::throttle::Limiter;
use tarn_node::sockets::Sockets;
use tarn_ports::{Arrivals, Control, MoverError, PeerTree, Peers, Pieces};
use tarn_proto::local::{
    Code, PeerTarndReply, PeerTarndRequest, RequestError as NotOpened, StepMessage, pack, unpack,
};
use tarn_proto::node::{Address, NodeConfig};
use tarn_sys::beneath::Root;
use tarn_types::event::{RunError, RunErrorKind};
use tarn_types::id::{NodeId, TierId, TierRef, TransferId};
use tarn_types::layout::TierDir;
use tarn_types::nodes::OwnedNodes;
use tarn_types::part::StoreKey;

/// Streams of programs on other nodes to pieces of partitions: two a program and piece, for 16 programs on each of 32 nodes. Each has a thread.
const STREAMS_TO_PIECES: usize = 1024;

/// Id and key of streams with messages about steps are derived from the run's key with these.
const MESSAGES_RUN: &[u8] = b"tarn: run of messages about steps";
const MESSAGES_KEY: &[u8] = b"tarn: key of messages about steps";

/// The replicas that this node serves, and the nodes that it reads from.
#[derive(Debug)]
pub(super) struct Replicas {
    run: RunId,
    key: Key,
    /// Of streams with messages about steps.
    messages: (RunId, Key),
    /// The inbox of these.
    pub(super) inbox: Arc<StepInbox>,
    /// Large pieces are read by it where the peer has it too.
    way: ContentTransport,
    known: Mutex<ReplicaContext>,
    exported: ExportedPieces,
}

#[derive(Debug, Default)]
struct ReplicaContext {
    /// This node, and its name.
    node: Option<NodeId>,
    own: String,
    /// Name of each tier of this node, and the folder of this run on it.
    tiers: Vec<(String, TierDir)>,
    /// The run, as its folders are called.
    run: String,
    /// The sockets that the serving threads of a tier are bound to.
    sockets: Option<Sockets>,
    arriving: BTreeMap<(TierId, StoreKey), Arc<Arriving>>,
    /// Name and address of each node.
    nodes: BTreeMap<NodeId, (String, Address)>,
    lost: BTreeSet<NodeId>,
    /// Limits the rate of all that is taken from other nodes.
    limiter: Option<Arc<Limiter>>,
}

/// Serves the data of `replicas`.
pub(super) fn serve(at: &str, replicas: &Arc<Replicas>) -> std::io::Result<DataServer> {
    let registry = Arc::clone(replicas);
    let limits = Limits {
        storages: STREAMS_TO_PIECES,
        ..Limits::default()
    };
    DataServer::start(at, registry, limits, replicas.way.clone())
}

/// A replica's name between nodes.
fn tree_of(tier: TierId, key: &StoreKey) -> Tree {
    let name = format!("{}/{}", tier.0, key.0);
    Tree::Replica(name.into_bytes().into())
}

impl Replicas {
    /// Of a run that has not been opened yet; its number and key on the data plane.
    ///
    /// # Errors
    /// When no other key can be made of that one.
    pub(super) fn new(
        (run, key): (u128, [u8; 32]),
        way: ContentTransport,
    ) -> std::io::Result<Arc<Self>> {
        let mut messages_run = RunId::default();
        let derived = Key::derive(&key, MESSAGES_RUN)?;
        for (to, from) in messages_run.iter_mut().zip(derived.0) {
            *to = from;
        }
        Ok(Arc::new(Self {
            way,
            run: run.to_le_bytes(),
            messages: (messages_run, Key::derive(&key, MESSAGES_KEY)?),
            inbox: Arc::default(),
            key: Key(key),
            known: Mutex::default(),
            exported: ExportedPieces::default(),
        }))
    }

    fn known(&self) -> MutexGuard<'_, ReplicaContext> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in where everything is stored.
    ///
    /// # Errors
    /// When it is of another run, or there is no such node.
    pub(super) fn open(&self, node_config: &NodeConfig) -> anyhow::Result<()> {
        let (run, key) = node_config.data;
        if run.to_le_bytes() != self.run || key != self.key.0 {
            bail!("the run's data plane is not the one that tarnd was started for");
        }
        let name = |id: NodeId| {
            node_config
                .cluster
                .nodes
                .get(id.at())
                .map(|n| n.name.clone())
        };
        let own = node_config.cluster.nodes.get(node_config.node.at());
        let own =
            own.ok_or_else(|| anyhow!("there is no node {} in the cluster", node_config.node))?;
        let tier = |t: &tarn_types::cluster::Tier| {
            let folder = TierDir::new(&t.root, &node_config.workspace, &own.name);
            (t.name.clone(), folder)
        };
        let peers = node_config.peers.iter();
        let peer = &node_config.cluster.peer;
        *self.known() = ReplicaContext {
            node: Some(node_config.node),
            own: own.name.clone(),
            tiers: own.tiers.iter().map(tier).collect(),
            run: node_config.run.clone(),
            sockets: Sockets::of(
                &node_config.cluster,
                &OwnedNodes::Some([node_config.node].into()),
            ),
            arriving: BTreeMap::new(),
            nodes: peers
                .filter_map(|(id, at)| Some((*id, (name(*id)?, at.clone()))))
                .collect(),
            lost: BTreeSet::new(),
            limiter: peer.emulated.then(|| Limiter::new(peer.write, 0)),
        };
        Ok(())
    }

    /// Another node, for requests for its files.
    ///
    /// # Errors
    /// When its address is none.
    pub(super) fn client(
        &self,
        name: &str,
        (host, port): &Address,
        timeout: DataClientTimeouts,
    ) -> anyhow::Result<Arc<DataClient>> {
        let unknown =
            |why: String| anyhow!("node {name} cannot be reached at {host}:{port}: {why}");
        let mut found = (host.as_str(), *port)
            .to_socket_addrs()
            .map_err(|e| unknown(e.to_string()))?;
        let address = found.next().ok_or_else(|| unknown("no address".into()))?;
        Ok(Arc::new(DataClient {
            node: name.to_owned(),
            address,
            others: found.take(MAX_ADDRESSES).collect(),
            run: self.run,
            key: self.key.clone(),
            timeout,
            way: self.way.clone(),
        }))
    }

    /// Another node, for messages about steps.
    ///
    /// # Errors
    /// When it is no node of this run, or its address is none.
    pub(super) fn message_client(
        &self,
        to: NodeId,
        timeouts: DataClientTimeouts,
    ) -> Result<Arc<DataClient>, MoverError> {
        let failed = |why: String| MoverError::new(RunErrorKind::Io, why);
        let found = self.known().nodes.get(&to).cloned();
        let (name, address) =
            found.ok_or_else(|| failed(format!("node {to} is no node of this run")))?;
        let client = self.client(&name, &address, timeouts);
        let client = client.map_err(|e| failed(e.to_string()))?;
        let (run, key) = self.messages.clone();
        Ok(Arc::new(DataClient {
            run,
            key,
            // As the messages between tarn and its nodes: they have programs' environment and output.
            way: ContentTransport::Sealed,
            ..DataClient::clone(&client)
        }))
    }

    /// A node's name.
    pub(super) fn name(&self, node: NodeId) -> String {
        let known = self.known();
        let found = known.nodes.get(&node).map(|(name, _)| name.clone());
        found.unwrap_or_else(|| node.to_string())
    }

    /// Takes a message about a step.
    fn receive(&self, message: StepMessage, control: &Control) -> Result<(), NotOpened> {
        let from = message.from;
        let (is_known, is_own) = {
            let known = self.known();
            (known.nodes.contains_key(&from), known.node == Some(from))
        };
        if !is_known || is_own {
            // The run may be opened here later.
            let text = format!("node {from} is no other node of a run that is open here");
            let code = match self.known().node {
                None => Code::Busy,
                Some(_) => Code::Denied,
            };
            return Err(NotOpened::new(code, text));
        }
        self.inbox.receive(message, || self.is_lost(from), control)
    }

    /// A node is lost: it gets no more requests, and its messages are dropped.
    pub(super) fn lost(&self, node: NodeId) {
        self.known().lost.insert(node);
        self.inbox.lost(node);
    }

    /// Whether it is.
    pub(super) fn is_lost(&self, node: NodeId) -> bool {
        self.known().lost.contains(&node)
    }

    /// It is back.
    pub(super) fn back(&self, node: NodeId, address: Address) {
        let mut known = self.known();
        known.lost.remove(&node);
        if let Some(found) = known.nodes.get_mut(&node) {
            found.1 = address;
        }
    }

    /// The path of the replica of that name, or its copy that arrives; or an image of a step's processes, by instance and image.
    fn find(&self, name: &[u8]) -> Option<Result<PathBuf, Arc<Arriving>>> {
        let (tier, key) = std::str::from_utf8(name).ok()?.split_once('/')?;
        let tier = TierId(tier.parse().ok()?);
        let known = self.known();
        let (tier_name, dir) = known.tiers.get(tier.at())?;
        if let Some((instance, image)) = key.split_once('/') {
            let run = dir.checkpoints().join(&known.run);
            return tarn_node::image::copy::content(&run, instance, image).map(Ok);
        }
        // One component: it leads nowhere else.
        if Path::new(key).file_name() != Some(key.as_ref()) {
            return None;
        }
        let key = StoreKey(key.to_owned());
        // The thread of a stream asks: it sends from where the tier is, until a request is for a tier elsewhere.
        if let Some(sockets) = &known.sockets
            && let Some(near) = sockets.near(tier_name)
        {
            near.for_good();
        }
        let path = dir.part(&key);
        Some(
            known
                .arriving
                .get(&(tier, key))
                .cloned()
                .map_or(Ok(path), Err),
        )
    }
}

impl pieces::PiecePeers for Replicas {
    fn own(&self) -> String {
        self.known().own.clone()
    }

    fn client(&self, node: &str) -> Result<Arc<DataClient>, NotOpened> {
        let address = {
            let known = self.known();
            let found = known.nodes.iter().find(|(_, (name, _))| name == node);
            let (id, (_, address)) = found.ok_or_else(|| {
                let text = format!("`{}` is no node of this run", node.escape_debug());
                NotOpened::new(Code::NotFound, text)
            })?;
            if known.lost.contains(id) {
                let text = format!("node {node} is lost, and its pieces of partitions with it");
                return Err(NotOpened::new(Code::Lost, text));
            }
            address.clone()
        };
        Replicas::client(self, node, &address, DataClientTimeouts::default())
            .map_err(|why| NotOpened::new(Code::Io, why.to_string()))
    }

    fn way(&self) -> &ContentTransport {
        &self.way
    }
}

impl Registry for Replicas {
    fn key(&self, run: &RunId) -> Option<Key> {
        match *run == self.messages.0 {
            true => Some(self.messages.1.clone()),
            false => (*run == self.run).then(|| self.key.clone()),
        }
    }

    fn is_for_messages(&self, run: &RunId) -> bool {
        *run == self.messages.0
    }

    fn tree(&self, run: &RunId, tree: &Tree) -> Result<Served, RegistryError> {
        if self.is_for_messages(run) {
            return Err(RegistryError(
                "this stream is for messages about steps".into(),
            ));
        }
        let name = || String::from_utf8_lossy(tree.name()).into_owned();
        let found = match tree {
            Tree::Replica(name) => self.find(name),
            Tree::Space(_) | Tree::Probe => None,
        };
        match found {
            Some(Err(arriving)) => Ok(Served::Arriving(arriving)),
            Some(Ok(path)) => match Root::open(&path) {
                Ok(root) => Ok(Served::Whole(Arc::new(root))),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Served::Gone),
                Err(e) => Err(RegistryError(format!("{}: {e}", path.display()))),
            },
            None => Err(RegistryError(format!(
                "`{}` is no replica",
                name().escape_debug()
            ))),
        }
    }

    fn call(&self, run: &RunId, body: &[u8], control: &Control) -> Result<Called, RegistryError> {
        if !self.is_for_messages(run) {
            return self.exported.called(body);
        }
        let taken = match unpack(body)? {
            PeerTarndRequest::Step(message) => self.receive(message, control),
            _ => {
                let text =
                    "this stream is for messages about steps, and nothing else is done for it";
                Err(NotOpened::new(Code::Unsupported, text))
            }
        };
        let reply = taken.map_or_else(PeerTarndReply::Refused, |()| PeerTarndReply::Done);
        Ok(Called::Reply(pack(&reply)?))
    }
}

/// [`Replicas`] as the world of this node sees them.
pub(super) struct WorldReplicas {
    pub(super) replicas: Arc<Replicas>,
    /// Told of transfers to this node that begin.
    pub(super) begun: Box<dyn Fn(TransferId) + Send + Sync>,
}

impl Peers for WorldReplicas {
    fn tree(&self, tier_ref: TierRef, key: &StoreKey) -> Result<Arc<dyn PeerTree>, RunError> {
        let failed = |kind, message: String| RunError { kind, message };
        let known = self.replicas.known();
        let (name, address) = known.nodes.get(&tier_ref.node).cloned().ok_or_else(|| {
            let why = format!("nothing is known of the files of node {}", tier_ref.node);
            failed(RunErrorKind::Io, why)
        })?;
        if known.lost.contains(&tier_ref.node) {
            let why = format!("node {name} is lost, and its data with it");
            return Err(failed(RunErrorKind::NodeLost, why));
        }
        let limiter = known.limiter.clone();
        drop(known);
        let client = self
            .replicas
            .client(&name, &address, DataClientTimeouts::default());
        let client = client.map_err(|why| failed(RunErrorKind::Io, why.to_string()))?;
        let tree = client.tree(tree_of(tier_ref.tier, key));
        Ok(match limiter {
            Some(limiter) => Arc::new(Paced { tree, limiter }),
            None => Arc::new(tree),
        })
    }

    fn arriving(&self, tier_ref: TierRef, key: &StoreKey) -> Option<Arc<dyn Arrivals>> {
        let arriving = Arc::new(Arriving::new());
        let name = (tier_ref.tier, key.clone());
        let arrival = Arrival {
            replicas: Arc::clone(&self.replicas),
            name: name.clone(),
            arriving: Arc::clone(&arriving),
        };
        self.replicas.known().arriving.insert(name, arriving);
        Some(Arc::new(arrival))
    }

    fn begun(&self, id: TransferId) {
        (self.begun)(id);
    }

    fn export_pieces(&self, pieces: Pieces) -> Result<Box<dyn Send>, RunError> {
        let (instance, attempt) = pieces.step;
        let name = format!("@{instance}.{attempt}");
        let exported = &self.replicas.exported;
        match exported.export_pieces(
            name,
            pieces.folders,
            Arc::clone(&self.replicas) as _,
            &pieces.socket,
        ) {
            Ok(lending) => Ok(Box::new(lending)),
            Err(e) => Err(RunError {
                kind: RunErrorKind::Launch,
                message: format!(
                    "the socket for its partitions ({}) cannot be made: {e}",
                    pieces.socket.display()
                ),
            }),
        }
    }
}

/// A replica that arrives, for the time of its copy.
#[derive(Debug)]
struct Arrival {
    replicas: Arc<Replicas>,
    name: (TierId, StoreKey),
    arriving: Arc<Arriving>,
}

impl Arrival {
    /// It arrives no more: from now on it is in its place, or not there.
    fn forget(&self) {
        let mut known = self.replicas.known();
        let current = known.arriving.get(&self.name);
        if current.is_some_and(|a| Arc::ptr_eq(a, &self.arriving)) {
            known.arriving.remove(&self.name);
        }
    }
}

impl Arrivals for Arrival {
    fn growing(&self, staging: &Path) {
        self.arriving.growing(staging);
    }

    fn arrived(&self, path: &[u8], offset: u64, len: u64) {
        self.arriving.arrived(path, offset, len);
    }

    fn ended(&self, whole: bool) {
        self.arriving.ended(whole);
        self.forget();
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        // It may have been announced and never begun.
        self.arriving.ended(false);
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_types::cluster::Socket;

    #[test]
    fn who_sends_runs_near_the_tier() {
        let allowed = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let list = status
                .lines()
                .find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
            list.unwrap().trim().to_owned()
        };
        let before = allowed();
        let (Some(first), Some(last)) = (
            before.split(['-', ',']).next(),
            before
                .split(['-', ','])
                .next_back()
                .filter(|l| *l != before),
        ) else {
            return eprintln!("skipped: it takes two processors, and there is {before}");
        };
        let socket = |cpu: &str, tiers: &[&str]| Socket {
            number: 0,
            cpus: vec![cpu.parse().unwrap()],
            numa: Vec::new(),
            memory: 0,
            tiers: tiers.iter().map(|t| (*t).to_owned()).collect(),
        };
        let sockets = [socket(first, &[]), socket(last, &["t"])];
        let dir = tempfile::tempdir().unwrap();
        let replicas = Replicas::new((7, [1; 32]), ContentTransport::Clear).unwrap();
        replicas.known().tiers = vec![("t".into(), TierDir(dir.path().to_path_buf()))];
        replicas.known().sockets = Sockets::divided(&sockets);
        assert!(replicas.find(b"0/k.0").is_some());
        assert_eq!(allowed(), last);
    }

    #[test]
    fn no_name_leads_out_of_the_replicas() {
        let dir = tempfile::tempdir().unwrap();
        let replicas = Replicas::new((7, [1; 32]), ContentTransport::Clear).unwrap();
        replicas.known().tiers = vec![("t".into(), TierDir(dir.path().to_path_buf()))];
        std::fs::create_dir_all(dir.path().join("parts/k.0")).unwrap();
        "r".clone_into(&mut replicas.known().run);
        let content = tarn_node::image::copy::content;
        let image = content(&dir.path().join("checkpoints/r"), "s-0", "1.2").unwrap();
        std::fs::create_dir_all(image).unwrap();
        let run = 7u128.to_le_bytes();
        let tree = |name: &[u8]| replicas.tree(&run, &Tree::Replica(name.into()));
        assert!(matches!(tree(b"0/k.0"), Ok(Served::Whole(_))));
        assert!(matches!(tree(b"0/s-0/1.2"), Ok(Served::Whole(_))));
        assert!(matches!(tree(b"0/s-0/1.3"), Ok(Served::Gone)));
        for name in [
            &b"0/s-0/1.2/"[..],
            b"0/s-0/1.2/..",
            b"0/s-0/..",
            b"0/s-0/01.2",
            b"0/s-0/+1.2",
            b"0/s-0/.taking",
            b"0/s-0/.copying",
            b"0/../1.2",
            b"0/./1.2",
            b"0//1.2",
            b"0/../s-0/1.2",
            b"0/s-0/../1.2",
            b"0/../parts",
            b"0/..",
            b"0/.",
            b"0/",
            b"0/k.0/",
            b"0/k.0/..",
            b"0//",
            b"1/k.0",
            b"-1/k.0",
            b"k.0",
            b"",
            b"\xff/k.0",
            b"99999/k.0",
        ] {
            assert!(tree(name).is_err(), "{}", String::from_utf8_lossy(name));
        }
        assert!(matches!(tree(b"0/none"), Ok(Served::Gone)));
        assert!(replicas.key(&run).is_some() && replicas.key(&8u128.to_le_bytes()).is_none());
        let others = WorldReplicas {
            replicas: Arc::clone(&replicas),
            begun: Box::new(|_| {}),
        };
        let (tier_ref, key) = (
            TierRef {
                node: NodeId(0),
                tier: TierId(0),
            },
            StoreKey("k.0".into()),
        );
        let arrival = others.arriving(tier_ref, &key).unwrap();
        assert!(matches!(tree(b"0/k.0"), Ok(Served::Arriving(_))));
        let again = others.arriving(tier_ref, &key).unwrap();
        arrival.ended(false);
        assert!(
            matches!(tree(b"0/k.0"), Ok(Served::Arriving(_))),
            "the newer one arrives"
        );
        drop(again);
        assert!(matches!(tree(b"0/k.0"), Ok(Served::Whole(_))));
    }
}
