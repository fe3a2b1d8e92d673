//! A node of a step that this world owns: the work for the step on it.

mod publish;

use crate::attempt::handle::Handle;
use crate::attempt::launchers;
use crate::attempt::member::Member;
use crate::attempt::node_context::NodeContext;
use crate::attempt::node_task::{
    MAX_UNDECLARED_NAMES, ResourceShortage, StepNodeTask, StepNodeTaskResult,
};
use crate::attempt::partitions;
use crate::attempt::prepare::{NodeSetup, PreparedNode, open_log};
use crate::attempt::step_needs::Need;
use crate::attempt::step_tmpfs::{self, StepTmpfs};
use crate::attempt::writers::{MemoryTierWriter, Writing};
use crate::helper::exec_env::hydra_hosts;
use crate::helper::image::{self, StepImage};
use crate::helper::launch::{HelperProcess, Launcher};
use crate::helper::protocol::StepIsolation;
use crate::helper::provider::tidy;
use crate::sockets::CpuAllocation;
use crate::storage::checkpoint_folders::CheckpointFolders;
use crate::storage::data_context::{DataContext, NodeLoopEvent};
use crate::storage::ledger::Reservation;
use crate::storage::store::{
    failure, first_difference, io_failure, is_folder, make_folder, stored_estimate, warn,
};
use crate::storage::untouched::{self};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tarn_ports::MoverError;
use tarn_sys::memory::in_memory;
use tarn_types::action::{AttemptSpec, NodeReplica};
use tarn_types::checkpoint::{Checkpoint, CheckpointId};
use tarn_types::event::{Event, Imaged, RunError, RunErrorKind, Undeclared};
use tarn_types::id::{DataId, TierRef};
use tarn_types::manifest::{EntryKind, Manifest};
use tarn_types::part::{PartRef, Place, StoreKey};
use tarn_types::units::Bytes;
use tarn_types::workflow::{CheckpointMethod, Role, Step};

/// How often a work folder that could not be removed is tried again, and after how long.
const REMOVALS: u32 = 5;
const BETWEEN: Duration = Duration::from_millis(100);
/// A tier with less than this free, in bytes, is full: programs write in larger units.
const FULL: u64 = 64 << 10;

/// An attempt, as all of its nodes that this world owns see it.
#[derive(Clone, Copy)]
pub(crate) struct Attempted<'a> {
    pub(crate) shared: &'a NodeContext,
    pub(crate) step: &'a Step,
    pub(crate) run: &'a AttemptSpec,
    pub(crate) needs: &'a [Need<'a>],
    pub(crate) handle: &'a Handle,
    /// The file for its output.
    pub(crate) log: &'a Path,
    /// In whose work folder the host file and the sockets of `tarn exec` are.
    pub(crate) home: TierRef,
}

/// An own node of a step.
pub(crate) struct LocalNode<'a> {
    of: Attempted<'a>,
    /// Its position among the step's nodes.
    at: usize,
    name: String,
    tier_ref: TierRef,
    helper: Option<HelperProcess>,
    reserved: Option<Reservation<'a>>,
    /// While it is there, partitions that are on other nodes too are open to the step.
    pieces: Option<Box<dyn Send>>,
    /// The space for partitions that do not exist yet, in their order.
    partition_space: Vec<Option<Reservation<'a>>>,
    claim: Option<CpuAllocation<'a>>,
    ready: Option<PreparedNode>,
    writing: Option<Writing<'a>>,
    /// The private memory with its encrypted data in clear, if it has any.
    tmpfs: Option<StepTmpfs>,
    /// The image that its processes are made of.
    begun_with: Option<CheckpointId>,
    trees: BTreeMap<DataId, Arc<Manifest>>,
    published: Vec<StoreKey>,
    evicted: Vec<(PartRef, TierRef)>,
}

