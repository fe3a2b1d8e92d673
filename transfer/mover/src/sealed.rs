//! Files that a worker seals on their way, opens on it, or both. docs/internals/movers.md, "Sealed trees".

use crate::content::{self, PIECE};
use crate::error::{Result, show};
use crate::file_io::write_full;
use crate::large_file::Large;
use crate::sealed_file::{FileSealing, SealedReadError, open, read_raw, refused};
use crate::source_file::{Content, OpenSourceFile, Sink};
use crate::target::CopyTarget;
use crate::worker::Worker;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use tarn_ports::MoverError;
use tarn_seal::SealError;
use tarn_seal::file::{self, FileCipher, HEADER, SALT, TRAILER};

impl Worker<'_> {
    /// How the destination of a file is sealed, if it is: its header is written, or the one of an earlier attempt continues.
    pub(crate) fn sealing(
        &self,
        target: &CopyTarget,
        source: &OpenSourceFile,
        fd: &OwnedFd,
        there: bool,
    ) -> Result<Option<Box<FileSealing>>> {
        let Some(key) = &target.seal else {
            return Ok(None);
        };
        let failed = |doing: &str, errno| target.failed(doing, &source.path, errno);
        let size = source.status.size;
        let attempt = random().map_err(|e| failed("find random bytes for", e))?;
        // A file that fits in one piece is sealed again: that it is unchanged would have to be recorded beside it.
        let same = source.cipher().filter(|_| size > PIECE as u64);
        let same = same.map(FileCipher::header);
        let same = same.filter(|h| file::key_of(h) == key.id());
        let earlier = match there {
            true => file::sealed_len(size).and_then(|len| open(key, fd, len).ok()),
            false => None,
        };
        let earlier =
            earlier.filter(|c| c.length() == size && same.is_none_or(|h| h == c.header()));
        let goes_on = earlier.is_some();
        let sealed = |e: SealError| refused(&target.show(&source.path), e);
        let cipher = match (earlier, same) {
            (Some(cipher), _) => cipher,
            (None, Some(header)) => FileCipher::open(key, header).map_err(sealed)?,
            (None, None) => {
                let salt: [u8; SALT] = random().map_err(|e| failed("find random bytes for", e))?;
                FileCipher::create(key, salt, size).map_err(sealed)?
            }
        };
        if !goes_on {
            write_full(fd, cipher.header(), 0).map_err(|e| failed("write", e))?;
        }
        Ok(Some(Box::new(FileSealing {
            cipher,
            attempt,
            goes_on,
            as_it_is: same.is_some(),
        })))
    }

    /// Takes the header of a peer's sealed file, which its stream brings next.
    pub(crate) fn unlock(&mut self, source: &mut OpenSourceFile) -> Result<()> {
        let Some(key) = self.job.trees[source.tree as usize].sealed.clone() else {
            return Ok(());
        };
        self.take(source, HEADER)?;
        let mut header = [0; HEADER];
        header.copy_from_slice(&self.buffer[..HEADER]);
        let cipher = FileCipher::open(&key, &header).and_then(|cipher| {
            match cipher.length() == source.status.size {
                true => Ok(cipher),
                false => Err(SealError::Length),
            }
        });
        let cipher = cipher.map_err(|e| self.not_opened(source, e.into()))?;
        if let Content::Peer(_, opens) = &mut source.from {
            *opens = Some(Box::new(cipher));
        }
        Ok(())
    }

    /// Reads a piece of a sealed source into the buffer's beginning as it is there; its bytes with the trailer.
    fn raw(&mut self, source: &OpenSourceFile, cipher: &FileCipher, piece: u64) -> Result<usize> {
        let Content::Sealed(fd, _) = &source.from else {
            let len = cipher.piece_len(piece) + TRAILER;
            return self.take(source, len).map(|()| len);
        };
        let fd = self.own.as_ref().unwrap_or(fd);
        let raw = read_raw(fd, cipher, piece, &mut self.buffer);
        raw.map_err(|e| self.not_opened(source, e))
    }

    /// Opens the piece that is in the buffer; its bytes of content.
    fn open_raw(
        &mut self,
        source: &OpenSourceFile,
        cipher: &FileCipher,
        piece: u64,
        raw: usize,
    ) -> Result<usize> {
        let opened = cipher.open_piece(piece, &mut self.buffer[..raw]);
        let opened = opened.map(|content| content.len());
        opened.map_err(|e| self.not_opened(source, e.into()))
    }

    /// Reads the piece of content of a sealed file that begins at `offset`.
    pub(crate) fn read_sealed(
        &mut self,
        source: &OpenSourceFile,
        cipher: &FileCipher,
        offset: u64,
    ) -> Result<()> {
        let piece = offset / PIECE as u64;
        let raw = self.raw(source, cipher, piece)?;
        self.open_raw(source, cipher, piece, raw).map(drop)
    }

    /// Why a sealed source cannot be read.
    fn not_opened(&self, source: &OpenSourceFile, broken: SealedReadError) -> MoverError {
        match broken {
            SealedReadError::Io(errno) => self.unreadable(source.tree, "read", &source.path, errno),
            SealedReadError::Seal(e) => {
                refused(&self.job.trees[source.tree as usize].show(&source.path), e)
            }
        }
    }

    /// Copies a chunk into a sealed file and returns the hash of its content.
    pub(crate) fn chunk_sealed(
        &mut self,
        large: &Large,
        sealing: &FileSealing,
        start: u64,
        len: usize,
    ) -> Result<content::ChunkHash> {
        let mut hasher = content::ChunkHasher::new();
        for offset in (start..start + len as u64).step_by(PIECE) {
            let n = PIECE.min((start + len as u64 - offset) as usize);
            match large.source.cipher() {
                Some(cipher) if sealing.as_it_is => {
                    let piece = offset / PIECE as u64;
                    let raw = self.raw(&large.source, cipher, piece)?;
                    self.write_sealed(&large.source, &large.sink, offset, raw)?;
                    // Only a piece that opens is one: nothing of it is published otherwise.
                    let content = self.open_raw(&large.source, cipher, piece, raw)?;
                    hasher.update(&self.buffer[..content]);
                }
                _ => {
                    self.read(&large.source, offset, n)?;
                    hasher.update(&self.buffer[..n]);
                    self.seal_piece(&large.source, &large.sink, sealing, offset, n)?;
                }
            }
        }
        Ok(hasher.finish())
    }

    /// Seals the piece of `n` bytes that is in the buffer, and writes it.
    pub(crate) fn seal_piece(
        &mut self,
        source: &OpenSourceFile,
        sink: &Sink,
        sealing: &FileSealing,
        offset: u64,
        n: usize,
    ) -> Result<()> {
        let buffer = &mut self.buffer[..n + TRAILER];
        let sealed = sealing
            .cipher
            .seal(offset / PIECE as u64, sealing.attempt, buffer);
        sealed.map_err(|e| refused(&show(&source.path), e))?;
        self.write_sealed(source, sink, offset, n + TRAILER)
    }

    fn write_sealed(
        &self,
        source: &OpenSourceFile,
        sink: &Sink,
        offset: u64,
        len: usize,
    ) -> Result<()> {
        let (Some(target), Sink::File(fd, ..)) = (self.job.target(), sink) else {
            return Ok(());
        };
        let at = file::offset(offset / PIECE as u64);
        write_full(fd, &self.buffer[..len], at).map_err(|e| target.failed("write", &source.path, e))
    }
}

fn random<const N: usize>() -> std::result::Result<[u8; N], Errno> {
    let mut bytes = [0; N];
    // So few come whole, or not at all before the machine has any.
    match getrandom(&mut bytes, GetRandomFlags::empty())? == N {
        true => Ok(bytes),
        false => Err(Errno::AGAIN),
    }
}
