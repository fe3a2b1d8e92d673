//! The commands that `tarn exec` runs in a node's namespaces, served by the node's helper.

use crate::protocol::{Answer, Channel, End, Request, Spec};
use rustix::process::{Pid, Signal};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Commands of `tarn exec` that run on one node at a time. A launcher needs one a node; scripts some more.
pub(crate) const MAX_GUESTS: usize = 256;
/// How long a client may take to send its request before the helper turns to others.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A path for a socket in `folder` that fits into a socket address (108 bytes) however deep the folder lies;
/// valid while the folder is held open.
pub(crate) fn socket_path(folder: &File, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()))
}

/// The socket and who came in through it.
pub(crate) struct Guests {
    listener: Option<UnixListener>,
    node: String,
    running: Vec<Guest>,
}

struct Guest {
    pid: Pid,
    /// Its end is what ends the wait; without pidfds it is seen at the next interval.
    watch: Option<OwnedFd>,
    client: Channel,
    /// Whether the client has gone away and the command was told.
    left: bool,
}

impl Guests {
    pub(crate) fn listen(spec: &Spec) -> io::Result<Self> {
        let listener = match &spec.listen {
            None => None,
            Some(folder) => {
                let folder = File::open(folder)?;
                let listener = UnixListener::bind(socket_path(&folder, &spec.node))?;
                listener.set_nonblocking(true)?;
                Some(listener)
            }
        };
        Ok(Self {
            listener,
            node: spec.node.clone(),
            running: Vec::new(),
        })
    }

    /// What to poll for.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let guests = self.running.iter().flat_map(|g| {
            let client = (!g.left).then(|| g.client.socket.as_fd());
            g.watch.iter().map(AsFd::as_fd).chain(client)
        });
        self.listener.iter().map(AsFd::as_fd).chain(guests)
    }

    /// Takes new requests, and ends the commands of clients that have gone away.
    pub(crate) fn serve(&mut self) -> io::Result<()> {
        for guest in self.running.iter_mut().filter(|g| !g.left) {
            // A client sends nothing after its request: readable means gone.
            if crate::runner::readable(&guest.client.socket)? {
                guest.left = true;
                let _ = rustix::process::kill_process_group(guest.pid, Signal::TERM);
            }
        }
        loop {
            let accepted = match self.listener.as_ref().map(UnixListener::accept) {
                None => return Ok(()),
                Some(Err(e)) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Some(Err(e)) if e.kind() == io::ErrorKind::Interrupted => continue,
                Some(Err(e)) => return Err(e),
                Some(Ok((socket, _))) => socket,
            };
            self.admit(accepted);
        }
    }

    fn admit(&mut self, socket: UnixStream) {
        let mut client = Channel::new(socket);
        match self.start(&mut client) {
            Ok(pid) => self.running.push(Guest {
                pid,
                watch: rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok(),
                client,
                left: false,
            }),
            // The client may be gone; there is nobody else to tell.
            Err(e) => drop(client.send(&Answer::Refused(e.to_string()))),
        }
    }

    fn start(&self, client: &mut Channel) -> io::Result<Pid> {
        if self.running.len() >= MAX_GUESTS {
            return Err(io::Error::other(format!(
                "{MAX_GUESTS} commands of `tarn exec` run on this node already"
            )));
        }
        let until = Instant::now() + REQUEST_TIMEOUT;
        client.socket.set_nonblocking(false)?;
        client.socket.set_read_timeout(Some(REQUEST_TIMEOUT))?;
        let mut fds = tarn_sys::fdpass::receive(&client.socket)?.into_iter();
        let (Some(input), Some(output), Some(error)) = (fds.next(), fds.next(), fds.next()) else {
            return Err(io::Error::other(
                "a request passes three descriptors at least",
            ));
        };
        let request: Request = client
            .receive_by(until)?
            .ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        if request.fds.len() != fds.len() {
            return Err(io::Error::other(
                "a request passes as many descriptors as it names",
            ));
        }
        let (program, arguments) = request
            .argv
            .split_first()
            .ok_or_else(|| io::Error::other("there is no command"))?;
        let mut command = Command::new(program);
        let handed = request.fds.iter().copied().zip(fds).collect();
        let handed = tarn_sys::handed::hand_over(&mut command, handed)?;
        let child = command
            .args(arguments)
            .env_clear()
            .envs(request.env.iter().map(|(k, v)| (k, v)))
            .env("TARN_NODE", &self.node)
            .current_dir(&request.cwd)
            .stdin(Stdio::from(input))
            .stdout(Stdio::from(output))
            .stderr(Stdio::from(error))
            .process_group(0)
            .spawn()
            .map_err(|e| {
                io::Error::new(e.kind(), format!("{}: {e}", Path::new(program).display()))
            })?;
        drop(handed);
        Ok(Pid::from_child(&child))
    }

    /// Tells the client whose command this was. Other processes are orphans, whose end interests nobody.
    pub(crate) fn ended(&mut self, pid: Pid, end: End) {
        if let Some(at) = self.running.iter().position(|g| g.pid == pid) {
            let mut guest = self.running.swap_remove(at);
            // The client may be gone.
            let _ = guest.client.send(&Answer::Ended(end));
        }
    }
}
