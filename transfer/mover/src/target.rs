//! The destination of a copy: the staging folder that grows, and the abilities of its file system.

use crate::error::{ErrorSide, Result, failed, show_in, show_path};
use crate::meta::{FileStatus, set_mode_and_time, set_xattrs};
use crate::progress::{CopyProgressLog, Earlier, FileCopyRecord, SourceFileIdentity};
use crate::source_file::OpenSourceFile;
use crate::throttle::Limiter;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, fstatvfs, mkdirat, openat, statat};
use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tarn_ports::{Arrivals, MoverError};
use tarn_sys::beneath::Root;
use tarn_types::event::RunErrorKind;
use tarn_types::key::DataKey;
use tarn_types::manifest::Xattr;
use tarn_types::part::Verify;
use tarn_types::units::Bytes;

/// The permissions of a folder while it is being filled: its own are set at the end.
const FILLING: Mode = Mode::RWXU;

/// The destination.
pub(crate) struct CopyTarget {
    /// The staging folder.
    pub(crate) root: Root,
    /// The permission bits that creation really gives: those that the umask or a default ACL leaves.
    granted: u32,
    pub(crate) verify: Verify,
    /// Whether it will be synced.
    pub(crate) sync: bool,
    pub(crate) limiter: Option<Arc<Limiter>>,
    pub(crate) progress: CopyProgressLog,
    /// The files that an earlier attempt left, proven intact.
    pub(crate) earlier: Earlier,
    /// Bytes of all that is copied, where that is known beforehand: for the message when they do not fit.
    whole: Option<u64>,
    /// The recipient of reports about arrived content.
    pub(crate) arrivals: Option<Arc<dyn Arrivals>>,
    /// The key that its files are sealed with.
    pub(crate) seal: Option<Arc<DataKey>>,
    /// Whether extended attributes were lost.
    pub(crate) lost_xattrs: AtomicBool,
    /// Whether something unexpected stood where an entry was to be made: another source's, or a leftover.
    pub(crate) clash: Arc<AtomicBool>,
}

/// A file of the destination, not finished yet.
pub(crate) enum Created {
    /// Ours to fill.
    New(OwnedFd),
    /// Another tree has put something there.
    Taken,
}

impl CopyTarget {
    pub(crate) fn new(
        staging: &Path,
        verify: Verify,
        sync: bool,
        limiter: Option<Arc<Limiter>>,
        earlier: Earlier,
        whole: Option<u64>,
    ) -> Result<Self> {
        let root = Root::open(staging)
            .map_err(|e| failed(ErrorSide::Dest, "open", &show_path(staging), e))?;
        Ok(Self {
            granted: granted(&root),
            root,
            verify,
            sync: sync || verify == Verify::Readback,
            limiter,
            progress: CopyProgressLog::open(staging)?,
            earlier,
            whole,
            arrivals: None,
            seal: None,
            lost_xattrs: AtomicBool::new(false),
            clash: Arc::default(),
        })
    }

    /// A path of the destination, for a message.
    pub(crate) fn show(&self, path: &[u8]) -> String {
        show_in(&self.root.path, path)
    }

    /// An error of writing `path`; for a full disk with its figures.
    pub(crate) fn failed(&self, doing: &str, path: &[u8], errno: Errno) -> MoverError {
        if !matches!(errno, Errno::NOSPC | Errno::DQUOT) {
            return failed(ErrorSide::Dest, doing, &self.show(path), errno);
        }
        let free = fstatvfs(&self.root).map_or(0, |s| s.f_bavail.saturating_mul(s.f_frsize));
        let whole = self.whole.map_or(String::new(), |whole| {
            format!(", the whole copy has {}", Bytes(whole))
        });
        let why = match errno {
            Errno::DQUOT => "the quota is used up",
            _ => "the file system is full",
        };
        MoverError::new(
            RunErrorKind::NoSpace,
            format!(
                "no space for `{}`: {why}; {} are free in `{}`{whole}; free space there, or choose a place with more",
                self.show(path),
                Bytes(free),
                show_path(&self.root.path)
            ),
        )
    }

    /// The part of this very file that an earlier attempt copied.
    pub(crate) fn copied(&self, source: &OpenSourceFile) -> Option<&FileCopyRecord> {
        if self.earlier.is_empty() {
            return None;
        }
        let copied = self.earlier.get(&(source.tree, source.path.clone()))?;
        (copied.identity == SourceFileIdentity::from(&source.status)).then_some(copied)
    }

    /// Makes a folder; one that is there already (from another tree, or an earlier attempt) is as good.
    pub(crate) fn make_folder(
        &self,
        holder: BorrowedFd<'_>,
        name: &[u8],
        path: &[u8],
    ) -> Result<()> {
        match mkdirat(holder, name, FILLING) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => {
                let there = statat(holder, name, AtFlags::SYMLINK_NOFOLLOW).map(FileStatus::from);
                let there = there.map_err(|e| self.failed("examine", path, e))?;
                if there.kind == rustix::fs::FileType::Directory {
                    return Ok(());
                }
                self.clash.store(true, Ordering::Relaxed);
                Err(MoverError::new(
                    RunErrorKind::Conflict,
                    format!(
                        "`{}` is a folder in one source and something else in another; make the steps write different names",
                        crate::error::show(path)
                    ),
                ))
            }
            Err(errno) => Err(self.failed("create the folder", path, errno)),
        }
    }

    /// Creates a file. When its final mode cannot be given at once, `set_mode` of [`CopyTarget::finish`] is needed.
    pub(crate) fn create(
        &self,
        holder: BorrowedFd<'_>,
        name: &[u8],
        path: &[u8],
        mode: u32,
    ) -> Result<Created> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(holder, name, flags, Mode::from_raw_mode(mode as _)) {
            Ok(fd) => Ok(Created::New(fd)),
            Err(Errno::EXIST) => Ok(Created::Taken),
            Err(errno) => Err(self.failed("create", path, errno)),
        }
    }

    /// Whether a file can be created with its final mode: nothing masks it, writing does not clear it, and no
    /// attribute must be set on a file that its owner may not write.
    pub(crate) fn mode_at_once(&self, mode: u32, xattrs: &[Xattr]) -> bool {
        mode & !self.granted == 0 && mode & 0o7000 == 0 && xattrs.is_empty()
    }

    /// Sets what comes after the content: attributes, mode, time.
    pub(crate) fn finish(
        &self,
        fd: impl AsFd,
        path: &[u8],
        meta: &FileStatus,
        xattrs: &[Xattr],
        set_mode: bool,
    ) -> Result<()> {
        let error = |e| self.failed("set the attributes of", path, e);
        if !xattrs.is_empty() && !set_xattrs(&fd, xattrs).map_err(error)? {
            self.lost_xattrs.store(true, Ordering::Relaxed);
        }
        set_mode_and_time(&fd, set_mode.then_some(meta.mode), meta.mtime).map_err(error)?;
        if self.sync && meta.size > 0 {
            // Only a head start: the sync at the end counts, and it reports errors.
            let _ = tarn_sys::writeback::start(&fd, 0, 0);
        }
        Ok(())
    }
}

/// The permission bits that a new file really gets of `0o777`: tried with a file without a name. If the file system
/// has no such files, no bits are sure, and every file's mode is set after it was written.
fn granted(root: &Root) -> u32 {
    let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
    let unnamed = openat(root, ".", flags, Mode::from_raw_mode(0o777));
    unnamed
        .and_then(FileStatus::of)
        .map_or(0, |status| status.mode & 0o777)
}
