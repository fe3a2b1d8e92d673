//! This node's replies to other nodes' tarnds: files of its dataspaces, memory of its programs' tasks, and calls.
//!
//! Tasks that they hand over go through this tarnd's own socket, like any program's: rights, space, quotas, shares and the
//! journal are the same for them.

use crate::connection::ProgramRegion;
use crate::fingerprint::fingerprint;
use crate::peers::PeerTable;
use crate::work::{self, ConfinedPath, TaskEndpoint};
use rustix::fs::FileType;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tarn_client::{Client, WaitCondition};
use tarn_data_plane::{
    Called, Key, MakeTarget, Registry, RegistryError as NotServed, RunId, Served, ServedFileExtent,
    Tree,
};
use tarn_mover::Trees;
use tarn_ports::Control;
use tarn_proto::local::{
    Code, PeerTarndReply, PeerTarndRequest, RequestError, SpaceInfo, TaskId, pack, unpack,
};
use tarn_sys::beneath::Root;
use tarn_types::manifest::{Entry, EntryKind, Manifest};

/// Permissions of a file that memory becomes.
const MODE: u32 = 0o644;

/// Objects shown to other nodes: kept by the server's thread, read by those that answer.
#[derive(Debug, Default)]
struct PeerExports {
    /// Root of each dataspace that may be read.
    spaces: BTreeMap<String, PathBuf>,
    /// Memory that tasks handed over read: region, offset, length.
    memory: BTreeMap<TaskId, (ProgramRegion, u64, u64)>,
}

