//! The data plane: fixed headers, little-endian. docs/internals/cluster.md, "Data plane", explains them.

use std::sync::Arc;
use tarn_types::bounds::MAX_PATH_BYTES;

/// Bytes of a nonce, a key and a proof.
pub const PROOF_BYTES: usize = 32;
/// Bytes of a request after its length.
pub const MAX_REQUEST: usize = 256 << 10;
/// Bytes of a tree's name.
pub const MAX_TREE_BYTES: usize = MAX_PATH_BYTES;
/// Bytes of an error's text.
pub const MAX_TEXT: usize = 4 << 10;
/// Bytes of the answer to a call: a list of some two million files.
pub const MAX_REPLY: usize = 256 << 20;
/// Bytes of an endpoint's name: its length is one byte.
pub const MAX_NAME: usize = u8::MAX as usize;

/// Bytes that are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// A tree of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Tree {
    /// A replica, by its store key and tier.
    Replica(Box<[u8]>),
    /// A path of a dataspace.
    Space(Box<[u8]>),
    /// No files: a request, under whatever name, gets meaningless bytes from memory. A reader measures the link with them.
    Probe,
}

impl Tree {
    /// Its name, without its kind.
    pub fn name(&self) -> &[u8] {
        match self {
            Self::Replica(name) | Self::Space(name) => name,
            Self::Probe => b"",
        }
    }
}

/// A stretch of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRange {
    /// Relative to the tree's root. Items of one file share it, so that a request takes little more memory than bytes.
    pub path: Arc<[u8]>,
    /// In bytes.
    pub offset: u64,
    /// In bytes.
    pub len: u64,
}

/// A request of a client after the handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataRequest {
    /// Asks for content.
    Read(ReadRequest),
    /// A window has been read and may be closed.
    Release {
        /// The request that it answered.
        request: u32,
        /// The item.
        item: u32,
    },
}

/// Asks for stretches of files of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadRequest {
    /// Number of the request, chosen by the client.
    pub number: u32,
    /// Whether windows are taken in place of content.
    pub windows: bool,
    /// The tree.
    pub tree: Tree,
    /// In the order in which they are answered.
    pub items: Vec<FileRange>,
}

const READ: u8 = 1;
const CALL: u8 = 2;
const READ_BY_WINDOW: u8 = 3;
const RELEASE: u8 = 4;
const KIND_REPLICA: u8 = 1;
const KIND_SPACE: u8 = 2;
const KIND_PROBE: u8 = 3;

/// Builds a request's bytes item by item, so that nothing is copied twice and the bound is kept.
#[derive(Debug)]
pub struct Builder {
    bytes: Vec<u8>,
    count_at: usize,
    count: u16,
    last: Option<Box<[u8]>>,
}

impl Builder {
    /// A request without items.
    ///
    /// # Errors
    /// When the tree's name is too long.
    pub fn new(number: u32, tree: &Tree, windows: bool) -> Result<Self, Malformed> {
        let name = tree.name();
        if name.len() > MAX_TREE_BYTES {
            return Err(Malformed("the name of the tree is too long"));
        }
        let mut bytes = vec![0; 4];
        bytes.push(if windows { READ_BY_WINDOW } else { READ });
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.push(match tree {
            Tree::Replica(_) => KIND_REPLICA,
            Tree::Space(_) => KIND_SPACE,
            Tree::Probe => KIND_PROBE,
        });
        bytes.extend_from_slice(&(name.len() as u16).to_le_bytes());
        bytes.extend_from_slice(name);
        let count_at = bytes.len();
        bytes.extend_from_slice(&[0; 2]);
        Ok(Self {
            bytes,
            count_at,
            count: 0,
            last: None,
        })
    }

    /// Adds an item. `false`: it does not fit any more.
    ///
    /// # Errors
    /// When the path is empty or too long.
    pub fn push(&mut self, path: &[u8], offset: u64, len: u64) -> Result<bool, Malformed> {
        if path.is_empty() || path.len() > MAX_PATH_BYTES {
            return Err(Malformed("a path is empty or too long"));
        }
        // An empty path: the same file as before.
        let same = self.last.as_deref() == Some(path);
        let path_bytes: &[u8] = if same { b"" } else { path };
        let fits = self.bytes.len() + 2 + path_bytes.len() + 16 <= MAX_REQUEST + 4;
        if !fits || self.count == u16::MAX {
            return Ok(false);
        }
        self.bytes
            .extend_from_slice(&(path_bytes.len() as u16).to_le_bytes());
        self.bytes.extend_from_slice(path_bytes);
        self.bytes.extend_from_slice(&offset.to_le_bytes());
        self.bytes.extend_from_slice(&len.to_le_bytes());
        if !same {
            self.last = Some(path.into());
        }
        self.count += 1;
        Ok(true)
    }

