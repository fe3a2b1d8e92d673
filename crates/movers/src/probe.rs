//! What a file system can do: tried out, never guessed.

use crate::error::{Result, Side, failed, show_path};
use crate::remove::remove;
use rustix::fd::OwnedFd;
use rustix::fs::{
    CWD, Mode, OFlags, RenameFlags, SeekFrom, XattrFlags, fsetxattr, ftruncate, ioctl_ficlone,
    mkdirat, openat, renameat_with, seek,
};
use rustix::io::{Errno, pwrite};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use tarn_ports::TreeCapabilities;
use tarn_sys::beneath::Root;

/// Bytes of the probing file's hole: larger than any file system's block.
const HOLE: u64 = 4 << 20;

/// Tries out what the file system of `folder` can do.
pub(crate) fn capabilities(folder: &Path) -> Result<TreeCapabilities> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let error = |e| failed(Side::Dest, "write", &show_path(folder), e);
    let unique = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let scratch = folder.join(format!(".tarn-probe-{}-{}", unique.0, unique.1));
    mkdirat(CWD, &scratch, Mode::RWXU).map_err(error)?;
    let found = Root::open(&scratch)
        .and_then(|root| probe(&root))
        .map_err(error);
    remove(&scratch)?;
    found
}

fn probe(root: &Root) -> std::result::Result<TreeCapabilities, Errno> {
    let (one, two) = (create(root, "one")?, create(root, "two")?);
    ftruncate(&one, HOLE)?;
    pwrite(&one, b"tarn", HOLE)?;
    let unnamed = openat(
        root,
        ".",
        OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC,
        Mode::RUSR | Mode::WUSR,
    );
    Ok(TreeCapabilities {
        reflink: ioctl_ficlone(&two, &one).is_ok(),
        xattrs: fsetxattr(&one, "user.tarn", b"probe", XattrFlags::empty()).is_ok(),
        exchange: unnamed.is_ok()
            && renameat_with(root, "one", root, "two", RenameFlags::EXCHANGE).is_ok(),
        sparse: seek(&one, SeekFrom::Data(0)).is_ok_and(|data| data > 0),
    })
}

fn create(root: &Root, name: &str) -> std::result::Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    openat(root, name, flags, Mode::RUSR | Mode::WUSR)
}