impl<'a> LocalNode<'a> {
    pub(crate) fn new(of: Attempted<'a>, at: usize, tier_ref: TierRef) -> Self {
        Self {
            of,
            at,
            name: of.shared.node_name(tier_ref.node),
            tier_ref,
            helper: None,
            reserved: None,
            pieces: None,
            partition_space: Vec::new(),
            claim: None,
            ready: None,
            writing: None,
            tmpfs: None,
            begun_with: None,
            trees: BTreeMap::new(),
            published: Vec::new(),
            evicted: Vec::new(),
        }
    }

    fn work(&self) -> Result<PathBuf, RunError> {
        self.of.shared.work_folder(self.of.run, self.tier_ref)
    }

    fn ready(&self) -> Result<&PreparedNode, RunError> {
        self.ready
            .as_ref()
            .ok_or_else(|| failure(RunErrorKind::Launch, "it was not prepared"))
    }

    fn start(&mut self) -> Result<(), RunError> {
        let exe = &self.of.shared.helper;
        let helper = HelperProcess::spawn(exe, open_log(self.of.log)?).map_err(|e| {
            let message = format!(
                "its helper process ({}) cannot be started: {e}",
                exe.display()
            );
            failure(RunErrorKind::Launch, message)
        })?;
        self.helper = Some(helper);
        Ok(())
    }

    fn reserve(&mut self) -> Result<(), RunError> {
        let Attempted {
            shared,
            run,
            handle,
            ..
        } = self.of;
        let stopped = || handle.stop.is_requested();
        if let Some(kept) = self.checkpoint_folders()? {
            // They have the space that is claimed now.
            shared.ledgers.left(self.tier_ref, &kept.key);
        }
        let bytes = run.reserve.saturating_add(self.put_in()?);
        self.reserved = Some(shared.reserve(self.tier_ref, bytes, &stopped)?);
        for partition in partitions::of(shared, run)? {
            self.partition_space
                .push(partition.reserve(shared, self.at, &stopped)?);
        }
        Ok(())
    }

    /// The bytes that the file system of a shared namespace keeps here of the step's inputs in it: an even share, and the largest
    /// file more, which is whole on one node. (Changed data takes as much beside the pre-image: `reserve` has that.)
    fn put_in(&self) -> Result<u64, RunError> {
        let Attempted {
            shared, run, needs, ..
        } = self.of;
        let (mut all, mut largest) = (0u64, 0u64);
        let read = Need::spread(needs, shared, run).filter(|n| n.role == Role::In);
        for held in read.filter_map(|n| n.held.first()).flatten() {
            let manifest = shared.manifest(&held.key)?;
            all = all.saturating_add(stored_estimate(&manifest));
            let sizes = manifest.entries.iter().map(|e| match &e.kind {
                EntryKind::File { size, .. } => *size,
                _ => 0,
            });
            largest = sizes.fold(largest, u64::max);
        }
        let nodes = run.nodes.len().max(1) as u64;
        Ok(all.min(all.div_ceil(nodes).saturating_add(largest)))
    }

    /// The folders of its checkpoints, if it resumes from them.
    fn checkpoint_folders(&self) -> Result<Option<CheckpointFolders>, RunError> {
        let Attempted {
            shared, step, run, ..
        } = self.of;
        let restart = step
            .restart
            .map(|_| CheckpointFolders::new(shared, run.instance, self.tier_ref));
        restart.transpose()
    }

    fn checkpoints(&self) -> Result<Vec<Checkpoint>, RunError> {
        let from = self.of.step.restart.map(|r| r.from);
        Ok(match (self.checkpoint_folders()?, from) {
            (Some(k), Some(CheckpointMethod::Phx)) => {
                (self.of.shared.checkpoints)(&k.tier, &k.memory)
            }
            (Some(k), Some(CheckpointMethod::Image)) => image::whole(&k.tier),
            _ => Vec::new(),
        })
    }

