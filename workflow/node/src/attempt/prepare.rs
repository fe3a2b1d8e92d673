//! Before the command: the view of every node of a step, made ready in the step's work folders.

use crate::attempt::env::{self, Paths};
use crate::attempt::node_context::NodeContext;
use crate::attempt::partitions::{self, SeenPartition};
use crate::attempt::step_needs::Need;
use crate::attempt::step_tmpfs::StepTmpfs;
use crate::attempt::step_view::{CHECKPOINTS, SCRATCH, mount_points};
use crate::helper::command;
use crate::helper::image::copy::Lists;
use crate::helper::image::{self, StepImage, StepImagePlan, alone};
use crate::helper::launch::{HelperLaunch, ImageListener};
use crate::helper::protocol::{BindMount, Spec, StepIsolation, StepMountPoints};
use crate::helper::provider::{self, NamespaceDataset};
use crate::helper::tmp::{self, StepPrivatePaths};
use crate::staging::inventory::HELPER_NOTE;
use crate::storage::checkpoint_folders::{CheckpointFolders, StepCheckpointView, own_memory};
use crate::storage::data_context::NodeLoopEvent;
use crate::storage::store::{failure, io_failure, is_folder, make_folder, warn};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use tarn_ports::{Control, CopyJob, CopySource, MoverError};
use tarn_sys::memory::in_memory;
use tarn_types::action::{AttemptSpec, NodeReplica};
use tarn_types::event::{Event, Imaged, RunError, RunErrorKind};
use tarn_types::id::{DataId, TierRef};
use tarn_types::manifest::Manifest;
use tarn_types::object::is_object;
use tarn_types::part::{PartRef, Place, Verify};
use tarn_types::workflow::{CheckpointMethod, Distribution, Role, Step};

/// In the work folder of a step that is alone: where memory of its own is mounted.
const ALONE: &str = "alone";

/// One node of a step, made ready.
pub(crate) struct PreparedNode {
    pub(crate) work: PathBuf,
    pub(crate) scratch: PathBuf,
    /// The folders that become outputs.
    pub(crate) outs: BTreeMap<DataId, PathBuf>,
    /// The folder of its private `/tmp` and the like.
    pub(crate) tmp: Option<PathBuf>,
}

pub(crate) struct NodeSetup<'a> {
    pub(crate) shared: &'a NodeContext,
    pub(crate) step: &'a Step,
    pub(crate) run: &'a AttemptSpec,
    pub(crate) at: usize,
    pub(crate) name: String,
    pub(crate) tier_ref: TierRef,
    pub(crate) work: PathBuf,
    /// Processors that the step runs on there; none: it is not bound.
    pub(crate) cpus: Vec<u32>,
    /// The private memory that has encrypted data in clear.
    pub(crate) tmpfs: Option<&'a StepTmpfs>,
    /// The image that it resumes from.
    pub(crate) image: Option<StepImage>,
    /// Replicas that were missed.
    pub(crate) evicted: &'a mut Vec<(PartRef, TierRef)>,
}

/// Folders of this node that the step sees at other paths, where it has paths of its own.
struct ShownFolders<'a> {
    stage: Option<PathBuf>,
    tmpfs: Option<&'a StepTmpfs>,
    binds: Vec<BindMount>,
}

impl ShownFolders<'_> {
    /// Shows a folder to the step; returns the path there.
    fn show(&mut self, from: PathBuf, name: &str, writable: bool) -> PathBuf {
        let Some(stage) = &self.stage else {
            return from;
        };
        let to = stage.join(name);
        self.bind(&from, to.clone(), writable);
        to
    }

    fn bind(&mut self, from: &Path, to: PathBuf, writable: bool) {
        let from = match self.tmpfs {
            Some(tmpfs) => tmpfs.inside(from),
            None => from.to_path_buf(),
        };
        self.binds.push(BindMount { from, to, writable });
    }
}

/// The datasets of a node.
#[derive(Default)]
struct DatasetFolders {
    /// By name, as the step sees them.
    data: BTreeMap<String, PathBuf>,
    /// The folders that become outputs.
    outs: BTreeMap<DataId, PathBuf>,
}

