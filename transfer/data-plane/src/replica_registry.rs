//! What a server may serve, and to whom.

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
    /// A single file: a stretch of what is open.
    Part(ServedFileExtent),
    /// It is not there any more.
    Gone,
}

/// A stretch of a file that stands for a tree with this one file in it.
#[derive(Debug, Clone)]
pub struct ServedFileExtent {
    /// What is read.
    pub fd: Arc<OwnedFd>,
    /// What the file is called in the tree.
    pub name: Box<[u8]>,
    /// Where it begins, bytes.
    pub offset: u64,
    /// Bytes of it.
    pub length: u64,
}

/// Why a tree may not be read: a sentence for whoever asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryError(pub String);

impl From<PeerCodeError> for RegistryError {
    fn from(e: PeerCodeError) -> Self {
        Self(e.to_string())
    }
}

/// Makes what a stream is given over to, in that stream's own thread. Who keeps the socket can end the stream by it.
pub type MakeTarget = Box<dyn FnOnce(&TcpStream) -> io::Result<Box<dyn Target>> + Send>;

/// What a call is answered with.
pub enum Called {
    /// This, and the stream continues as it was.
    Reply(Vec<u8>),
    /// This, and from then on the stream is given over to storage memory: who has called uses it by [`crate::RemoteStorage`].
    Storage(Vec<u8>, MakeTarget),
}

/// What a server asks before it answers. Asked for each request, so what is withdrawn is not served any more.
pub trait Registry: Send + Sync {
    /// The key of a run; `None` for one that is not known here.
    fn key(&self, run: &RunId) -> Option<Key>;

    /// Whether streams of whoever knows the key of `run` are for messages only: they have places of their own.
    fn is_for_messages(&self, _run: &RunId) -> bool {
        false
    }

    /// A tree that whoever knows the key of `run` may read.
    ///
    /// # Errors
    /// When there is none of that name, or it may not be read.
    fn tree(&self, run: &RunId, tree: &Tree) -> Result<Served, RegistryError>;

    /// Answers a call of whoever knows the key of `run`; may take its time, until it is cancelled: then nobody waits for
    /// the answer any more.
    ///
    /// # Errors
    /// When nothing can be asked here.
    fn call(&self, run: &RunId, body: &[u8], control: &Control) -> Result<Called, RegistryError> {
        let _ = (run, body, control);
        Err(RegistryError(
            "nothing but files can be asked for here".into(),
        ))
    }
}

/// A registry in memory: runs, and each run's trees. It grows with what is offered, and shrinks with what is withdrawn.
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

    /// Forgets a run and what was offered to it.
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

    /// Offers a tree that is still being copied here: who asks for what is missing waits.
    pub fn offer_arriving(&self, run: &RunId, tree: Tree, arriving: Arc<Arriving>) {
        self.place(run, tree, Served::Arriving(arriving));
    }

    /// Takes a tree back. What is being sent of it is sent to the end of its request.
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
