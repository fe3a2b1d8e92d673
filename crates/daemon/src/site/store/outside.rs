//! Between a store and what is outside it: sources and places of the user's, and other nodes.

use super::sealed::KEY;
use super::{MAX_MANIFEST, Store, copying, hidden, tree_at};
use crate::peers::fingerprint;
use crate::site::shelf;
use crate::work::{Held, Spot, told};
use rustix::fs::{Access, AtFlags, Mode, OFlags};
use std::net::ToSocketAddrs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tarn_base::hash::Hash;
use tarn_base::manifest::Manifest;
use tarn_base::part::Verify;
use tarn_fabric::{Client, MAX_ADDRESSES, Patience, Tree};
use tarn_ports::{Control, CopyJob, CopySource, Mover, PeerTree, Piece};
use tarn_proto::local::{Code, Refusal};
use tarn_proto::site::{Held as Thing, Origin, Owner, Part, Peer, Proof, Worked};
use tarn_seal::wrap::WRAPPED;

impl Store {
    /// Names, sizes and times of a source.
    pub(super) fn print_of(&self, path: &Path, control: &Control) -> Result<Hash, Refusal> {
        let list = self.mover.list(path, control).map_err(|e| told(&e, &[]))?;
        Ok(Hash(fingerprint(&list, (0, 0))))
    }

    /// Refuses a source that is not what was read of it.
    pub(super) fn check_source(
        &self,
        path: &Path,
        known: &Proof,
        control: &Control,
    ) -> Result<(), Refusal> {
        single(path)?;
        if known.origin == Some(self.print_of(path, control)?) {
            return Ok(());
        }
        let text = format!("`{}` has changed since it was read", path.display());
        Err(Refusal::new(Code::Changed, text))
    }

    /// A part on another node, as a source of a copy; what it holds is known.
    pub(super) fn remote(
        &self,
        part: &Part,
        peer: &Peer,
        proof: &Proof,
        control: &Control,
    ) -> Result<CopySource, Refusal> {
        let client = Arc::new(self.client(peer)?);
        if proof.manifest > MAX_MANIFEST {
            let text = format!("{part} has a manifest of {} bytes", proof.manifest);
            return Err(Refusal::new(Code::Invalid, text));
        }
        let bytes = piece(&client, part, ("manifest", proof.manifest), control)?;
        let manifest = Manifest::decode(&bytes).ok();
        let is_it = |m: &Manifest| m.hash() == Some(proof.hash);
        let Some(manifest) = manifest.filter(is_it) else {
            let text = format!("node {} has another {part} than was published", peer.node);
            return Err(Refusal::new(Code::Corrupt, text));
        };
        Ok(CopySource {
            peer: Some(Arc::new(client.tree(tree_of(part, "tree")))),
            manifest: Some(manifest),
            ..tree_at(PathBuf::new())
        })
    }

    fn client(&self, peer: &Peer) -> Result<Client, Refusal> {
        let unknown = |why: String| {
            let text = format!(
                "node {} cannot be reached at {}:{}: {why}",
                peer.node, peer.host, peer.port
            );
            Refusal::new(Code::Io, text)
        };
        let mut found = (peer.host.as_str(), peer.port)
            .to_socket_addrs()
            .map_err(|e| unknown(e.to_string()))?;
        let address = found.next().ok_or_else(|| unknown("no address".into()))?;
        let (run, key) = shelf::credentials(&self.key, self.user);
        Ok(Client {
            node: peer.node.clone(),
            address,
            others: found.take(MAX_ADDRESSES).collect(),
            run,
            key,
            patience: Patience::default(),
            way: self.way.clone(),
        })
    }

