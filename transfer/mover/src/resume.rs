//! The content that an interrupted copy left in its staging folder: proven by hashing it again, or removed.

use crate::content::{self, CHUNK, ChunkHash, ChunkHasher, PIECE};
use crate::error::{ErrorSide, Result, cancelled, failed, show_path};
use crate::file_io::read_full;
use crate::meta::FileStatus;
use crate::progress::{self, Earlier, FileCopyRecord};
use crate::queue::lock;
use crate::remove::{remove, sweep};
use crate::sealed_file::{self, BUFFER, SealedReadError};
use rustix::fs::{FileType, Mode, OFlags, fchmod, openat};
use rustix::io::Errno;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tarn_ports::Control;
use tarn_seal::file::FileCipher;
use tarn_sys::beneath::{Root, split};
use tarn_types::key::DataKey;

/// Makes an empty staging folder, or finds the intact files in an existing one. All others are removed.
pub(crate) fn prepare(
    staging: &Path,
    seal: Option<&DataKey>,
    control: &Control,
    threads: usize,
) -> Result<Earlier> {
    let error = |e: std::io::Error| {
        let errno = Errno::from_io_error(&e).unwrap_or(Errno::IO);
        failed(ErrorSide::Dest, "create", &show_path(staging), errno)
    };
    if let Some(above) = staging.parent() {
        std::fs::create_dir_all(above).map_err(error)?;
    }
    match std::fs::create_dir(staging) {
        Ok(()) => {
            remove(&progress::path_of(staging))?;
            return Ok(Earlier::new());
        }
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(error(e)),
    }
    let root =
        Root::open(staging).map_err(|e| failed(ErrorSide::Dest, "open", &show_path(staging), e))?;
    let earlier = prove(&root, progress::read(staging), seal, control, threads)?;
    let kept: HashSet<&[u8]> = earlier.keys().map(|(_, path)| &**path).collect();
    // Kept files may need their folders; superfluous folders are removed once everything has arrived.
    sweep(&root, |path, folder| {
        folder && !kept.is_empty() || kept.contains(path)
    })?;
    Ok(earlier)
}

/// Forgets everything that was copied.
pub(crate) fn discard(staging: &Path) -> Result<()> {
    remove(staging)?;
    remove(&progress::path_of(staging))
}

/// Those chunks of the list that really are in the staging folder.
fn prove(
    root: &Root,
    listed: Earlier,
    seal: Option<&DataKey>,
    control: &Control,
    threads: usize,
) -> Result<Earlier> {
    let listed: Vec<_> = listed.into_iter().collect();
    let next = AtomicUsize::new(0);
    let proven = Mutex::new(Earlier::new());
    let work = || {
        let mut buffer = vec![0; BUFFER];
        while let Some((key, copied)) = listed.get(next.fetch_add(1, Ordering::Relaxed)) {
            if control.cancelled() {
                return;
            }
            if let Ok(Some(intact)) = prove_file(root, &key.1, copied, seal, &mut buffer) {
                lock(&proven).insert(key.clone(), intact);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    if control.cancelled() {
        return Err(cancelled());
    }
    Ok(proven
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner))
}

fn prove_file(
    root: &Root,
    path: &[u8],
    copied: &FileCopyRecord,
    seal: Option<&DataKey>,
    buffer: &mut [u8],
) -> std::result::Result<Option<FileCopyRecord>, Errno> {
    let (above, name) = split(path);
    let folder = root.folder(above)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = openat(folder, name, flags, Mode::empty())?;
    let status = FileStatus::of(&fd)?;
    let size = copied.size();
    let sealed = seal.and_then(|key| Some((key, tarn_seal::file::sealed_len(size)?)));
    if status.kind != FileType::RegularFile || status.size != sealed.map_or(size, |(_, len)| len) {
        return Ok(None);
    }
    let cipher = match sealed.map(|(key, len)| sealed_file::open(key, &fd, len)) {
        None => None,
        Some(Ok(cipher)) => Some(cipher),
        Some(Err(_)) => return Ok(None),
    };
    // It will be opened for writing; its own mode comes last.
    fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
    let mut intact = FileCopyRecord {
        identity: copied.identity,
        ..copied.clone()
    };
    for (&at, hash) in &copied.chunks {
        if chunk_at(&fd, cipher.as_ref(), size, at, buffer)? != Some(*hash) {
            intact.chunks.remove(&at);
        }
    }
    let some = !intact.chunks.is_empty() || size == 0;
    Ok(some.then_some(intact))
}

fn chunk_at(
    fd: impl rustix::fd::AsFd,
    cipher: Option<&FileCipher>,
    size: u64,
    at: u64,
    buffer: &mut [u8],
) -> std::result::Result<Option<ChunkHash>, Errno> {
    let mut hasher = ChunkHasher::new();
    let (start, len) = (at * CHUNK as u64, content::chunk_len(size, at));
    for offset in (0..len).step_by(PIECE) {
        let piece = PIECE.min(len - offset);
        let got = match cipher {
            None => read_full(&fd, &mut buffer[..piece], start + offset as u64)?,
            Some(cipher) => {
                match sealed_file::read(&fd, cipher, (start + offset as u64) / PIECE as u64, buffer)
                {
                    Ok(got) => got,
                    // Not written yet, or not as it was.
                    Err(SealedReadError::Seal(_)) => return Ok(None),
                    Err(SealedReadError::Io(errno)) => return Err(errno),
                }
            }
        };
        hasher.update(&buffer[..got]);
    }
    Ok(Some(hasher.finish()))
}
