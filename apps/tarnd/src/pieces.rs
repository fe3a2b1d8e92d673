//! Pieces of partitions that are spread over the nodes of a step, or of a site's job: those of this node for the programs of its
//! other nodes, and those of the other nodes for the programs here. docs/internals/cluster.md, "Partitions over the nodes of a
//! step"; docs/internals/site.md, "Partitions of jobs".

mod piece_listener;

use crate::peers::open_partition_at;
use piece_listener::PieceListener;
use rustix::fd::OwnedFd;
use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tarn_data_plane::{
    Called, ContentTransport, DataClient, MakeTarget, RegistryError as NotServed,
};
use tarn_partitions::{PartitionFolder, SUFFIX, Serving};
use tarn_ports::{STEP_SPACE, Watch};
use tarn_proto::local::{
    Code, PeerTarndReply, PeerTarndRequest, RemotePartition, Reply, RequestError, pack, unpack,
};

/// How long streams that are cut may take to be closed here, with what they have open.
const CLOSING: Duration = Duration::from_secs(5);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The other nodes that have pieces.
pub(crate) trait PiecePeers: std::fmt::Debug + Send + Sync {
    /// This node's name.
    fn own(&self) -> String;

    /// One of them, for requests for its pieces.
    ///
    /// # Errors
    /// When it is none of them, or cannot be asked now.
    fn client(&self, node: &str) -> Result<Arc<DataClient>, RequestError>;

    /// How content travels.
    fn way(&self) -> &ContentTransport;
}

/// The pieces that this node exports, by their name between nodes, where tarnds of tasks name a dataspace: `@` and more, as no
/// dataspace is called.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExportedPieces(Arc<Mutex<BTreeMap<String, Arc<StepPieces>>>>);

/// Of an attempt, or a job.
#[derive(Debug)]
struct StepPieces {
    /// The folder of each piece, by the partition's name.
    folders: BTreeMap<String, PathBuf>,
    streams: Mutex<Streams>,
    fewer: Condvar,
}

/// Those that were given over to its pieces.
#[derive(Debug, Default)]
struct Streams {
    over: bool,
    next: u64,
    all: BTreeMap<u64, TcpStream>,
}

/// A stream has a piece open; dropped when it is closed.
struct OpenPiece {
    step: Arc<StepPieces>,
    number: u64,
}

impl Drop for OpenPiece {
    fn drop(&mut self) {
        lock(&self.step.streams).all.remove(&self.number);
        self.step.fewer.notify_all();
    }
}

impl StepPieces {
    fn folder(&self, path: &[u8]) -> Result<(PartitionFolder, String, PathBuf), RequestError> {
        let name = std::str::from_utf8(path).ok();
        let name = name.and_then(|path| path.strip_suffix(SUFFIX));
        let found = name.and_then(|name| Some((name, self.folders.get(name)?)));
        let (name, path) = found.ok_or_else(|| {
            let text = format!(
                "`{}` is no partition that is spread over the nodes of this step",
                path.escape_ascii()
            );
            RequestError::new(Code::NotFound, text)
        })?;
        Ok((
            PartitionFolder::open(path)?,
            name.to_owned(),
            path.join(name),
        ))
    }

    fn open(&self, path: &[u8], write: bool) -> Result<OwnedFd, RequestError> {
        let (folder, name, _) = self.folder(path)?;
        Ok(folder.export_file(&name, write)?.0)
    }

    /// A stream begins, unless the step is over.
    fn begin(self: &Arc<Self>, socket: &TcpStream) -> io::Result<OpenPiece> {
        let mut streams = lock(&self.streams);
        if streams.over {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let number = streams.next;
        streams.next += 1;
        streams.all.insert(number, socket.try_clone()?);
        Ok(OpenPiece {
            step: Arc::clone(self),
            number,
        })
    }

    /// The step is over: streams are cut, and waited for.
    fn end(&self) {
        let mut streams = lock(&self.streams);
        streams.over = true;
        for stream in streams.all.values() {
            // It may have ended by itself.
            let _ = stream.shutdown(Shutdown::Both);
        }
        let open = |streams: &mut Streams| !streams.all.is_empty();
        let waited = self.fewer.wait_timeout_while(streams, CLOSING, open);
        if waited.is_ok_and(|(_, waited)| waited.timed_out()) {
            tracing::warn!("streams to pieces of partitions do not end, and keep their memory");
        }
    }
}

impl ExportedPieces {
    /// Opens a piece for a program of another node.
    fn serve(
        &self,
        space: &str,
        path: &[u8],
        write: bool,
    ) -> Result<(PeerTarndReply, MakeTarget), RequestError> {
        let step = lock(&self.0).get(space).cloned().ok_or_else(|| {
            let text = format!("nothing is lent to `{}` here", space.escape_debug());
            RequestError::new(Code::NotFound, text)
        })?;
        let (folder, name, shown) = step.folder(path)?;
        let serving = Serving::new(folder.export_file(&name, write)?.0, &shown, write)?;
        let reply = PeerTarndReply::Exported(serving.describe_partition()?);
        let make = move |socket: &TcpStream| {
            let open = step.begin(socket)?;
            serving.target(open).map_err(io::Error::other)
        };
        Ok((reply, Box::new(make)))
    }

