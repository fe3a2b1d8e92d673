//! The finished part of a copy, kept beside its staging folder: after an interruption, the files and chunks
//! in this list are hashed again in place, and are not read from the source if they match.
//!
//! A record is its length (u32), a checksum of its bytes (u64, XXH3), and its bytes: tree (u32), the source file's
//! size, mtime, ctime and inode (u64 each), the first chunk and the number of chunks (u64), their hashes
//! (16 bytes each), the path. All little-endian. A torn record ends the list.

use crate::content::{self, ChunkHash};
use crate::error::{ErrorSide, Result, failed, show_path};
use crate::meta::FileStatus;
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::{Path, PathBuf};
use tarn_types::hash::Hash;

const HEAD: usize = 12;
const FIXED: usize = 4 + 8 * 6;
/// A record holds a path and the chunks that a thread does at once.
const MAX_RECORD: usize = FIXED + tarn_types::bounds::MAX_PATH_BYTES + 16 * 4096;

/// The source file that chunks were copied from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SourceFileIdentity {
    size: u64,
    mtime: i64,
    ctime: i64,
    inode: u64,
}

impl From<&FileStatus> for SourceFileIdentity {
    fn from(s: &FileStatus) -> Self {
        Self {
            size: s.size,
            mtime: s.mtime,
            ctime: s.ctime,
            inode: s.inode,
        }
    }
}

/// The part of one file that an earlier attempt copied.
#[derive(Debug, Clone)]
pub(crate) struct FileCopyRecord {
    pub(crate) identity: SourceFileIdentity,
    /// The hashes of the chunks that were copied.
    pub(crate) chunks: BTreeMap<u64, ChunkHash>,
}

impl FileCopyRecord {
    /// Bytes of the file.
    pub(crate) fn size(&self) -> u64 {
        self.identity.size
    }
}

/// Everything an earlier attempt copied, by tree and path.
pub(crate) type Earlier = HashMap<(u32, Box<[u8]>), FileCopyRecord>;

/// The list, open for appending. Several threads append whole records.
#[derive(Debug)]
pub(crate) struct CopyProgressLog {
    file: std::fs::File,
    path: PathBuf,
}

/// The path of the list of a staging folder.
pub(crate) fn path_of(staging: &Path) -> PathBuf {
    let mut name = staging.as_os_str().to_os_string();
    name.push(".progress");
    name.into()
}

impl CopyProgressLog {
    /// Opens the list, making it when it is missing.
    pub(crate) fn open(staging: &Path) -> Result<Self> {
        let path = path_of(staging);
        let flags =
            OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = openat(CWD, &path, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| failed(ErrorSide::Dest, "create", &show_path(&path), e))?;
        Ok(Self {
            file: fd.into(),
            path,
        })
    }

    /// Appends records.
    pub(crate) fn append(&self, records: &[u8]) -> Result<()> {
        (&self.file).write_all(records).map_err(|e| {
            let errno = rustix::io::Errno::from_io_error(&e).unwrap_or(rustix::io::Errno::IO);
            failed(ErrorSide::Dest, "write", &show_path(&self.path), errno)
        })
    }
}

/// Adds a record to `out`.
pub(crate) fn record(
    out: &mut Vec<u8>,
    tree: u32,
    path: &[u8],
    of: SourceFileIdentity,
    first: u64,
    hashes: &[ChunkHash],
) {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD]);
    out.extend_from_slice(&tree.to_le_bytes());
    for n in [
        of.size,
        of.mtime as u64,
        of.ctime as u64,
        of.inode,
        first,
        hashes.len() as u64,
    ] {
        out.extend_from_slice(&n.to_le_bytes());
    }
    for hash in hashes {
        out.extend_from_slice(&hash.to_le_bytes());
    }
    out.extend_from_slice(path);
    let len = (out.len() - start - HEAD) as u32;
    let sum = checksum(&out[start + HEAD..]);
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
    out[start + 4..start + HEAD].copy_from_slice(&sum.to_le_bytes());
}

fn checksum(bytes: &[u8]) -> u64 {
    Hash::of(bytes).0 as u64
}

