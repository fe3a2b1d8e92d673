//! A stream as its ends use it: bytes in and out, as they are or in sealed records.

use crate::handshake::records;
use crate::records::{LENGTH, MAX_RECORD, OVERHEAD, RecordError, Records};
use rustix::fd::AsFd;
use rustix::fs::sendfile;
use rustix::io::{Errno, pread};
use rustix::net::{SendFlags, send, sockopt};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::ops::{Deref, Range};
use std::time::Duration;
use tarn_types::stream::StreamKeys;

/// Sealed bytes that are read, or gathered before they are sent.
const BUFFER: usize = 4 * (MAX_RECORD + OVERHEAD);

fn forged(e: RecordError) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("a sealed stream: {e}"))
}

/// Opens incoming records.
#[derive(Debug)]
struct RecordOpener {
    records: Records,
    buffer: Box<[u8]>,
    /// The part of the buffer that was opened and not read.
    plain: Range<usize>,
    /// The part of the buffer that came after that.
    sealed: Range<usize>,
}

impl RecordOpener {
    fn new(records: Records) -> Self {
        Self {
            records,
            buffer: vec![0; BUFFER].into(),
            plain: 0..0,
            sealed: 0..0,
        }
    }

    /// Opens the next record, if all of it has come.
    fn open(&mut self) -> io::Result<bool> {
        let sealed = &mut self.buffer[self.sealed.clone()];
        let Some((head, rest)) = sealed.split_first_chunk_mut::<LENGTH>() else {
            return Ok(false);
        };
        let length = Records::length(*head).map_err(forged)?;
        let Some(record) = rest.get_mut(..length) else {
            return Ok(false);
        };
        let content = self.records.open(record).map_err(forged)?;
        let start = self.sealed.start + LENGTH;
        self.plain = start..start + content;
        self.sealed.start = start + length;
        Ok(true)
    }

    fn read(&mut self, mut from: impl Read, out: &mut [u8]) -> io::Result<usize> {
        while self.plain.is_empty() {
            if self.open()? {
                continue;
            }
            self.buffer.copy_within(self.sealed.clone(), 0);
            self.sealed = 0..self.sealed.len();
            match from.read(&mut self.buffer[self.sealed.end..])? {
                0 => return Ok(0),
                n => self.sealed.end += n,
            }
        }
        let n = self.plain.len().min(out.len());
        let start = self.plain.start;
        out[..n].copy_from_slice(&self.buffer[start..start + n]);
        self.plain.start += n;
        Ok(n)
    }
}

/// Seals outgoing bytes.
#[derive(Debug)]
struct RecordSealer {
    records: Records,
    buffer: Vec<u8>,
    /// Of the buffer.
    sent: usize,
}

impl RecordSealer {
    fn new(records: Records) -> Self {
        Self {
            records,
            buffer: Vec::with_capacity(BUFFER),
            sent: 0,
        }
    }

    fn seal(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        struct RecordOpenError(io::Error);
        impl From<RecordError> for RecordOpenError {
            fn from(e: RecordError) -> Self {
                Self(forged(e))
            }
        }
        let fill = |to: &mut [u8]| fill(to).map_err(RecordOpenError);
        let sealed = self.records.seal(&mut self.buffer, len, fill);
        sealed.map_err(|RecordOpenError(e)| e)
    }

    fn is_full(&self) -> bool {
        self.buffer.len() + MAX_RECORD + OVERHEAD > BUFFER
    }

    /// Sends the sealed bytes.
    fn flush(&mut self, mut to: impl Write) -> io::Result<()> {
        while self.sent < self.buffer.len() {
            match to.write(&self.buffer[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.buffer.clear();
        self.sent = 0;
        Ok(())
    }
}

/// A client's end of a stream. Written bytes leave with [`Write::flush`] at the latest, and a call that was interrupted or would
/// have blocked never loses them: the next one continues.
#[derive(Debug)]
pub struct Wire {
    socket: TcpStream,
    seals: Option<Box<(RecordOpener, RecordSealer)>>,
}

impl Wire {
    /// A stream of which both ends have these keys; without, one in clear.
    ///
    /// # Errors
    /// None that can be met; the cipher's own.
    pub fn new(socket: TcpStream, keys: Option<&StreamKeys>) -> io::Result<Self> {
        let seals = keys.map(|keys| {
            let (to_server, to_client) = records(keys).map_err(forged)?;
            let seals = (RecordOpener::new(to_client), RecordSealer::new(to_server));
            Ok::<_, io::Error>(Box::new(seals))
        });
        let seals = seals.transpose()?;
        Ok(Self { socket, seals })
    }

    /// The stream itself, for operations that concern no bytes of it.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Whether all that goes over it is sealed.
    pub fn is_sealed(&self) -> bool {
        self.seals.is_some()
    }

    /// Records that were opened, and sealed, so far.
    pub fn counts(&self) -> (u64, u64) {
        let seals = self.seals.as_deref();
        seals.map_or((0, 0), |(opening, sealing)| {
            (opening.records.count(), sealing.records.count())
        })
    }

    /// Whether nothing has come that was not read, and nothing was written that was not sent.
    pub fn is_between(&self) -> bool {
        self.seals.as_deref().is_none_or(|(opening, sealing)| {
            opening.plain.is_empty() && opening.sealed.is_empty() && sealing.buffer.is_empty()
        })
    }

    /// The stream itself, when both ends speak otherwise from now on.
    pub fn into_socket(self) -> TcpStream {
        self.socket
    }
}

impl Read for Wire {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match &mut self.seals {
            None => self.socket.read(out),
            Some(seals) => seals.0.read(&self.socket, out),
        }
    }
}

impl Write for Wire {
    /// Bytes that were taken; of a sealed stream some may wait to be sent.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(seals) = &mut self.seals else {
            return self.socket.write(bytes);
        };
        let sealing = &mut seals.1;
        if sealing.is_full() || sealing.sent > 0 {
            sealing.flush(&self.socket)?;
        }
        let n = bytes.len().min(MAX_RECORD);
        sealing.seal(n, |to| {
            to.copy_from_slice(&bytes[..n]);
            Ok(())
        })?;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.seals {
            None => Ok(()),
            Some(seals) => seals.1.flush(&self.socket),
        }
    }
}