    /// Bytes so far, the length among them.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// As it is sent, its length first.
    pub fn finish(mut self) -> Vec<u8> {
        let len = (self.bytes.len() - 4) as u32;
        self.bytes[..4].copy_from_slice(&len.to_le_bytes());
        let at = self.count_at;
        self.bytes[at..at + 2].copy_from_slice(&self.count.to_le_bytes());
        self.bytes
    }
}

/// Says that a window has been read, as it is sent.
pub fn release(request: u32, item: u32) -> [u8; 13] {
    let mut out = [0; 13];
    out[..4].copy_from_slice(&9u32.to_le_bytes());
    out[4] = RELEASE;
    out[5..9].copy_from_slice(&request.to_le_bytes());
    out[9..].copy_from_slice(&item.to_le_bytes());
    out
}

impl DataRequest {
    /// As it was received, without its length.
    ///
    /// # Errors
    /// When it is no request of a client.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = FieldReader::new(bytes);
        match from.u8()? {
            READ => ReadRequest::decode(from, false).map(Self::Read),
            READ_BY_WINDOW => ReadRequest::decode(from, true).map(Self::Read),
            RELEASE => {
                let (request, item) = (from.u32()?, from.u32()?);
                match from.rest {
                    [] => Ok(Self::Release { request, item }),
                    _ => Err(Malformed("bytes after a release")),
                }
            }
            _ => Err(Malformed("a request of an unknown kind")),
        }
    }
}

impl ReadRequest {
    /// Bytes of a request that begins with these four.
    ///
    /// # Errors
    /// When it would be longer than [`MAX_REQUEST`].
    pub fn length(bytes: [u8; 4]) -> Result<usize, Malformed> {
        let len = u32::from_le_bytes(bytes) as usize;
        if len > MAX_REQUEST {
            return Err(Malformed("a request is longer than allowed"));
        }
        Ok(len)
    }

    /// Paths are not judged here: they are opened beneath the tree.
    fn decode(mut from: FieldReader<'_>, windows: bool) -> Result<Self, Malformed> {
        let number = from.u32()?;
        let kind = from.u8()?;
        let len = from.u16()? as usize;
        if len > MAX_TREE_BYTES {
            return Err(Malformed("the name of a tree is too long"));
        }
        let name = from.take(len)?;
        let tree = match kind {
            KIND_REPLICA => Tree::Replica(name.into()),
            KIND_SPACE => Tree::Space(name.into()),
            KIND_PROBE if name.is_empty() => Tree::Probe,
            _ => return Err(Malformed("a tree of an unknown kind")),
        };
        let count = from.u16()? as usize;
        // No more than the bytes that are there can mean.
        let mut items: Vec<FileRange> = Vec::with_capacity(count.min(from.rest.len() / 18));
        for _ in 0..count {
            let len = from.u16()? as usize;
            if len > MAX_PATH_BYTES {
                return Err(Malformed("a path is too long"));
            }
            let path = match (from.take(len)?, items.last()) {
                (b"", None) => return Err(Malformed("the first path is missing")),
                (b"", Some(before)) => Arc::clone(&before.path),
                (path, _) => path.into(),
            };
            let (offset, len) = (from.u64()?, from.u64()?);
            if offset
                .checked_add(len)
                .is_none_or(|end| end > i64::MAX as u64)
            {
                return Err(Malformed("a stretch ends beyond the largest file"));
            }
            items.push(FileRange { path, offset, len });
        }
        from.end()?;
        Ok(Self {
            number,
            windows,
            tree,
            items,
        })
    }
}

/// Asks for something else than files. Only peers that share this key know the meaning of its body; the proof covers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataCall<'a> {
    /// Counts the calls of a stream, from 0.
    pub number: u32,
    /// The proof that the opener of the stream sent this call.
    pub proof: [u8; PROOF_BYTES],
    /// The request.
    pub body: &'a [u8],
}

impl<'a> DataCall<'a> {
    /// As it is sent, its length first.
    ///
    /// # Errors
    /// When it is longer than [`MAX_REQUEST`].
    pub fn encode(&self) -> Result<Vec<u8>, Malformed> {
        let len = 1 + 4 + PROOF_BYTES + self.body.len();
        if len > MAX_REQUEST {
            return Err(Malformed("a call is longer than allowed"));
        }
        let mut out = Vec::with_capacity(4 + len);
        out.extend_from_slice(&(len as u32).to_le_bytes());
        out.push(CALL);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.proof);
        out.extend_from_slice(self.body);
        Ok(out)
    }

    /// As it was received, without its length; `None` when it is another request.
    ///
    /// # Errors
    /// When it ends early.
    pub fn decode(bytes: &'a [u8]) -> Result<Option<Self>, Malformed> {
        let mut from = FieldReader::new(bytes);
        if from.u8()? != CALL {
            return Ok(None);
        }
        let (number, proof) = (from.u32()?, from.array()?);
        Ok(Some(Self {
            number,
            proof,
            body: from.rest,
        }))
    }
}

