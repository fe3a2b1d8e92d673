//! One stream of a server: requests are read, and answered in order.

use crate::arriving::Waited;
use crate::context::DataServerContext;
use crate::far;
use crate::replica_registry::{Called, MakeTarget, RegistryError, Served, ServedFileExtent};
use crate::rma::{Domain, ServedWindow};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;
use std::io::{self, BufReader, Read};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tarn_ports::Control;
use tarn_proto::data::{
    DataCall, DataRequest, FileRange, MAX_REPLY, MAX_TEXT, Malformed, ReadReplyHeader, ReadRequest,
    ReadStatus, Tree,
};
use tarn_stream::{
    Incoming, MessageKind, Outgoing, Secret, Session, StreamEnd, halves, read_exact_at,
};
use tarn_sys::beneath::Root;
use tarn_types::stream::RunId;

/// Items of at most so many bytes are read and sent together with their heads; larger ones go from the file to the socket.
const TOGETHER: u64 = 64 << 10;
/// Bytes that are gathered before they are sent.
const GATHER: usize = 256 << 10;
/// The time between two signs of life to a peer that waits for content that has not arrived.
const SIGN: Duration = Duration::from_secs(2);
/// Windows of one stream that were not released; beyond that content is sent.
const WINDOWS: usize = 16;
/// Bytes of an item of a single file that is open: as much memory is taken.
const MAX_PIECE: u64 = 64 << 20;
/// Bytes that are sent again and again to a peer that measures the link: they stay in a core's cache.
const NOISE: usize = 256 << 10;
/// Bytes of requests read ahead.
const REQUESTS: usize = 16 << 10;

/// The file that was opened last: the pieces of a file come one after the other.
struct LastOpenFile {
    path: Arc<[u8]>,
    fd: OwnedFd,
    size: u64,
}

/// An item that cannot be sent, and why.
struct Unable(ReadStatus, String);

pub(crate) struct Answering<'a> {
    requests: BufReader<Incoming<&'a TcpStream>>,
    answers: Outgoing<&'a TcpStream>,
    /// Of the connection.
    number: u64,
    run: RunId,
    secret: Secret,
    /// Calls so far.
    calls: u32,
    shared: &'a DataServerContext,
    out: Vec<u8>,
    open: Option<LastOpenFile>,
    /// The domain that opens windows, once a request has asked for one.
    domain: Option<Arc<Domain>>,
    /// By request and item.
    windows: Vec<((u32, u32), ServedWindow)>,
}

impl<'a> Answering<'a> {
    pub(crate) fn new(
        (socket, number): (&'a TcpStream, u64),
        (run, session): (RunId, Session),
        shared: &'a DataServerContext,
    ) -> io::Result<Self> {
        let (incoming, answers) = halves(socket, session.keys.as_ref(), StreamEnd::Server)?;
        Ok(Self {
            requests: BufReader::with_capacity(REQUESTS, incoming),
            answers,
            number,
            run,
            secret: session.secret,
            calls: 0,
            shared,
            out: Vec::with_capacity(GATHER + TOGETHER as usize + ReadReplyHeader::BYTES),
            open: None,
            domain: None,
            windows: Vec::new(),
        })
    }

    fn socket(&self) -> &'a TcpStream {
        self.answers.socket()
    }

    /// Answers until the peer closes, is idle for too long, or sends what is no request.
    pub(crate) fn run(&mut self) -> io::Result<()> {
        let invalid = |m: Malformed| io::Error::new(io::ErrorKind::InvalidData, m.to_string());
        let mut body = Vec::new();
        loop {
            let mut head = [0; 4];
            self.socket()
                .set_read_timeout(Some(self.shared.limits.idle))?;
            self.requests.read_exact(&mut head)?;
            body.resize(ReadRequest::length(head).map_err(invalid)?, 0);
            self.socket()
                .set_read_timeout(Some(self.shared.limits.stall))?;
            self.requests.read_exact(&mut body)?;
            if let Some(call) = DataCall::decode(&body).map_err(invalid)? {
                let given_over = self.call(&call)?;
                self.flush(false)?;
                match given_over {
                    Some(make) => return self.give_over(make),
                    None => continue,
                }
            }
            match DataRequest::decode(&body).map_err(invalid)? {
                DataRequest::Read(request) => {
                    self.answer(&request)?;
                    self.flush(false)?;
                }
                DataRequest::Release { request, item } => {
                    self.windows.retain(|(of, _)| *of != (request, item));
                }
            }
        }
    }

