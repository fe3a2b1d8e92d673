//! Copies of images on other nodes: the node that is to have one pulls it.

use super::kept::published;
use super::{CONTENT, MANIFEST};
use crate::storage::checkpoint_folders::CheckpointFolders;
use crate::storage::data_context::DataContext;
use crate::storage::run_facts::RunFacts;
use crate::storage::store::{
    failure, io_failure, make_folder, read_manifest, stored_estimate, warn,
};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tarn_ports::{Control, CopyJob, CopySource, Mover};
use tarn_sys::memory::in_memory;
use tarn_types::checkpoint::CheckpointId;
use tarn_types::event::{Event, Imaged, RunError, RunErrorKind};
use tarn_types::id::{InstanceId, TierRef};
use tarn_types::part::{StoreKey, Verify};

/// A copy that is being made, beside the images.
const COPYING: &str = ".copying";
/// In that: where the content grows.
const INCOMING: &str = "incoming";

/// An image that is to be copied to an own node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ImageCopy {
    pub(crate) instance: InstanceId,
    pub(crate) attempt: u32,
    pub(crate) image: CheckpointId,
    pub(crate) from: TierRef,
    pub(crate) to: TierRef,
}

/// The lists of files of the newest images of an instance, in the state folder, which all nodes see.
pub(crate) struct Lists {
    folder: PathBuf,
    /// The folder in which the images are taken.
    images: PathBuf,
}

impl Lists {
    pub(crate) fn of(shared: &RunFacts, kept: &CheckpointFolders) -> Self {
        Self {
            folder: lists(shared, kept.instance()),
            images: kept.tier.clone(),
        }
    }

    /// Copies the list of an image that was taken there.
    pub(crate) fn add(&self, image: CheckpointId) -> Result<(), RunError> {
        make_folder(&self.folder)?;
        // The one before may be being copied.
        for (_, older) in published(&self.folder).iter().rev().skip(1) {
            std::fs::remove_file(older).map_err(|e| io_failure("remove", older, &e))?;
        }
        let from = self.images.join(image.to_string()).join(MANIFEST);
        let (to, new) = (
            self.folder.join(image.to_string()),
            self.folder.join(".new"),
        );
        let copied = std::fs::copy(&from, &new).and_then(|_| std::fs::rename(&new, &to));
        copied.map_err(|e| io_failure("write", &to, &e))
    }
}

fn lists(shared: &RunFacts, instance: &str) -> PathBuf {
    let run = shared.state.run(&shared.run);
    run.join("images").join(instance)
}

/// The lists of an instance's images go.
pub(crate) fn unlist(shared: &DataContext, kept: &CheckpointFolders) {
    let folder = lists(shared, kept.instance());
    if let Err(e) = shared.mover.remove(&folder) {
        warn(&e.failure.message);
    }
}

