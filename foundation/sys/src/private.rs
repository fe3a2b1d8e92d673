//! What nobody else is to see: random bytes, and files for their owner alone.

use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Who may read such a file: its owner.
const PRIVATE: u32 = 0o600;
/// What secrets are overwritten with.
const ZEROS: [u8; 4096] = [0; 4096];

/// Writes a file that only its owner reads, durably and whole; without `replace` only where none is. What is replaced is overwritten, as
/// it may be a secret.
///
/// # Errors
/// What the system says: `AlreadyExists` where there is one.
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
                // What a link leads to is not replaced.
                let nofollow = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
                let mut options = OpenOptions::new();
                let old = options.write(true).custom_flags(nofollow).open(path);
                std::fs::rename(&temporary, path)?;
                old.map_or(Ok(()), wipe)
            }
            // A link is never put over what is there.
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

/// Overwrites what a file has, on its medium.
///
/// # Errors
/// What the system says.
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
