//! Peers of libfabric's provider `shm`. It maps the region that a peer's name gives, believes its content (sizes, offsets, locks,
//! process numbers), and waits for a peer that is not there until its reader gives up. So only a region that this user's own
//! processes alone can have written is given to it.

use rustix::fs::{FileType, Mode, OFlags};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The folder in which the C library keeps named shared memory.
const REGIONS: &str = "/dev/shm";

/// Whether a provider is `shm`.
pub(super) fn is_shm(provider: &str) -> bool {
    provider.starts_with("shm")
}

/// Why a provider is not used, if that is so.
pub(super) fn why_not(provider: &str) -> Option<String> {
    let parts = provider.split([';', ',', ':', '+']);
    let is_unsafe = |part: &&str| ["sm2", "lnx"].iter().any(|p| part.eq_ignore_ascii_case(p));
    let part = parts.map(str::trim).find(is_unsafe)?;
    // sm2: /dev/shm/fi_sm2_mmap belongs to the user that made it first, is mapped and believed, and a lock in it that is not had
    // ends the process. lnx takes shm for peers of this host without giving their names.
    Some(format!(
        "libfabric's provider `{part}` is not used: it maps memory that other users of this host may have written; on one host use `shm`, between hosts `tcp;ofi_rxm`"
    ))
}

/// Refuses a name that leads to no region, or to one that another user has made or can write to.
pub(super) fn check(name: &[u8]) -> io::Result<()> {
    let name = name.split(|b| *b == 0).next().unwrap_or_default();
    // The provider takes what stands behind the kind of the name.
    let kind = b"://";
    let at = name.windows(kind.len()).position(|w| w == kind);
    let name = &name[at.map_or(0, |at| at + kind.len())..];
    let shown = name.escape_ascii();
    let refused = |kind, why: &str| {
        let text = format!("the peer's shared memory `{shown}` is not used: {why}");
        Err(io::Error::new(kind, text))
    };
    if name.is_empty() || name.contains(&b'/') || name == b"." || name == b".." {
        return refused(io::ErrorKind::InvalidInput, "that is no name of any");
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let path = Path::new(REGIONS).join(OsStr::from_bytes(name));
    let about = match rustix::fs::open(path, flags, Mode::empty()).and_then(rustix::fs::fstat) {
        Ok(about) => about,
        Err(rustix::io::Errno::NOENT) => {
            let why = "no shared region of that name is here; peers must be on one node and see one /dev/shm";
            return refused(io::ErrorKind::NotFound, why);
        }
        Err(e) => return refused(io::ErrorKind::Other, &e.to_string()),
    };
    let is_own = about.st_uid == rustix::process::geteuid().as_raw()
        && about.st_mode & 0o077 == 0
        && FileType::from_raw_mode(about.st_mode) == FileType::RegularFile;
    match is_own {
        true => Ok(()),
        false => refused(
            io::ErrorKind::PermissionDenied,
            "it is not this user's alone (a plain file of mode 0600)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_that_believe_memory_of_others_are_refused() {
        for bad in ["sm2", "SM2", "sm2;ofi_rxd", "lnx", "shm+lnx", "lnx:shm"] {
            assert!(why_not(bad).is_some(), "{bad}");
        }
        for good in ["shm", "tcp;ofi_rxm", "psm2", "sockets", "verbs;ofi_rxm"] {
            assert_eq!(why_not(good), None);
        }
    }
}
