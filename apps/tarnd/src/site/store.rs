//! A user's part of a node's store. docs/internals/site.md, "The store on a node". Each work can be done again after whatever failure: a folder
//! has its name when it is whole.

mod checkpoints;
mod dest;
mod exported;
mod fetch;
mod holds;
mod moves;
mod outside;
mod places;
mod projects;
mod published;
mod sealed;
mod shared;
mod slices;

use published::{Published, not_it};
use sealed::JobFolderKind;

use super::keys::{UserKeys, WrappingKeys};
use super::site_registry::SiteRegistry;
use super::talk::WorkerConfig;
use crate::pieces::ExportedPieces;
use crate::work::{ConfinedPath, to_request_error};
use anyhow::Context;
use rustix::fs::{AtFlags, Mode, OFlags};
use shared::JobPieceExports;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use tarn_data_plane::{ContentTransport, DataServer, Limits};
use tarn_mover::Trees;
use tarn_mover::throttle::Limiter;
use tarn_munge::KEY_BYTES;
use tarn_node::untouched::{self, MarkValidity};
use tarn_ports::{Control, CopyJob, CopySource, Mover};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{
    Gid, Owner, Part, Proof, Slice, SlurmJobId, StoreContent as Thing, Work, WorkResult,
};
use tarn_types::hash::Hash;
use tarn_types::manifest::Manifest;
use tarn_types::part::Verify;

/// The prefix of half-done work, at first.
const HIDDEN: &str = ".tarn-";
/// The suffix of work that is to be published: the next order continues it.
const MADE: &str = "made";
/// Beside the tree of a source: its fingerprint when it was read.
const SOURCE: &str = "source";
/// Bytes of a manifest that is believed to be one.
const MAX_MANIFEST: u64 = 1 << 30;
/// Bytes of a small file beside a tree: a file's name, a hash, a wrapped key.
const MAX_BESIDE: u64 = 4096;

/// Streams of tasks on other nodes to pieces of the user's partitions: two a task and piece, for 16 tasks on each of 32 nodes. Each has a thread.
const STREAMS_TO_PIECES: usize = 1024;

/// A user's part of the store.
pub(super) struct UserStore {
    /// Name and root of each of the node's stores, fast to slow.
    places: Vec<(String, PathBuf)>,
    user: u32,
    node: String,
    /// The object store of users whose files name none.
    object_endpoint: Option<String>,
    /// Of the user's data plane.
    key: [u8; KEY_BYTES],
    /// How others' streams, and those to others, go.
    way: ContentTransport,
    /// The keys that wrap data keys.
    keys: RwLock<WrappingKeys>,
    projects: Vec<Gid>,
    mover: Trees,
    /// Limits of reads and writes outside, and of reads from other nodes.
    outside: Option<Arc<Limiter>>,
    between: Option<Arc<Limiter>>,
    /// And of moves from store to store.
    within: Option<Arc<Limiter>>,
    server: DataServer,
    /// Pieces of partitions that are spread over the nodes of jobs, and by which job.
    exported: ExportedPieces,
    shared: Mutex<BTreeMap<SlurmJobId, JobPieceExports>>,
    /// The claims of works: one work at a time has each, as an order may be repeated while its first one is in progress.
    busy: Mutex<BTreeSet<String>>,
    free: Condvar,
}

/// Something that one work has.
struct StoreClaim<'a>(&'a UserStore, String);

impl Drop for StoreClaim<'_> {
    fn drop(&mut self) {
        self.0.busy().remove(&self.1);
        self.0.free.notify_all();
    }
}

