//! The socket by which the programs of a step have the partitions that are spread over its nodes. It speaks the local protocol, and
//! opens only.

use super::PieceHandler;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, listen, socket_with,
};
use std::io::{self, ErrorKind, PipeReader, PipeWriter};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use tarn_ports::Control;
use tarn_proto::local::{
    Code, LocalRequest, MAX_PACKET, Reply, RequestError, VERSION, decode, encode, versions,
};
use tarn_sys::fdpass::{peer, receive_packet, send_packet};

/// Programs that are answered at the same time: each may wait for another node.
const ANSWERING: usize = 8;
/// Programs that may wait for their turn in the kernel; further ones wait to connect.
const WAITING: i32 = 128;
/// A program that is silent for so long makes place for others.
const IDLE: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};
/// Bytes of a thread's stack, beside its packet.
const STACK: usize = 512 << 10;

/// The socket, while it is open.
pub(super) struct PieceListener {
    wake: Option<PipeWriter>,
    inside: Arc<Inside>,
    threads: Vec<JoinHandle<()>>,
}

struct Inside {
    listener: OwnedFd,
    /// It is at its end when the listener is to close.
    closing: PipeReader,
    control: Control,
    handler: Arc<PieceHandler>,
}

impl PieceListener {
    /// Listens at a path in a folder that is there and only this user's.
    pub(super) fn open(at: &Path, handler: Arc<PieceHandler>) -> io::Result<Self> {
        let (closing, wake) = io::pipe()?;
        let inside = Arc::new(Inside {
            listener: listen_at(at)?,
            closing,
            control: Control::default(),
            handler,
        });
        let mut piece_listener = Self {
            wake: Some(wake),
            inside,
            threads: Vec::with_capacity(ANSWERING),
        };
        for _ in 0..ANSWERING {
            let inside = Arc::clone(&piece_listener.inside);
            let thread = std::thread::Builder::new().name("tarn-door".into());
            let thread = thread.stack_size(STACK).spawn(move || inside.answer_all());
            piece_listener.threads.push(thread?);
        }
        Ok(piece_listener)
    }
}

impl Drop for PieceListener {
    fn drop(&mut self) {
        self.inside.control.cancel.store(true, Ordering::Relaxed);
        drop(self.wake.take());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// The path may be longer than a socket's address: its folder is open meanwhile.
fn listen_at(at: &Path) -> io::Result<OwnedFd> {
    let (Some(folder), Some(name)) = (at.parent(), at.file_name()) else {
        return Err(ErrorKind::InvalidInput.into());
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = open(folder, flags, Mode::empty())?;
    let short = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string());
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&socket, &SocketAddrUnix::new(short.join(name))?)?;
    listen(&socket, WAITING)?;
    Ok(socket)
}

impl Inside {
    fn answer_all(&self) {
        loop {
            let mut waiting = [
                PollFd::new(&self.closing, PollFlags::IN),
                PollFd::new(&self.listener, PollFlags::IN),
            ];
            match poll(&mut waiting, None) {
                Err(Errno::INTR) => continue,
                Ok(_) if waiting[0].revents().is_empty() => {}
                _ => return,
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match accept_with(&self.listener, flags) {
                Ok(program) => self.attend(&program),
                // Another thread was quicker, or the program has gone.
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                Err(e) => {
                    tracing::warn!("a program of a step cannot be answered: {e}");
                    std::thread::sleep(std::time::Duration::from_millis(100));
                }
            }
        }
    }

    /// Answers a program until it closes, is silent for too long, or sends bytes that are no request.
    fn attend(&self, program: &OwnedFd) {
        let own = rustix::process::geteuid().as_raw();
        let is_own = peer(program).is_ok_and(|peer| peer.uid == own);
        let (mut packet, mut out) = (vec![0; MAX_PACKET], Vec::new());
        let mut greeted = false;
        while let Some(length) = self.next_packet(program, &mut packet) {
            let Ok(request) = decode::<LocalRequest>(&packet[..length]) else {
                return;
            };
            let (reply, file) = match is_own {
                true => self.answer(request.message, &mut greeted),
                false => {
                    let text = format!("these partitions are user {own}'s");
                    (Reply::Refused(RequestError::new(Code::Denied, text)), None)
                }
            };
            let sent = encode(VERSION, request.number, &reply, &mut out)
                .map_err(io::Error::other)
                .and_then(|()| {
                    let file = file.as_ref().map(AsFd::as_fd);
                    send_packet(program, &out, file, SendFlags::empty())
                });
            if sent.is_err() || !is_own {
                return;
            }
        }
    }

    fn answer(&self, request: LocalRequest, greeted: &mut bool) -> (Reply, Option<OwnedFd>) {
        match request {
            LocalRequest::Hello { oldest, newest, .. } => {
                *greeted = true;
                (self.greeting(oldest, newest), None)
            }
            LocalRequest::Open {
                node,
                space,
                path,
                write,
            } if *greeted => {
                let name = (space.as_str(), &*path.0);
                self.handler
                    .open(node.as_deref(), name, write, &self.control)
            }
            _ => {
                let text = "partitions of steps and jobs are opened here, which are as large as was asked for, and nothing else is done for programs";
                let why = RequestError::new(Code::Unsupported, text);
                (Reply::Refused(why), None)
            }
        }
    }

    fn greeting(&self, oldest: u16, newest: u16) -> Reply {
        match versions(oldest, newest) {
            Some(version) => Reply::Welcome {
                version,
                user: rustix::process::geteuid().as_raw(),
                node: self.handler.node(),
            },
            None => {
                let text = "no version of the messages in common: use the same release of tarn";
                Reply::Refused(RequestError::new(Code::Version, text))
            }
        }
    }

    /// The next packet's length; none when there will be no more.
    fn next_packet(&self, program: &OwnedFd, packet: &mut [u8]) -> Option<usize> {
        loop {
            let mut waiting = [
                PollFd::new(&self.closing, PollFlags::IN),
                PollFd::new(program, PollFlags::IN),
            ];
            match poll(&mut waiting, Some(&IDLE)) {
                Err(Errno::INTR) => continue,
                Ok(1..) if waiting[0].revents().is_empty() => {}
                _ => return None,
            }
            match receive_packet(program, packet, RecvFlags::DONTWAIT) {
                Ok(got) => return (got.len > 0 && !got.truncated).then_some(got.len),
                Err(e) if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&e.kind()) => {}
                Err(_) => return None,
            }
        }
    }
}