    pub(super) fn send(
        &self,
        parts: &[(Part, Option<Peer>, Proof)],
        dest: &Path,
        control: &Control,
    ) -> Result<Worked, Refusal> {
        let mut sources = Vec::new();
        let mut held = Vec::new();
        let mut guests = Vec::new();
        for (part, peer, proof) in parts {
            let source = match peer {
                Some(peer) if !proof.sealed => self.remote(part, peer, proof, control)?,
                far => {
                    // What is sealed is opened where it lies: it comes for so long.
                    if let Some(peer) = far {
                        let from = Origin::Peer(peer.clone());
                        self.fetch(part, &from, (Some(proof), true), control)?;
                        guests.push(Guest(self, part));
                    }
                    let (at, manifest, there) = self.manifest(part)?;
                    let source = self.open_one(&at, (part, &there), manifest, control)?;
                    held.push(at);
                    source
                }
            };
            sources.push(source);
        }
        let path = dest.as_os_str().as_bytes().to_vec();
        let own = self.root.join(Owner::User(self.user).to_string());
        let spaces = [("store".to_owned(), own)];
        crate::work::check_outside(&path, &spaces)?;
        let to = Held::open(&Spot::Path { space: None, path }, true)?;
        let (write, plain) = (Access::WRITE_OK | Access::EXEC_OK, AtFlags::empty());
        let may = rustix::fs::accessat(to.folder(), ".", write, plain);
        may.map_err(|e| to.failed("write to", e))?;
        let staging = to.path_of(&hidden(to.name(), &self.node));
        let job = CopyJob {
            replace: true,
            verify: Verify::Readback,
            ..copying(sources, to.path(), staging)
        };
        let limiter = self.outside.clone();
        let report = self.mover.copy_limited(&job, control, limiter);
        let mut known: Vec<&Held> = held.iter().collect();
        known.push(&to);
        let report = report.map_err(|e| told(&e, &known))?;
        drop(guests);
        let sum = |of: fn(&Proof) -> u64| parts.iter().map(|(_, _, p)| of(p)).sum();
        Ok(Worked::Proven {
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
        peer: &Peer,
        control: &Control,
    ) -> Result<Vec<u8>, Refusal> {
        let client = Arc::new(self.client(peer)?);
        piece(&client, part, (KEY, WRAPPED as u64), control)
    }
}

/// A part that is here only for a moment.
struct Guest<'a>(&'a Store, &'a Part);

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        let Self(store, part) = self;
        // What stays is found by the next inventory.
        if let Err(why) = store.remove(&Thing::Part((*part).clone())) {
            tracing::warn!("{part} stays here: {why}");
        }
    }
}

/// What lies in a part's folder.
fn tree_of(part: &Part, name: &str) -> Tree {
    let folder = part.folder().unwrap_or_default();
    Tree::Replica(folder.join(name).into_os_string().into_vec().into())
}

/// A small file beside the tree of a part on another node, of known length.
fn piece(
    client: &Arc<Client>,
    part: &Part,
    (name, len): (&str, u64),
    control: &Control,
) -> Result<Vec<u8>, Refusal> {
    let told = |e: &tarn_ports::MoverError| told(e, &[]);
    let tree = client.tree(tree_of(part, ""));
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
    let mut stream = tree.open(control).map_err(|e| told(&e))?;
    let piece = Piece {
        path: name.as_bytes(),
        offset: 0,
        len,
    };
    stream.ask(&[piece]).map_err(|e| told(&e))?;
    stream.read(&mut bytes).map_err(|e| told(&e))?;
    Ok(bytes)
}

/// The name of a source that is no folder; what is not there, or cannot be read, is refused with the user's path.
pub(super) fn single(path: &Path) -> Result<Option<String>, Refusal> {
    let refuse = |code, why: String| {
        let text = format!("cannot read `{}`: {why}", path.display());
        Err(Refusal::new(code, text))
    };
    // A FIFO is not waited for.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    let about = opened
        .map_err(Into::into)
        .and_then(|fd| std::fs::File::from(fd).metadata());
    let about = match about {
        Ok(about) => about,
        Err(e) => {
            let code = match e.kind() {
                std::io::ErrorKind::NotFound => Code::NotFound,
                std::io::ErrorKind::PermissionDenied => Code::Denied,
                _ => Code::Io,
            };
            return refuse(code, e.to_string());
        }
    };
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
