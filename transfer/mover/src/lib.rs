//! L3: movers of file trees: copy, hash, verify, publish.
//!
//! One engine does all of it: [`job`] holds the data that the threads share; [`scan`] walks trees and gives out files,
//! [`mod@file`] and [`large`] read, hash and write them in one pass, [`mod@gather`] makes manifests of the found entries and
//! checks all that needs the whole; [`sealed`] seals and opens on the way. [`copy`] puts a copy together; [`resume`] proves the
//! files that an interrupted one left, [`publish`] makes the result durable and visible. [`objects`] are the trees of object
//! stores. docs/internals/movers.md explains and measures.

mod content;
mod copy;
mod deep;
mod erase;
mod error;
mod extents;
mod file;
mod file_io;
mod finish;
mod gather;
mod job;
mod large;
mod large_file;
mod links;
mod meta;
mod objects;
mod peer;
mod probe;
mod progress;
mod publish;
mod queue;
mod remove;
mod resume;
mod run;
mod scan;
mod sealed;
mod sealed_file;
mod source_file;
mod split;
mod target;
mod task;
pub mod throttle;
mod tree;
mod view;
mod worker;

pub use content::ContentHasher;
pub use deep::clear;

use error::Result;
use gather::{Against, compare, gather};
use job::{Goal, TreeOperation};
use objects::StoreLocation;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tarn_ports::{
    Control, CopyJob, CopyReport, CopySource, DeliveryJob, Follow, Mover, MoverError, ObjectStore,
    PeerTree, TreeCapabilities,
};
use tarn_types::event::RunErrorKind;
use tarn_types::key::DataKey;
use tarn_types::manifest::Manifest;
use tarn_types::object::is_object;
use throttle::{Limiter, Limiters};
use tree::SourceTree;

/// The most threads that one operation uses by default: more did not copy faster from memory to memory.
const DEFAULT_THREADS: usize = 4;
/// The most threads that a caller can request.
const MAX_THREADS: usize = 256;

/// The mover of file trees. A process has one: its limits hold for all jobs together. Rates are bytes a
/// second, latencies nanoseconds a file.
///
/// # Examples
/// ```
/// use tarn_mover::Trees;
/// use tarn_ports::{Control, CopyJob, CopySource, Mover};
/// use tarn_types::part::Verify;
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let (from, to) = (folder.path().join("mesh"), folder.path().join("copy"));
/// std::fs::create_dir(&from).unwrap();
/// std::fs::write(from.join("points"), [7; 1000]).unwrap();
///
/// let trees = Trees::new().with_threads(2);
/// let control = Control::default(); // progress, and cancellation from other threads
/// let job = CopyJob {
///     sources: vec![CopySource::of(&from)],
///     dest: to.clone(),
///     staging: folder.path().join("copy.part"), // an interrupted copy continues from there
///     replace: false,
///     verify: Verify::Copy,
///     sync: false,
///     rate: 0,
///     latency: 0,
///     arrivals: None,
///     seal: None,
/// };
/// let report = trees.copy(&job, &control)?;
/// assert_eq!((report.bytes, report.manifests[0].entries.len()), (1000, 1));
///
/// trees.verify(&to, &report.manifests[0], &control)?;
/// std::fs::write(to.join("points"), [8; 1000]).unwrap();
/// assert!(trees.verify(&to, &report.manifests[0], &control).is_err());
/// trees.remove(&to)?;
/// assert!(trees.copy(&job, &control).is_ok()); // it did not exist
/// # Ok::<(), tarn_ports::MoverError>(())
/// ```
#[derive(Debug)]
pub struct Trees {
    threads: usize,
    limiters: Limiters,
    store: Option<Arc<dyn ObjectStore>>,
}

impl Default for Trees {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            threads: cores.min(DEFAULT_THREADS),
            limiters: Limiters::default(),
            store: None,
        }
    }
}