impl UserStore {
    /// Opens it, removes half-done work, and serves its parts to the same user's workers on other nodes.
    pub(super) fn open(
        places: Vec<(String, PathBuf)>,
        node: String,
        (keys, worker_config): (&UserKeys, WorkerConfig),
        projects: Vec<Gid>,
    ) -> anyhow::Result<Self> {
        let key = keys.plane;
        let way = match worker_config.sealed {
            true => ContentTransport::Sealed,
            false => ContentTransport::Clear,
        };
        let roots = places.iter().map(|(_, root)| root.clone());
        let exported = ExportedPieces::default();
        let site_registry = Arc::new(SiteRegistry::new(roots.collect(), key, exported.clone()));
        let limits = Limits {
            storages: STREAMS_TO_PIECES,
            ..Limits::default()
        };
        let start = |at| DataServer::start(at, site_registry.clone(), limits, way.clone());
        let server = start("[::]:0")
            .or_else(|_| start("0.0.0.0:0"))
            .context("no port for other nodes")?;
        let user = rustix::process::geteuid().as_raw();
        let store = Self {
            user,
            busy: Mutex::default(),
            free: Condvar::new(),
            places,
            node,
            object_endpoint: worker_config.object_endpoint,
            key,
            way,
            keys: RwLock::new(keys.wrapping()),
            projects,
            mover: Trees::new(),
            outside: worker_config
                .external_rate
                .map(|rate| Limiter::new(rate, 0)),
            between: worker_config.peer_rate.map(|rate| Limiter::new(rate, 0)),
            within: worker_config.move_rate.map(|rate| Limiter::new(rate, 0)),
            server,
            exported,
            shared: Mutex::default(),
        };
        store.sweep();
        Ok(store)
    }

    pub(super) fn port(&self) -> u16 {
        self.server.address().port()
    }

    /// Connections of other nodes' workers.
    pub(super) fn readers(&self) -> usize {
        self.server.connections()
    }

    fn busy(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other work has this.
    fn claim(&self, what: String) -> StoreClaim<'_> {
        let mut busy = self.busy();
        while busy.contains(&what) {
            let waited = self.free.wait(busy);
            busy = waited.unwrap_or_else(PoisonError::into_inner);
        }
        busy.insert(what.clone());
        StoreClaim(self, what)
    }

    pub(super) fn perform(
        &self,
        work: Work,
        control: &Control,
    ) -> Result<WorkResult, RequestError> {
        let _claim = claim_name(&work).map(|what| self.claim(what));
        match work {
            Work::Fetch {
                part,
                from,
                proof,
                sealed,
                store,
            } => self.fetch((&part, &store), &from, (proof.as_ref(), sealed), control),
            Work::Prepare {
                job,
                dataset,
                parts,
                hashes,
                memory,
                store,
            } => {
                let (parts, is_in) = (Published::all(parts, hashes)?, (&*store, memory.is_some()));
                self.prepare((job, &dataset), &parts, is_in, control)
            }
            Work::View {
                job,
                dataset,
                parts,
                hashes,
                memory,
                store,
            } => {
                let (parts, is_in) = (Published::all(parts, hashes)?, (&*store, memory.is_some()));
                self.view((job, &dataset), &parts, is_in, control)
            }
            Work::Slice {
                job,
                dataset,
                parts,
                slice,
                written,
                store,
            } => self.gather_slice(
                (job, &dataset),
                (&parts, &slice),
                (&store, written),
                control,
            ),
            Work::Export {
                job,
                partition,
                size,
                unit,
                store,
            } => self.make_partition((job, &partition), &store, (size, unit)),
            Work::Checkpoints { folder, store } => self.make_checkpoints(&folder, &store),
            Work::Destage { folder, store } => self.destage(&folder, &store),
            Work::Share { job, partitions } => self.offer(job, &partitions),
            Work::Join { job, peers } => self.join(job, peers),
            Work::Publish {
                job,
                part,
                slice,
                sealed,
                store,
            } => self.publish(job, (&part, &store), slice.as_ref(), sealed, control),
            Work::Move {
                part,
                from,
                to,
                proof,
                keep,
            } => self.bring(&part, (&from, &to), (&proof, keep), control),
            Work::Send { parts, dest, owner } => self.send(&parts, (&dest, &owner), control),
            Work::CheckDest { dest, owner } => self.check_dest(&dest, &owner, control),
            Work::Check(part) => self.check((&part, self.where_is(&part)), control),
            Work::CheckIn(part, store) => self.check((&part, self.root_of(&store)?), control),
            Work::Remove(things) => self.remove_all(&things),
            Work::WrapAnew(parts) => self.wrap_again(&parts),
            Work::Inventory(projects) => self.inventory(&projects),
        }
    }

