//! Between a store and the places outside it: sources and destinations of the user's, and other nodes.

use super::sealed::KEY;
use super::{MAX_MANIFEST, UserStore, not_it};
use crate::fingerprint::fingerprint;
use crate::site::site_registry;
use crate::work::to_request_error;
use rustix::fs::{Mode, OFlags};
use std::net::ToSocketAddrs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tarn_data_plane::{ContentTransport, DataClientTimeouts, MAX_ADDRESSES, Tree};
use tarn_mover::Trees;
use tarn_munge::KEY_BYTES;
use tarn_node::why_unreadable;
use tarn_ports::{Control, CopySource, Follow, Mover, PeerTree, Piece};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{
    Origin, Owner, Part, Proof, StoreContent as Thing, WorkResult, WorkerAddress,
};
use tarn_s3::S3Client;
use tarn_seal::wrap::WRAPPED;
use tarn_sys::links::{Unresolved, resolve};
use tarn_types::event::RunErrorKind;
use tarn_types::hash::{Hash, Hasher};
use tarn_types::manifest::{EntryKind, Manifest};
use tarn_types::object::{ObjectUrl, is_object, shown};

/// A source outside, as it was when it was listed.
pub(super) struct OutsideSource {
    pub(super) copied: CopySource,
    /// The name of a single file.
    pub(super) file: Option<String>,
    /// Names, sizes and times.
    pub(super) print: Hash,
    pub(super) list: Manifest,
}

impl UserStore {
    /// The mover of data to and from a place outside; for an object store, with the present settings of the user's files.
    pub(super) fn outside_mover(&self, path: &Path) -> Result<Trees, RequestError> {
        let refused = |why: String| {
            let text = format!("`{}` cannot be used: {why}", shown(path));
            RequestError::new(Code::Denied, text)
        };
        let Some(at) = ObjectUrl::of(path) else {
            return Ok(Trees::new());
        };
        let home = tarn_sys::users::home(self.user).ok().flatten();
        let nobody = || refused(format!("user {} has no home on this node", self.user));
        let client = S3Client::of_home(home.ok_or_else(nobody)?, self.object_endpoint.clone());
        let at = at.map_err(|why| refused(why.to_string()))?;
        let known = client.knows(&at);
        known.map_err(|e| refused(e.failure.message))?;
        Ok(Trees::new().with_store(client.shared()))
    }

    /// A source outside. Links count as in a run (docs/reference/workflow-file.md,
    /// "Links in a source"), but whoever may write in the source, or beside it, could point one at a private file of the user who
    /// reads it. So only the user's own and root's are followed. Of a project's source, which its members read at once, none is:
    /// neither the source itself may be one, nor may any lead out of it.
    pub(super) fn source(
        &self,
        path: &Path,
        owner: Owner,
        control: &Control,
    ) -> Result<OutsideSource, RequestError> {
        let (root, follow) = match (is_object(path), owner) {
            (true, _) => (path.to_owned(), Follow::None),
            // The source itself may be a link. It keeps its name.
            (false, Owner::User(_)) => (self.resolve(path, path)?, Follow::Of(self.user)),
            (false, Owner::Project(_)) => (self.of_project(path)?, Follow::Within),
        };
        let file = single(path, &root)?;
        let mover = self.outside_mover(path)?;
        let list = match follow {
            Follow::None => mover.list(&root, control),
            follow => mover.list_following(&root, follow, control),
        };
        let list = list.map_err(|e| match (e.failure.kind, owner) {
            (RunErrorKind::Escape, Owner::Project(_)) => leads_out(&to_request_error(&e, &[])),
            _ => to_request_error(&e, &[]),
        })?;
        let print = print_of(path, &list);
        let copied = CopySource {
            as_entry: file.clone(),
            // A store is listed once.
            manifest: is_object(path).then(|| list.clone()),
            follow,
            ..CopySource::of(root)
        };
        Ok(OutsideSource {
            copied,
            file,
            print,
            list,
        })
    }

    /// The target of a path that is a source, or a folder above one.
    fn resolve(&self, path: &Path, source: &Path) -> Result<PathBuf, RequestError> {
        resolve(path, self.user).map_err(|why| match why {
            Unresolved::Io(e) => unreadable(source, &e),
            why => {
                let text = format!("cannot read `{}`: {why}", source.display());
                RequestError::new(Code::Denied, text)
            }
        })
    }