impl Trees {
    /// A mover with the default number of threads: the cores, at most four.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with so many threads for each operation: 1 to 256.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = threads.clamp(1, MAX_THREADS);
        self
    }

    /// The same, with this client for places in object stores (`s3://BUCKET/PREFIX/`).
    #[must_use]
    pub fn with_store(mut self, store: Arc<dyn ObjectStore>) -> Self {
        self.store = Some(store);
        self
    }

    fn place(&self, path: &Path) -> Option<Result<StoreLocation<'_>>> {
        objects::place(self.store.as_ref(), path)
    }

    /// Sources that are in an object store as such that are fetched; `None` where there are none.
    fn fetched(
        &self,
        sources: &[CopySource],
        control: &Control,
    ) -> Result<Option<Vec<CopySource>>> {
        if !sources.iter().any(|s| is_object(&s.root)) {
            return Ok(None);
        }
        let each = sources
            .iter()
            .enumerate()
            .map(|(at, source)| match self.place(&source.root) {
                Some(place) => {
                    objects::fetched(&place?, source, control).map_err(|e| e.of_source(at))
                }
                None => Ok(source.clone()),
            });
        each.collect::<Result<_>>().map(Some)
    }

    /// Threads of each operation; of a copy from a peer each has a stream.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The limiter that jobs with this rate (bytes a second) and latency (nanoseconds a file) share: one for
    /// this mover, so that all of them together emulate one slow store. `None` when both are 0.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use tarn_mover::Trees;
    ///
    /// let trees = Trees::new();
    /// let one = trees.external_limit(100_000_000, 0).unwrap();
    /// let other = trees.external_limit(100_000_000, 0).unwrap();
    /// assert!(Arc::ptr_eq(&one, &other));
    /// assert!(trees.external_limit(0, 0).is_none());
    /// ```
    pub fn external_limit(&self, rate: u64, latency: u64) -> Option<Arc<Limiter>> {
        self.limiters.get(rate, latency)
    }

    /// Copies as [`Mover::copy`] does, held back by this limiter instead of the job's rate and latency.
    ///
    /// # Errors
    /// As for [`Mover::copy`].
    pub fn copy_limited(
        &self,
        job: &CopyJob,
        control: &Control,
        limiter: Option<Arc<Limiter>>,
    ) -> Result<CopyReport> {
        match self.fetched(&job.sources, control)? {
            None => copy::copy(job, control, self.threads, limiter),
            Some(sources) => {
                let job = CopyJob {
                    sources,
                    ..job.clone()
                };
                copy::copy(&job, control, self.threads, limiter)
            }
        }
    }

    /// Delivers as [`Mover::deliver`] does, held back by this limiter instead of the job's rate and latency.
    ///
    /// # Errors
    /// As for [`Mover::deliver`].
    pub fn deliver_limited(
        &self,
        job: &DeliveryJob,
        control: &Control,
        limiter: Option<Arc<Limiter>>,
    ) -> Result<CopyReport> {
        let place = match job.single {
            true => self.object(&job.dest)?,
            false => self.dest(&job.dest)?,
        };
        let sources = self.fetched(&job.sources, control)?;
        let sources = sources.as_ref().unwrap_or(&job.sources);
        let digest = |source: &CopySource| self.digest_source(source, control);
        objects::deliver(&place, job, sources, limiter, &digest, control)
    }

    /// Lists a tree of the file system as [`Mover::list`] does; `follow` decides about links that lead out of
    /// it.
    ///
    /// # Errors
    /// As for [`Mover::list_source`]; a link that is not followed.
    pub fn list_following(
        &self,
        root: &Path,
        follow: Follow,
        control: &Control,
    ) -> Result<Manifest> {
        let tree = SourceTree::following(root, follow)?;
        self.read_tree(tree, Goal::List, control)
            .map(|(_, found)| found)
    }

    /// A place in an object store, whose content is `manifest`, as a tree that is read like a peer's.
    ///
    /// # Errors
    /// `at` is no place in an object store.
    pub fn object_tree(&self, at: &Path, manifest: Manifest) -> Result<Arc<dyn PeerTree>> {
        Ok(objects::as_peer(&self.object(at)?, manifest))
    }

    /// A place in a store.
    fn object(&self, at: &Path) -> Result<StoreLocation<'_>> {
        self.place(at).unwrap_or_else(|| {
            let text = format!("`{}` is no place in an object store", at.display());
            Err(MoverError::new(RunErrorKind::Io, text))
        })
    }

    /// A tree of a store, to be put.
    fn dest(&self, dest: &Path) -> Result<StoreLocation<'_>> {
        let place = self.object(dest)?;
        Ok(StoreLocation {
            at: place.at.tree(),
            ..place
        })
    }

    fn digest_source(&self, source: &CopySource, control: &Control) -> Result<Manifest> {
        match &source.sealed {
            Some(key) => self.digest_sealed(&source.root, key, control),
            None => self.digest(&source.root, control),
        }
    }

    fn read(
        &self,
        root: &Path,
        goal: Goal,
        control: &Control,
    ) -> Result<(SourceTree<'static>, Manifest)> {
        self.read_tree(SourceTree::open(root)?, goal, control)
    }

    fn read_tree(
        &self,
        tree: SourceTree<'static>,
        goal: Goal,
        control: &Control,
    ) -> Result<(SourceTree<'static>, Manifest)> {
        let trees = [tree];
        let (output, _) = TreeOperation::new(&trees, goal, control, self.threads).run()?;
        let found = gather(&trees, output)?.manifests.pop().unwrap_or_default();
        let [tree] = trees;
        Ok((tree, found))
    }
}