    /// Handles a call of another node's tarnd.
    pub(crate) fn called(&self, body: &[u8]) -> Result<Called, NotServed> {
        let refused = |why| Ok::<_, NotServed>((PeerTarndReply::Refused(why), None));
        let (reply, make) = match unpack(body)? {
            PeerTarndRequest::Export { space, path, write } => self
                .serve(&space, &path.0, write)
                .map(|(reply, make)| (reply, Some(make)))
                .or_else(refused)?,
            _ => {
                let text = "pieces of partitions are lent here to other nodes, and nothing else is done for them";
                refused(RequestError::new(Code::Unsupported, text))?
            }
        };
        let reply = pack(&reply)?;
        Ok(match make {
            Some(make) => Called::Storage(reply, make),
            None => Called::Reply(reply),
        })
    }
}

/// An export of pieces, until it is dropped.
pub(crate) struct PieceExport {
    exported: ExportedPieces,
    name: String,
    step: Arc<StepPieces>,
    /// Dropped last of all: a program that is being answered waits for others.
    _door: PieceListener,
}

impl Drop for PieceExport {
    fn drop(&mut self) {
        lock(&self.exported.0).remove(&self.name);
        self.step.end();
    }
}

impl ExportedPieces {
    /// Exports the pieces in these folders, by their partitions' names, to nodes that know `name`. Opens those and the other nodes'
    /// to this user's programs by a socket, in a folder that is there.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub(crate) fn export_pieces(
        &self,
        name: String,
        folders: BTreeMap<String, PathBuf>,
        others: Arc<dyn PiecePeers>,
        socket: &Path,
    ) -> io::Result<PieceExport> {
        let step = Arc::new(StepPieces {
            folders,
            streams: Mutex::default(),
            fewer: Condvar::new(),
        });
        let handler = PieceHandler {
            others,
            name: name.clone(),
            step: Arc::clone(&step),
        };
        let piece_listener = PieceListener::open(socket, Arc::new(handler))?;
        lock(&self.0).insert(name.clone(), Arc::clone(&step));
        Ok(PieceExport {
            exported: self.clone(),
            name,
            step,
            _door: piece_listener,
        })
    }
}

/// Answers the programs of a step on this node.
#[derive(Debug)]
struct PieceHandler {
    others: Arc<dyn PiecePeers>,
    name: String,
    step: Arc<StepPieces>,
}

impl PieceHandler {
    /// This node's name.
    fn node(&self) -> String {
        self.others.own()
    }

    /// Opens a piece of this node, or of another one.
    fn open(
        &self,
        node: Option<&str>,
        (space, path): (&str, &[u8]),
        write: bool,
        watch: &dyn Watch,
    ) -> (Reply, Option<OwnedFd>) {
        let opened = match node {
            _ if space != STEP_SPACE => {
                let text = format!(
                    "this socket has what is called {STEP_SPACE}/NAME, and no dataspaces: those are of the tarnd that $TARN_SOCKET names"
                );
                Err(RequestError::new(Code::Unsupported, text))
            }
            Some(node) if node != self.node() => self
                .open_there(node, path, write, watch)
                .map(|(far, stream)| (Reply::OpenedThere(far), Some(stream))),
            _ => self
                .step
                .open(path, write)
                .map(|file| (Reply::Opened, Some(file))),
        };
        opened.unwrap_or_else(|why| (Reply::Refused(why), None))
    }

    fn open_there(
        &self,
        node: &str,
        path: &[u8],
        write: bool,
        watch: &dyn Watch,
    ) -> Result<(RemotePartition, OwnedFd), RequestError> {
        let client = self.others.client(node)?;
        let ask = PeerTarndRequest::Export {
            space: self.name.clone(),
            path: path.into(),
            write,
        };
        open_partition_at(&client, self.others.way(), &ask, watch)
    }
}
