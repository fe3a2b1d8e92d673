//! Messages between tarn and the helper process of a step: lines of JSON over a socket pair, which is the
//! helper's standard input. When either end closes, the other knows that its partner is dead.

use crate::helper::image::StepImagePlan;
use crate::helper::provider::{self, ProviderAddress};
use crate::helper::tmp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use tarn_types::energy::Energy;
use tarn_types::event::Imaged;

/// The first argument that makes the tarn binary the helper of a step.
pub const HELPER_ARGUMENT: &str = "__step";

/// Bytes of one message. The largest is a request of `tarn exec`, which carries an environment (the kernel
/// allows a process some 2 MiB of it; JSON may take four bytes for one).
pub(crate) const MAX_MESSAGE: usize = 16 << 20;

/// How a step is kept apart from everything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StepIsolation {
    /// A process group and a subreaper.
    Group,
    /// Mount, PID and host name namespaces; with `user`, inside a user namespace.
    Namespaces {
        /// Whether the rights come from a user namespace.
        user: bool,
    },
}

/// A folder shown at a second path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BindMount {
    /// The folder.
    pub(crate) from: PathBuf,
    /// The path at which it appears.
    pub(crate) to: PathBuf,
    /// Whether it can be written there.
    pub(crate) writable: bool,
}

/// The place at which a step sees its folders: only the step's namespace has anything there, so that a program that started
/// outside of it cannot read or write a folder that is not the step's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StepMountPoints {
    /// An empty folder.
    pub(crate) folder: PathBuf,
    /// The mount points in it.
    pub(crate) names: Vec<String>,
}

/// The setup that a helper makes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) isolate: StepIsolation,
    /// The node's name.
    pub(crate) node: String,
    /// Whether the node's name becomes the host name.
    pub(crate) rename_host: bool,
    /// Folders that are read-only inside, except for what is bound writable below them.
    pub(crate) locked: Vec<PathBuf>,
    /// The place of the mount points of `binds`.
    pub(crate) stage: Option<StepMountPoints>,
    pub(crate) binds: Vec<BindMount>,
    /// Folder of the sockets of `tarn exec`; this node's has the node's name.
    pub(crate) listen: Option<PathBuf>,
    /// The working directory of the command.
    pub(crate) cwd: PathBuf,
    /// Processors that it runs on; none: those of whoever started tarn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) cpus: Vec<u32>,
    /// The environment of the command.
    pub(crate) env: Vec<(std::ffi::OsString, std::ffi::OsString)>,
    /// The program that is started and its arguments; only the first node of a step has one.
    pub(crate) command: Option<Vec<std::ffi::OsString>>,
    /// The namespace that the step's nodes have together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shared: Option<provider::NamespacePlan>,
    /// The private memory that was requested: the step sees only the folders of it that are bound.
    #[serde(default, rename = "room", skip_serializing_if = "Option::is_none")]
    pub(crate) tmpfs: Option<PathBuf>,
    /// Its private `/tmp` and the like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tmp: Option<tmp::StepPrivatePaths>,
    /// Images of its processes, if any are to be taken, and the one that it resumes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) images: Option<StepImagePlan>,
}

/// tarn to helper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HelperCommand {
    /// Mount a file system in memory that no other process sees; if it comes, the first message.
    #[serde(rename = "Room")]
    MountTmpfs {
        /// An empty folder.
        at: PathBuf,
        /// The most bytes that it may hold.
        bytes: u64,
        /// How the step is kept apart.
        isolate: StepIsolation,
    },
    /// Prepare; the first message, or the second.
    Prepare(Box<Spec>),
    /// All nodes have started their part of the shared namespace: make it appear. Answered by [`HelperReport::Ready`].
    Mount(Vec<ProviderAddress>),
    /// Start the command.
    Go,
    /// Send every process of the step SIGTERM.
    Terminate,
    /// End every process of the step (SIGKILL) and report.
    Finish,
}

/// Helper to tarn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HelperReport {
    /// The private memory is there.
    Mounted,
    /// Everything is set up; with a shared namespace first this node's part of it, then all.
    Ready(Option<ProviderAddress>),
    /// It is still at it.
    Busy,
    /// It cannot be set up or started, and why.
    Refused(String),
    /// The result of taking an image of its processes.
    Image(Imaged),
    /// It cannot resume from the image that it was to resume from, and why.
    NotRestored(String),
    /// No process of the step is left on this node.
    Ended {
        /// How the command ended; `None` on nodes without one.
        end: Option<ProcessEnd>,
        used: ProcessUsage,
    },
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ProcessEnd {
    Exited(i32),
    Signalled(i32),
}