    fn remove_all(&self, things: &[Thing]) -> Result<WorkResult, RequestError> {
        let removed = things.iter().try_for_each(|thing| self.remove(thing));
        removed.map(|()| WorkResult::Done)
    }

    /// Keys of parts, wherever they are, are wrapped with the newest secret.
    fn wrap_again(&self, parts: &[Part]) -> Result<WorkResult, RequestError> {
        for part in parts {
            for root in self.roots_of(part) {
                let (held, _, proof) = self.manifest_at(root, part)?;
                self.wrap_anew(&held, (part, &proof))?;
            }
        }
        Ok(WorkResult::Done)
    }

    /// The manifest of a part that is there.
    fn manifest(&self, part: &Part) -> Result<(ConfinedPath, Manifest, Proof), RequestError> {
        self.manifest_at(self.where_is(part), part)
    }

    fn manifest_at(
        &self,
        root: &Path,
        part: &Part,
    ) -> Result<(ConfinedPath, Manifest, Proof), RequestError> {
        let held = self.part(root, part, false)?;
        let (manifest, proof) = self.manifest_in(&held, held.name())?;
        Ok((held, manifest, proof))
    }

    fn manifest_in(
        &self,
        held: &ConfinedPath,
        name: &[u8],
    ) -> Result<(Manifest, Proof), RequestError> {
        let broken = |why: String| {
            let text = format!("the manifest of `{}` is damaged: {why}", held.place());
            RequestError::new(Code::Corrupt, text)
        };
        let inside = [name, b"/manifest"].concat();
        let path = held.path_of(&inside);
        let bytes = read_small(&path, MAX_MANIFEST).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => held.missing(),
            _ => broken(e.to_string()),
        })?;
        let manifest = Manifest::decode(&bytes).map_err(|e| broken(e.to_string()))?;
        let beside = |what: &[u8]| {
            let path = held.path_of(&[name, b"/", what].concat());
            read_small(&path, MAX_BESIDE).ok()
        };
        let file = beside(b"file").and_then(|name| String::from_utf8(name).ok());
        let origin = beside(SOURCE.as_bytes());
        let origin = origin.and_then(|text| std::str::from_utf8(&text).ok()?.parse().ok());
        let proof = prove(&manifest, &bytes, (file, origin));
        let proof = proof.ok_or_else(|| broken("no hashes".into()))?;
        let key = held.stat_of(&[name, b"/", sealed::KEY.as_bytes()].concat())?;
        let proof = Proof {
            sealed: key.is_some(),
            ..proof
        };
        Ok((manifest, proof))
    }

    fn prepare(
        &self,
        (job, dataset): (SlurmJobId, &str),
        parts: &[Published],
        (store, in_memory): (&str, bool),
        control: &Control,
    ) -> Result<WorkResult, RequestError> {
        let root = self.root_of(store)?;
        let place = (Some(root).filter(|_| !in_memory), true);
        let held = self.of_job(job, JobFolderKind::Written, dataset, place)?;
        if held.stat()?.is_some() {
            return Ok(WorkResult::Done);
        }
        let whole = hidden(held.name(), "whole");
        self.clear(&held, &whole)?;
        match parts {
            [] => {
                let made =
                    rustix::fs::mkdirat(held.folder(), &whole[..], Mode::from_raw_mode(0o755));
                made.map_err(|e| held.failed("make", e))?;
            }
            parts if in_memory => {
                self.open_into(&held, parts, control)?;
                return Ok(WorkResult::Done);
            }
            parts => {
                let roots = self.trees_of(None, parts, control)?;
                let copied = self
                    .mover
                    .clone_view(&roots.trees(), &held.path_of(&whole), control);
                copied.map_err(|e| to_request_error(&e, &roots.held()))?;
            }
        }
        held.rename(&whole, &held, false)?;
        Ok(WorkResult::Done)
    }

    fn view(
        &self,
        (job, dataset): (SlurmJobId, &str),
        parts: &[Published],
        (store, in_memory): (&str, bool),
        control: &Control,
    ) -> Result<WorkResult, RequestError> {
        let root = self.root_of(store)?;
        let place = (Some(root).filter(|_| !in_memory), true);
        let held = self.of_job(job, JobFolderKind::Read, dataset, place)?;
        if held.stat()?.is_some() {
            return Ok(WorkResult::Done);
        }
        if in_memory {
            self.open_into(&held, parts, control)?;
            return Ok(WorkResult::Done);
        }
        let whole = hidden(held.name(), "whole");
        self.clear(&held, &whole)?;
        let roots = self.trees_of(Some(root), parts, control)?;
        let linked = self.mover.link_view(&roots.trees(), &held.path_of(&whole));
        linked.map_err(|e| to_request_error(&e, &roots.held()))?;
        held.rename(&whole, &held, false)?;
        Ok(WorkResult::Done)
    }

    /// Parts in the clear, in this store, or elsewhere.
    fn trees_of(
        &self,
        root: Option<&Path>,
        parts: &[Published],
        control: &Control,
    ) -> Result<PartRoots, RequestError> {
        let root = |published: &Published| {
            let part = &published.part;
            let root = root.unwrap_or_else(|| self.where_is(part));
            let (held, manifest, proof) = self.published_at(root, published)?;
            match proof.sealed {
                false => {
                    self.check_if_changed(part, (&held, &manifest), control)?;
                    Ok((held, manifest))
                }
                true => {
                    let text =
                        format!("{part} is encrypted: it is opened into a job's memory only");
                    Err(RequestError::new(Code::Denied, text))
                }
            }
        };
        parts
            .iter()
            .map(root)
            .collect::<Result<_, _>>()
            .map(PartRoots)
    }

    /// Removes other nodes' files from a folder.
    fn cut(
        &self,
        from: &ConfinedPath,
        slice: Option<&Slice>,
        control: &Control,
    ) -> Result<(), RequestError> {
        let Some(slice) = slice else {
            return Ok(());
        };
        let list = self.mover.list(&from.path(), control);
        let list = list.map_err(|e| to_request_error(&e, &[from]))?;
        // Folders that hold something of this node stay; the others go when they are empty.
        let strange = list.entries.iter().filter(|e| !slice.has(&e.path));
        let (folders, files): (Vec<_>, Vec<_>) = strange.partition(|e| e.is_folder());
        let failed = |e: rustix::io::Errno| from.failed("cut", e);
        let top = tarn_sys::beneath::Root::open(&from.path()).map_err(failed)?;
        for entry in files {
            let (folder, name) = top.holder(&entry.path).map_err(failed)?;
            let folder = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
            let removed = self.mover.remove(&folder.join(OsStr::from_bytes(name)));
            removed.map_err(|e| to_request_error(&e, &[from]))?;
        }
        for entry in folders.iter().rev() {
            let (folder, name) = top.holder(&entry.path).map_err(failed)?;
            match rustix::fs::unlinkat(&folder, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(rustix::io::Errno::NOTEMPTY | rustix::io::Errno::NOENT) => {}
                Err(e) => return Err(failed(e)),
            }
        }
        Ok(())
    }

    fn remove(&self, thing: &Thing) -> Result<(), RequestError> {
        let what = match thing {
            Thing::Part(part) | Thing::Copy(part, _) => part.to_string(),
            Thing::Job(job) => export_claim_name(*job),
            Thing::Checkpoints(folder) => checkpoints::claim_name(folder),
        };
        let _claim = self.claim(what);
        if let Thing::Job(job) = thing {
            self.withdraw(*job);
        }
        if let Thing::Checkpoints(folder) = thing {
            self.clear_memory(folder)?;
        }
        match thing {
            Thing::Copy(_, store) => self.remove_from(self.root_of(store)?, thing),
            _ => self
                .roots()
                .try_for_each(|root| self.remove_from(root, thing)),
        }
    }

    fn remove_from(&self, root: &Path, thing: &Thing) -> Result<(), RequestError> {
        let held = match thing {
            Thing::Part(part) | Thing::Copy(part, _) => self.part(root, part, false),
            Thing::Job(job) => {
                let owner = Owner::User(self.user);
                self.held(root, Path::new(&format!("{owner}/j/{job}")), false)
            }
            Thing::Checkpoints(folder) => self.checkpoints(root, folder, false),
        };
        let held = match held {
            Err(why) if why.code == Code::NotFound => return Ok(()),
            other => other?,
        };
        if held.stat()?.is_some() {
            self.discard(&held)?;
        }
        match thing {
            Thing::Part(part) | Thing::Copy(part, _) => self.prune(root, part),
            Thing::Checkpoints(folder) => self.prune_checkpoints(root, folder),
            Thing::Job(_) => {}
        }
        Ok(())
    }

    /// Folders above a part that hold nothing any more go too.
    fn prune(&self, root: &Path, part: &Part) {
        let Some(folder) = part.folder() else {
            return;
        };
        // A project's folders above all its datasets are root's to make.
        let most = match part.owner {
            Owner::User(_) => 3,
            Owner::Project(_) => 2,
        };
        for above in folder.ancestors().skip(1).take(most) {
            let Ok(held) = self.held(root, above, false) else {
                return;
            };
            let flags = AtFlags::REMOVEDIR;
            if rustix::fs::unlinkat(held.folder(), held.name(), flags).is_err() {
                return;
            }
        }
    }

    /// An empty folder of this hidden name.
    fn begin(&self, held: &ConfinedPath, whole: &[u8]) -> Result<(), RequestError> {
        self.clear(held, whole)?;
        let made = rustix::fs::mkdirat(held.folder(), whole, Mode::from_raw_mode(0o755));
        made.map_err(|e| held.failed("make", e))
    }

    fn clear(&self, held: &ConfinedPath, name: &[u8]) -> Result<(), RequestError> {
        let removed = self.mover.remove(&held.path_of(name));
        removed.map_err(|e| to_request_error(&e, &[held]))
    }

    /// Removes something, by way of another name.
    fn discard(&self, held: &ConfinedPath) -> Result<(), RequestError> {
        let gone = hidden(held.name(), "gone");
        self.clear(held, &gone)?;
        self.forget_key(held);
        held.aside(&gone)?;
        self.clear(held, &gone)
    }

    /// The manifest of a tree as it is stored, sealed or not.
    fn stored_manifest(
        &self,
        held: &ConfinedPath,
        tree: &Path,
        control: &Control,
    ) -> Result<Manifest, RequestError> {
        let manifest = self.mover.digest(tree, control);
        manifest.map_err(|e| to_request_error(&e, &[held]))
    }

    /// Writes the files beside a whole folder's tree.
    fn label(
        &self,
        held: &ConfinedPath,
        whole: &[u8],
        manifest: &Manifest,
        (file, origin): (Option<String>, Option<Hash>),
    ) -> Result<Proof, RequestError> {
        let bytes = manifest.encode();
        write(held, whole, "manifest", &bytes)?;
        if let Some(name) = &file {
            write(held, whole, "file", name.as_bytes())?;
        }
        if let Some(origin) = &origin {
            write(held, whole, SOURCE, origin.to_string().as_bytes())?;
        }
        prove(manifest, &bytes, (file, origin)).ok_or_else(|| {
            let text = format!("`{}` was not hashed completely", held.place());
            RequestError::new(Code::Internal, text)
        })
    }

    /// Gives a whole folder its name, durably, after its content.
    fn publish_as(&self, held: &ConfinedPath, whole: &[u8]) -> Result<(), RequestError> {
        // Without the mark, it is read again before it is used.
        let _ = untouched::mark(
            &held.path_of(&[whole, b"/tree"].concat()),
            MarkValidity::Always,
        );
        held.sync_inside(whole)?;
        held.rename(whole, held, false)?;
        held.sync()
    }
}

