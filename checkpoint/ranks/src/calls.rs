//! The requests of a rank to another: memory for its staged part, bytes to keep there, bytes of a medium.

use crate::line::malformed;
use crate::one_sided::OneSidedPath;
use crate::peer::{RankCall, RankReply, answer, receive, send};
use crate::socket::{RankSocket, deadline};
use crate::state::CarriedCounters;
use crate::wire::{FrameFields, MAX_TEXT, PIECE, RankRequest};
use std::sync::atomic::Ordering;
use std::time::Instant;
use tarn_ports::RanksError;
use tarn_types::crc::joined;

/// Bytes that are looked at while they are in the second-level cache.
const PART: usize = 256 << 10;

impl RankCall<'_> {
    pub(crate) fn grant(self, generation: u64, bytes: u64) -> Result<String, RanksError> {
        let one_sided = OneSidedPath::of(&self);
        if let Some(one_sided) = &one_sided {
            one_sided.forget_window();
        }
        let name = self.run(|socket, until| {
            send(socket, &RankRequest::Grant(generation, bytes), until)?;
            let name = receive(socket, MAX_TEXT, until)?;
            Ok(String::from_utf8(name).map_err(|_| malformed())?)
        })?;
        if let Some(one_sided) = &one_sided {
            one_sided.request_window(generation);
        }
        Ok(name)
    }

    pub(crate) fn put(self, generation: u64, at: u64, bytes: &[u8]) -> Result<u64, RanksError> {
        within_range(at, bytes.len())?;
        let carried = &self.shared.carried;
        let one_sided = OneSidedPath::of(&self);
        let written = one_sided.as_ref().map(|o| o.write(generation, at, bytes));
        if let Some(Ok(Some(sum))) = written {
            CarriedCounters::add(&carried.put, bytes.len());
            return Ok(sum);
        }
        let sum = self.send(generation, at, bytes)?;
        CarriedCounters::add(&carried.put_by_stream, bytes.len());
        if let (Some(one_sided), Some(Err(why))) = (one_sided, written) {
            one_sided.note_detour(why);
        }
        Ok(sum)
    }

    /// By the stream.
    fn send(&self, generation: u64, at: u64, bytes: &[u8]) -> Result<u64, RanksError> {
        self.run(|socket, until| {
            let mut checksum = 0;
            let mut take = |len: usize| -> RankReply<()> {
                let piece = receive(socket, 8, until)?;
                let piece = FrameFields(&piece).u64().ok_or_else(malformed)?;
                checksum = joined(checksum, piece, len as u64);
                Ok(())
            };
            // While one is being kept the next is on its way. Of nothing there is one piece.
            let mut under_way = None;
            let mut sent = 0;
            while sent < bytes.len() || under_way.is_none() {
                let piece = &bytes[sent..(sent + PIECE).min(bytes.len())];
                let request = RankRequest::Put(generation, at + sent as u64, piece);
                send(socket, &request, until)?;
                sent += piece.len();
                if let Some(len) = under_way.replace(piece.len()) {
                    take(len)?;
                }
            }
            take(under_way.unwrap_or(0))?;
            Ok(checksum)
        })
    }

    pub(crate) fn fetch(
        self,
        medium: &str,
        at: u64,
        into: &mut [u8],
        arrived: &mut dyn FnMut(&[u8]),
    ) -> Result<(), RanksError> {
        within_range(at, into.len())?;
        if medium.len() > MAX_TEXT {
            let what = format!("a medium's name has at most {MAX_TEXT} bytes");
            return Err(RanksError::Invalid(what));
        }
        let carried = &self.shared.carried;
        let one_sided = OneSidedPath::of(&self);
        let read = one_sided.as_ref();
        let (there, why) = read.map_or((0, None), |o| o.read(medium, at, into, arrived));
        CarriedCounters::add(&carried.fetched, there);
        if there == into.len() && there > 0 {
            return Ok(());
        }
        self.receive(medium, at, (there, into), arrived)?;
        CarriedCounters::add(&carried.fetched_by_stream, into.len() - there);
        if let (Some(one_sided), Some(why)) = (one_sided, why) {
            self.peer.plain.store(true, Ordering::Relaxed);
            one_sided.note_detour(why);
        }
        Ok(())
    }

    /// Gets the missing bytes by the stream.
    fn receive(
        &self,
        medium: &str,
        at: u64,
        (mut there, into): (usize, &mut [u8]),
        arrived: &mut dyn FnMut(&[u8]),
    ) -> Result<(), RanksError> {
        let within = self.within;
        self.run(|socket, mut until| {
            let mut requested = there;
            let size = into.len();
            let mut request = |socket: &RankSocket, until: Instant| {
                let len = PIECE.min(size - requested);
                let at = at + requested as u64;
                requested += len;
                match len {
                    0 => Ok(()),
                    len => send(socket, &RankRequest::Fetch(at, len, medium), until),
                }
            };
            // While one is on its way the next is being read.
            request(socket, until)?;
            while there < size {
                request(socket, until)?;
                let end = (there + PIECE).min(size);
                if there + answer(socket, until)? != end {
                    return Err(malformed().into());
                }
                while there < end {
                    let part = there..(there + PART).min(end);
                    socket.receive_all(&mut into[part.clone()], until)?;
                    there = part.end;
                    arrived(&into[..there]);
                }
                // However slow the link is: only one that stands still is given up.
                until = deadline(within);
            }
            Ok(())
        })
    }
}

fn within_range(at: u64, len: usize) -> Result<(), RanksError> {
    let end = at.checked_add(len as u64);
    end.map(drop)
        .ok_or_else(|| RanksError::Invalid(format!("{len} bytes at {at} end nowhere")))
}
