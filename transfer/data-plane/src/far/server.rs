//! The node that has it: requests are read, done, and answered in order.

use crate::rma::{Rma, ServedWindow};
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;
use tarn_proto::storage::{MAX_PIECE, Offer, StorageReply, StorageRequest, Verb};
use tarn_ring::{StorageRequestError, Target};
use tarn_stream::{Incoming, Outgoing};

/// Bytes of answers that are gathered while more requests have come already.
const GATHER: usize = 256 << 10;
/// A peer that neither sends the rest of a request nor takes its answers for so long is given up. It may be idle for as long as it likes.
const STALL: Duration = Duration::from_secs(300);

/// Serves until the peer closes, or sends what is no request.
pub(crate) fn serve(
    (requests, answers): (&mut Incoming<&TcpStream>, &mut Outgoing<&TcpStream>),
    target: &mut dyn Target,
    rma: Option<&Rma>,
) -> io::Result<()> {
    let socket = *answers.socket();
    socket.set_read_timeout(Some(STALL))?;
    socket.set_write_timeout(Some(STALL))?;
    let mut requests = BufReader::with_capacity(GATHER, requests);
    // For as long as the stream is open.
    let mut window = None;
    let (mut out, mut piece) = (Vec::with_capacity(GATHER), Vec::new());
    loop {
        match requests.fill_buf() {
            Err(e) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&e.kind()) => continue,
            begun => begun.map(drop)?,
        }
        let mut head = [0; StorageRequest::BYTES];
        requests.read_exact(&mut head)?;
        let ask = StorageRequest::decode(&head)
            .map_err(|m| io::Error::new(io::ErrorKind::InvalidData, m.to_string()))?;
        if matches!(ask.verb, Verb::Write | Verb::WritePersistent) {
            piece.resize(ask.length as usize, 0);
            if requests.buffer().len() < piece.len() {
                // It may wait for these before it sends the rest.
                answers.send(&out, false)?;
                out.clear();
            }
            requests.read_exact(&mut piece)?;
        }
        match (ask.verb, rma, &window) {
            (Verb::Window, Some(rma), None) => match offer(rma, socket, target) {
                Some((opened, bytes)) => {
                    window = Some(opened);
                    let value = bytes.len() as u64;
                    out.extend_from_slice(&StorageReply { code: 0, value }.encode());
                    out.extend_from_slice(&bytes);
                }
                None => done(&ask, &piece, target, &mut out),
            },
            (Verb::Window, _, Some(_)) => {
                let code = whole(target).map_or_else(|why| why.code().unsigned_abs(), |()| 0);
                out.extend_from_slice(&StorageReply { code, value: 0 }.encode());
            }
            _ => done(&ask, &piece, target, &mut out),
        }
        let more = requests.buffer().len() >= StorageRequest::BYTES;
        if !more || out.len() >= GATHER {
            answers.send(&out, false)?;
            out.clear();
            // Large ones are rare where small ones are many.
            out.shrink_to(GATHER.max(MAX_PIECE));
        }
    }
}

/// A window onto all of it, if there can be one.
fn offer(rma: &Rma, socket: &TcpStream, target: &dyn Target) -> Option<(ServedWindow, Vec<u8>)> {
    let of = target.file()?;
    let domain = rma.domain(socket.local_addr().ok()?.ip())?;
    let stream = Some(socket.as_fd());
    let opened = domain.open(of.file, (of.from, of.size), (of.writable, stream));
    let (opened, window) = opened.ok()?;
    let offer = Offer {
        provider: rma.provider().to_owned(),
        size: of.size,
        writable: of.writable,
        window,
    };
    Some((opened, offer.encode()))
}

/// Checks that the content of a window is still there: a reader of missing content may wait for it for ever.
fn whole(target: &dyn Target) -> Result<(), StorageRequestError> {
    let of = target.file().ok_or(StorageRequestError::Io)?;
    let size = rustix::fs::fstat(of.file)
        .map_err(|_| StorageRequestError::Io)?
        .st_size;
    match u64::try_from(size).is_ok_and(|size| size >= of.from + of.size) {
        true => Ok(()),
        false => Err(StorageRequestError::Corrupt),
    }
}

/// Carries out a request, and adds the answer.
fn done(ask: &StorageRequest, piece: &[u8], target: &mut dyn Target, out: &mut Vec<u8>) {
    let begin = out.len();
    out.extend_from_slice(&[0; StorageReply::BYTES]);
    let result = match ask.verb {
        Verb::Read => {
            let from = out.len();
            out.resize(from + ask.length as usize, 0);
            let read = target.read(ask.at, &mut out[from..]);
            read.map(|()| u64::from(ask.length))
        }
        Verb::Write => written(ask, target.write(ask.at, piece, false)),
        Verb::WritePersistent => written(ask, target.write(ask.at, piece, true)),
        Verb::FetchAdd => target.fetch_add(ask.at, ask.operand),
        Verb::CompareSwap => target.compare_swap(ask.at, ask.expected, ask.operand),
        Verb::Flush => target.flush().map(|()| 0),
        Verb::Size => Ok(target.size()),
        Verb::Hold => {
            let alone = (ask.operand > 0).then_some(ask.operand == 2);
            target.hold(alone).map(|()| 0)
        }
        // There is none.
        Verb::Window => Err(StorageRequestError::Invalid),
    };
    let answer = match result {
        Ok(value) => StorageReply { code: 0, value },
        Err(why) => {
            out.truncate(begin + StorageReply::BYTES);
            StorageReply {
                code: why.code().unsigned_abs(),
                value: 0,
            }
        }
    };
    out[begin..begin + StorageReply::BYTES].copy_from_slice(&answer.encode());
}

fn written(
    ask: &StorageRequest,
    result: Result<(), StorageRequestError>,
) -> Result<u64, StorageRequestError> {
    result.map(|()| u64::from(ask.length))
}