/// The kind of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadStatus {
    /// Content follows.
    Content,
    /// There is no such file.
    Gone,
    /// The file is shorter than requested.
    Shorter,
    /// The tree may not be read, or the name leads out of it.
    Refused,
    /// It cannot be read.
    Failed,
    /// It has not arrived here yet: the answer to this item is still to come.
    Wait,
    /// It can be read from a [`Window`], which follows.
    Window,
}

/// The place of a stretch of a file that a peer with these values can read, until it is released or the stream ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// The endpoint's name, at most [`MAX_NAME`] bytes.
    pub name: Box<[u8]>,
    /// Its begin, for the provider.
    pub from: u64,
    /// Its key.
    pub key: u64,
}

impl Window {
    /// Bytes that precede the name: its length, and the numbers.
    pub const HEAD: usize = 1 + 8 + 8;

    /// As it is sent; a name that is too long is cut.
    pub fn encode(&self) -> Vec<u8> {
        let name = &self.name[..self.name.len().min(MAX_NAME)];
        let mut out = vec![name.len() as u8];
        out.extend_from_slice(&self.from.to_le_bytes());
        out.extend_from_slice(&self.key.to_le_bytes());
        out.extend_from_slice(name);
        out
    }

    /// Of its first bytes: bytes of the name, where it begins, its key.
    pub fn decode_head(bytes: &[u8; Self::HEAD]) -> (usize, u64, u64) {
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        (bytes[0].into(), number(1), number(9))
    }
}

/// Precedes each item's content or the text of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadReplyHeader {
    /// Of the request.
    pub request: u32,
    /// Place in the request.
    pub item: u32,
    /// The kind of the answer.
    pub status: ReadStatus,
    /// Bytes that follow, or of the window's content.
    pub len: u64,
}

impl ReadReplyHeader {
    /// Bytes on the wire.
    pub const BYTES: usize = 4 + 4 + 1 + 8;

    /// As it is sent.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..4].copy_from_slice(&self.request.to_le_bytes());
        out[4..8].copy_from_slice(&self.item.to_le_bytes());
        out[8] = match self.status {
            ReadStatus::Content => 0,
            ReadStatus::Gone => 1,
            ReadStatus::Shorter => 2,
            ReadStatus::Refused => 3,
            ReadStatus::Failed => 4,
            ReadStatus::Wait => 5,
            ReadStatus::Window => 6,
        };
        out[9..].copy_from_slice(&self.len.to_le_bytes());
        out
    }

    /// As it was received.
    ///
    /// # Errors
    /// When its status is unknown, or an error's text is longer than [`MAX_TEXT`].
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, Malformed> {
        let mut from = FieldReader::new(bytes);
        let (request, item) = (from.u32()?, from.u32()?);
        let status = match from.u8()? {
            0 => ReadStatus::Content,
            1 => ReadStatus::Gone,
            2 => ReadStatus::Shorter,
            3 => ReadStatus::Refused,
            4 => ReadStatus::Failed,
            5 => ReadStatus::Wait,
            6 => ReadStatus::Window,
            _ => return Err(Malformed("an answer of an unknown kind")),
        };
        let len = from.u64()?;
        let is_text = !matches!(status, ReadStatus::Content | ReadStatus::Window);
        if is_text && len > MAX_TEXT as u64 {
            return Err(Malformed("the text of an error is longer than allowed"));
        }
        Ok(Self {
            request,
            item,
            status,
            len,
        })
    }
}

pub(crate) struct FieldReader<'a> {
    rest: &'a [u8],
}

impl<'a> FieldReader<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }
    pub(crate) fn take(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self
            .rest
            .split_at_checked(n)
            .ok_or(Malformed("it ends early"))?;
        self.rest = rest;
        Ok(taken)
    }
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(Malformed("it ends early"))?;
        self.rest = rest;
        Ok(*taken)
    }
    /// Nothing is left.
    pub(crate) fn end(&self) -> Result<(), Malformed> {
        match self.rest {
            [] => Ok(()),
            _ => Err(Malformed("bytes after its end")),
        }
    }
    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }
    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }
    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }
    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }
}
