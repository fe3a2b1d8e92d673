//! A client's stream: requests go out ahead of their answers, answers are checked against the requests.

use crate::client::{DataClient, stopped};
use crate::rma::{Domain, WindowReader};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tarn_ports::{MoverError, PeerStream, Piece, Watch};
use tarn_proto::data::{
    Builder, MAX_TEXT, Malformed, ReadReplyHeader, ReadStatus, Tree, Window, release,
};
use tarn_stream::Wire;
use tarn_types::event::RunErrorKind;

type Result<T> = std::result::Result<T, MoverError>;

/// Bytes read ahead: heads and small files come with one call.
const AHEAD: usize = 64 << 10;
/// A request of so many bytes is long enough.
const REQUEST: usize = 8 << 10;
/// Bytes of requests that are sent before the first of them has been answered. Less than the server's kernel holds for it:
/// a server that is sending does not read, so a client that must wait for it to read would wait for ever.
const IN_FLIGHT: usize = 32 << 10;
/// The same in requests.
const REQUESTS_IN_FLIGHT: usize = 64;
/// A stream that was not used for so long is opened again: the server closes idle ones.
const STALE: Duration = Duration::from_secs(30);

/// The reply that must come next.
#[derive(Debug, Clone, Copy)]
struct ExpectedReply {
    request: u32,
    item: u32,
    len: u64,
    /// The last of its request.
    last: bool,
}

pub(crate) struct Stream<'a> {
    client: &'a DataClient,
    /// The tree whose files are requested.
    tree: &'a Tree,
    wire: Wire,
    watch: &'a dyn Watch,
    buffer: Box<[u8]>,
    /// The unread part of the buffer.
    unread: std::ops::Range<usize>,
    expected: VecDeque<ExpectedReply>,
    unsent: VecDeque<Vec<u8>>,
    /// Bytes of the requests that were sent and not answered to the end.
    in_flight: VecDeque<usize>,
    /// Of the item that is being read.
    left: u64,
    number: u32,
    used: Instant,
    /// The domain that reads windows, if they can be read.
    domain: Option<Arc<Domain>>,
    /// The window in which the item is, its request and its place there.
    window: Option<(WindowReader, u32, u32)>,
    /// Memory of windows that were read.
    spare: Vec<Vec<u8>>,
}

impl<'a> Stream<'a> {
    pub(crate) fn new(
        client: &'a DataClient,
        tree: &'a Tree,
        wire: Wire,
        watch: &'a dyn Watch,
    ) -> Self {
        // Content read from a window is not sealed.
        let rma = client.way.rma().filter(|_| !wire.is_sealed());
        let local = rma.and_then(|rma| Some((rma, wire.socket().local_addr().ok()?)));
        Self {
            domain: local.and_then(|(rma, local)| rma.domain(local.ip())),
            window: None,
            spare: Vec::new(),
            client,
            tree,
            wire,
            watch,
            buffer: vec![0; AHEAD].into(),
            unread: 0..0,
            expected: VecDeque::new(),
            unsent: VecDeque::new(),
            in_flight: VecDeque::new(),
            left: 0,
            number: 0,
            used: Instant::now(),
        }
    }

    fn failed(&self, what: &str) -> MoverError {
        self.client.failed(what)
    }

    fn lost(&self, e: &io::Error) -> MoverError {
        let why = match e.kind() {
            io::ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
            _ => format!("the connection was lost: {e}"),
        };
        self.failed(&why)
    }

    fn garbage(&self, what: &str) -> MoverError {
        self.failed(&format!(
            "it sent what was not asked for: {what}; use another replica"
        ))
    }

    /// After a call that moved nothing: whether to try again.
    fn still(&self, e: &io::Error, since: Instant) -> Result<()> {
        match e.kind() {
            io::ErrorKind::Interrupted => return Ok(()),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {}
            _ => return Err(self.lost(e)),
        }
        if self.watch.stopped() {
            return Err(stopped());
        }
        let stall = self.client.timeout.stall;
        if since.elapsed() >= stall {
            let seconds = stall.as_secs_f64();
            return Err(self.failed(&format!(
                "it was silent for {seconds:.0} s in the middle of a transfer"
            )));
        }
        Ok(())
    }

