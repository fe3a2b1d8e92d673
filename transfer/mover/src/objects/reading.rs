//! Reading what is put into a store: files of folders, of peers and of other stores, sealed ones too.

use super::chunks_of;
use super::delivery::{DeliveryFile, PART, TreeDelivery};
use super::source::ObjectTree;
use crate::content::{self, CHUNK, PIECE};
use crate::error::{ErrorSide, Result, failed, show};
use crate::file_io::read_full;
use crate::meta::FileStatus;
use crate::sealed_file::{self, BUFFER, SealedReadError};
use crate::tree::TreeOrigin;
use rustix::fd::OwnedFd;
use tarn_ports::{Control, PeerStream, PeerTree, Piece};
use tarn_seal::SealError;
use tarn_seal::file::{FileCipher, HEADER, TRAILER, stretch};
use tarn_types::hash::Hash;
use tarn_types::key::DataKey;

impl<'a> TreeDelivery<'a> {
    /// Bytes of a file of a source.
    pub(super) fn read(
        &self,
        reader: &mut PeerSourceReader<'a>,
        file: &DeliveryFile<'_>,
        from: u64,
        len: u64,
    ) -> Result<Vec<u8>> {
        let tree = &self.trees[file.tree];
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        let read = match &tree.origin {
            TreeOrigin::Peer(peer) => {
                let kept = reader.stream.take().filter(|(at, _)| *at == file.tree);
                let mut stream = match kept {
                    Some((_, stream)) => stream,
                    None => peer.open(self.control)?,
                };
                let read = match &tree.sealed {
                    None => read_peer(&mut *stream, file.path, from, &mut bytes),
                    Some(key) => {
                        let sealed = (tree.show(file.path), &**key);
                        let is = (file.path, file.size);
                        read_sealed_peer(&mut *stream, is, sealed, from, &mut bytes)
                    }
                };
                reader.stream = Some((file.tree, stream));
                read
            }
            TreeOrigin::Folder(root) => {
                self.read_file(file, root.file(tree.relative(file.path)), from, &mut bytes)
            }
            TreeOrigin::Single { holder, name } => {
                self.read_file(file, holder.file(name), from, &mut bytes)
            }
        };
        read.map(|()| bytes).map_err(|e| e.of_source(file.tree))
    }

    fn read_file(
        &self,
        file: &DeliveryFile<'_>,
        opened: std::result::Result<OwnedFd, rustix::io::Errno>,
        from: u64,
        bytes: &mut [u8],
    ) -> Result<()> {
        let tree = &self.trees[file.tree];
        let path = tree.show(file.path);
        let unreadable = |e| failed(ErrorSide::Source, "read", &path, e);
        let short = || crate::error::changed(&path, "is not as long as it was");
        let fd = opened.map_err(unreadable)?;
        let status = FileStatus::of(&fd).map_err(unreadable)?;
        let broken = |e| match e {
            SealedReadError::Io(e) => unreadable(e),
            SealedReadError::Seal(e) => sealed_file::refused(&path, e),
        };
        match &tree.sealed {
            Some(key) => {
                let cipher = sealed_file::open(key, &fd, status.size).map_err(broken)?;
                match cipher.length() == file.size {
                    true => read_sealed(&fd, &cipher, from, bytes).map_err(broken),
                    false => Err(short()),
                }
            }
            None if status.size != file.size => Err(short()),
            None => match read_full(&fd, bytes, from).map_err(unreadable)? == bytes.len() {
                true => Ok(()),
                false => Err(short()),
            },
        }
    }
}

/// A thread's reader of sources: its stream to a peer, by tree.
#[derive(Default)]
pub(super) struct PeerSourceReader<'a> {
    stream: Option<(usize, Box<dyn PeerStream + 'a>)>,
}

fn read_peer(
    stream: &mut (dyn PeerStream + '_),
    path: &[u8],
    from: u64,
    bytes: &mut [u8],
) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let piece = |(at, chunk): (usize, &[u8])| Piece {
        path,
        offset: from + (at * CHUNK) as u64,
        len: chunk.len() as u64,
    };
    let pieces: Vec<_> = bytes.chunks(CHUNK).enumerate().map(piece).collect();
    stream.ask(&pieces)?;
    bytes
        .chunks_mut(PIECE)
        .try_for_each(|chunk| stream.read(chunk))
}

/// The same of a sealed file, which is shown by a name and opens with a key; `from` begins a piece.
fn read_sealed_peer(
    stream: &mut (dyn PeerStream + '_),
    (path, size): (&[u8], u64),
    (name, key): (String, &DataKey),
    from: u64,
    bytes: &mut [u8],
) -> Result<()> {
    let piece_of = |offset, len| {
        let (offset, len) = stretch(offset, len);
        Piece { path, offset, len }
    };
    let mut pieces = vec![sealed_file::header(path)];
    match bytes.is_empty() {
        // It has a proof all the same.
        true => pieces.push(piece_of(0, 0)),
        false => {
            let chunks = bytes.chunks(CHUNK).enumerate();
            pieces
                .extend(chunks.map(|(at, c)| piece_of(from + (at * CHUNK) as u64, c.len() as u64)));
        }
    }
    stream.ask(&pieces)?;
    let refused = |e| sealed_file::refused(&name, e);
    let mut header = [0; HEADER];
    stream.read(&mut header)?;
    let cipher = FileCipher::open(key, &header).map_err(refused)?;
    if cipher.length() != size {
        return Err(refused(SealError::Length));
    }
    let mut buffer = vec![0; BUFFER];
    let first = from / PIECE as u64;
    for at in 0..bytes.len().div_ceil(PIECE).max(1) {
        let piece = first + at as u64;
        let raw = &mut buffer[..cipher.piece_len(piece) + TRAILER];
        stream.read(raw)?;
        let content = cipher.open_piece(piece, raw).map_err(refused)?;
        let start = at * PIECE;
        bytes[start..start + content.len()].copy_from_slice(content);
    }
    Ok(())
}

/// The hash of the content of a sealed file of a store.
pub(super) fn sealed_hash_of(
    tree: &ObjectTree,
    (path, size): (&[u8], u64),
    key: &DataKey,
    control: &Control,
) -> Result<Hash> {
    let mut stream = PeerTree::open(tree, control)?;
    let mut chunks = Vec::new();
    let mut at = 0;
    loop {
        let mut bytes = vec![0; usize::try_from((size - at).min(PART)).unwrap_or(CHUNK)];
        let name = format!("{}{}", tree.name(), show(path));
        read_sealed_peer(&mut *stream, (path, size), (name, key), at, &mut bytes)?;
        chunks.extend(chunks_of(&bytes));
        at += bytes.len() as u64;
        if at == size {
            return Ok(content::file(&chunks));
        }
        if control.cancelled() {
            return Err(crate::error::cancelled());
        }
    }
}

/// Opens sealed pieces; `from` begins one, as parts are whole chunks.
fn read_sealed(
    fd: &OwnedFd,
    cipher: &FileCipher,
    from: u64,
    bytes: &mut [u8],
) -> std::result::Result<(), SealedReadError> {
    let mut buffer = vec![0; BUFFER];
    for (at, piece) in bytes.chunks_mut(PIECE).enumerate() {
        let len = sealed_file::read(fd, cipher, from / PIECE as u64 + at as u64, &mut buffer)?;
        if len != piece.len() {
            return Err(SealError::Length.into());
        }
        piece.copy_from_slice(&buffer[..len]);
    }
    Ok(())
}