/// Parts that are here, with their content.
struct PartRoots(Vec<(ConfinedPath, Manifest)>);

impl PartRoots {
    fn trees(&self) -> Vec<(PathBuf, Manifest)> {
        let tree = |held: &ConfinedPath| held.path_of(&[held.name(), b"/tree"].concat());
        self.0
            .iter()
            .map(|(held, m)| (tree(held), m.clone()))
            .collect()
    }

    fn held(&self) -> Vec<&ConfinedPath> {
        self.0.iter().map(|(held, _)| held).collect()
    }
}

/// A copy to the tier.
fn copying(sources: Vec<CopySource>, dest: PathBuf, staging: PathBuf) -> CopyJob {
    CopyJob {
        sources,
        dest,
        staging,
        replace: false,
        verify: Verify::Copy,
        sync: true,
        rate: 0,
        latency: 0,
        arrivals: None,
        seal: None,
    }
}

fn prove(
    manifest: &Manifest,
    bytes: &[u8],
    (file, origin): (Option<String>, Option<Hash>),
) -> Option<Proof> {
    Some(Proof {
        hash: manifest.hash()?,
        bytes: manifest.bytes(),
        entries: manifest.entries.len() as u64,
        manifest: bytes.len() as u64,
        file,
        origin,
        sealed: false,
    })
}