impl From<tarn_sys::process::ProcessExit> for ProcessEnd {
    fn from(end: tarn_sys::process::ProcessExit) -> Self {
        match end {
            tarn_sys::process::ProcessExit::Exited(n) => Self::Exited(n),
            tarn_sys::process::ProcessExit::Signalled(n) => Self::Signalled(n),
        }
    }
}

/// The usage of the processes on a node. Times in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct ProcessUsage {
    pub(crate) wall: u64,
    pub(crate) user: u64,
    pub(crate) system: u64,
    pub(crate) memory: u64,
    pub(crate) read: u64,
    pub(crate) written: u64,
    /// The energy that this node drew for it. No helper knows that: tarn fills it in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) energy: Option<Energy>,
}

/// `tarn exec` to the helper of a node; the three standard descriptors, and those of `fds`, come before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExecRequest {
    pub(crate) argv: Vec<std::ffi::OsString>,
    pub(crate) env: Vec<(std::ffi::OsString, std::ffi::OsString)>,
    pub(crate) cwd: PathBuf,
    /// The numbers of the descriptors beside the standard ones: of `tarn enter`, what its caller has left it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) fds: Vec<i32>,
}

/// The helper's answer to a [`ExecRequest`], when its command has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ExecReply {
    Ended(ProcessEnd),
    /// It could not be started, and why.
    Refused(String),
}

/// A message as it is sent.
pub(crate) fn line_of(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

/// A socket with what was read of the next message.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) socket: UnixStream,
    pending: Vec<u8>,
    /// So many bytes of it are known to end no message.
    searched: usize,
    /// So many bytes of it are read. Below [`MAX_MESSAGE`], more are as if they had not come.
    limit: usize,
}

impl Channel {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self {
            socket,
            pending: Vec::new(),
            searched: 0,
            limit: MAX_MESSAGE,
        }
    }

    /// Reads no more than so many bytes of a message, and one piece, until [`raise_limit`](Self::raise_limit).
    pub(crate) fn limited(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Bytes of the next message that have been read.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.pending.len()
    }

    pub(crate) fn raise_limit(&mut self) {
        self.limit = MAX_MESSAGE;
    }

    /// Whether no more of a message is read until the limit is raised.
    pub(crate) fn is_at_limit(&self) -> bool {
        self.limit < MAX_MESSAGE && self.pending.len() > self.limit
    }

    pub(crate) fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        self.socket.write_all(&line_of(message)?)
    }

    /// A message whose [`line_of`] has been made.
    pub(crate) fn send_line(&mut self, line: &[u8]) -> io::Result<()> {
        self.socket.write_all(line)
    }

    /// The next message. Blocks until it is whole, if the socket does; a partial one is kept after `WouldBlock`. `None` at the
    /// end.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        loop {
            if let Some(end) = self.message_end() {
                let rest = self.pending.split_off(end + 1);
                let line = std::mem::replace(&mut self.pending, rest);
                self.searched = 0;
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            self.searched = self.pending.len();
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Whether a whole message can be taken without reading.
    pub(crate) fn has_message(&self) -> bool {
        self.message_end().is_some()
    }

    fn message_end(&self) -> Option<usize> {
        let unsearched = self.pending.get(self.searched..)?;
        let end = unsearched.iter().position(|&b| b == b'\n')?;
        Some(self.searched + end)
    }

    fn fill(&mut self) -> io::Result<bool> {
        if self.is_at_limit() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut chunk = [0u8; 16384];
        let n = loop {
            match self.socket.read(&mut chunk) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // A partner that was killed with unread messages resets the connection.
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => break 0,
                other => break other?,
            }
        };
        self.pending.extend_from_slice(&chunk[..n]);
        if self.pending.len() > MAX_MESSAGE {
            return Err(io::Error::other("a message is longer than its bound"));
        }
        Ok(n > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_and_the_end_is_seen() {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut a, mut b) = (Channel::new(a), Channel::new(b));
        a.send(&HelperCommand::Go).unwrap();
        a.send(&HelperCommand::Finish).unwrap();
        assert_eq!(
            b.receive::<HelperCommand>().unwrap(),
            Some(HelperCommand::Go)
        );
        assert!(b.has_message());
        assert_eq!(
            b.receive::<HelperCommand>().unwrap(),
            Some(HelperCommand::Finish)
        );
        a.socket.write_all(b"garbage\n").unwrap();
        assert!(b.receive::<HelperCommand>().is_err());
        drop(a);
        assert_eq!(b.receive::<HelperCommand>().unwrap(), None);
    }
}
