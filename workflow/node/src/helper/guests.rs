//! The commands that `tarn exec` runs in a node's namespaces, served by the node's helper.

use crate::helper::exec_listener::{Arrived, ExecListener, keeps_to_the_view, refuse};
use crate::helper::protocol::{Channel, ExecReply, ExecRequest, ProcessEnd, Spec};
use rustix::process::{Pid, Signal};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Commands of `tarn exec` that run on one node at a time. A launcher needs one a node; scripts some more.
pub(crate) const MAX_GUESTS: usize = 256;
/// The socket and who came in through it.
pub(crate) struct Guests {
    listener: Option<ExecListener>,
    node: String,
    /// The step's scratch folder here.
    scratch: PathBuf,
    running: Vec<ExecChild>,
}

struct ExecChild {
    pid: Pid,
    /// Its end is what ends the wait; without pidfds it is seen at the next interval.
    watch: Option<OwnedFd>,
    client: Channel,
    /// Whether the client has gone away and the command got its signal.
    left: bool,
}

impl Guests {
    pub(crate) fn listen(spec: &Spec) -> io::Result<Self> {
        let listener = match &spec.listen {
            None => None,
            Some(folder) => Some(ExecListener::bind(&File::open(folder)?, &spec.node)?),
        };
        Ok(Self {
            listener,
            node: spec.node.clone(),
            scratch: spec.cwd.clone(),
            running: Vec::new(),
        })
    }

    /// The descriptors to poll for.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let guests = self.running.iter().flat_map(|g| {
            let client = (!g.left).then(|| g.client.socket.as_fd());
            g.watch.iter().map(AsFd::as_fd).chain(client)
        });
        self.listener
            .iter()
            .flat_map(ExecListener::fds)
            .chain(guests)
    }

    /// Takes new requests, and ends the commands of clients that have gone away.
    pub(crate) fn serve(&mut self) -> io::Result<()> {
        for guest in self.running.iter_mut().filter(|g| !g.left) {
            // A client sends nothing after its request: readable means gone.
            if crate::fds::readable(&guest.client.socket)? {
                guest.left = true;
                let _ = rustix::process::kill_process_group(guest.pid, Signal::TERM);
            }
        }
        let mut listener = self.listener.take();
        if let Some(listener) = &mut listener {
            listener.take(|arrived| self.admit(arrived));
        }
        self.listener = listener;
        Ok(())
    }

    fn admit(&mut self, arrived: Arrived) {
        let Arrived {
            mut client,
            request,
            fds,
        } = arrived;
        match self.start(&request, fds) {
            Ok(pid) => self.running.push(ExecChild {
                pid,
                watch: rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok(),
                client,
                left: false,
            }),
            Err(e) => refuse(&mut client, &e.to_string()),
        }
    }

    fn start(&self, request: &ExecRequest, fds: Vec<OwnedFd>) -> io::Result<Pid> {
        if self.running.len() >= MAX_GUESTS {
            return Err(io::Error::other(format!(
                "{MAX_GUESTS} commands of `tarn exec` run on this node already"
            )));
        }
        let came = fds.len();
        let mut fds = fds.into_iter();
        let (Some(input), Some(output), Some(error)) = (fds.next(), fds.next(), fds.next()) else {
            return Err(io::Error::other(
                "a request passes three descriptors at least",
            ));
        };
        if request.fds.len() != fds.len() {
            let named = request.fds.len() + 3;
            return Err(io::Error::other(format!(
                "the request names {named} descriptors, and {came} arrived"
            )));
        }
        let (program, arguments) = request
            .argv
            .split_first()
            .ok_or_else(|| io::Error::other("there is no command"))?;
        let mut command = Command::new(program);
        let handed: Vec<_> = request.fds.iter().copied().zip(fds).collect();
        let streams = [(0, &input), (1, &output), (2, &error)].into_iter();
        streams
            .chain(handed.iter().map(|(number, fd)| (*number, fd)))
            .try_for_each(|(number, fd)| keeps_to_the_view(number, fd))?;
        let handed = tarn_sys::handed::hand_over(&mut command, handed)?;
        // If nodes have tiers at other paths, the caller's scratch folder does not exist here.
        let cwd = if request.cwd.is_dir() {
            &request.cwd
        } else {
            &self.scratch
        };
        let child = command
            .args(arguments)
            .env_clear()
            .envs(request.env.iter().map(|(k, v)| (k, v)))
            .env("TARN_NODE", &self.node)
            .current_dir(cwd)
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

    /// Sends the end of a command to its client. Other processes are orphans, whose end interests nobody.
    pub(crate) fn ended(&mut self, pid: Pid, end: ProcessEnd) {
        if let Some(at) = self.running.iter().position(|g| g.pid == pid) {
            let mut guest = self.running.swap_remove(at);
            // The client may be gone.
            let _ = guest.client.send(&ExecReply::Ended(end));
        }
    }
}