/// The folders that one node of a step has for it, and where the step sees them.
struct PreparedFolders {
    scratch: PathBuf,
    seen_scratch: PathBuf,
    /// The datasets by name, as the step sees them.
    data: BTreeMap<String, PathBuf>,
    /// The folders that become outputs.
    outs: BTreeMap<DataId, PathBuf>,
    tmp: Option<StepPrivatePaths>,
    /// The folder in which `tmp` is made.
    made: Option<PathBuf>,
    checkpoints: Option<StepCheckpointView>,
    images: Option<StepImagePlan>,
    command: Option<Vec<OsString>>,
    partitions: Vec<SeenPartition>,
    socket: Option<PathBuf>,
    namespace: Option<provider::NamespacePlan>,
}

impl PreparedFolders {
    /// The datasets that a file system spreads over the nodes appear where its namespace does.
    fn add_namespace(&mut self, plan: &provider::NamespacePlan, spread: &[&Need<'_>]) {
        for (need, part) in spread.iter().zip(&plan.parts) {
            self.data.insert(part.name.clone(), part.to.clone());
            if part.writable {
                let brick = provider::NamespacePlan::brick(&plan.folder);
                self.outs.insert(need.data, brick.join(&part.name));
            }
        }
    }

    /// Gives images the paths at which the step sees the folders that are put into them.
    fn complete_images(&mut self) {
        let (Some(plan), Some(seen)) = (&mut self.images, &self.checkpoints) else {
            return;
        };
        plan.folder.clone_from(&seen.folder);
        for (name, folder) in &mut plan.own {
            let mut tmp = self.tmp.iter().flat_map(StepPrivatePaths::in_images);
            // Of those of everybody, where nothing else is shown in them.
            if !tmp.any(|(own, _)| own == *name) {
                folder.clone_from(self.data.get(name).unwrap_or(&self.seen_scratch));
            }
        }
        let memory = plan.alone.as_deref().map(alone::memory);
        let memory = memory.map(|folder| (alone::MEMORY.to_owned(), folder));
        plan.own.extend(memory);
    }
}

impl NodeSetup<'_> {
    /// Makes the node ready; the setup for its helper.
    pub(crate) fn make(
        mut self,
        needs: &[Need<'_>],
        hostfile: &Path,
        exec: Option<&Path>,
        control: &Control,
    ) -> Result<(PreparedNode, HelperLaunch), RunError> {
        let mut shown = ShownFolders {
            stage: match self.shared.isolation {
                StepIsolation::Group => None,
                StepIsolation::Namespaces { .. } => self.shared.stage(),
            },
            tmpfs: self.tmpfs,
            binds: Vec::new(),
        };
        let mut folders = self.make_folders(needs, &mut shown, control)?;
        let env = self.environment(&folders, hostfile, exec);
        if let (Some(own), Some(made)) = (&mut folders.tmp, &folders.made) {
            own.sees_what_it_names(self.step, &env);
            shown.bind(made, self.work.join(tmp::WITHIN), true);
        }
        let ShownFolders {
            stage, mut binds, ..
        } = shown;
        if let Some(stage) = stage.as_deref().filter(|_| self.is_plain(&folders)) {
            binds = with_outputs(binds, &self.work.join("out"), stage)?;
        }
        let on_image = match &folders.images {
            Some(_) => Some(self.image_listener()?),
            None => None,
        };
        let spec = Spec {
            isolate: self.shared.isolation,
            node: self.name.clone(),
            rename_host: self.run.nodes.len() > 1,
            locked: self.locked(),
            stage: stage.map(|folder| StepMountPoints {
                folder,
                names: mount_points(self.shared),
            }),
            binds,
            listen: exec.map(Path::to_path_buf),
            cwd: folders.seen_scratch,
            cpus: std::mem::take(&mut self.cpus),
            env,
            command: folders.command,
            shared: folders.namespace,
            tmpfs: self.tmpfs.map(StepTmpfs::mounted),
            tmp: folders.tmp,
            images: folders.images,
        };
        let meter = self.shared.meter.clone();
        let launch = HelperLaunch {
            spec,
            note: self.work.join(HELPER_NOTE),
            meter: meter.map(|meter| (meter, self.step.cores)),
            on_image,
        };
        let ready = PreparedNode {
            work: self.work,
            scratch: folders.scratch,
            outs: folders.outs,
            tmp: folders.made,
        };
        Ok((ready, launch))
    }

    /// Makes all folders that the step has on this node, and shows them to it.
    fn make_folders(
        &mut self,
        needs: &[Need<'_>],
        shown: &mut ShownFolders<'_>,
        control: &Control,
    ) -> Result<PreparedFolders, RunError> {
        // Scratch files of a step with encrypted data must not be on the tier either.
        let scratch = match self.tmpfs {
            Some(tmpfs) => tmpfs.folder("scratch"),
            None => self.work.join("scratch"),
        };
        make_folder(&scratch)?;
        let seen_scratch = shown.show(scratch.clone(), SCRATCH, true);
        let spread: Vec<&Need<'_>> = Need::spread(needs, self.shared, self.run).collect();
        let is_spread = |need: &&Need<'_>| spread.iter().any(|n| n.data == need.data);
        let beside = needs.iter().filter(|need| !is_spread(need));
        let DatasetFolders { data, outs } = self.show_datasets(beside, shown, control)?;
        let (tmp, made) = self.tmp()?;
        let in_images = (scratch.as_path(), &outs, tmp.as_ref());
        let (checkpoints, images) = self.show_checkpoints(in_images, shown, control)?;
        let command = match self.at {
            0 => {
                let show = |folder, name: &str| shown.show(folder, name, false);
                Some(command::make(self.step, &self.work, show)?)
            }
            _ => None,
        };
        let (partitions, socket) = self.show_partitions(shown)?;
        let mut folders = PreparedFolders {
            scratch,
            seen_scratch,
            data,
            outs,
            tmp,
            made,
            checkpoints,
            images,
            command,
            partitions,
            socket,
            namespace: None,
        };
        if let Some(plan) = self.namespace(&spread, shown.stage.as_deref())? {
            let folder = plan.folder.clone();
            shown.binds.push(BindMount {
                from: folder.clone(),
                to: folder,
                writable: true,
            });
            folders.add_namespace(&plan, &spread);
            folders.namespace = Some(plan);
        }
        folders.complete_images();
        Ok(folders)
    }

    /// Makes the datasets of this node, and shows them.
    fn show_datasets<'n>(
        &mut self,
        needs: impl Iterator<Item = &'n Need<'n>>,
        shown: &mut ShownFolders<'_>,
        control: &Control,
    ) -> Result<DatasetFolders, RunError> {
        let at = self.at;
        let mut folders = DatasetFolders::default();
        for need in needs.filter(|n| n.is_on(at)) {
            let writable = need.role != Role::In;
            // All nodes are this machine: they have the first one's folder.
            let is_of_first = at > 0 && need.distribution == Distribution::Shared;
            let folder = match is_of_first {
                true => self.folder_of_first(need)?,
                false => self.folder(need, control)?,
            };
            if writable && !is_of_first {
                folders.outs.insert(need.data, folder.clone());
            }
            folders.data.insert(
                need.name.to_owned(),
                shown.show(folder, need.name, writable),
            );
        }
        Ok(folders)
    }

    /// The checkpoints of a step that resumes from them, and the plan of its images, if these are such.
    fn show_checkpoints(
        &mut self,
        (scratch, outs, tmp): (&Path, &BTreeMap<DataId, PathBuf>, Option<&StepPrivatePaths>),
        shown: &mut ShownFolders<'_>,
        control: &Control,
    ) -> Result<(Option<StepCheckpointView>, Option<StepImagePlan>), RunError> {
        let Some(restart) = self.step.restart else {
            return Ok((None, None));
        };
        let kept = CheckpointFolders::new(self.shared, self.run.instance, self.tier_ref)?;
        kept.make(restart.from)?;
        let mut images = self.images(&kept.tier, scratch, (outs, tmp), control)?;
        if let (Some(plan), true) = (&mut images, restart.alone) {
            let at = self.work.join(ALONE);
            make_folder(&at)?;
            plan.alone = Some(at);
        }
        let view = StepCheckpointView {
            folder: shown.show(kept.tier, CHECKPOINTS, true),
            memory: (restart.from == CheckpointMethod::Phx).then_some(kept.memory),
            name: kept.name,
        };
        Ok((Some(view), images))
    }

    /// The partitions of the step, and the socket for those that other nodes have parts of.
    fn show_partitions(
        &self,
        shown: &mut ShownFolders<'_>,
    ) -> Result<(Vec<SeenPartition>, Option<PathBuf>), RunError> {
        let all = partitions::of(self.shared, self.run)?;
        let seen = all.iter().map(|partition| {
            let show = |folder: PathBuf, name: &str| shown.show(folder, name, true);
            partition.seen((self.shared, self.run), self.at, show)
        });
        let seen = seen.collect::<Result<Vec<_>, RunError>>()?;
        let show = |folder: PathBuf, name: &str| shown.show(folder, name, false);
        let socket = partitions::socket(&seen, &self.work, show);
        Ok((seen, socket))
    }

    fn environment(
        &self,
        folders: &PreparedFolders,
        hostfile: &Path,
        exec: Option<&Path>,
    ) -> Vec<(OsString, OsString)> {
        let is_imaged = folders.images.is_some();
        let paths = Paths {
            checkpoints: folders.checkpoints.as_ref().filter(|_| !is_imaged),
            partitions: &folders.partitions,
            socket: folders.socket.as_deref(),
            data: &folders.data,
            scratch: &folders.seen_scratch,
            hostfile,
            exec,
        };
        env::environment(self.shared, self.step, self.run, &self.name, &paths)
    }

    /// Whether the folder of its outputs is all that it writes its datasets to.
    fn is_plain(&self, folders: &PreparedFolders) -> bool {
        let is_elsewhere = folders.images.is_some() || folders.namespace.is_some();
        self.run.nodes.len() == 1 && self.tmpfs.is_none() && !is_elsewhere
    }

    /// The step's private `/tmp` and the like, and their folder. Of a step with encrypted data they must not be on the tier
    /// either.
    fn tmp(&self) -> Result<(Option<StepPrivatePaths>, Option<PathBuf>), RunError> {
        if self.step.shared_tmp || self.shared.isolation == StepIsolation::Group {
            return Ok((None, None));
        }
        let within = self.work.join(tmp::WITHIN);
        make_folder(&within)?;
        let made = match self.tmpfs {
            Some(tmpfs) => tmpfs.folder(tmp::WITHIN),
            None => within.clone(),
        };
        let shared = self.shared;
        let tiers = shared.own_tiers();
        let mut named: Vec<PathBuf> = tiers
            .map(|(_, _, t)| t.root.join(&shared.workspace))
            .collect();
        let workflow = &shared.workflow;
        let data = workflow.data.iter();
        let places = data.flat_map(|d| [d.source.clone(), d.dest.clone()]);
        named.extend(places.chain([workflow.external.clone()]).flatten());
        named.extend([workflow.folder.clone(), shared.state.0.clone()]);
        named.extend([tmp::folder_of(shared.helper.clone()), own_memory()]);
        named.extend(tmp::by_name());
        let images = self
            .step
            .restart
            .is_some_and(|r| r.from == CheckpointMethod::Image);
        if let (true, Some(Ok(criu))) = (images, &shared.imaging) {
            named.push(tmp::folder_of(criu.program.clone()));
        }
        named.retain(|path| !is_object(path));
        // Shared memory of processes is in no image, except of a step that is alone, which handles that itself.
        let own = StepPrivatePaths::new(&within, !images, named);
        own.make(&made)
            .map_err(|e| io_failure("make the folders in", &made, &e))?;
        Ok((Some(own), Some(made)))
    }

    /// Images of a step of this kind: its own folders become what they were in the one that it resumes from.
    fn images(
        &mut self,
        folder: &Path,
        scratch: &Path,
        (outs, tmp): (&BTreeMap<DataId, PathBuf>, Option<&StepPrivatePaths>),
        control: &Control,
    ) -> Result<Option<StepImagePlan>, RunError> {
        let every = self.step.restart.and_then(|r| r.every);
        let (Some(every), Some(criu)) = (every, &self.shared.imaging) else {
            return Ok(None);
        };
        let criu = criu.clone().map_err(|why| {
            let message = format!("no images can be taken of its processes: {why}");
            failure(RunErrorKind::Launch, message)
        })?;
        let mut own = vec![(SCRATCH.to_owned(), scratch.to_path_buf())];
        for (data, folder) in outs {
            own.push((self.shared.dataset(*data)?.name.clone(), folder.clone()));
        }
        own.extend(tmp.into_iter().flat_map(StepPrivatePaths::in_images));
        let from = self.image.take();
        if let Some(image) = &from {
            for (name, to) in &own {
                image::put_back(&*self.shared.mover, folder, image, name, to, control)?;
            }
        }
        Ok(Some(StepImagePlan {
            criu,
            every,
            folder: folder.to_path_buf(),
            attempt: self.run.attempt,
            own,
            sync: !in_memory(folder),
            from,
            alone: None,
        }))
    }

    /// The listener that reports images to the engine; it also lists the files of an image that other nodes are to copy.
    fn image_listener(&self) -> Result<ImageListener, RunError> {
        let deliveries = self.shared.deliveries.clone();
        let (instance, attempt) = (self.run.instance, self.run.attempt);
        let lists = match self.step.restart.is_some_and(|r| r.buddy) {
            true => Some(Lists::of(
                self.shared,
                &CheckpointFolders::new(self.shared, instance, self.tier_ref)?,
            )),
            false => None,
        };
        Ok(Box::new(move |what| {
            if let (Some(lists), Imaged::Taken { id, .. }) = (&lists, &what)
                && let Err(f) = lists.add(*id)
            {
                // Then it cannot be copied, and the copy's failure gives the reason.
                warn(&f.message);
            }
            // Nobody waits for it once the world is being dropped.
            let _ = deliveries.send(NodeLoopEvent::Notification(Event::Image {
                instance,
                attempt,
                what,
            }));
        }))
    }

    /// The workspace's folder on every tier root: inside a step all of it is read-only but what is its own.
    fn locked(&self) -> Vec<PathBuf> {
        if self.shared.isolation == StepIsolation::Group {
            return Vec::new();
        }
        let tiers = self.shared.own_tiers();
        let folders: BTreeSet<PathBuf> = tiers
            .map(|(_, _, t)| t.root.join(&self.shared.workspace))
            .collect();
        folders.into_iter().filter(|f| is_folder(f)).collect()
    }

    /// The namespace that the nodes have together, if a dataset is in it.
    fn namespace(
        &mut self,
        spread: &[&Need<'_>],
        stage: Option<&Path>,
    ) -> Result<Option<provider::NamespacePlan>, RunError> {
        let (false, Some(stage)) = (spread.is_empty(), stage) else {
            return Ok(None);
        };
        self.shared
            .one_namespace
            .clone()
            .map_err(|why| failure(RunErrorKind::Launch, why.to_string()))?;
        let folder = self.work.join(provider::FOLDER);
        make_folder(&folder)?;
        let mut parts = Vec::with_capacity(spread.len());
        for need in spread {
            let mut from = Vec::new();
            let held = need.held.first().filter(|_| self.at == 0);
            for held in held.into_iter().flatten() {
                let manifest = self.shared.manifest_file(&held.key);
                from.push((self.existing_replica(held)?, manifest));
            }
            parts.push(NamespaceDataset {
                name: need.name.to_owned(),
                to: stage.join(need.name),
                writable: need.role != Role::In,
                from,
            });
        }
        Ok(Some(provider::NamespacePlan {
            folder,
            node: self.name.clone(),
            first: self.at == 0,
            parts,
            at: None,
        }))
    }

    /// The folder in which the first node finds a dataset: that is made ready before.
    fn folder_of_first(&self, need: &Need<'_>) -> Result<PathBuf, RunError> {
        let Some(first) = self.run.nodes.first() else {
            return Err(failure(RunErrorKind::Launch, "it was given no node"));
        };
        let held = need.held.first().map_or(&[][..], Vec::as_slice);
        match (need.role, held) {
            (Role::In, [only]) => self.shared.replica(only.tier_ref, &only.key),
            (role, _) => {
                let kind = if role == Role::In { "in" } else { "out" };
                let work = self.shared.work_folder(self.run, *first)?;
                Ok(work.join(kind).join(need.name))
            }
        }
    }

    /// The folder in which this node finds a dataset.
    fn folder(&mut self, need: &Need<'_>, control: &Control) -> Result<PathBuf, RunError> {
        let held = need.held.get(self.at).map_or(&[][..], Vec::as_slice);
        if let Some(tmpfs) = self.tmpfs
            && self.shared.dataset(need.data)?.encrypt
        {
            return self.opened(need, held, tmpfs, control);
        }
        if let (Role::In, [only]) = (need.role, held) {
            return self.existing_replica(only);
        }
        let (kind, role) = match need.role {
            Role::In => ("in", Role::In),
            other => ("out", other),
        };
        let folder = self.work.join(kind).join(need.name);
        make_folder(&self.work.join(kind))?;
        if held.is_empty() || role == Role::Out {
            make_folder(&folder)?;
            return Ok(folder);
        }
        let roots = held
            .iter()
            .map(|h| Ok((self.existing_replica(h)?, self.shared.manifest(&h.key)?)))
            .collect::<Result<Vec<(PathBuf, Manifest)>, RunError>>()?;
        let made = match role {
            Role::In => self.shared.mover.link_view(&roots, &folder),
            _ => self
                .shared
                .mover
                .clone_view(&roots, &folder, control)
                .map(drop),
        };
        made.map_err(|MoverError { failure: f, .. }| RunError {
            message: format!(
                "the view of `{}` for this step cannot be made: {}",
                need.name, f.message
            ),
            ..f
        })?;
        Ok(folder)
    }

    /// An encrypted dataset in clear, in the step's private memory.
    fn opened(
        &mut self,
        need: &Need<'_>,
        held: &[&NodeReplica],
        tmpfs: &StepTmpfs,
        control: &Control,
    ) -> Result<PathBuf, RunError> {
        let kind = match need.role {
            Role::In => "in",
            _ => "out",
        };
        let above = tmpfs.folder(kind);
        let folder = above.join(need.name);
        make_folder(&above)?;
        if held.is_empty() || need.role == Role::Out {
            make_folder(&folder)?;
            return Ok(folder);
        }
        let source = |h: &&NodeReplica| {
            Ok(CopySource {
                manifest: Some(self.shared.manifest(&h.key)?),
                sealed: self.shared.key(need.data, &h.key)?,
                ..CopySource::of(self.existing_replica(h)?)
            })
        };
        let sources = held.iter().map(source).collect::<Result<_, RunError>>()?;
        let job = CopyJob {
            sources,
            dest: folder.clone(),
            staging: tmpfs.folder("opening"),
            replace: false,
            // A damaged sealed piece does not open; one that opens need not be hashed too.
            verify: Verify::None,
            sync: false,
            rate: 0,
            latency: 0,
            arrivals: None,
            seal: None,
        };
        let copied = self.shared.mover.copy(&job, control);
        // The keys are given back: that of a damaged replica can be forgotten.
        drop(job);
        copied.map_err(
            |MoverError {
                 failure: f, tree, ..
             }| {
                if let (RunErrorKind::Corrupt, Some(held)) =
                    (f.kind, tree.and_then(|at| held.get(at)))
                {
                    self.give_up(held);
                }
                RunError {
                    message: format!("its input `{}` cannot be opened: {}", need.name, f.message),
                    ..f
                }
            },
        )?;
        Ok(folder)
    }

    /// A damaged replica goes; the engine gets an event, and fetches or makes the part again.
    fn give_up(&mut self, held: &NodeReplica) {
        self.shared
            .take_back(&Place::Node(held.tier_ref), &held.key);
        self.evicted.push((held.part, held.tier_ref));
    }

    /// A replica's folder; when it is gone, the engine gets an event, so that it makes or fetches the part again.
    fn existing_replica(&mut self, held: &NodeReplica) -> Result<PathBuf, RunError> {
        let path = self.shared.replica(held.tier_ref, &held.key)?;
        if is_folder(&path) {
            return Ok(path);
        }
        if !self.shared.leave_to_others(held.tier_ref, &held.key) {
            self.shared.ledgers.left(held.tier_ref, &held.key);
        }
        self.evicted.push((held.part, held.tier_ref));
        Err(failure(
            RunErrorKind::Corrupt,
            format!(
                "the replica {} has been removed by somebody; it will be fetched or made again",
                path.display()
            ),
        ))
    }
}

/// Shows the folder of the outputs as a whole where the datasets are, and what else is seen there in it: so a step may remove the folder of an
/// output and make it again, as no mount point can be.
fn with_outputs(
    binds: Vec<BindMount>,
    out: &Path,
    stage: &Path,
) -> Result<Vec<BindMount>, RunError> {
    let whole = BindMount {
        from: out.to_path_buf(),
        to: stage.to_path_buf(),
        writable: true,
    };
    let mut all = vec![whole];
    make_folder(out)?;
    for bind in binds {
        let at = bind.to.strip_prefix(stage).map(|name| out.join(name));
        match at {
            Ok(at) if at == bind.from => continue,
            Ok(at) => make_folder(&at)?,
            Err(_) => {}
        }
        all.push(bind);
    }
    Ok(all)
}

/// The log of an attempt, opened for appending.
pub(crate) fn open_log(path: &Path) -> Result<File, RunError> {
    path.parent().map_or(Ok(()), make_folder)?;
    let mut options = OpenOptions::new();
    options
        .create(true)
        .append(true)
        .open(path)
        .map_err(|e| io_failure("open the log", path, &e))
}
