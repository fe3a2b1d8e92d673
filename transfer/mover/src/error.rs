//! Errors of the operating system as failures: the operation, the reason, the remedy.

use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tarn_ports::MoverError;
use tarn_types::event::RunErrorKind;

/// The result of operations on trees.
pub(crate) type Result<T> = std::result::Result<T, MoverError>;

/// Which end of a movement an error came from: a missing source was changed by somebody, a missing
/// destination is an error of another kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorSide {
    Source,
    Dest,
}

/// A path for a message: control characters and invalid UTF-8 made visible.
pub(crate) fn show(path: &[u8]) -> String {
    String::from_utf8_lossy(path).escape_debug().to_string()
}

/// The same for a path of the operating system.
pub(crate) fn show_path(path: &Path) -> String {
    show(path.as_os_str().as_bytes())
}

/// `root/relative` for a message.
pub(crate) fn show_in(root: &Path, relative: &[u8]) -> String {
    match relative {
        b"" => show_path(root),
        _ => format!("{}/{}", show_path(root), show(relative)),
    }
}

/// An error of a system call on `path`; `doing` is a verb such as `read`.
pub(crate) fn failed(side: ErrorSide, doing: &str, path: &str, errno: Errno) -> MoverError {
    let (kind, remedy) = match (errno, side) {
        (Errno::NOSPC | Errno::DQUOT, _) => (
            RunErrorKind::NoSpace,
            "free space there, or choose a place with more",
        ),
        (Errno::FBIG, _) => (
            RunErrorKind::NoSpace,
            "raise the file size limit (`ulimit -f`) or choose another place",
        ),
        (Errno::NOENT, ErrorSide::Source) if looks_like_pattern(path) => (
            RunErrorKind::SourceChanged,
            "paths are not patterns: as the `source` of a dataset name the folder, and a file of it as `in = [\"DATASET/FILE\"]`",
        ),
        (Errno::NOENT | Errno::STALE | Errno::NOTDIR | Errno::ISDIR, ErrorSide::Source) => (
            RunErrorKind::SourceChanged,
            "check the path; if it was there, it vanished or was replaced while it was read, or this node does not see it: run again \
             when nobody changes it, with the data on a file system that all nodes mount",
        ),
        (Errno::LOOP | Errno::XDEV, ErrorSide::Source) => (
            RunErrorKind::Escape,
            "a folder or file was replaced by a symbolic link; tarn does not follow links inside a tree",
        ),
        (Errno::ACCESS | Errno::PERM, _) => (
            RunErrorKind::Io,
            "check its permissions and those of the folders above",
        ),
        (Errno::ROFS, _) => (RunErrorKind::Io, "the file system is mounted read-only"),
        (Errno::MFILE | Errno::NFILE, _) => (
            RunErrorKind::Io,
            "raise the limit of open files (`ulimit -n`)",
        ),
        (Errno::IO, _) => (
            RunErrorKind::Io,
            "the device reports an error; see the kernel log",
        ),
        (Errno::NAMETOOLONG, _) => (RunErrorKind::Io, "shorten the name or the folders above it"),
        _ => (RunErrorKind::Io, "see the cause given"),
    };
    let cause = std::io::Error::from(errno);
    MoverError::new(kind, format!("cannot {doing} `{path}`: {cause}; {remedy}"))
}

/// Whether a path that does not exist was probably meant for a shell to expand.
fn looks_like_pattern(path: &str) -> bool {
    path.contains(['*', '?', '[', '{'])
}

/// Cancellation, as a failure.
pub(crate) fn cancelled() -> MoverError {
    MoverError::new(
        RunErrorKind::Cancelled,
        "the transfer was cancelled; nothing of it is visible",
    )
}

/// A source that has changed.
pub(crate) fn changed(path: &str, how: &str) -> MoverError {
    MoverError::new(
        RunErrorKind::SourceChanged,
        format!("the source `{path}` {how}; run again when nobody changes it"),
    )
}

/// Bytes that do not match their hash.
pub(crate) fn corrupt(path: &str, how: &str) -> MoverError {
    MoverError::new(
        RunErrorKind::Corrupt,
        format!(
            "`{path}` {how}; the bytes stored there cannot be trusted: use another replica or make the data again"
        ),
    )
}