/// This node, as other nodes see it.
#[derive(Debug)]
pub(crate) struct PeerHost {
    run: RunId,
    key: Key,
    socket: PathBuf,
    mover: Trees,
    shown: Mutex<PeerExports>,
    /// The connection to this tarnd itself; `Err` once it ends.
    client: Mutex<Result<Option<Arc<Client>>, ()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PeerHost {
    /// Of a tarnd that serves programs at `socket`.
    pub(crate) fn new(peers: &PeerTable, socket: &Path) -> Arc<Self> {
        Arc::new(Self {
            run: peers.run,
            key: peers.key.clone(),
            socket: socket.into(),
            mover: Trees::new(),
            shown: Mutex::default(),
            client: Mutex::new(Ok(None)),
        })
    }

    /// The dataspaces are these now.
    pub(crate) fn show_spaces(&self, spaces: Vec<SpaceInfo>) {
        let readable = spaces.into_iter().filter(|s| s.access.read);
        let root = |s: SpaceInfo| (s.name, PathBuf::from(OsStr::from_bytes(&s.root.0)));
        lock(&self.shown).spaces = readable.map(root).collect();
    }

    /// A task's memory may be read, until it ends.
    pub(crate) fn show_memory(
        &self,
        task: TaskId,
        region: ProgramRegion,
        offset: u64,
        length: u64,
    ) {
        let memory = (region, offset, length);
        lock(&self.shown).memory.insert(task, memory);
    }

    /// The task has ended.
    pub(crate) fn hide_memory(&self, task: TaskId) {
        lock(&self.shown).memory.remove(&task);
    }

    /// tarnd ends: it gets no more requests.
    pub(crate) fn end(&self) {
        *lock(&self.client) = Err(());
    }

    fn client(&self) -> Result<Arc<Client>, RequestError> {
        let ends = || RequestError::new(Code::Lost, "tarnd ends there");
        let known = lock(&self.client).clone();
        if let Some(client) = known.map_err(|()| ends())? {
            return Ok(client);
        }
        // Not under the lock: the server's thread, which answers, must be able to take it in `end`.
        // It listens, or ends.
        let made = Arc::new(Client::connect_running(&self.socket)?);
        let mut client = lock(&self.client);
        let known = client.as_mut().map_err(|()| ends())?;
        *known = Some(Arc::clone(&made));
        Ok(made)
    }

    /// Sends a request to this tarnd; a lost connection is made again the next time.
    fn own<T>(&self, ask: impl Fn(&Client) -> Result<T, RequestError>) -> Result<T, RequestError> {
        let client = self.client()?;
        ask(&client).inspect_err(|why| {
            if why.code == Code::Lost
                && let Ok(known) = &mut *lock(&self.client)
            {
                *known = None;
            }
        })
    }

    fn root(&self, space: &str) -> Result<PathBuf, RequestError> {
        lock(&self.shown).spaces.get(space).cloned().ok_or_else(|| {
            let text = format!(
                "there is no dataspace `{}` to be read",
                space.escape_debug()
            );
            RequestError::new(Code::NotFound, text)
        })
    }

    fn memory(&self, space: &str) -> Option<(ProgramRegion, u64, u64)> {
        let digits = space.strip_prefix(&*String::from_utf8_lossy(tarn_tasks::HIDDEN))?;
        let task: TaskId = digits.parse().ok()?;
        lock(&self.shown).memory.get(&task).cloned()
    }

    fn held(&self, space: &str, path: &[u8]) -> Result<ConfinedPath, RequestError> {
        tarn_tasks::check_path(&path.into(), true)?;
        let root = self.root(space)?;
        let tier_ref = TaskEndpoint::Path {
            space: Some((space.to_owned(), root)),
            path: path.to_vec(),
        };
        ConfinedPath::open(&tier_ref, false)
    }

    /// Opens a partition for a program of another node.
    fn export_partition(
        &self,
        space: &str,
        path: &[u8],
        write: bool,
    ) -> Result<(PeerTarndReply, MakeTarget), RequestError> {
        tarn_tasks::check_path(&path.into(), false)?;
        let space = (space.to_owned(), self.root(space)?);
        let serving = work::serve(space, path, write)?;
        Ok((
            PeerTarndReply::Exported(serving.describe_partition()?),
            Box::new(|_| serving.target(()).map_err(std::io::Error::other)),
        ))
    }

    fn answer(
        &self,
        ask: PeerTarndRequest,
        control: &Control,
    ) -> Result<PeerTarndReply, RequestError> {
        match ask {
            PeerTarndRequest::List {
                space,
                path,
                hashes,
            } => {
                let (single, list, print) = match self.memory(&space) {
                    // It stays: it has no fingerprint.
                    Some(memory) => (true, memory_list(&memory, hashes, control)?, 0),
                    None => self.list(&space, &path.0, hashes, control)?,
                };
                Ok(PeerTarndReply::Listed {
                    single,
                    manifest: list.encode(),
                    print,
                })
            }
            PeerTarndRequest::Release {
                space,
                path,
                node,
                task,
                print,
            } => {
                tarn_tasks::check_path(&path, false)?;
                tarn_tasks::check_name("node", &node)?;
                let held = self.held(&space, &path.0)?;
                // Another node's numbers are not this one's.
                let aside = work::hidden(task, &format!(".gone-{node}"));
                work::release(&self.mover, &held, &aside, print, control).map(PeerTarndReply::Freed)
            }
            PeerTarndRequest::Submit(spec) => {
                let taken = self.own(|client| client.submit(std::slice::from_ref(&*spec)))?;
                let first = taken.into_iter().next();
                let none = || Err(RequestError::new(Code::Internal, "nothing was taken"));
                Ok(PeerTarndReply::Taken(first.unwrap_or_else(none)?))
            }
            PeerTarndRequest::Look(id) => self.own(|client| {
                let status = client.status(&[id])?.pop();
                let ended = client.wait_for(&[id], WaitCondition::All, Some(Duration::ZERO))?;
                let status =
                    status.ok_or_else(|| RequestError::new(Code::Internal, "no status"))?;
                Ok(PeerTarndReply::Stands(status, ended.0.into_iter().next()))
            }),
            PeerTarndRequest::Cancel(id) => self
                .own(|client| client.cancel(&[id]))
                .map(|_| PeerTarndReply::Done),
            PeerTarndRequest::Partitions { space, path, after } => {
                tarn_tasks::check_path(&path, true)?;
                let root = self.root(&space)?;
                work::list((space, root), &path.0, &after, |_| true).map(PeerTarndReply::Partitions)
            }
            PeerTarndRequest::Step(_) => {
                let text = "this tarnd is no half of a run: it takes part in no step";
                Err(RequestError::new(Code::Unsupported, text))
            }
            PeerTarndRequest::Export { .. } => Err(RequestError::new(
                Code::Internal,
                "it is lent with its stream",
            )),
        }
    }

    fn list(
        &self,
        space: &str,
        path: &[u8],
        hashes: bool,
        control: &Control,
    ) -> Result<(bool, Manifest, u128), RequestError> {
        let held = self.held(space, path)?;
        let stat = held.stat()?.ok_or_else(|| held.missing())?;
        let single = work::kind_of(&stat) != FileType::Directory;
        let mut list = work::list_of(&self.mover, &held, held.name(), hashes, control)?;
        if let ([only], true) = (&mut list.entries[..], single) {
            // It is read by its name in its folder.
            only.path = held.name().into();
        }
        let print = fingerprint(&list, work::id_of(&stat));
        Ok((single, list, print))
    }
}

/// Memory as a tree of one file.
fn memory_list(
    (region, offset, length): &(ProgramRegion, u64, u64),
    hashes: bool,
    control: &Control,
) -> Result<Manifest, RequestError> {
    let hash = match hashes {
        true => Some(work::hash_memory(region, *offset, *length, control)?),
        false => None,
    };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let kind = EntryKind::File {
        size: *length,
        hash,
        link_group: 0,
        extents: Box::default(),
    };
    let entry = Entry {
        path: work::SINGLE.as_bytes().into(),
        kind,
        mode: MODE,
        mtime: now.map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX)),
        xattrs: Box::default(),
    };
    let entries = vec![entry];
    Ok(Manifest { entries })
}