    /// Sends requests, as many as may be under way.
    fn pump(&mut self) -> Result<()> {
        while let Some(next) = self.unsent.front() {
            let under_way: usize = self.in_flight.iter().sum();
            let has_space =
                under_way + next.len() <= IN_FLIGHT && self.in_flight.len() < REQUESTS_IN_FLIGHT;
            if !has_space && !self.in_flight.is_empty() {
                return Ok(());
            }
            self.in_flight.push_back(next.len());
            if let Some(next) = self.unsent.pop_front() {
                self.send(&next)?;
            }
        }
        Ok(())
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let mut sent = 0;
        let mut since = Instant::now();
        loop {
            let went = match bytes.get(sent..) {
                None | Some([]) => self.wire.flush().map(|()| None),
                Some(rest) => self.wire.write(rest).map(Some),
            };
            match went {
                Ok(None) => return Ok(()),
                Ok(Some(n)) => {
                    sent += n;
                    since = Instant::now();
                }
                Err(e) => self.still(&e, since)?,
            }
        }
    }

    /// Learns where the window is.
    fn open_window(&mut self, answer: ReadReplyHeader) -> Result<()> {
        let mut head = [0; Window::HEAD];
        self.receive(&mut head)?;
        let (name, from, key) = Window::decode_head(&head);
        let mut name = vec![0; name];
        self.receive(&mut name)?;
        let window = Window {
            name: name.into(),
            from,
            key,
        };
        let Some(domain) = &self.domain else {
            return Err(self.garbage("a window"));
        };
        let spare = std::mem::take(&mut self.spare);
        match WindowReader::new(domain, &window, answer.len, spare) {
            Ok(reading) => self.window = Some((reading, answer.request, answer.item)),
            Err(e) => return Err(self.without_rma(&e)),
        }
        Ok(())
    }

    /// Fills `out` from the window.
    fn read_window(&mut self, out: &mut [u8]) -> Result<()> {
        let (mut have, mut since) = (0, Instant::now());
        while have < out.len() {
            let Some((reading, ..)) = &mut self.window else {
                return Err(self.failed("no window is open: an error of tarn"));
            };
            match reading.read(&mut out[have..]) {
                Ok(n) => {
                    have += n;
                    since = Instant::now();
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.still(&e, since)
                        .map_err(|silent| match self.watch.stopped() {
                            true => silent,
                            false => self.without_rma(&e),
                        })?;
                }
                Err(e) => return Err(self.without_rma(&e)),
            }
        }
        Ok(())
    }

    fn close_window(&mut self) -> Result<()> {
        if let Some((reading, request, item)) = self.window.take() {
            self.spare = reading.end();
            self.send(&release(request, item))?;
        }
        Ok(())
    }

