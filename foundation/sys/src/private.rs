//! Random bytes, and files for their owner alone.

use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The mode of such a file: only its owner reads it.
const PRIVATE: u32 = 0o600;
/// The bytes that overwrite secrets.
const ZEROS: [u8; 4096] = [0; 4096];

/// Writes a file that only its owner reads, durably and whole; without `replace` only where none is. A replaced file is
/// overwritten, as it may be a secret.
///
/// # Errors
/// The system's error: `AlreadyExists` where there is one.
pub fn publish(path: &Path, bytes: &[u8], replace: bool) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    // Nodes that share the folder may do the same at once, in processes of one number.
    let own = u64::from_le_bytes(random()?);
    name.push(format!(".{own:016x}.tmp"));
    let temporary = PathBuf::from(name);
    let mut options = OpenOptions::new();
    let made = options
        .write(true)
        .create_new(true)
        .mode(PRIVATE)
        .open(&temporary);
    let written = made.and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        match replace {
            true => {
                // The target of a link is not overwritten.
                let nofollow = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
                let mut options = OpenOptions::new();
                let old = options.write(true).custom_flags(nofollow).open(path);
                std::fs::rename(&temporary, path)?;
                old.map_or(Ok(()), wipe)
            }
            // A link never replaces an existing file.
            false => std::fs::hard_link(&temporary, path),
        }
    });
    if written.is_err() || !replace {
        let _ = std::fs::remove_file(&temporary);
    }
    written?;
    path.parent()
        .map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// Overwrites the content of a file, on its medium.
///
/// # Errors
/// The system's error.
pub fn wipe(mut file: File) -> io::Result<()> {
    let mut left = file.metadata()?.len();
    while left > 0 {
        let some = ZEROS
            .len()
            .min(usize::try_from(left).unwrap_or(ZEROS.len()));
        file.write_all(&ZEROS[..some])?;
        left -= some as u64;
    }
    file.sync_all()
}

/// Random bytes.
///
/// # Errors
/// When the machine has none yet.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    match getrandom(&mut bytes, GetRandomFlags::empty())? == N {
        true => Ok(bytes),
        false => Err(io::Error::other("the machine has no random bytes yet")),
    }
}
