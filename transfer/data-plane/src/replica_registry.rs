//! The content that a server may serve, and its recipients.

use crate::arriving::Arriving;
use crate::lock;
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::io;
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tarn_ports::Control;
use tarn_proto::data::Tree;
use tarn_proto::local::PeerCodeError;
use tarn_ring::Target;
use tarn_stream::Key;
use tarn_sys::beneath::Root;
use tarn_types::stream::RunId;

/// A tree that may be read.
#[derive(Debug, Clone)]
pub enum Served {
    /// It is beneath this folder.
    Whole(Arc<Root>),
    /// It is being copied here.
    Arriving(Arc<Arriving>),
    /// A single file: a stretch of an open one.
    Part(ServedFileExtent),
    /// It is not there any more.
    Gone,
}

/// A stretch of a file that stands for a tree with this one file in it.
#[derive(Debug, Clone)]
pub struct ServedFileExtent {
    /// The open file.
    pub fd: Arc<OwnedFd>,
    /// The file's name in the tree.
    pub name: Box<[u8]>,
    /// The offset at which it begins, in bytes.
    pub offset: u64,
    /// Bytes of it.
    pub length: u64,
}

/// The reason why a tree may not be read: a sentence for the peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryError(pub String);

impl From<PeerCodeError> for RegistryError {
    fn from(e: PeerCodeError) -> Self {
        Self(e.to_string())
    }
}

/// Makes the target that a stream is given over to, in that stream's own thread. A target that keeps the socket can end the
/// stream by it.
pub type MakeTarget = Box<dyn FnOnce(&TcpStream) -> io::Result<Box<dyn Target>> + Send>;

/// The answer to a call.
pub enum Called {
    /// This, and the stream continues as it was.
    Reply(Vec<u8>),
    /// This, and from then on the stream is given over to storage memory: the caller uses it by [`crate::RemoteStorage`].
    Storage(Vec<u8>, MakeTarget),
}

/// The questions that a server puts to its host before it answers. It does so for each request, so a tree that is withdrawn
/// is not served any more.
pub trait Registry: Send + Sync {
    /// The key of a run; `None` for one that is not known here.
    fn key(&self, run: &RunId) -> Option<Key>;

    /// Whether streams of peers that know the key of `run` are for messages only: they have places of their own.
    fn is_for_messages(&self, _run: &RunId) -> bool {
        false
    }

    /// A tree that peers that know the key of `run` may read.
    ///
    /// # Errors
    /// When there is none of that name, or it may not be read.
    fn tree(&self, run: &RunId, tree: &Tree) -> Result<Served, RegistryError>;

    /// Answers a call of a peer that knows the key of `run`; may take its time, until it is cancelled: then nobody waits
    /// for the answer any more.
    ///
    /// # Errors
    /// When no requests are possible here.
    fn call(&self, run: &RunId, body: &[u8], control: &Control) -> Result<Called, RegistryError> {
        let _ = (run, body, control);
        Err(RegistryError(
            "nothing but files can be asked for here".into(),
        ))
    }
}

/// A registry in memory: runs, and each run's trees. It grows with offered trees, and shrinks with withdrawn ones.
#[derive(Debug, Default)]
pub struct ReplicaRegistry {
    runs: Mutex<HashMap<RunId, RegisteredRun>>,
}

#[derive(Debug)]
struct RegisteredRun {
    key: Key,
    trees: HashMap<Tree, Served>,
}

impl ReplicaRegistry {
    /// With nothing on it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets whoever knows `key` read what is offered to `run`.
    pub fn admit(&self, run: RunId, key: Key) {
        let trees = HashMap::new();
        lock(&self.runs).insert(run, RegisteredRun { key, trees });
    }

    /// Forgets a run and the trees offered to it.
    pub fn dismiss(&self, run: &RunId) {
        lock(&self.runs).remove(run);
    }

    /// Offers a folder to a run that was admitted.
    ///
    /// # Errors
    /// When the folder cannot be opened.
    pub fn offer(&self, run: &RunId, tree: Tree, folder: &Path) -> std::io::Result<()> {
        let root = Root::open(folder)?;
        self.place(run, tree, Served::Whole(Arc::new(root)));
        Ok(())
    }

    /// Offers a tree that is still being copied here: a request for missing content waits.
    pub fn offer_arriving(&self, run: &RunId, tree: Tree, arriving: Arc<Arriving>) {
        self.place(run, tree, Served::Arriving(arriving));
    }

    /// Takes a tree back. A request under way is sent to its end.
    pub fn withdraw(&self, run: &RunId, tree: &Tree) {
        if let Some(run) = lock(&self.runs).get_mut(run) {
            run.trees.remove(tree);
        }
    }

    fn place(&self, run: &RunId, tree: Tree, served: Served) {
        if let Some(run) = lock(&self.runs).get_mut(run) {
            run.trees.insert(tree, served);
        }
    }
}

impl Registry for ReplicaRegistry {
    fn key(&self, run: &RunId) -> Option<Key> {
        lock(&self.runs).get(run).map(|run| run.key.clone())
    }

    fn tree(&self, run: &RunId, tree: &Tree) -> Result<Served, RegistryError> {
        let runs = lock(&self.runs);
        let served = runs.get(run).and_then(|run| run.trees.get(tree));
        served.cloned().ok_or_else(|| {
            let name = String::from_utf8_lossy(tree.name());
            RegistryError(format!(
                "`{}` is not offered here to this run",
                name.escape_debug()
            ))
        })
    }
}
