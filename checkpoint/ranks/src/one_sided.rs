//! What ranks of different nodes write to each other, and read, by [`OneSided`]: announced, confirmed and proven by the stream, which all
//! goes by where that does not work.

use crate::calls::{RankCall, RankReply, receive, send};
use crate::line::malformed;
use crate::socket::{RankSocket, deadline};
use crate::state::rank;
use crate::wire::{FrameFields, MAX_TEXT, RankRequest, SHOWN};
use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tarn_ports::{OneSided, RanksError};

/// Less is fetched by the stream: to open a window takes a round trip.
const WORTH: usize = 64 << 10;
/// Without a byte for so long, or for half of the time that there is, it is given up.
const STALL: Duration = Duration::from_secs(10);

/// A window at a rank: the generation that it is for, and the words that name it.
pub(crate) type WindowName = (u64, Arc<[u8]>);

/// Goes on waiting as long as the stream says nothing and the time is not over.
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

/// What became of it: a rank that is gone is not the fault of what moved bytes.
fn outcome<T>(moved: io::Result<T>) -> RankReply<T> {
    match moved {
        Ok(moved) => Ok(Ok(moved)),
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => Err(e),
        Err(e) if e.kind() == ErrorKind::TimedOut => Ok(Err("nothing came through in time".into())),
        Err(e) => Ok(Err(e.to_string())),
    }
}

fn reason(e: RanksError) -> String {
    match e {
        RanksError::Refused { why, .. } => why,
        e => e.to_string(),
    }
}

impl RankCall<'_> {
    fn one_sided(&self) -> Option<&dyn OneSided> {
        let far = self.folder.is_none();
        self.shared.one_sided.get().filter(|_| far).map(|o| &**o)
    }

    fn window(&self) -> MutexGuard<'_, Option<WindowName>> {
        let window = self.peer.window.lock();
        window.unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn forget_window(&self) {
        *self.window() = None;
    }

    pub(crate) fn note_detour(&self, why: &str) {
        let name = self.one_sided().map_or("", |o| o.name());
        let who = rank(self.to);
        let text = format!("bytes go between this rank and {who} by TCP, not by {name}: {why}");
        self.shared.note_detour(text);
    }

    /// Asks for a window onto what was granted.
    pub(crate) fn ask_window(&self, generation: u64) {
        if self.one_sided().is_none() {
            return;
        }
        let asked = self.run(|socket, until| {
            send(socket, &RankRequest::Window(generation), until)?;
            receive(socket, MAX_TEXT, until)
        });
        match asked {
            Ok(words) => *self.window() = Some((generation, words.into())),
            Err(e) => self.note_detour(&reason(e)),
        }
    }

    /// Writes bytes to the window that the rank has given for this generation; the checksum of what it finds there. None: there is no window.
    ///
    /// # Errors
    /// Why it did not work. The window is not used again: what was given up may come late.
    pub(crate) fn write(
        &self,
        generation: u64,
        at: u64,
        bytes: &[u8],
    ) -> Result<Option<u64>, String> {
        let window = self.window().clone().filter(|(of, _)| *of == generation);
        let (Some(one_sided), Some((_, words))) = (self.one_sided(), window) else {
            return Ok(None);
        };
        if bytes.is_empty() {
            return Ok(None);
        }
        let written = self.run(|socket, until| {
            let give_up = half(until);
            send(socket, &RankRequest::Comes, until)?;
            let mut waits = || patient(socket, give_up);
            let here = address(socket)?;
            let moved = one_sided.write(here, &words, at, bytes, &mut waits);
            if let Err(why) = outcome(moved)? {
                return Ok(Err(why));
            }
            let landed = RankRequest::Landed(generation, at, bytes.len() as u64);
            send(socket, &landed, until)?;
            match receive(socket, 8, until)? {
                Ok(sum) => FrameFields(&sum).u64().ok_or_else(malformed).map(Ok),
                Err(why) => Ok(Err(why)),
            }
        });
        written.map(Some).map_err(|e| {
            self.forget_window();
            reason(e)
        })
    }

    /// Reads bytes of a medium by windows; how many are there, and why not all.
    pub(crate) fn read(
        &self,
        medium: &str,
        at: u64,
        into: &mut [u8],
        arrived: &mut dyn FnMut(&[u8]),
    ) -> (usize, Option<String>) {
        let plain = self.peer.plain.load(Ordering::Relaxed);
        let Some(one_sided) = self.one_sided().filter(|_| !plain) else {
            return (0, None);
        };
        let there = Cell::new(0);
        while into.len() - there.get() >= WORTH {
            let begun = there.get();
            let end = (begun + SHOWN).min(into.len());
            let read = self.run(|socket, until| {
                let show = RankRequest::Show(at + begun as u64, end - begun, medium);
                send(socket, &show, until)?;
                let words = match receive(socket, MAX_TEXT, until)? {
                    Ok(words) => words,
                    Err(why) => return Ok(Err(why)),
                };
                let give_up = Cell::new(half(until));
                let mut waits = || patient(socket, give_up.get());
                let mut came = |part: &[u8]| {
                    there.set(begun + part.len());
                    // However slow it is: only what stands still is given up.
                    self.until.set(deadline(self.within));
                    give_up.set(half(self.until.get()));
                    // Of later windows it is told at their end.
                    if begun == 0 {
                        arrived(part);
                    }
                };
                let part = &mut into[begun..end];
                let moved = one_sided.read(address(socket)?, &words, part, &mut waits, &mut came);
                if let Err(why) = outcome(moved)? {
                    return Ok(Err(why));
                }
                send(socket, &RankRequest::Seen, self.until.get())?;
                Ok(Ok(()))
            });
            if begun > 0 && there.get() > begun {
                arrived(&into[..there.get()]);
            }
            if let Err(e) = read {
                return (there.get(), Some(reason(e)));
            }
        }
        (there.get(), None)
    }
}