/// Which end of a stream this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEnd {
    /// The end that has opened it.
    Client,
    /// The end that has accepted it.
    Server,
}

/// The incoming direction, if another owner has the other one. `S` is the socket, borrowed or shared.
#[derive(Debug)]
pub struct Incoming<S> {
    socket: S,
    opening: Option<RecordOpener>,
}

impl<S: Deref<Target = TcpStream>> Incoming<S> {
    /// The stream itself, for operations that concern no bytes of it.
    pub fn socket(&self) -> &S {
        &self.socket
    }

    /// Whether nothing has come that was not read.
    pub fn is_empty(&self) -> bool {
        let opening = self.opening.as_ref();
        opening.is_none_or(|o| o.plain.is_empty() && o.sealed.is_empty())
    }
}

impl<S: Deref<Target = TcpStream>> Read for Incoming<S> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match &mut self.opening {
            None => (&*self.socket).read(out),
            Some(opening) => opening.read(&*self.socket, out),
        }
    }
}

/// The outgoing direction, if another owner has the other one.
#[derive(Debug)]
pub struct Outgoing<S> {
    socket: S,
    sealing: Option<RecordSealer>,
}

/// Both directions of an end of a stream, sealed if there are keys.
///
/// # Errors
/// None that can be met; the cipher's own.
pub fn halves<S: Clone>(
    socket: S,
    keys: Option<&StreamKeys>,
    end: StreamEnd,
) -> io::Result<(Incoming<S>, Outgoing<S>)> {
    let records = keys.map(records).transpose().map_err(forged)?;
    let (opening, sealing) = match records {
        Some((to_server, to_client)) => {
            let (comes, goes) = match end {
                StreamEnd::Client => (to_client, to_server),
                StreamEnd::Server => (to_server, to_client),
            };
            (
                Some(RecordOpener::new(comes)),
                Some(RecordSealer::new(goes)),
            )
        }
        None => (None, None),
    };
    let incoming = Incoming {
        socket: socket.clone(),
        opening,
    };
    Ok((incoming, Outgoing { socket, sealing }))
}

impl<S: Deref<Target = TcpStream>> Outgoing<S> {
    /// The stream itself, for operations that concern no bytes of it.
    pub fn socket(&self) -> &S {
        &self.socket
    }

    /// Whether all that goes over it is sealed.
    pub fn is_sealed(&self) -> bool {
        self.sealing.is_some()
    }

    /// Sends all of it. `more`: more follows at once.
    pub fn send(&mut self, bytes: &[u8], more: bool) -> io::Result<()> {
        let Some(sealing) = &mut self.sealing else {
            return send_all(&self.socket, bytes, more);
        };
        for chunk in bytes.chunks(MAX_RECORD) {
            if sealing.is_full() {
                sealing.flush(&*self.socket)?;
            }
            sealing.seal(chunk.len(), |to| {
                to.copy_from_slice(chunk);
                Ok(())
            })?;
        }
        match more {
            true => Ok(()),
            false => sealing.flush(&*self.socket),
        }
    }

    /// Sends a stretch of a file; more follows at once.
    ///
    /// # Errors
    /// `UnexpectedEof` when it is shorter.
    pub fn send_file(&mut self, file: impl AsFd, stretch: Range<u64>) -> io::Result<()> {
        let Range { start: mut at, end } = stretch;
        while at < end {
            let left = usize::try_from(end - at).unwrap_or(usize::MAX);
            let Some(sealing) = &mut self.sealing else {
                match sendfile(&*self.socket, &file, Some(&mut at), left) {
                    // There is nothing to send in its place.
                    Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                    Ok(_) | Err(Errno::INTR) => continue,
                    Err(errno) => return Err(errno.into()),
                }
            };
            if sealing.is_full() {
                sealing.flush(&*self.socket)?;
            }
            let n = left.min(MAX_RECORD);
            sealing.seal(n, |to| read_exact_at(&file, to, at))?;
            at += n as u64;
        }
        Ok(())
    }
}

/// From now on a silent loss of the other end is noticed within half a minute, however long nothing is sent.
///
/// # Errors
/// The system's error.
pub fn keep_alive(socket: &TcpStream) -> io::Result<()> {
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(15))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(socket, 3)?;
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}

/// Fills `to` from a place of a file.
///
/// # Errors
/// `UnexpectedEof` when it is shorter.
pub fn read_exact_at(file: impl AsFd, mut to: &mut [u8], mut at: u64) -> io::Result<()> {
    while !to.is_empty() {
        match pread(&file, &mut *to, at) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                to = &mut to[n..];
                at += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn send_all(socket: &TcpStream, mut bytes: &[u8], more: bool) -> io::Result<()> {
    let more = match more {
        true => SendFlags::MORE,
        false => SendFlags::empty(),
    };
    while !bytes.is_empty() {
        match send(socket, bytes, more | SendFlags::NOSIGNAL) {
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