    /// The image that the step resumes from, if there is one.
    fn image(&mut self) -> Result<Option<StepImage>, RunError> {
        let Attempted {
            shared,
            step,
            handle,
            ..
        } = self.of;
        let of_image = step
            .restart
            .is_some_and(|r| r.from == CheckpointMethod::Image);
        let Some(kept) = self.checkpoint_folders()?.filter(|_| of_image) else {
            return Ok(None);
        };
        let lost = |id, why| self.not_restored(id, why);
        let copied = shared.copied.lock().ok();
        let copied = copied.and_then(|mut all| all.remove(&self.of.run.instance));
        if let Some(id) = copied
            && !kept.tier.join(id.to_string()).exists()
        {
            lost(id, "its copy on this node is not there any more".into());
        }
        let chosen = image::choose(&*shared.mover, &kept.tier, &handle.control, lost)?;
        self.begun_with = chosen.as_ref().map(|i| i.id);
        Ok(chosen)
    }

    fn not_restored(&self, id: CheckpointId, why: String) {
        let run = self.of.run;
        self.of
            .shared
            .deliver(NodeLoopEvent::Notification(Event::Image {
                instance: run.instance,
                attempt: run.attempt,
                what: Imaged::NotRestored { id, why },
            }));
    }

    /// The image that it was to resume from is of no use.
    fn discard(&mut self, why: &str) -> Result<(), RunError> {
        if let (Some(kept), Some(id)) = (self.checkpoint_folders()?, self.begun_with.take()) {
            image::discard(&*self.of.shared.mover, &kept.tier, id);
            self.not_restored(id, why.to_owned());
        }
        Ok(())
    }

    fn prepare(&mut self, hosts: &str) -> Result<(), RunError> {
        let Attempted { shared, run, .. } = self.of;
        let work = self.work()?;
        self.pieces = None;
        shared.mover.remove(&work)?;
        make_folder(&work)?;
        let home = shared.work_folder(run, self.of.home)?;
        let hostfile = home.join("hosts");
        let exec = (run.nodes.len() > 1).then(|| home.join("exec"));
        if self.tier_ref == self.of.home {
            let write = |path: &Path, text: &str| {
                std::fs::write(path, text).map_err(|e| io_failure("write", path, &e))
            };
            write(&hostfile, hosts)?;
            let hydra = launchers::hydra_text(hosts, run.nodes.len() == 1);
            write(&hydra_hosts(&hostfile), &hydra)?;
            exec.as_deref().map_or(Ok(()), make_folder)?;
        }
        self.mount_tmpfs(&work)?;
        self.make_partitions()?;
        self.pieces = partitions::export_pieces((shared, run), self.at, &work)?;
        let tier = shared.tier_name(self.tier_ref).unwrap_or_default();
        let sockets = shared.sockets.as_ref();
        self.claim = sockets.map(|s| s.take(self.of.step.cores, tier));
        let cpus = self.claim.as_ref().map(|c| c.cpus.clone());
        // The step's clones are made near its tier.
        let _near = shared.near(self.tier_ref);
        let image = self.image()?;
        let setup = NodeSetup {
            shared,
            image,
            step: self.of.step,
            run,
            at: self.at,
            name: self.name.clone(),
            tier_ref: self.tier_ref,
            work,
            cpus: cpus.unwrap_or_default(),
            tmpfs: self.tmpfs.as_ref(),
            evicted: &mut self.evicted,
        };
        let control = &self.of.handle.control;
        let (ready, launch) = setup.make(self.of.needs, &hostfile, exec.as_deref(), control)?;
        if let Some(helper) = &mut self.helper {
            helper.equip(launch);
        }
        self.writing = self.watched(&ready);
        self.ready = Some(ready);
        Ok(())
    }