impl ImageCopy {
    /// Carries it out; the event to report.
    pub(crate) fn run(&self, shared: &DataContext, control: &Control) -> Event {
        let began = Instant::now();
        let what = match self.copied(shared, control) {
            Ok(()) => Imaged::Copied {
                id: self.image,
                at: self.to,
                took: u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX),
            },
            Err(f) => return self.failed(f.message),
        };
        self.image_event(what)
    }

    pub(crate) fn failed(&self, why: String) -> Event {
        self.image_event(Imaged::NotCopied {
            id: self.image,
            at: self.to,
            why,
        })
    }

    fn image_event(&self, what: Imaged) -> Event {
        Event::Image {
            instance: self.instance,
            attempt: self.attempt,
            what,
        }
    }

    fn copied(&self, shared: &DataContext, control: &Control) -> Result<(), RunError> {
        let kept = CheckpointFolders::new(shared, self.instance, self.to)?;
        let coming = kept.tier.join(COPYING);
        let copied = self.copy(shared, &kept, &coming, control);
        if copied.is_ok() {
            kept.account(shared, self.to);
            if let Ok(mut all) = shared.copied.lock() {
                all.insert(self.instance, self.image);
            }
            return copied;
        }
        if let Err(e) = shared.mover.remove(&coming) {
            warn(&e.failure.message);
        }
        if control.cancelled() {
            // Nobody looks there any more.
            let _ = std::fs::remove_dir(&kept.tier);
        }
        copied
    }

    fn copy(
        &self,
        shared: &DataContext,
        kept: &CheckpointFolders,
        coming: &Path,
        control: &Control,
    ) -> Result<(), RunError> {
        let mover = &*shared.mover;
        let listed = lists(shared, kept.instance()).join(self.image.to_string());
        let manifest = read_manifest(&listed)?;
        make_folder(&kept.tier)?;
        mover.remove(coming)?;
        // The newest stays until this one is whole.
        for (_, older) in published(&kept.tier).iter().rev().skip(1) {
            mover.remove(older)?;
        }
        // Nobody is kept waiting for a copy.
        let claim = shared.reserve(self.to, stored_estimate(&manifest), &|| true);
        let _claim = claim.map_err(|f| match f.kind {
            RunErrorKind::Cancelled => failure(
                RunErrorKind::NoSpace,
                "other runs use the space on that node's tier",
            ),
            _ => f,
        })?;
        make_folder(coming)?;
        let sync = !in_memory(&kept.tier);
        let job = CopyJob {
            sources: vec![CopySource {
                manifest: Some(manifest.clone()),
                ..self.source(shared, kept)?
            }],
            dest: coming.join(CONTENT),
            staging: coming.join(INCOMING),
            replace: false,
            verify: Verify::Copy,
            sync,
            rate: 0,
            latency: 0,
            arrivals: None,
            seal: None,
        };
        mover.copy(&job, control)?;
        let list = coming.join(MANIFEST);
        std::fs::write(&list, manifest.encode()).map_err(|e| io_failure("write", &list, &e))?;
        publish(mover, coming, &kept.tier, self.image, sync)
    }

    fn source(
        &self,
        shared: &DataContext,
        kept: &CheckpointFolders,
    ) -> Result<CopySource, RunError> {
        if shared.own.has(self.from.node) {
            let there = CheckpointFolders::new(shared, self.instance, self.from)?.tier;
            return Ok(CopySource::of(
                there.join(self.image.to_string()).join(CONTENT),
            ));
        }
        let peers = shared.peers.as_ref().ok_or_else(|| {
            let why = format!("node {} cannot be reached from here", self.from.node);
            failure(RunErrorKind::Io, why)
        })?;
        let name = StoreKey(format!("{}/{}", kept.instance(), self.image));
        Ok(CopySource {
            peer: Some(peers.tree(self.from, &name)?),
            ..CopySource::of(PathBuf::new())
        })
    }
}

/// The folder with the content of an image that a peer names by its instance and its id; `None` if these are no valid names.
pub fn content(run: &Path, instance: &str, image: &str) -> Option<PathBuf> {
    let (generation, number) = image.split_once('.')?;
    let id = CheckpointId {
        generation: generation.parse().ok()?,
        number: number.parse().ok()?,
    };
    // One component, in no other spelling: it leads nowhere else.
    let is_one = Path::new(instance).file_name() == Some(instance.as_ref());
    let is_plain = is_one && id.to_string() == image;
    is_plain.then(|| run.join(instance).join(image).join(CONTENT))
}

fn publish(
    mover: &dyn Mover,
    coming: &Path,
    folder: &Path,
    image: CheckpointId,
    sync: bool,
) -> Result<(), RunError> {
    let io = |e: std::io::Error| io_failure("publish", coming, &e);
    if sync {
        File::open(coming.join(MANIFEST))
            .and_then(|f| f.sync_all())
            .map_err(io)?;
        File::open(coming).and_then(|f| f.sync_all()).map_err(io)?;
    }
    let whole = folder.join(image.to_string());
    // It can be there only from a copy whose end was not recorded.
    mover.remove(&whole)?;
    std::fs::rename(coming, &whole).map_err(io)?;
    if sync {
        File::open(folder).and_then(|f| f.sync_all()).map_err(io)?;
    }
    Ok(())
}
