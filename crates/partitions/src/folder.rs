//! Names of partitions, and the folder that they are in.

use crate::{Code, Refusal};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tarn_sys::lock::Lock;

/// What a partition's file is called behind its name.
const SUFFIX: &str = ".partition";
/// Bytes of a name; with the suffix it is one of a file.
const MAX_NAME: usize = 200;
/// How long the lock of a folder is waited for: it is held for as long as a name takes to become durable, or room to be taken.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where a partition is, or would be.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) folder: PathBuf,
    pub(crate) name: String,
}

impl Place {
    /// That of a path such as `/dev/shm/me/field`, whose last part is the name.
    pub(crate) fn of(path: &Path) -> Result<Self, Refusal> {
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = name.filter(|name| is_sound(name)) else {
            let text = format!(
                "{} is no name of a partition: a folder, and behind it 1 to {MAX_NAME} bytes of UTF-8 without control characters that do not begin with a dot",
                path.display()
            );
            return Err(Refusal::new(Code::Invalid, text));
        };
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        Ok(Self {
            folder: folder.to_owned(),
            name: name.to_owned(),
        })
    }

    /// The file's name in the folder.
    pub(crate) fn file(&self) -> String {
        format!("{}{SUFFIX}", self.name)
    }

    /// The file, for messages.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join(self.file())
    }

    /// The open folder.
    pub(crate) fn open(&self) -> Result<OwnedFd, Refusal> {
        open_folder(&self.folder)
    }

    /// The lock of the open folder: nobody else deletes or resizes a partition in it meanwhile.
    pub(crate) fn lock(&self, folder: &OwnedFd) -> Result<Lock<OwnedFd>, Refusal> {
        // Opened once more: threads of this program exclude each other too.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let own = openat(folder, ".", flags, Mode::empty());
        let own = own.map_err(refused("open the folder", &self.folder))?;
        Lock::wait(own, PATIENCE).map_err(|e| match e {
            Errno::WOULDBLOCK => {
                let text = format!(
                    "another program has held the lock of {} for {PATIENCE:?}: if it was stopped, let it go on or end it",
                    self.folder.display()
                );
                Refusal::new(Code::Busy, text)
            }
            e => refused("lock", &self.folder)(e),
        })
    }
}

pub(crate) fn open_folder(folder: &Path) -> Result<OwnedFd, Refusal> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open(folder, flags, Mode::empty()).map_err(refused("open the folder", folder))
}

/// The name that a file's name has.
pub(crate) fn name(file: &[u8]) -> Option<&str> {
    let name = std::str::from_utf8(file).ok()?.strip_suffix(SUFFIX)?;
    is_sound(name).then_some(name)
}

fn is_sound(name: &str) -> bool {
    let length = 1..=MAX_NAME;
    length.contains(&name.len()) && !name.starts_with('.') && !name.contains(char::is_control)
}

/// What a refusal of the system is to the caller.
pub(crate) fn refused<'p, E: Into<std::io::Error>>(
    doing: &'static str,
    path: &'p Path,
) -> impl Fn(E) -> Refusal + 'p {
    move |e| {
        let e = e.into();
        let text = format!("cannot {doing} {}: {e}", path.display());
        Refusal::new(code(&e), text)
    }
}

pub(crate) fn code(e: &std::io::Error) -> Code {
    match e.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT | Errno::NOTDIR) => Code::NotFound,
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::LOOP) => Code::Denied,
        Some(Errno::NOSPC | Errno::NOMEM) => Code::NoSpace,
        Some(Errno::DQUOT) => Code::Quota,
        Some(Errno::FBIG) => Code::Invalid,
        Some(Errno::EXIST) => Code::Exists,
        Some(Errno::OPNOTSUPP) => Code::Unsupported,
        None if e.kind() == std::io::ErrorKind::OutOfMemory => Code::NoSpace,
        _ => Code::Io,
    }
}