/// Writes a small file into a folder that is being made.
fn write(
    held: &ConfinedPath,
    whole: &[u8],
    name: &str,
    content: &[u8],
) -> Result<(), RequestError> {
    let written = || {
        let path = held.path_of(&[whole, b"/", name.as_bytes()].concat());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW;
        let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = rustix::fs::open(path, flags, Mode::from_raw_mode(0o666))?;
        let mut file = std::fs::File::from(opened);
        std::io::Write::write_all(&mut file, content)?;
        file.sync_all()
    };
    written().map_err(|e: std::io::Error| {
        let errno = rustix::io::Errno::from_io_error(&e);
        held.failed("write beside", errno.unwrap_or(rustix::io::Errno::IO))
    })
}

/// The name that a work claims, so that no other one touches the data meanwhile.
fn claim_name(work: &Work) -> Option<String> {
    match work {
        Work::Fetch { part, .. } | Work::Publish { part, .. } | Work::Move { part, .. } => {
            Some(part.to_string())
        }
        Work::Prepare { job, dataset, .. }
        | Work::Slice {
            job,
            dataset,
            written: true,
            ..
        } => Some(format!("{job} writes {dataset}")),
        Work::View { job, dataset, .. }
        | Work::Slice {
            job,
            dataset,
            written: false,
            ..
        } => Some(format!("{job} reads {dataset}")),
        Work::Export { job, partition, .. } => Some(format!("{job} has {partition}")),
        Work::Share { job, .. } | Work::Join { job, .. } => Some(export_claim_name(*job)),
        Work::Checkpoints { folder, .. } | Work::Destage { folder, .. } => {
            Some(checkpoints::claim_name(folder))
        }
        Work::Send { dest, .. } => Some(dest.display().to_string()),
        Work::CheckDest { .. }
        | Work::Check(_)
        | Work::CheckIn(..)
        | Work::Remove(_)
        | Work::WrapAnew(_)
        | Work::Inventory(_) => None,
    }
}

/// The name that a work claims to export a job's pieces, or to remove them.
fn export_claim_name(job: SlurmJobId) -> String {
    format!("{job} lends")
}

fn hidden(name: &[u8], what: &str) -> Vec<u8> {
    [HIDDEN.as_bytes(), name, b".", what.as_bytes()].concat()
}

/// Reads a file from a place where a user may have put anything: a plain one of at most so many bytes, and no link's target.
fn read_small(path: &Path, most: u64) -> std::io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = std::fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let about = file.metadata()?;
    if !about.is_file() || about.len() > most {
        return Err(std::io::Error::other("it is no file of tarn's"));
    }
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(file, most), &mut bytes)?;
    Ok(bytes)
}