impl Mover for Trees {
    fn capabilities(&self, folder: &Path) -> Result<TreeCapabilities> {
        probe::capabilities(folder)
    }

    fn list(&self, root: &Path, control: &Control) -> Result<Manifest> {
        if let Some(place) = self.place(root) {
            let place = place?;
            return objects::list(&**place.store, &place.at, control);
        }
        self.read(root, Goal::List, control).map(|(_, found)| found)
    }

    fn list_source(&self, root: &Path, control: &Control) -> Result<Manifest> {
        if self.place(root).is_some() {
            return self.list(root, control);
        }
        self.list_following(root, Follow::All, control)
    }

    fn digest(&self, root: &Path, control: &Control) -> Result<Manifest> {
        if let Some(place) = self.place(root) {
            return objects::digest(&place?, None, control);
        }
        let goal = Goal::Digest { read_back: false };
        self.read(root, goal, control).map(|(_, found)| found)
    }

    fn digest_sealed(
        &self,
        root: &Path,
        key: &Arc<DataKey>,
        control: &Control,
    ) -> Result<Manifest> {
        if let Some(place) = self.place(root) {
            return objects::digest(&place?, Some(key), control);
        }
        let tree = SourceTree::open(root)?.sealed_with(Some(key));
        let goal = Goal::Digest { read_back: false };
        self.read_tree(tree, goal, control).map(|(_, found)| found)
    }

    fn verify(&self, root: &Path, manifest: &Manifest, control: &Control) -> Result<()> {
        if self.place(root).is_some() {
            let same = self.digest(root, control)?.hash() == manifest.hash();
            let other = || error::corrupt(&root.display().to_string(), "has other content");
            return same.then_some(()).ok_or_else(other);
        }
        let (tree, found) = self.read(root, Goal::Digest { read_back: false }, control)?;
        compare(&tree, &found, manifest, Against::Replica)
    }

    fn pace(&self, own: u32, all: u32) {
        self.limiters.pace(own, all);
    }

    fn copy(&self, job: &CopyJob, control: &Control) -> Result<CopyReport> {
        let limiter = self.external_limit(job.rate, job.latency);
        self.copy_limited(job, control, limiter)
    }

    fn may_fetch(&self, source: &Path, control: &Control) -> Result<()> {
        let place = self.object(source)?;
        objects::is_there(&**place.store, &place.at, control)
    }

    fn may_deliver(&self, dest: &Path, owner: &str, control: &Control) -> Result<()> {
        objects::check(&self.dest(dest)?, owner, control)
    }

    fn deliver(&self, job: &DeliveryJob, control: &Control) -> Result<CopyReport> {
        let limiter = self.external_limit(job.rate, job.latency);
        self.deliver_limited(job, control, limiter)
    }

    fn is_delivered(&self, dest: &Path, owner: &str, control: &Control) -> Result<bool> {
        objects::is_whole(&self.object(dest)?, owner, control)
    }

    fn withdraw(&self, dest: &Path, owner: &str, objects: bool, control: &Control) -> Result<()> {
        objects::withdraw(&self.object(dest)?, owner, objects, control)
    }

    fn link_view(&self, roots: &[(PathBuf, Manifest)], dest: &Path) -> Result<()> {
        view::link_view(roots, dest)
    }

    fn clone_view(
        &self,
        roots: &[(PathBuf, Manifest)],
        dest: &Path,
        control: &Control,
    ) -> Result<u64> {
        let job = view::clone_job(roots, dest);
        copy::copy(&job, control, self.threads, None).map(|report| report.bytes)
    }

    fn split(&self, root: &Path, parts: &[(&Manifest, PathBuf)]) -> Result<()> {
        split::split(root, parts)
    }

    fn remove(&self, root: &Path) -> Result<()> {
        remove::remove(root)
    }

    fn stored(&self, root: &Path) -> Result<u64> {
        remove::stored(root)
    }
}
