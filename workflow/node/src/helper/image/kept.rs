//! The images of a step on the tier of its node: which are whole.

use super::{ABOUT, CONTENT, FORMATS, MANIFEST, OWN, StepImage};
use crate::storage::store::{io_failure, read_manifest, warn};
use rustix::fs::{AtFlags, CWD, FileType, Mode, chmodat, mknodat};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use tarn_ports::{Control, CopyJob, CopySource, Mover};
use tarn_types::checkpoint::{Checkpoint, CheckpointId};
use tarn_types::event::{RunError, RunErrorKind};
use tarn_types::part::Verify;

/// Images in a folder, the oldest first: those that were published.
pub(super) fn published(folder: &Path) -> Vec<(CheckpointId, PathBuf)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let id = |name: &str| {
        let (generation, number) = name.split_once('.')?;
        let (generation, number) = (generation.parse().ok()?, number.parse().ok()?);
        Some(CheckpointId { generation, number })
    };
    let named = entries.filter_map(|e| Some((id(e.file_name().to_str()?)?, e.path())));
    let mut all: Vec<_> = named.collect();
    all.sort();
    all
}

/// As checkpoints of a program of one rank.
pub(crate) fn whole(folder: &Path) -> Vec<Checkpoint> {
    let all = published(folder).into_iter();
    all.map(|(id, _)| Checkpoint {
        program: "image".into(),
        id,
        start: 0,
        ranks: 1,
        here: [0].into(),
    })
    .collect()
}

/// The newest image whose bytes match their hashes. A damaged one is removed, and `lost` gets the reason.
pub(crate) fn choose(
    mover: &dyn Mover,
    folder: &Path,
    control: &Control,
    lost: impl Fn(CheckpointId, String),
) -> Result<Option<StepImage>, RunError> {
    for (id, path) in published(folder).into_iter().rev() {
        match read(mover, &path, id, control) {
            Ok(image) => return Ok(Some(image)),
            Err(f) if f.kind == RunErrorKind::Cancelled => return Err(f),
            Err(f) => {
                discard(mover, folder, id);
                lost(id, f.message);
            }
        }
    }
    Ok(None)
}

fn read(
    mover: &dyn Mover,
    path: &Path,
    id: CheckpointId,
    control: &Control,
) -> Result<StepImage, RunError> {
    let content = path.join(CONTENT);
    let manifest = read_manifest(&path.join(MANIFEST))?;
    mover.verify(&content, &manifest, control)?;
    let about = content.join(ABOUT);
    let text = std::fs::read(&about).map_err(|e| io_failure("read", &about, &e))?;
    let image: Result<StepImage, _> = serde_json::from_slice(&text);
    match image {
        Ok(image) if FORMATS.contains(&image.format) && image.id == id => Ok(image),
        _ => Err(crate::storage::store::failure(
            RunErrorKind::Corrupt,
            format!(
                "{} is not what this version of tarn writes",
                about.display()
            ),
        )),
    }
}

/// Removes an image; the next clean-up removes what is left of it.
pub(crate) fn discard(mover: &dyn Mover, folder: &Path, id: CheckpointId) {
    if let Err(e) = mover.remove(&folder.join(id.to_string())) {
        warn(&e.failure.message);
    }
}

/// Puts the copy of a folder that is in an image where a step is to find it.
pub(crate) fn put_back(
    mover: &dyn Mover,
    folder: &Path,
    image: &StepImage,
    name: &str,
    to: &Path,
    control: &Control,
) -> Result<(), RunError> {
    let content = folder.join(image.id.to_string()).join(CONTENT);
    mover.remove(to)?;
    clone(mover, &content.join(OWN).join(name), to, control)?;
    for pipe in image.pipes.iter().filter(|p| p.of == name) {
        let at = to.join(&pipe.path);
        let mode = Mode::from_raw_mode(pipe.mode);
        let made = mknodat(CWD, &at, FileType::Fifo, mode, 0);
        // Gives the mode bits that the mask of this process has taken away.
        made.and_then(|()| chmodat(CWD, &at, mode, AtFlags::empty()))
            .map_err(|e| io_failure("make the pipe", &at, &e.into()))?;
    }
    Ok(())
}

/// A copy that shares its blocks where the file system can, without named pipes, which are returned, and sockets, which CRIU
/// makes.
pub(super) fn clone(
    mover: &dyn Mover,
    from: &Path,
    to: &Path,
    control: &Control,
) -> Result<Vec<(PathBuf, u32)>, RunError> {
    let (others, pipes, sockets) = kinds(from).map_err(|e| io_failure("list", from, &e))?;
    if pipes.is_empty() && !sockets {
        let listed = mover.list(from, control)?;
        mover.clone_view(&[(from.to_path_buf(), listed)], to, control)?;
        return Ok(pipes);
    }
    let mut staging = to.as_os_str().to_os_string();
    staging.push(".cloning");
    let source = CopySource {
        only: Some(others),
        ..CopySource::of(from)
    };
    let job = CopyJob {
        sources: vec![source],
        dest: to.to_path_buf(),
        staging: staging.into(),
        replace: false,
        verify: Verify::None,
        sync: false,
        rate: 0,
        latency: 0,
        arrivals: None,
        seal: None,
    };
    mover.copy(&job, control)?;
    Ok(pipes)
}

/// Lists what is in a folder and a copy can have, the pipes with their modes, and whether there are sockets.
type Kinds = (Vec<Box<[u8]>>, Vec<(PathBuf, u32)>, bool);

fn kinds(root: &Path) -> io::Result<Kinds> {
    let (mut others, mut pipes, mut sockets) = (Vec::new(), Vec::new(), false);
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            let below = path.strip_prefix(root).unwrap_or(&path);
            if kind.is_fifo() {
                let mode = entry.metadata()?.mode() & 0o7777;
                pipes.push((below.to_path_buf(), mode));
            } else if kind.is_socket() {
                sockets = true;
            } else {
                others.push(below.as_os_str().as_bytes().into());
            }
            if kind.is_dir() {
                folders.push(path);
            }
        }
    }
    Ok((others, pipes, sockets))
}