/// Reads the list of a staging folder; empty when there is none.
pub(crate) fn read(staging: &Path) -> Earlier {
    let mut earlier = Earlier::new();
    let bytes = std::fs::read(path_of(staging)).unwrap_or_default();
    let mut rest = &bytes[..];
    while let Some((body, after)) = next(rest) {
        if add(&mut earlier, body).is_none() {
            break;
        }
        rest = after;
    }
    earlier
}

fn next(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let sum = u64::from_le_bytes(bytes.get(4..HEAD)?.try_into().ok()?);
    if !(FIXED..=MAX_RECORD).contains(&len) {
        return None;
    }
    let body = bytes.get(HEAD..HEAD + len)?;
    (checksum(body) == sum).then(|| (body, &bytes[HEAD + len..]))
}

fn add(earlier: &mut Earlier, body: &[u8]) -> Option<()> {
    let tree = u32::from_le_bytes(body.get(..4)?.try_into().ok()?);
    let word = |i: usize| {
        let at = 4 + 8 * i;
        Some(u64::from_le_bytes(body.get(at..at + 8)?.try_into().ok()?))
    };
    let identity = SourceFileIdentity {
        size: word(0)?,
        mtime: word(1)? as i64,
        ctime: word(2)? as i64,
        inode: word(3)?,
    };
    let (first, count) = (word(4)?, word(5)?);
    let hashes_end = FIXED.checked_add(usize::try_from(count).ok()?.checked_mul(16)?)?;
    let hashes = body.get(FIXED..hashes_end)?;
    let path = &body[hashes_end..];
    if first.checked_add(count)? > content::chunks(identity.size) {
        return None;
    }
    let fresh = || FileCopyRecord {
        identity,
        chunks: BTreeMap::new(),
    };
    let copied = earlier.entry((tree, path.into())).or_insert_with(fresh);
    if copied.identity != identity {
        *copied = fresh();
    }
    for (at, hash) in (first..).zip(hashes.chunks_exact(16)) {
        copied
            .chunks
            .insert(at, u128::from_le_bytes(hash.try_into().ok()?));
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_list_is_read_up_to_the_tear() {
        let dir = tempfile::tempdir().unwrap();
        let staging = dir.path().join("s");
        let of = SourceFileIdentity {
            size: 3 << 20,
            mtime: -5,
            ctime: 7,
            inode: 9,
        };
        let mut bytes = Vec::new();
        record(&mut bytes, 1, b"a\nb", of, 0, &[11, 12]);
        let whole = bytes.len();
        record(&mut bytes, 1, b"a\nb", of, 2, &[13]);
        for cut in 0..bytes.len() {
            std::fs::write(path_of(&staging), &bytes[..cut]).unwrap();
            let expect = if cut >= whole { vec![11, 12] } else { vec![] };
            let read = read(&staging);
            let got: Vec<_> = read
                .values()
                .flat_map(|c| c.chunks.values().copied())
                .collect();
            assert_eq!(got, expect, "{cut}");
        }
        let progress = CopyProgressLog::open(&dir.path().join("t")).unwrap();
        progress.append(&bytes).unwrap();
        let all = read(&dir.path().join("t"));
        let chunks = &all[&(1, (*b"a\nb").into())].chunks;
        assert_eq!(
            chunks.iter().collect::<Vec<_>>(),
            [(&0, &11), (&1, &12), (&2, &13)]
        );
        bytes[20] ^= 1;
        std::fs::write(path_of(&staging), &bytes).unwrap();
        assert!(super::read(&staging).is_empty());
    }

    #[test]
    fn an_impossible_record_is_refused() {
        let mut earlier = Earlier::new();
        let of = SourceFileIdentity {
            size: u64::MAX,
            mtime: 0,
            ctime: 0,
            inode: 0,
        };
        let mut bytes = Vec::new();
        record(&mut bytes, 0, b"p", of, u64::MAX - 1, &[1]);
        assert!(add(&mut earlier, &bytes[HEAD..]).is_none());
    }
}