    /// Makes its partitions, in the space that was claimed for them.
    fn make_partitions(&mut self) -> Result<(), RunError> {
        let Attempted { shared, run, .. } = self.of;
        let all = partitions::of(shared, run)?;
        let _near = self.of.shared.near(self.tier_ref);
        for beside in all
            .iter()
            .filter_map(|p| p.work_beside(shared, run, self.at))
        {
            shared.mover.remove(&beside)?;
        }
        for (partition, reserved) in all.iter().zip(&mut self.partition_space) {
            partition.make((shared, run), self.at, reserved.as_mut())?;
        }
        Ok(())
    }

    /// Has the helper mount memory for what is encrypted, if anything is.
    fn mount_tmpfs(&mut self, work: &Path) -> Result<(), RunError> {
        let Attempted {
            shared, run, needs, ..
        } = self.of;
        let refused = |why: &str| {
            let message = format!("it uses encrypted data, and {why}");
            failure(RunErrorKind::Launch, message)
        };
        if !step_tmpfs::is_needed(shared, needs, self.at) {
            return Ok(());
        }
        if shared.isolation == StepIsolation::Group {
            return Err(refused("its unencrypted view of that needs namespaces"));
        }
        let size = step_tmpfs::size(shared, needs, self.at, run.reserve)?;
        let inside = work.join(step_tmpfs::MOUNT_FOLDER);
        make_folder(&inside)?;
        let Some(helper) = &mut self.helper else {
            return Err(refused("its helper was not started"));
        };
        let top = helper
            .mount_tmpfs(&inside, size.bytes, shared.isolation)
            .map_err(|why| refused(&why.to_string()))?;
        self.tmpfs = Some(StepTmpfs::new(inside, top, size));
        Ok(())
    }

    /// Compares inputs with their manifests afterwards, if they cannot be mounted read-only. A changed replica is removed and
    /// reported to the engine, which fetches or makes the part again.
    fn compare(&mut self) -> Result<Option<(usize, String)>, RunError> {
        let Attempted { shared, needs, .. } = self.of;
        let mut first = None;
        let inputs = needs.iter().enumerate();
        for (number, need) in inputs.filter(|(_, n)| n.role != Role::Out) {
            for held in need.held.get(self.at).into_iter().flatten() {
                if let Some(path) = changed(shared, need.data, held)? {
                    first.get_or_insert((number, path));
                    if !shared.leave_to_others(held.tier_ref, &held.key) {
                        let replica = shared.replica(held.tier_ref, &held.key)?;
                        shared.mover.remove(&replica)?;
                        shared.ledgers.left(held.tier_ref, &held.key);
                    }
                    self.evicted.push((held.part, held.tier_ref));
                }
            }
        }
        Ok(first)
    }

    /// The resource of which there is too little. The kernel may have ended the step before tarn could.
    fn lacks(&self) -> Option<ResourceShortage> {
        let overrun = self.of.handle.stop.overran().map(str::to_owned);
        let filled = || self.writing.as_ref()?.blame();
        if let Some(why) = overrun.or_else(filled) {
            return Some(ResourceShortage::Memory(why));
        }
        if let Some(why) = self.tmpfs.as_ref().and_then(StepTmpfs::lack) {
            return Some(ResourceShortage::Memory(why));
        }
        let work = &self.ready.as_ref()?.work;
        let s = rustix::fs::statvfs(work).ok()?;
        let full = s.f_bavail.saturating_mul(s.f_frsize) < FULL;
        full.then(|| ResourceShortage::Tier(work.display().to_string()))
    }