    /// A window could not be read: either the peer has gone, or this way does not work between the two.
    fn without_rma(&self, e: &io::Error) -> MoverError {
        match self.wire.socket().peek(&mut [0]) {
            Ok(0) => return self.lost(&io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return self.lost(&e),
        }
        if let Some(rma) = self.client.way.rma() {
            rma.close();
        }
        let why = match e.kind() {
            io::ErrorKind::WouldBlock => "nothing comes".to_owned(),
            _ => e.to_string(),
        };
        self.failed(&format!(
            "libfabric cannot read from it ({why}): this node does without from now on"
        ))
    }

    /// Fills `out`.
    fn receive(&mut self, out: &mut [u8]) -> Result<()> {
        let mut have = 0;
        let mut since = Instant::now();
        while have < out.len() {
            if self.unread.is_empty() {
                // Long content goes to its destination at once.
                let direct = out.len() - have >= AHEAD / 2;
                let got = match direct {
                    true => self.wire.read(&mut out[have..]),
                    false => self.wire.read(&mut self.buffer),
                };
                match got {
                    Ok(0) => return Err(self.lost(&io::ErrorKind::UnexpectedEof.into())),
                    Ok(n) if direct => have += n,
                    Ok(n) => self.unread = 0..n,
                    Err(e) => {
                        self.still(&e, since)?;
                        continue;
                    }
                }
                since = Instant::now();
                continue;
            }
            let n = self.unread.len().min(out.len() - have);
            let from = self.unread.start;
            out[have..have + n].copy_from_slice(&self.buffer[from..from + n]);
            self.unread.start += n;
            have += n;
        }
        Ok(())
    }

    /// Reads the head of the next item.
    fn begin(&mut self) -> Result<()> {
        let Some(expected) = self.expected.pop_front() else {
            return Err(self.failed("nothing was asked for: an error of tarn"));
        };
        let until = Instant::now() + self.client.timeout.arrival;
        let answer = loop {
            let mut head = [0; ReadReplyHeader::BYTES];
            self.receive(&mut head)?;
            let answer = ReadReplyHeader::decode(&head).map_err(|m| self.garbage(m.0))?;
            if (answer.request, answer.item) != (expected.request, expected.item) {
                return Err(self.garbage("the answer to another request"));
            }
            if answer.status != ReadStatus::Wait {
                break answer;
            }
            if self.watch.stopped() {
                return Err(stopped());
            }
            if Instant::now() >= until {
                return Err(self.failed("the file has not arrived there in time"));
            }
        };
        if !matches!(answer.status, ReadStatus::Content | ReadStatus::Window) {
            return Err(self.refused(answer));
        }
        if answer.len != expected.len {
            return Err(self.garbage("an item of another length"));
        }
        if answer.status == ReadStatus::Window {
            self.open_window(answer)?;
        }
        self.left = answer.len;
        if expected.last {
            self.in_flight.pop_front();
            self.pump()?;
        }
        Ok(())
    }

    fn refused(&mut self, answer: ReadReplyHeader) -> MoverError {
        // `Answer::decode` has checked the bound.
        let mut text = vec![0; (answer.len as usize).min(MAX_TEXT)];
        if let Err(e) = self.receive(&mut text) {
            return e;
        }
        let text = String::from_utf8_lossy(&text);
        let text = text.escape_debug();
        let node = &self.client.node;
        let (kind, what) = match answer.status {
            ReadStatus::Gone => (RunErrorKind::SourceChanged, "it is not there any more"),
            ReadStatus::Shorter => (
                RunErrorKind::SourceChanged,
                "it is shorter than in its manifest",
            ),
            ReadStatus::Refused => (RunErrorKind::Io, "it may not be read"),
            _ => (RunErrorKind::Io, "it cannot be read there"),
        };
        MoverError::new(
            kind,
            format!("node {node}: {what} ({text}); use another replica"),
        )
    }
}

impl PeerStream for Stream<'_> {
    fn ask(&mut self, pieces: &[Piece<'_>]) -> Result<()> {
        if self.expected.is_empty() && self.left == 0 && self.used.elapsed() > STALE {
            let (wire, _) = self.client.connect(self.watch)?;
            *self = Stream::new(self.client, self.tree, wire, self.watch);
        }
        self.used = Instant::now();
        let mut rest = pieces;
        while !rest.is_empty() {
            let wrong = |m: Malformed| self.client.failed(m.0);
            let windows = self.domain.as_ref().is_some_and(|d| d.works());
            let mut request = Builder::new(self.number, self.tree, windows).map_err(wrong)?;
            let mut item = 0;
            while let Some((piece, after)) = rest.split_first()
                && request.size() < REQUEST
                && request
                    .push(piece.path, piece.offset, piece.len)
                    .map_err(wrong)?
            {
                rest = after;
                self.expected.push_back(ExpectedReply {
                    request: self.number,
                    item,
                    len: piece.len,
                    last: false,
                });
                item += 1;
            }
            if let Some(last) = self.expected.back_mut() {
                last.last = true;
            }
            self.number = self.number.wrapping_add(1);
            self.unsent.push_back(request.finish());
        }
        self.pump()
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<()> {
        if self.left == 0 {
            self.begin()?;
        }
        let len = buffer.len() as u64;
        if len > self.left {
            return Err(self.failed("more is read than was asked for: an error of tarn"));
        }
        match self.window {
            Some(_) => self.read_window(buffer)?,
            None => self.receive(buffer)?,
        }
        self.left -= len;
        if self.left == 0 {
            self.close_window()?;
        }
        self.used = Instant::now();
        Ok(())
    }
}