    /// The path of a project's source, which is no link.
    fn of_project(&self, path: &Path) -> Result<PathBuf, RequestError> {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return self.resolve(path, path);
        };
        let real = self.resolve(above, path)?.join(name);
        let about = std::fs::symlink_metadata(&real).map_err(|e| unreadable(path, &e))?;
        if about.is_symlink() {
            let text = format!(
                "`{}` is a symbolic link, which a project's source must not be: its members read what it leads to; name that itself",
                path.display()
            );
            return Err(RequestError::new(Code::Denied, text));
        }
        Ok(real)
    }

    /// Refuses a source that has changed since it was read.
    pub(super) fn check_source(
        &self,
        (path, owner): (&Path, Owner),
        known: &Proof,
        control: &Control,
    ) -> Result<(), RequestError> {
        let found = self.source(path, owner, control)?;
        if known.origin == Some(found.print) {
            return Ok(());
        }
        let text = format!("`{}` has changed since it was read", path.display());
        Err(RequestError::new(Code::Changed, text))
    }

    /// A part on another node, as a source of a copy; its content is known.
    pub(super) fn remote(
        &self,
        part: &Part,
        peer: &WorkerAddress,
        proof: &Proof,
        control: &Control,
    ) -> Result<CopySource, RequestError> {
        let client = Arc::new(self.client(peer)?);
        if proof.manifest > MAX_MANIFEST {
            let text = format!("{part} has a manifest of {} bytes", proof.manifest);
            return Err(RequestError::new(Code::Invalid, text));
        }
        let bytes = piece(&client, part, ("manifest", proof.manifest), control)?;
        let manifest = Manifest::decode(&bytes).ok();
        let is_it = |m: &Manifest| m.hash() == Some(proof.hash);
        let Some(manifest) = manifest.filter(is_it) else {
            let text = format!("node {} has another {part} than was published", peer.node);
            return Err(RequestError::new(Code::Corrupt, text));
        };
        Ok(CopySource {
            peer: Some(Arc::new(client.tree(tree_of(part, "tree")))),
            manifest: Some(manifest),
            ..CopySource::of(PathBuf::new())
        })
    }

    fn client(&self, peer: &WorkerAddress) -> Result<tarn_data_plane::DataClient, RequestError> {
        client(peer, (&self.key, self.user), &self.way)
    }

    pub(super) fn send(
        &self,
        parts: &[(Part, Option<WorkerAddress>, Proof)],
        (dest, owner): (&Path, &str),
        control: &Control,
    ) -> Result<WorkResult, RequestError> {
        let mut sources = Vec::new();
        let mut held = Vec::new();
        let mut guests = Vec::new();
        for (part, peer, proof) in parts {
            let source = match peer {
                Some(peer) if !proof.sealed => self.remote(part, peer, proof, control)?,
                far => {
                    // Sealed data is opened where it is stored: it is fetched for that time.
                    if let Some(peer) = far {
                        let from = Origin::Peer(peer.clone());
                        self.fetch((part, ""), &from, (Some(proof), true), control)?;
                        guests.push(TransientPart(self, part));
                    }
                    let (at, manifest, there) = self.manifest(part)?;
                    if there.hash != proof.hash {
                        return Err(not_it(&at));
                    }
                    let source = self.open_one(&at, (part, &there), manifest, control)?;
                    held.push(at);
                    source
                }
            };
            sources.push(source);
        }
        let report = match is_object(dest) {
            true => self.put(sources, (dest, owner), &held, control)?,
            false => self.write(sources, (dest, owner), &held, control)?,
        };
        drop(guests);
        let sum = |of: fn(&Proof) -> u64| parts.iter().map(|(_, _, p)| of(p)).sum();
        Ok(WorkResult::Proven {
            proof: Proof {
                hash: Hash::default(),
                bytes: sum(|p| p.bytes),
                entries: sum(|p| p.entries),
                manifest: 0,
                file: None,
                origin: None,
                sealed: false,
            },
            moved: report.bytes,
        })
    }

    /// The wrapped key of a part on another node.
    pub(super) fn key_from(
        &self,
        part: &Part,
        peer: &WorkerAddress,
        control: &Control,
    ) -> Result<Vec<u8>, RequestError> {
        let client = Arc::new(self.client(peer)?);
        piece(&client, part, (KEY, WRAPPED as u64), control)
    }
}

