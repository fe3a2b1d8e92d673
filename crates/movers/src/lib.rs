//! L3: movers of file trees: copy, hash, verify, publish.
//!
//! One engine does all of it: [`job`] holds what the threads share, [`scan`] walks trees and gives out files,
//! [`file`] and [`large`] read, hash and write them in one pass, [`gather`] makes manifests of what was found
//! and checks what needs the whole; [`sealed`] seals and opens on the way. [`copy`] puts a copy together; [`resume`] proves what an interrupted one
//! left, [`publish`] makes the result durable and visible. docs/movers.md explains and measures.

mod content;
mod copy;
mod error;
mod extents;
mod file;
mod finish;
mod gather;
mod job;
mod large;
mod links;
mod meta;
mod peer;
mod probe;
mod progress;
mod publish;
mod queue;
mod remove;
mod resume;
mod scan;
mod sealed;
mod split;
mod target;
pub mod throttle;
mod tree;
mod view;

pub use content::ContentHasher;

use error::Result;
use gather::{Against, compare, gather};
use job::{Goal, Job};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tarn_base::key::DataKey;
use tarn_base::manifest::Manifest;
use tarn_ports::{Control, CopyJob, CopyReport, Mover, TreeCapabilities};
use throttle::{Limiter, Limiters};
use tree::Tree;

/// The most threads that one operation uses by default: more did not copy faster from memory to memory.
const DEFAULT_THREADS: usize = 4;
/// The most threads that can be asked for.
const MAX_THREADS: usize = 256;

/// The mover of file trees. One for a process: its limits hold for all jobs together.
#[derive(Debug)]
pub struct Trees {
    threads: usize,
    limiters: Limiters,
}

impl Default for Trees {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            threads: cores.min(DEFAULT_THREADS),
            limiters: Limiters::default(),
        }
    }
}

impl Trees {
    /// A mover with the default number of threads: the cores, at most four.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with so many threads for each operation.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = threads.clamp(1, MAX_THREADS);
        self
    }

    /// Threads of each operation; of a copy from a peer each has a stream.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The limiter that jobs with this rate (bytes a second) and latency (nanoseconds a file) share: one for
    /// this mover, so that all of them together play one slow store. `None` when both are 0.
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
        copy::copy(job, control, self.threads, limiter)
    }

    fn read(
        &self,
        root: &Path,
        goal: Goal,
        control: &Control,
    ) -> Result<(Tree<'static>, Manifest)> {
        self.read_tree(Tree::open(root)?, goal, control)
    }

    fn read_tree(
        &self,
        tree: Tree<'static>,
        goal: Goal,
        control: &Control,
    ) -> Result<(Tree<'static>, Manifest)> {
        let trees = [tree];
        let (output, _) = Job::new(&trees, goal, control, self.threads).run()?;
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
        self.read(root, Goal::List, control).map(|(_, found)| found)
    }

    fn digest(&self, root: &Path, control: &Control) -> Result<Manifest> {
        let goal = Goal::Digest { read_back: false };
        self.read(root, goal, control).map(|(_, found)| found)
    }

    fn digest_sealed(
        &self,
        root: &Path,
        key: &Arc<DataKey>,
        control: &Control,
    ) -> Result<Manifest> {
        let tree = Tree::open(root)?.sealed_with(Some(key));
        let goal = Goal::Digest { read_back: false };
        self.read_tree(tree, goal, control).map(|(_, found)| found)
    }

    fn verify(&self, root: &Path, manifest: &Manifest, control: &Control) -> Result<()> {
        let (tree, found) = self.read(root, Goal::Digest { read_back: false }, control)?;
        compare(&tree, &found, manifest, Against::Replica)
    }

    fn pace(&self, own: u32, all: u32) {
        self.limiters.pace(own, all);
    }

    fn copy(&self, job: &CopyJob, control: &Control) -> Result<CopyReport> {
        let limiter = self.external_limit(job.rate, job.latency);
        copy::copy(job, control, self.threads, limiter)
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