    /// Watches from here on the step's files on a tier in memory.
    fn watched(&self, ready: &PreparedNode) -> Option<Writing<'a>> {
        let Attempted {
            shared,
            run,
            handle,
            ..
        } = self.of;
        let tier = shared.cluster.nodes.get(self.tier_ref.node.at());
        let tier = tier?.tiers.get(self.tier_ref.tier.at())?;
        if let Some(tmpfs) = &self.tmpfs {
            // Its scratch folder is there too; files that it writes elsewhere on a tier in memory are watched with it.
            let outs = ready.outs.values().filter(|_| in_memory(&ready.work));
            let beside = outs.filter(|o| tmpfs.inside(o) == **o).cloned();
            return Some(shared.writers.add(MemoryTierWriter {
                folders: beside.chain([tmpfs.folder(".")]).collect(),
                reserve: tmpfs.needed.saturating_add(run.reserve),
                node: self.name.clone(),
                tier: tier.name.clone(),
                stop: Arc::clone(&handle.stop),
            }));
        }
        in_memory(&ready.work).then(|| {
            let outs = ready.outs.values().cloned();
            let kept = self.checkpoint_folders().ok().flatten().map(|k| k.tier);
            shared.writers.add(MemoryTierWriter {
                folders: outs
                    .chain(kept)
                    .chain([ready.scratch.clone()])
                    .chain(ready.tmp.clone())
                    .collect(),
                reserve: run.reserve,
                node: self.name.clone(),
                tier: tier.name.clone(),
                stop: Arc::clone(&handle.stop),
            })
        })
    }

    /// The undeclared files that the step left in its scratch folder and beside its outputs.
    fn undeclared(&self) -> Undeclared {
        let mut left = Undeclared::default();
        let Some(ready) = &self.ready else {
            return left;
        };
        let scratch = &ready.scratch;
        let outputs = ready.work.join("out");
        let mut folders = vec![scratch.clone(), outputs.clone()];
        while let Some(folder) = folders.pop() {
            // A folder that cannot be read is removed all the same; only the count misses it.
            for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
                let Ok(meta) = entry.metadata() else { continue };
                let is_own = || {
                    let name = entry.file_name();
                    let mut used = self.of.needs.iter();
                    used.any(|n| name == n.name) || name.as_bytes().starts_with(b".")
                };
                // Beside the datasets it can write as well; nothing of that is one.
                if folder == outputs && is_own() {
                    continue;
                }
                if meta.is_dir() {
                    folders.push(entry.path());
                    continue;
                }
                left.files += 1;
                left.bytes = left.bytes.saturating_add(meta.len());
                if left.names.len() < MAX_UNDECLARED_NAMES {
                    let path = entry.path();
                    let name = path.strip_prefix(scratch);
                    let name = name
                        .or_else(|_| path.strip_prefix(&outputs))
                        .unwrap_or(&path);
                    left.names.push(name.to_string_lossy().into_owned());
                }
            }
        }
        left
    }

    /// Removes sockets that the step has left in an output: all its processes have ended, so nobody ever answers there. Whether there
    /// were any.
    fn without_sockets(&self, output: &str, folder: &Path) -> bool {
        let mut found = false;
        let mut folders = vec![folder.to_path_buf()];
        while let Some(above) = folders.pop() {
            for entry in std::fs::read_dir(&above).into_iter().flatten().flatten() {
                let Ok(kind) = entry.file_type() else {
                    continue;
                };
                let path = entry.path();
                if kind.is_dir() {
                    folders.push(path);
                } else if kind.is_socket() && std::fs::remove_file(&path).is_ok() {
                    found = true;
                    let name = path.strip_prefix(folder).unwrap_or(&path);
                    warn(&format!(
                        "step `{}`: `{}` in its output `{output}` is a socket whose program has ended: it is left out",
                        self.of.step.name,
                        name.display()
                    ));
                }
            }
        }
        found
    }

    fn digest(&mut self, data: DataId) -> Result<StepNodeTaskResult, RunError> {
        let Some(folder) = self.ready()?.outs.get(&data) else {
            return Ok(StepNodeTaskResult::Nothing);
        };
        let name = &self.of.shared.dataset(data)?.name;
        if !is_folder(folder) {
            let what = match folder.symlink_metadata() {
                Ok(_) => "put something else in the place of",
                Err(_) => "removed",
            };
            return Err(failure(
                RunErrorKind::NoOutput,
                format!(
                    "it {what} the folder of its output `{name}`; nothing was kept: the content of that folder at its end is the output"
                ),
            ));
        }
        if Need::spread(self.of.needs, self.of.shared, self.of.run).any(|n| n.data == data) {
            tidy(folder).map_err(|e| failure(RunErrorKind::Io, e.to_string()))?;
        }
        let _near = self.of.shared.near(self.tier_ref);
        let hashed = || self.of.shared.mover.digest(folder, &self.of.handle.control);
        let digest = match hashed() {
            Err(e) if e.failure.kind == RunErrorKind::Io && self.without_sockets(name, folder) => {
                hashed()
            }
            hashed => hashed,
        };
        let tree = Arc::new(digest.map_err(|MoverError { failure: f, .. }| RunError {
            message: format!("its output `{name}` cannot be kept: {}", f.message),
            ..f
        })?);
        self.trees.insert(data, Arc::clone(&tree));
        Ok(StepNodeTaskResult::Tree { tree })
    }

    /// The outputs of a step must fit onto its tier beside the data that is there or on its way: a tier without a quota takes
    /// more than its size, and the excess is in the way of everything else. Outputs that fit have their space reserved from here
    /// on.
    fn fits(&mut self) -> Result<(), RunError> {
        let Attempted { shared, needs, .. } = self.of;
        let node = shared.cluster.nodes.get(self.tier_ref.node.at());
        let Some(tier) = node.and_then(|n| n.tiers.get(self.tier_ref.tier.at())) else {
            return Ok(());
        };
        let trees = self.trees.iter();
        let written: u64 = trees.map(|(data, t)| shared.estimate(*data, t)).sum();
        let held = needs.iter().filter_map(|n| n.held.get(self.at)).flatten();
        let on_tier = held.filter(|h| h.tier_ref == self.tier_ref);
        let read: BTreeSet<(&StoreKey, DataId)> = on_tier.map(|h| (&h.key, h.part.data)).collect();
        let mut beside = 0u64;
        for (key, data) in read {
            beside = beside.saturating_add(shared.estimate(data, &shared.manifest(key)?));
        }
        let capacity = tier
            .capacity
            .saturating_sub(shared.ledgers.not_ours(self.tier_ref));
        let lack = |what: String, remedy: &str| {
            let message = format!(
                "it succeeded, but its outputs take {} on node `{}`, and its tier `{}` of {} cannot hold them beside \
                 {what}; nothing was kept; {remedy}",
                Bytes(written),
                self.name,
                tier.name,
                Bytes(capacity),
            );
            Err(failure(RunErrorKind::NoSpace, message))
        };
        if written.saturating_add(beside) > capacity {
            let remedy = "give a larger tier (--tier NAME=PATH:SIZE)";
            return lack(format!("the {} of its inputs", Bytes(beside)), remedy);
        }
        let Some(reserved) = &mut self.reserved else {
            return Ok(());
        };
        match shared.grow(self.tier_ref, reserved, written) {
            Ok(()) => Ok(()),
            Err(others) => lack(
                format!(
                    "the {} that are stored there or on their way",
                    Bytes(others)
                ),
                "state the `size` of its output, so that space is kept for it, or give a larger tier (--tier NAME=PATH:SIZE)",
            ),
        }
    }

    /// Removes a folder, with several tries: after the kernel has ended the step for memory, its processes may still be dying.
    fn remove(&self, folder: &Path) {
        let mut left = self.of.shared.mover.remove(folder);
        for _ in 0..REMOVALS {
            if left.is_err() {
                std::thread::sleep(BETWEEN);
                left = self.of.shared.mover.remove(folder);
            }
        }
        if let Err(MoverError { failure: f, .. }) = left {
            warn(&format!("{}; the next clean-up tries again", f.message));
        }
    }

    fn over(&mut self, committed: bool) {
        // A helper that has not left by itself must be gone before its folders are.
        self.helper = None;
        self.pieces = None;
        if !committed {
            for key in std::mem::take(&mut self.published) {
                self.of.shared.take_back(&Place::Node(self.tier_ref), &key);
            }
        }
        self.claim = None;
        self.reserved = None;
        self.writing = None;
        self.partition_space.clear();
        self.tmpfs = None;
        if let Ok(Some(kept)) = self.checkpoint_folders() {
            kept.account(self.of.shared, self.tier_ref);
        }
        let Attempted { shared, run, .. } = self.of;
        let own = partitions::of(shared, run).unwrap_or_default();
        let beside = own.iter();
        let beside = beside.filter_map(|p| p.work_beside(shared, run, self.at));
        for folder in beside.chain(self.work()) {
            self.remove(&folder);
        }
        // Views have linked to their files.
        let held = self.of.needs.iter().filter_map(|n| n.held.get(self.at));
        for held in held.filter(|h| h.len() > 1).flatten() {
            if let Ok(replica) = shared.replica(held.tier_ref, &held.key) {
                untouched::links_gone(&replica);
            }
        }
    }
}