    /// Answers a call; the peer gets a sign of life now and then.
    fn call(&mut self, call: &DataCall<'_>) -> io::Result<Option<MakeTarget>> {
        let number = self.calls;
        self.calls += 1;
        if call.number != number {
            let why = "a call out of its order";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let secret = self.secret.clone();
        secret.check(MessageKind::Call, number, call.body, &call.proof)?;
        let control = Control::default();
        let (shared, run) = (self.shared, self.run);
        let replied = std::thread::scope(|scope| {
            let (reply, replied) = channel();
            let control = &control;
            scope.spawn(move || {
                let _ = reply.send(shared.registry.call(&run, call.body, control));
            });
            loop {
                match replied.recv_timeout(SIGN) {
                    Ok(reply) => return Ok(reply),
                    Err(RecvTimeoutError::Disconnected) => {
                        return Err(io::Error::from(io::ErrorKind::ConnectionAborted));
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                }
                self.out
                    .extend_from_slice(&head(number, ReadStatus::Wait, 0).encode());
                let sent = self.flush(false);
                if sent.is_err() || shared.stop.load(Ordering::Relaxed) {
                    control.cancel.store(true, Ordering::Relaxed);
                    return Err(io::Error::from(io::ErrorKind::ConnectionAborted));
                }
            }
        })?;
        let (replied, mut given_over) = match replied {
            Ok(Called::Reply(reply)) => (Ok(reply), None),
            Ok(Called::Storage(reply, make)) => match shared.give_over(self.number) {
                true => (Ok(reply), Some(make)),
                false => {
                    let text = "so many streams to partitions are open here that there is no space for one more: close some";
                    (Err(RegistryError(text.into())), None)
                }
            },
            Err(why) => (Err(why), None),
        };
        let (status, reply) = match replied {
            Ok(reply) if reply.len() <= MAX_REPLY => (ReadStatus::Content, reply),
            Ok(_) => (
                ReadStatus::Refused,
                b"the answer is longer than allowed".into(),
            ),
            Err(why) => {
                let mut text = why.0.into_bytes();
                text.truncate(MAX_TEXT);
                (ReadStatus::Refused, text)
            }
        };
        given_over = given_over.filter(|_| status == ReadStatus::Content);
        self.out
            .extend_from_slice(&head(number, status, reply.len() as u64).encode());
        if status == ReadStatus::Content {
            let proof = secret.sign(MessageKind::Reply, number, &reply)?;
            self.out.extend_from_slice(&proof);
        }
        self.flush(true)?;
        self.answers.send(&reply, false)?;
        Ok(given_over)
    }

    /// From now on the stream is a partition's: it may be idle, and its peer may be slow, but both are to be alive.
    fn give_over(&mut self, make: MakeTarget) -> io::Result<()> {
        if !self.requests.buffer().is_empty() || !self.requests.get_ref().is_empty() {
            let why = "a request before the stream was given over";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        tarn_stream::keep_alive(self.socket())?;
        let rma = self.shared.way.rma().filter(|_| !self.answers.is_sealed());
        let mut target = make(self.socket())?;
        let (requests, answers) = (self.requests.get_mut(), &mut self.answers);
        far::serve((requests, answers), &mut *target, rma.map(Arc::as_ref))
    }

    fn answer(&mut self, request: &ReadRequest) -> io::Result<()> {
        if request.tree == Tree::Probe {
            return self.probed(request);
        }
        let served = self.shared.registry.tree(&self.run, &request.tree);
        self.open = None;
        let windows = request.windows && !self.answers.is_sealed();
        let rma = self.shared.way.rma().filter(|_| windows);
        if let Some(rma) = rma
            && self.domain.is_none()
        {
            // The address by which the peer reaches this host.
            self.domain = rma.domain(self.socket().local_addr()?.ip());
        }
        for (at, item) in request.items.iter().enumerate() {
            let answer = ReadReplyHeader {
                request: request.number,
                item: at as u32,
                status: ReadStatus::Content,
                len: item.len,
            };
            let root = match &served {
                Ok(Served::Whole(root)) => Ok(Arc::clone(root)),
                Ok(Served::Arriving(arriving)) => {
                    let wait = |timeout| arriving.wait(&item.path, item.offset, item.len, timeout);
                    self.await_arrival(answer, wait)?
                }
                Ok(Served::Part(part)) => {
                    match part_of(part, item, answer, &mut self.out) {
                        Ok(()) => self.count(item),
                        Err(unable) => self.unable(answer, &unable),
                    }
                    if self.out.len() >= GATHER {
                        self.flush(true)?;
                    }
                    continue;
                }
                Ok(Served::Gone) => Err(Unable(ReadStatus::Gone, "nothing of it".into())),
                Err(refusal) => Err(Unable(ReadStatus::Refused, refusal.0.clone())),
            };
            let sent = match root {
                Ok(root) => self.item(&root, item, answer, windows)?,
                Err(unable) => Err(unable),
            };
            match sent {
                Ok(()) => self.count(item),
                Err(unable) => self.unable(answer, &unable),
            }
            if self.out.len() >= GATHER {
                self.flush(true)?;
            }
        }
        Ok(())
    }

    /// Answers who measures the link.
    fn probed(&mut self, request: &ReadRequest) -> io::Result<()> {
        // Not zeros: the network between may compress those.
        let noise: Vec<u8> = (0..NOISE as u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect();
        for (at, item) in (0..).zip(&request.items) {
            let answer = ReadReplyHeader {
                request: request.number,
                item: at,
                status: ReadStatus::Content,
                len: item.len,
            };
            if item.len > MAX_PIECE {
                self.unable(answer, &too_long());
                continue;
            }
            self.out.extend_from_slice(&answer.encode());
            self.flush(true)?;
            let mut left = item.len as usize;
            while left > 0 {
                let n = left.min(noise.len());
                self.answers.send(&noise[..n], false)?;
                left -= n;
            }
            self.count(item);
        }
        Ok(())
    }

    fn count(&self, item: &FileRange) {
        let counters = &self.shared.counters;
        counters.bytes.fetch_add(item.len, Ordering::Relaxed);
        counters.items.fetch_add(1, Ordering::Relaxed);
    }

    fn unable(&mut self, answer: ReadReplyHeader, Unable(status, text): &Unable) {
        let text = &text.as_bytes()[..text.len().min(MAX_TEXT)];
        let answer = ReadReplyHeader {
            status: *status,
            len: text.len() as u64,
            ..answer
        };
        self.out.extend_from_slice(&answer.encode());
        self.out.extend_from_slice(text);
    }

    /// Waits for an item of a tree that is still being copied here; the peer gets a sign of life now and then.
    fn await_arrival(
        &mut self,
        answer: ReadReplyHeader,
        wait: impl Fn(Duration) -> Waited,
    ) -> io::Result<Result<Arc<Root>, Unable>> {
        let until = Instant::now() + self.shared.limits.arrival;
        let mut timeout = Duration::ZERO;
        loop {
            match wait(timeout) {
                Waited::There(root) => return Ok(Ok(root)),
                Waited::Failed => {
                    let text = "the copy of it to this node has failed".to_owned();
                    return Ok(Err(Unable(ReadStatus::Failed, text)));
                }
                Waited::NotYet if self.shared.stop.load(Ordering::Relaxed) => {
                    return Err(io::Error::from(io::ErrorKind::ConnectionAborted));
                }
                Waited::NotYet if Instant::now() >= until => {
                    let text = "it has not arrived at this node in time".to_owned();
                    return Ok(Err(Unable(ReadStatus::Failed, text)));
                }
                Waited::NotYet if timeout.is_zero() => {}
                Waited::NotYet => {
                    let wait = ReadReplyHeader {
                        status: ReadStatus::Wait,
                        len: 0,
                        ..answer
                    };
                    self.out.extend_from_slice(&wait.encode());
                }
            }
            // Ready content is not held back by content that is not ready.
            self.flush(false)?;
            timeout = SIGN;
        }
    }

    /// Sends one item. The outer error ends the stream: the head has been sent, and the content does not follow.
    fn item(
        &mut self,
        root: &Root,
        item: &FileRange,
        answer: ReadReplyHeader,
        windows: bool,
    ) -> io::Result<Result<(), Unable>> {
        if self.open.as_ref().is_none_or(|open| open.path != item.path) {
            match open(root, &item.path) {
                Ok((fd, size)) => {
                    let path = Arc::clone(&item.path);
                    self.open = Some(LastOpenFile { path, fd, size });
                }
                Err(unable) => return Ok(Err(unable)),
            }
        }
        let Some(open) = &self.open else {
            return Ok(Err(Unable(ReadStatus::Failed, "it is not open".into())));
        };
        if item.offset + item.len > open.size {
            let text = format!("it has {} bytes", open.size);
            return Ok(Err(Unable(ReadStatus::Shorter, text)));
        }
        if windows
            && item.len > TOGETHER
            && self.windows.len() < WINDOWS
            && let Some(domain) = &self.domain
            && let Ok((opened, window)) =
                domain.open(open.fd.as_fd(), (item.offset, item.len), (false, None))
        {
            let head = ReadReplyHeader {
                status: ReadStatus::Window,
                ..answer
            };
            self.out.extend_from_slice(&head.encode());
            self.out.extend_from_slice(&window.encode());
            self.windows.push(((answer.request, answer.item), opened));
            let counters = &self.shared.counters;
            counters.windows.fetch_add(1, Ordering::Relaxed);
            return Ok(Ok(()));
        }
        let start = self.out.len();
        self.out.extend_from_slice(&answer.encode());
        if item.len <= TOGETHER {
            let content = self.out.len();
            self.out.resize(content + item.len as usize, 0);
            let read = fill(&open.fd, &mut self.out[content..], item.offset);
            if let Err(unable) = read {
                self.out.truncate(start);
                return Ok(Err(unable));
            }
            return Ok(Ok(()));
        }
        self.answers.send(&self.out, true)?;
        self.out.clear();
        let stretch = item.offset..item.offset + item.len;
        self.answers.send_file(&open.fd, stretch)?;
        Ok(Ok(()))
    }

    /// Sends what was gathered. `more`: more follows at once.
    fn flush(&mut self, more: bool) -> io::Result<()> {
        self.answers.send(&self.out, more)?;
        self.out.clear();
        Ok(())
    }
}

fn head(request: u32, status: ReadStatus, len: u64) -> ReadReplyHeader {
    ReadReplyHeader {
        request,
        item: 0,
        status,
        len,
    }
}

fn too_long() -> Unable {
    let text = format!("at most {MAX_PIECE} bytes of it are sent at a time");
    Unable(ReadStatus::Refused, text)
}

/// Reads an item of a file that is open. It is read whole before its head is sent, so a read error can be reported.
fn part_of(
    part: &ServedFileExtent,
    item: &FileRange,
    answer: ReadReplyHeader,
    out: &mut Vec<u8>,
) -> Result<(), Unable> {
    if item.path[..] != part.name[..] {
        return Err(Unable(ReadStatus::Gone, "there is one file only".into()));
    }
    if item.len > MAX_PIECE {
        return Err(too_long());
    }
    if item.offset + item.len > part.length {
        let text = format!("it has {} bytes", part.length);
        return Err(Unable(ReadStatus::Shorter, text));
    }
    let start = out.len();
    out.extend_from_slice(&answer.encode());
    let content = out.len();
    out.resize(content + item.len as usize, 0);
    let read = fill(&part.fd, &mut out[content..], part.offset + item.offset);
    read.inspect_err(|_| out.truncate(start))
}

fn open(root: &Root, path: &[u8]) -> Result<(OwnedFd, u64), Unable> {
    let unable = |errno: Errno| {
        let status = match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::STALE => ReadStatus::Gone,
            Errno::LOOP | Errno::XDEV | Errno::INVAL | Errno::NAMETOOLONG => ReadStatus::Refused,
            _ => ReadStatus::Failed,
        };
        Unable(status, io::Error::from(errno).to_string())
    };
    let fd = root.file(path).map_err(unable)?;
    let status = fstat(&fd).map_err(unable)?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return Err(Unable(ReadStatus::Refused, "it is no file".into()));
    }
    Ok((fd, u64::try_from(status.st_size).unwrap_or(0)))
}

fn fill(fd: &OwnedFd, out: &mut [u8], offset: u64) -> Result<(), Unable> {
    read_exact_at(fd, out, offset).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => Unable(ReadStatus::Shorter, "it has become shorter".into()),
        _ => Unable(ReadStatus::Failed, e.to_string()),
    })
}