/// The user's worker on another node, for requests with the key of the user's data plane.
pub(super) fn client(
    peer: &WorkerAddress,
    (key, user): (&[u8; KEY_BYTES], u32),
    way: &ContentTransport,
) -> Result<tarn_data_plane::DataClient, RequestError> {
    let unknown = |why: String| {
        let text = format!(
            "node {} cannot be reached at {}:{}: {why}",
            peer.node, peer.host, peer.port
        );
        RequestError::new(Code::Io, text)
    };
    let mut found = (peer.host.as_str(), peer.port)
        .to_socket_addrs()
        .map_err(|e| unknown(e.to_string()))?;
    let address = found.next().ok_or_else(|| unknown("no address".into()))?;
    let (run, key) = site_registry::credentials(key, user);
    Ok(tarn_data_plane::DataClient {
        node: peer.node.clone(),
        address,
        others: found.take(MAX_ADDRESSES).collect(),
        run,
        key,
        timeout: DataClientTimeouts::default(),
        way: way.clone(),
    })
}

/// A part that is here only for a moment.
struct TransientPart<'a>(&'a UserStore, &'a Part);

impl Drop for TransientPart<'_> {
    fn drop(&mut self) {
        let Self(store, part) = self;
        // The next inventory finds a part that stays.
        if let Err(why) = store.remove(&Thing::Part((*part).clone())) {
            tracing::warn!("{part} stays here: {why}");
        }
    }
}

/// The tree of this name in a part's folder.
fn tree_of(part: &Part, name: &str) -> Tree {
    let folder = part.folder().unwrap_or_default();
    Tree::Replica(folder.join(name).into_os_string().into_vec().into())
}

/// A small file beside the tree of a part on another node, of known length.
fn piece(
    client: &Arc<tarn_data_plane::DataClient>,
    part: &Part,
    (name, len): (&str, u64),
    control: &Control,
) -> Result<Vec<u8>, RequestError> {
    let request_error = |e: &tarn_ports::MoverError| to_request_error(e, &[]);
    let tree = client.tree(tree_of(part, ""));
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
    let mut stream = tree.open(control).map_err(|e| request_error(&e))?;
    let piece = Piece {
        path: name.as_bytes(),
        offset: 0,
        len,
    };
    stream.ask(&[piece]).map_err(|e| request_error(&e))?;
    stream.read(&mut bytes).map_err(|e| request_error(&e))?;
    Ok(bytes)
}

/// Names, sizes and times of a source.
fn print_of(path: &Path, list: &Manifest) -> Hash {
    let print = fingerprint(list, (0, 0));
    if !is_object(path) {
        return Hash(print);
    }
    // The times of data that tarn has put there are those of files, which need not tell contents apart; its hashes do.
    let mut hasher = Hasher::new();
    hasher.field(b"tarn objects 1").field(&print.to_le_bytes());
    for entry in &list.entries {
        if let EntryKind::File {
            hash: Some(Hash(hash)),
            ..
        } = entry.kind
        {
            hasher.field(&entry.path).field(&hash.to_le_bytes());
        }
    }
    hasher.finish()
}

/// Why a source cannot be read.
fn unreadable(path: &Path, e: &std::io::Error) -> RequestError {
    let code = match e.kind() {
        std::io::ErrorKind::NotFound => Code::NotFound,
        std::io::ErrorKind::PermissionDenied => Code::Denied,
        _ => Code::Io,
    };
    let why = why_unreadable(path, e);
    RequestError::new(code, format!("cannot read `{}`: {why}", path.display()))
}

/// A link of a project's source leads out of it.
fn leads_out(why: &RequestError) -> RequestError {
    let text = format!(
        "{}. (Links that lead out of a project's source are not followed: its members read what it holds.)",
        why.text
    );
    RequestError::new(why.code, text)
}

/// The name of a source that is there and no folder; a missing or unreadable one is refused with the user's path.
fn single(path: &Path, root: &Path) -> Result<Option<String>, RequestError> {
    if let Some(at) = ObjectUrl::of(path) {
        let at = at.map_err(|why| {
            let text = format!("cannot read `{}`: {why}", shown(path));
            RequestError::new(Code::Invalid, text)
        })?;
        return Ok((!at.is_tree()).then(|| at.name().to_owned()));
    }
    let refuse = |code, why: String| {
        let text = format!("cannot read `{}`: {why}", path.display());
        Err(RequestError::new(code, text))
    };
    // A FIFO is not waited for.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let opened = rustix::fs::open(root, flags, Mode::empty());
    let about = opened
        .map_err(Into::into)
        .and_then(|fd| std::fs::File::from(fd).metadata());
    let about = about.map_err(|e| unreadable(path, &e))?;
    if about.is_dir() {
        return Ok(None);
    }
    if !about.is_file() {
        return refuse(
            Code::Unsupported,
            "it is neither a file nor a folder".into(),
        );
    }
    match path.file_name().and_then(|n| n.to_str()) {
        Some(name) => Ok(Some(name.to_owned())),
        None => refuse(Code::Invalid, "its name is no UTF-8".into()),
    }
}
