//! Writes and reads between ranks of different nodes, by [`OneSided`]: announced, confirmed and proven by the stream, which all
//! bytes take where that does not work.

use crate::line::malformed;
use crate::peer::{RankCall, RankCallError, RankReply, WindowName, receive, send};
use crate::socket::{RankSocket, deadline};
use crate::state::rank;
use crate::wire::{FrameFields, MAX_TEXT, RankRequest, SHOWN};
use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tarn_ports::{OneSided, RanksError};

/// Less is fetched by the stream: to open a window takes a round trip.
const WORTH: usize = 64 << 10;
/// Without a byte for so long, or for half of the time that there is, it is given up.
const STALL: Duration = Duration::from_secs(10);

/// Continues to wait as long as nothing comes by the stream and the time is not over.
fn patient(socket: &RankSocket, until: Instant) -> io::Result<()> {
    match (socket.is_quiet(), Instant::now() < until) {
        (false, _) => Err(io::Error::new(
            ErrorKind::UnexpectedEof,
            "its connection has closed",
        )),
        (true, false) => Err(ErrorKind::TimedOut.into()),
        (true, true) => Ok(()),
    }
}

/// The end of a wait for the next byte that leaves time for the stream.
fn half(until: Instant) -> Instant {
    let now = Instant::now();
    now + (until.saturating_duration_since(now) / 2).min(STALL)
}

fn address(socket: &RankSocket) -> io::Result<IpAddr> {
    socket
        .here()
        .ok_or_else(|| ErrorKind::AddrNotAvailable.into())
}

/// The outcome of a movement of bytes: a rank that is gone is not the fault of the means.
fn outcome<T>(moved: io::Result<T>) -> RankReply<T> {
    match moved {
        Ok(moved) => Ok(moved),
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => Err(e.into()),
        Err(e) if e.kind() == ErrorKind::TimedOut => Err(RankCallError::Refused(
            "nothing came through in time".into(),
        )),
        Err(e) => Err(RankCallError::Refused(e.to_string())),
    }
}

fn reason(e: RanksError) -> String {
    match e {
        RanksError::Refused { why, .. } => why,
        e => e.to_string(),
    }
}

/// The way to a rank of another node beside the stream.
pub(crate) struct OneSidedPath<'a> {
    call: &'a RankCall<'a>,
    one_sided: &'a dyn OneSided,
}

impl<'a> OneSidedPath<'a> {
    /// None for a rank of this node, and where there are streams only.
    pub(crate) fn of(call: &'a RankCall<'a>) -> Option<Self> {
        let one_sided = call.shared.one_sided.get()?;
        call.folder.is_none().then_some(Self {
            call,
            one_sided: &**one_sided,
        })
    }

    fn window(&self) -> MutexGuard<'_, Option<WindowName>> {
        let window = self.call.peer.window.lock();
        window.unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn forget_window(&self) {
        *self.window() = None;
    }

    /// Bytes went by the stream because of this.
    pub(crate) fn note_detour(&self, why: RanksError) {
        let (name, who, why) = (self.one_sided.name(), rank(self.call.to), reason(why));
        let text = format!("bytes go between this rank and {who} by TCP, not by {name}: {why}");
        self.call.shared.note_detour(text);
    }

    /// Requests a window onto the granted memory.
    pub(crate) fn request_window(&self, generation: u64) {
        let words = self.call.run(|socket, until| {
            send(socket, &RankRequest::Window(generation), until)?;
            receive(socket, MAX_TEXT, until)
        });
        match words {
            Ok(words) => *self.window() = Some((generation, words.into())),
            Err(why) => self.note_detour(why),
        }
    }

    /// Writes bytes to the window that the rank has given for this generation; returns the checksum that it finds there. None:
    /// there is no window.
    ///
    /// # Errors
    /// Why it did not work. The window is not used again: a write that was given up may come late.
    pub(crate) fn write(
        &self,
        generation: u64,
        at: u64,
        bytes: &[u8],
    ) -> Result<Option<u64>, RanksError> {
        let window = self.window().clone().filter(|(of, _)| *of == generation);
        let Some((_, words)) = window.filter(|_| !bytes.is_empty()) else {
            return Ok(None);
        };
        let written = self.call.run(|socket, until| {
            let give_up = half(until);
            send(socket, &RankRequest::Comes, until)?;
            let mut waits = || patient(socket, give_up);
            let here = address(socket)?;
            outcome(self.one_sided.write(here, &words, at, bytes, &mut waits))?;
            let landed = RankRequest::Landed(generation, at, bytes.len() as u64);
            send(socket, &landed, until)?;
            let sum = receive(socket, 8, until)?;
            Ok(FrameFields(&sum).u64().ok_or_else(malformed)?)
        });
        if written.is_err() {
            self.forget_window();
        }
        written.map(Some)
    }

    /// Reads bytes of a medium by windows; how many are there, and why not all.
    pub(crate) fn read(
        &self,
        medium: &str,
        at: u64,
        into: &mut [u8],
        arrived: &mut dyn FnMut(&[u8]),
    ) -> (usize, Option<RanksError>) {
        if self.call.peer.plain.load(Ordering::Relaxed) {
            return (0, None);
        }
        let RankCall {
            until: end_of_call,
            within,
            ..
        } = self.call;
        let there = Cell::new(0);
        while into.len() - there.get() >= WORTH {
            let begun = there.get();
            let end = (begun + SHOWN).min(into.len());
            let read = self.call.run(|socket, until| {
                let show = RankRequest::Show(at + begun as u64, end - begun, medium);
                send(socket, &show, until)?;
                let words = receive(socket, MAX_TEXT, until)?;
                let give_up = Cell::new(half(until));
                let mut waits = || patient(socket, give_up.get());
                let mut came = |part: &[u8]| {
                    there.set(begun + part.len());
                    // However slow it is: only a transfer without progress is given up.
                    end_of_call.set(deadline(*within));
                    give_up.set(half(end_of_call.get()));
                    // Of later windows it is notified at their end.
                    if begun == 0 {
                        arrived(part);
                    }
                };
                let part = &mut into[begun..end];
                let here = address(socket)?;
                let moved = self
                    .one_sided
                    .read(here, &words, part, &mut waits, &mut came);
                outcome(moved)?;
                send(socket, &RankRequest::Seen, end_of_call.get())?;
                Ok(())
            });
            if begun > 0 && there.get() > begun {
                arrived(&into[..there.get()]);
            }
            if let Err(why) = read {
                return (there.get(), Some(why));
            }
        }
        (there.get(), None)
    }
}