impl Member for LocalNode<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn tier_ref(&self) -> TierRef {
        self.tier_ref
    }

    fn begin(&mut self, _: &StepNodeTask) {}

    fn run(&mut self, task: &StepNodeTask) -> Result<StepNodeTaskResult, RunError> {
        match task {
            StepNodeTask::Start => self.start()?,
            StepNodeTask::Reserve => self.reserve()?,
            StepNodeTask::Prepare { hosts } => self.prepare(hosts)?,
            StepNodeTask::End => {
                return Ok(StepNodeTaskResult::Ended(
                    self.helper.as_mut().is_none_or(Launcher::end),
                ));
            }
            StepNodeTask::Compare => return self.compare().map(StepNodeTaskResult::Changed),
            StepNodeTask::CheckSpace => return Ok(StepNodeTaskResult::Lacks(self.lacks())),
            StepNodeTask::Checkpoints => {
                return Ok(StepNodeTaskResult::Checkpoints(self.checkpoints()?));
            }
            StepNodeTask::Discard { why } => self.discard(why)?,
            StepNodeTask::Undeclared => {
                return Ok(StepNodeTaskResult::Undeclared(self.undeclared()));
            }
            StepNodeTask::Digest(data) => return self.digest(*data),
            StepNodeTask::Fits => self.fits()?,
            StepNodeTask::Publish { data, parts } => {
                return self.publish(*data, parts).map(StepNodeTaskResult::Stored);
            }
            StepNodeTask::Over { committed } => self.over(*committed),
        }
        Ok(StepNodeTaskResult::Nothing)
    }

    fn give_up(&mut self) {}

    fn evicted(&mut self) -> Vec<(PartRef, TierRef)> {
        std::mem::take(&mut self.evicted)
    }

    fn helper(&mut self) -> Option<&mut dyn Launcher> {
        self.helper.as_mut().map(|h| h as &mut dyn Launcher)
    }

    fn leaving(&mut self) -> Option<HelperProcess> {
        self.helper.take_if(|h| h.used().is_some())
    }

    fn lost(&self) -> Option<RunError> {
        None
    }
}

fn changed(
    shared: &DataContext,
    data: DataId,
    held: &NodeReplica,
) -> Result<Option<String>, RunError> {
    let replica = shared.replica(held.tier_ref, &held.key)?;
    let manifest = shared.manifest(&held.key)?;
    let sealed = shared.dataset(data)?.encrypt;
    match shared.list_replica(&replica, sealed) {
        Ok(listed) => Ok(first_difference(&listed, &manifest)),
        // It is gone, or holds what no dataset may hold.
        Err(MoverError { failure: f, .. }) => Ok(Some(f.message)),
    }
}