impl Registry for PeerHost {
    fn key(&self, run: &RunId) -> Option<Key> {
        (*run == self.run).then(|| self.key.clone())
    }

    fn tree(&self, _: &RunId, tree: &Tree) -> Result<Served, NotServed> {
        let not = |text: String| NotServed(text);
        let name = String::from_utf8_lossy(tree.name()).into_owned();
        let Tree::Space(bytes) = tree else {
            return Err(not(format!("`{}` is no dataspace", name.escape_debug())));
        };
        let at = bytes.iter().position(|b| *b == b'/').unwrap_or(bytes.len());
        let space = String::from_utf8_lossy(&bytes[..at]);
        let path = bytes.get(at + 1..).unwrap_or_default();
        if let Some((region, offset, length)) = self.memory(&space) {
            return Ok(Served::Part(ServedFileExtent {
                fd: region.fd,
                name: work::SINGLE.as_bytes().into(),
                offset,
                length,
            }));
        }
        tarn_tasks::check_path(&path.into(), true).map_err(|why| not(why.text))?;
        let root = self.root(&space).map_err(|why| not(why.text))?;
        let opened = Root::open(&root).and_then(|root| match path {
            b"" => Ok(root),
            path => root.beneath(path),
        });
        match opened {
            Ok(root) => Ok(Served::Whole(Arc::new(root))),
            Err(e) => Err(not(format!("`{}`: {e}", name.escape_debug()))),
        }
    }

    fn call(&self, _: &RunId, body: &[u8], control: &Control) -> Result<Called, NotServed> {
        let ask: PeerTarndRequest = unpack(body)?;
        if let PeerTarndRequest::Export { space, path, write } = &ask {
            return match self.export_partition(space, &path.0, *write) {
                Ok((reply, make)) => {
                    let reply = pack(&reply)?;
                    Ok(Called::Storage(reply, make))
                }
                Err(why) => Ok(Called::Reply(pack(&PeerTarndReply::Refused(why))?)),
            };
        }
        let reply = self
            .answer(ask, control)
            .unwrap_or_else(PeerTarndReply::Refused);
        Ok(Called::Reply(pack(&reply)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tarnd_that_ends_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let key = "0123456789abcdef".repeat(4);
        let file = format!("key = \"{key}\"\n[nodes.a]\naddress = \"a:7000\"\n");
        let peers = PeerTable::parse(&file, "a").unwrap();
        let host = PeerHost::new(&peers, &folder.path().join("socket"));
        let why = host.client().unwrap_err();
        assert!(
            why.code == Code::Lost && !why.text.contains("waited"),
            "{why:?}"
        );
    }
}
