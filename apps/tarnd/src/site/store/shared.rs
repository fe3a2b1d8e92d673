//! Partitions that are spread over the nodes of a job: the pieces here for the job's tasks and those of its other nodes.

use super::UserStore;
use super::outside::client;
use super::sealed::JobFolderKind;
use crate::pieces::{PieceExport, PiecePeers};
use crate::work::ConfinedPath;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, PoisonError};
use tarn_data_plane::{ContentTransport, DataClient};
use tarn_munge::KEY_BYTES;
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{SlurmJobId, WorkResult, WorkerAddress};

/// The socket for tasks, in the folder of the first of a job's partitions that are spread (docs/internals/site.md, "What a job sees").
const SOCKET: &str = "tarnd";

/// The exports of a job's partitions here. Dropped in this order.
pub(super) struct JobPieceExports {
    _lending: PieceExport,
    followers: Arc<FollowerWorkers>,
    /// The folders: files are opened beneath them, whatever their names lead to meanwhile.
    _folders: Vec<ConfinedPath>,
}

/// The workers of the job's user on its other nodes.
struct FollowerWorkers {
    node: String,
    user: u32,
    key: [u8; KEY_BYTES],
    way: ContentTransport,
    peers: Mutex<BTreeMap<String, WorkerAddress>>,
}

impl std::fmt::Debug for FollowerWorkers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Followers of {}", self.node)
    }
}

impl PiecePeers for FollowerWorkers {
    fn own(&self) -> String {
        self.node.clone()
    }

    fn client(&self, node: &str) -> Result<Arc<DataClient>, RequestError> {
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let peer = peers.get(node).cloned();
        drop(peers);
        let peer = peer.ok_or_else(|| {
            let text = format!("`{}` is no node of this job", node.escape_debug());
            RequestError::new(Code::NotFound, text)
        })?;
        client(&peer, (&self.key, self.user), &self.way).map(Arc::new)
    }

    fn way(&self) -> &ContentTransport {
        &self.way
    }
}

impl UserStore {
    /// Lends a job's pieces, if that is not done already.
    pub(super) fn offer(
        &self,
        job: SlurmJobId,
        partitions: &[(String, String)],
    ) -> Result<WorkResult, RequestError> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let serving = WorkResult::Serving { port: self.port() };
        if shared.contains_key(&job) {
            return Ok(serving);
        }
        let mut folders = Vec::with_capacity(partitions.len());
        let mut names = BTreeMap::new();
        for (name, store) in partitions {
            let root = self.root_of(store)?;
            let held = self.of_job(job, JobFolderKind::Exported, name, (Some(root), false))?;
            if held.stat()?.is_none() {
                return Err(held.missing());
            }
            names.insert(name.clone(), held.path());
            folders.push(held);
        }
        let Some(first) = folders.first() else {
            let text = format!("job {job} has nothing that is divided over its nodes");
            return Err(RequestError::new(Code::Invalid, text));
        };
        let failed = |e: std::io::Error| {
            let text = format!("the socket for partitions of job {job} cannot be made: {e}");
            RequestError::new(Code::Io, text)
        };
        let socket = first.path().join(SOCKET);
        // Of a worker before this one.
        match std::fs::remove_file(&socket) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        }
        let followers = Arc::new(FollowerWorkers {
            node: self.node.clone(),
            user: self.user,
            key: self.key,
            way: self.way.clone(),
            peers: Mutex::default(),
        });
        let name = format!("@job.{job}");
        let others = Arc::clone(&followers) as Arc<dyn PiecePeers>;
        let lending = self.exported.export_pieces(name, names, others, &socket);
        let entry = JobPieceExports {
            _lending: lending.map_err(failed)?,
            followers,
            _folders: folders,
        };
        shared.insert(job, entry);
        Ok(serving)
    }

    /// The addresses of the other nodes that have pieces. A node that is not named keeps its earlier one.
    pub(super) fn join(
        &self,
        job: SlurmJobId,
        peers: Vec<WorkerAddress>,
    ) -> Result<WorkResult, RequestError> {
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(shared) = shared.get(&job) else {
            let text = format!("nothing is lent to job {job} here any more");
            return Err(RequestError::new(Code::Busy, text));
        };
        let mut known = shared
            .followers
            .peers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        known.extend(peers.into_iter().map(|peer| (peer.node.clone(), peer)));
        Ok(WorkResult::Done)
    }

    /// A job's pieces are lent no more: streams to them are cut.
    pub(super) fn withdraw(&self, job: SlurmJobId) {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = shared.remove(&job);
        drop(shared);
        // It waits for streams to end; others' jobs do not.
        drop(ended);
    }

    /// Whether this process has pieces to lend.
    pub(in crate::site) fn has_exported_pieces(&self) -> bool {
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        !shared.is_empty()
    }
}
