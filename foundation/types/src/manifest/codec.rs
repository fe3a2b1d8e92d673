//! The bytes of a manifest file; docs/reference/manifest-format.md describes them.

use super::{Entry, EntryKind, Manifest, PathError, Xattr};
use crate::hash::Hash;

const MAGIC: &[u8; 8] = b"TARNMAN\n";
const VERSION: u32 = 1;
const HEADER: usize = 12;
const CHECKSUM: usize = 16;

const DIRECTORY: u8 = 0;
const FILE: u8 = 1;
const FILE_HASHED: u8 = 2;
const SYMLINK: u8 = 3;

/// Why bytes are not a manifest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// They do not begin like one.
    #[error("this is not a tarn manifest file")]
    Magic,
    /// A format that this program does not know.
    #[error(
        "the manifest has format {0}, this program reads format {VERSION}; use the tarn that wrote it, or a newer one"
    )]
    Version(u32),
    /// They are damaged: the checksum does not match.
    #[error(
        "the manifest file is damaged: its checksum does not match; restore it or copy the data again"
    )]
    Checksum,
    /// They end too early or too late, or hold an impossible number.
    #[error("the manifest file is malformed near byte {0}")]
    Malformed(usize),
    /// An entry that no tree can have.
    #[error("the manifest's entry `{path}` is refused: {fault}")]
    Path {
        /// The entry.
        path: String,
        /// Why.
        fault: PathError,
    },
}

impl Manifest {
    /// The manifest file's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + CHECKSUM + self.entries.len() * 48);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        put(&mut out, self.entries.len() as u64);
        let mut last: &[u8] = b"";
        let mut last_time = 0i64;
        for entry in &self.entries {
            let shared = last
                .iter()
                .zip(entry.path.iter())
                .take_while(|(a, b)| a == b)
                .count();
            put(&mut out, shared as u64);
            put_bytes(&mut out, &entry.path[shared..]);
            put_attributes(&mut out, entry, last_time);
            put_kind(&mut out, &entry.kind);
            last = &entry.path;
            last_time = entry.mtime;
        }
        let checksum = Hash::of(&out);
        out.extend_from_slice(&checksum.0.to_le_bytes());
        out
    }

    /// Reads a manifest file's bytes.
    ///
    /// # Errors
    /// When they are not a whole, well-formed manifest; it never panics.
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        if bytes.get(..MAGIC.len()) != Some(MAGIC) {
            return Err(ManifestError::Magic);
        }
        let version = bytes
            .get(MAGIC.len()..HEADER)
            .and_then(|v| v.try_into().ok());
        match version.map(u32::from_le_bytes) {
            Some(VERSION) => {}
            Some(other) => return Err(ManifestError::Version(other)),
            None => return Err(ManifestError::Malformed(bytes.len())),
        }
        let (body, checksum) = bytes
            .split_last_chunk::<CHECKSUM>()
            .filter(|(body, _)| body.len() > HEADER)
            .ok_or(ManifestError::Malformed(bytes.len()))?;
        if Hash::of(body).0 != u128::from_le_bytes(*checksum) {
            return Err(ManifestError::Checksum);
        }
        let mut input = ManifestInput {
            bytes: body,
            at: HEADER,
        };
        let manifest = input.manifest().ok_or(ManifestError::Malformed(input.at))?;
        if input.at != body.len() {
            return Err(ManifestError::Malformed(input.at));
        }
        manifest.check()?;
        Ok(manifest)
    }
}

/// LEB128: seven bits a byte, least significant first.
fn put(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_attributes(out: &mut Vec<u8>, entry: &Entry, last_time: i64) {
    put(out, u64::from(entry.mode));
    let delta = entry.mtime.wrapping_sub(last_time);
    put(out, ((delta << 1) ^ (delta >> 63)) as u64);
    put(out, entry.xattrs.len() as u64);
    for (name, value) in &entry.xattrs {
        put_bytes(out, name);
        put_bytes(out, value);
    }
}

fn put_kind(out: &mut Vec<u8>, kind: &EntryKind) {
    match kind {
        EntryKind::Directory => out.push(DIRECTORY),
        EntryKind::Symlink(target) => {
            out.push(SYMLINK);
            put_bytes(out, target);
        }
        EntryKind::File {
            size,
            hash,
            link_group,
            extents,
        } => {
            out.push(if hash.is_some() { FILE_HASHED } else { FILE });
            put(out, *size);
            if let Some(hash) = hash {
                out.extend_from_slice(&hash.0.to_le_bytes());
            }
            put(out, u64::from(*link_group));
            put(out, extents.len() as u64);
            for (offset, length) in extents {
                put(out, *offset);
                put(out, *length);
            }
        }
    }
}

struct ManifestInput<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> ManifestInput<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(n)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|b| b[0])
    }

    fn number(&mut self) -> Option<u64> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            n |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(n);
            }
        }
        None
    }

    /// A count of things that take at least one byte each: never more than the bytes left.
    fn count(&mut self) -> Option<usize> {
        let n = usize::try_from(self.number()?).ok()?;
        (n <= self.bytes.len() - self.at).then_some(n)
    }

    fn string(&mut self) -> Option<&'a [u8]> {
        let n = self.count()?;
        self.take(n)
    }

    fn manifest(&mut self) -> Option<Manifest> {
        let count = self.count()?;
        // An entry takes at least six bytes here and some hundred in memory; a damaged count cannot make us
        // reserve more than the file justifies.
        let mut entries: Vec<Entry> = Vec::with_capacity(count.min(self.bytes.len() / 6 + 1));
        let mut time = 0i64;
        for _ in 0..count {
            let shared = usize::try_from(self.number()?).ok()?;
            let last = entries.last().map_or(&b""[..], |e| &e.path);
            let mut path = last.get(..shared)?.to_vec();
            path.extend_from_slice(self.string()?);
            let entry = self.entry(path.into(), time)?;
            time = entry.mtime;
            entries.push(entry);
        }
        Some(Manifest { entries })
    }

    fn entry(&mut self, path: Box<[u8]>, last_time: i64) -> Option<Entry> {
        let mode = u32::try_from(self.number()?).ok()?;
        let zigzag = self.number()?;
        let delta = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
        let xattrs = (0..self.count()?)
            .map(|_| Some((self.string()?.into(), self.string()?.into())))
            .collect::<Option<Vec<Xattr>>>()?;
        Some(Entry {
            path,
            mode,
            mtime: last_time.wrapping_add(delta),
            xattrs: xattrs.into(),
            kind: self.kind()?,
        })
    }

    fn kind(&mut self) -> Option<EntryKind> {
        let tag = self.byte()?;
        match tag {
            DIRECTORY => Some(EntryKind::Directory),
            SYMLINK => Some(EntryKind::Symlink(self.string()?.into())),
            FILE | FILE_HASHED => {
                let size = self.number()?;
                let hash = match tag {
                    FILE_HASHED => Some(Hash(u128::from_le_bytes(self.take(16)?.try_into().ok()?))),
                    _ => None,
                };
                let link_group = u32::try_from(self.number()?).ok()?;
                let extents = (0..self.count()?)
                    .map(|_| Some((self.number()?, self.number()?)))
                    .collect::<Option<Vec<_>>>()?;
                Some(EntryKind::File {
                    size,
                    hash,
                    link_group,
                    extents: extents.into(),
                })
            }
            _ => None,
        }
    }
}
