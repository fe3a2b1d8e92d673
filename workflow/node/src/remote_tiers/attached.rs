//! Attaches a tier that is in the memory, or on the disk, of another node: its brick is mounted here. docs/internals/shared-namespace.md, "A borrowed tier".
//!
//! It is mounted in a mount namespace of tarnd's own, so it goes with tarnd, however that ends, and nobody else sees it. A file system
//! whose other end has gone hangs whoever uses it; here that is for a bounded time: the client gives a brick up that does not answer
//! (`ping-timeout`), and a client that does not answer is killed, which ends every call that waits for it.

use crate::helper::provider::gluster::{Gluster, able_to_mount};
use crate::helper::provider::{NamespacePlan, Provider, ProviderAddress};
use crate::host::machine::{self, MachineError, PROBE_SHARE, TierSpec, instead, lacks};
use crate::storage::store::warn;
use crate::storage::tier_folder::make_root;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open, waitpid};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tarn_ports::CapabilityError;
use tarn_sys::namespace;
use tarn_types::cluster::BORROWED;
use tarn_types::layout::StateDir;

/// Between two looks whether it answers.
const LOOK: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
/// A client that has not answered a look by then hangs: it gives up a brick that does not answer sooner.
const TIMEOUT: Duration = Duration::from_secs(20);
/// For the client's files, of which its log grows.
const WORK_BYTES: u64 = 16 << 20;
/// For a path of folders.
const PATH_BYTES: u64 = 1 << 20;

/// Why a partition of another node's tier cannot be attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// This machine cannot mount one.
    #[error(transparent)]
    Capability(#[from] CapabilityError),
    /// There is no place for it.
    #[error("there is no folder for it to appear in, in memory or the state folder")]
    NoFolder,
    /// This process cannot have mounts of its own.
    #[error("a mount namespace is not allowed here: {0}")]
    Namespace(io::Error),
    /// The process that serves it cannot begin.
    #[error("{}: {source}", .root.display())]
    Io {
        /// The path at which the tier would appear.
        root: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file system does not appear.
    #[error("{0}")]
    Mount(io::Error),
    /// The thread that watches it has ended without a word.
    #[error("an error inside tarnd")]
    Internal,
}

/// A place at which a tier that this node does not have can appear.
#[derive(Debug, Clone)]
pub struct AttachPoint {
    /// The tier's name.
    pub tier: String,
    /// The path: the tier's own path, or a folder of tarn's own.
    pub root: PathBuf,
    /// The client's files; in memory that only this process sees.
    work: PathBuf,
}

/// Makes a place, in a mount namespace of this process's own, for each tier that this node does not have; none, if it has all. `folder` is the
/// node's own on a file system that all nodes see. The process must have one thread.
///
/// # Errors
/// Why no tier can be attached.
pub fn attach_points(tiers: &[TierSpec], folder: &Path) -> Result<Vec<AttachPoint>, AttachError> {
    let lacking: Vec<&TierSpec> = tiers.iter().filter(|t| lacks(t).is_some()).collect();
    if lacking.is_empty() {
        return Ok(Vec::new());
    }
    able_to_mount()?;
    let found: Option<Vec<(&TierSpec, PathBuf)>> = lacking
        .into_iter()
        .map(|t| {
            let (at, _) = instead(t, BORROWED, folder)?;
            make_root(&at).ok()?;
            Some((t, at))
        })
        .collect();
    let found = found.ok_or(AttachError::NoFolder)?;
    let user = !rustix::process::geteuid().is_root();
    let arrange = || {
        let each = |(t, work): &(&TierSpec, PathBuf)| arrange(t, work);
        found.iter().map(each).collect()
    };
    namespace::enter_mounts(user, arrange).map_err(AttachError::Namespace)
}

fn arrange(tier: &TierSpec, work: &Path) -> io::Result<AttachPoint> {
    namespace::mount_memory(work, WORK_BYTES)?;
    let root = match covered(&tier.root) {
        // It is there, though it cannot be used.
        Some(at) if at == tier.root => at,
        Some(at) => {
            namespace::mount_memory(&at, PATH_BYTES)?;
            std::fs::create_dir_all(&tier.root)?;
            // Without a mount there, nothing can be written there.
            namespace::read_only(&at)?;
            tier.root.clone()
        }
        None => {
            let root = work.join("at").with_extension(BORROWED);
            std::fs::create_dir(&root)?;
            root
        }
    };
    Ok(AttachPoint {
        tier: tier.name.clone(),
        root,
        work: work.to_owned(),
    })
}

/// The folder that may be hidden so that a tier appears at its own path: itself, or one above it that is empty.
fn covered(root: &Path) -> Option<PathBuf> {
    let there = root.ancestors().find(|a| a.is_dir())?;
    let empty = || std::fs::read_dir(there).is_ok_and(|mut all| all.next().is_none());
    (there == root || (there != Path::new("/") && empty())).then(|| there.to_owned())
}

/// A partition of another node's tier, attached here; dropping it detaches it.
#[derive(Debug)]
pub struct AttachedPartition {
    ground: AttachPoint,
    /// It ends when this does.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl AttachedPartition {
    /// Mounts it. `gone` is called when it has gone, with the reason; perhaps more than once.
    ///
    /// # Errors
    /// Why it cannot be had.
    pub fn begin(
        ground: &AttachPoint,
        node: &str,
        provider_address: ProviderAddress,
        gone: impl Fn(String) + Send + 'static,
    ) -> Result<Self, AttachError> {
        let io = |source: io::Error| AttachError::Io {
            root: ground.root.clone(),
            source,
        };
        let plan = NamespacePlan {
            folder: ground.work.clone(),
            node: node.to_owned(),
            first: false,
            parts: Vec::new(),
            at: Some(ground.root.clone()),
        };
        let (ours, stop) = UnixStream::pair().map_err(io)?;
        let (sender, mounted) = channel();
        // The client ends with the thread that started it.
        let thread = std::thread::Builder::new().name("tarn-borrows".into());
        let thread = thread.spawn(move || {
            let mut client = Gluster::new(&plan);
            let mounted = client
                .mount(&[provider_address])
                .map_err(AttachError::Mount);
            let whole = mounted.is_ok();
            let _ = sender.send(mounted);
            let pid = client.processes().first().copied();
            if let Some(pid) = pid.filter(|_| whole) {
                watch(&plan.mount(), pid, &stop, &gone);
            }
            client.stop();
            if let Some(pid) = pid {
                let _ = waitpid(Some(pid), WaitOptions::empty());
            }
        });
        let this = Self {
            ground: ground.clone(),
            stop: Some(ours),
            thread: Some(thread.map_err(io)?),
        };
        let mounted = mounted.recv();
        mounted.unwrap_or(Err(AttachError::Internal))?;
        Ok(this)
    }

    /// Its path.
    pub fn root(&self) -> &Path {
        &self.ground.root
    }

    /// (read, write) in bytes a second, found out with at most a part of the `bytes` it may hold, or remembered in `state`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn bandwidth(
        &self,
        lender: &str,
        bytes: u64,
        state: &StateDir,
    ) -> Result<(u64, u64), MachineError> {
        let root = self.root();
        // GlusterFS refuses to make a file there before somebody has looked whose its root is.
        let looked_at = root.metadata();
        looked_at.map_err(|source| MachineError::Io {
            what: format!("the borrowed tier {} cannot be looked at", root.display()),
            source,
        })?;
        let name = format!("{} of {lender}", root.display());
        let rates = machine::bandwidth_of(name, root, state, bytes / PROBE_SHARE)?;
        Ok((rates.read, rates.write))
    }

    /// Why it has gone, if it has. May take as long as the client is patient with a brick.
    pub fn gone(&self) -> Option<String> {
        look(self.root()).err().map(|e| e.to_string())
    }
}

impl Drop for AttachedPartition {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let work = &self.ground.work;
        let taken = namespace::mounting(|| {
            // Nothing is there if it could not be mounted.
            let _ = namespace::unmount(self.root());
            namespace::unmount(work)
        });
        // In memory, or of the node's own: its name shows the owner.
        if let Err(e) = taken.and_then(|()| std::fs::remove_dir(work)) {
            warn(&format!("{} is left: {e}", work.display()));
        }
    }
}

fn look(root: &Path) -> io::Result<()> {
    rustix::fs::statvfs(root)?;
    Ok(())
}

/// Until it is given back, or its client has ended.
fn watch(root: &Path, client: Pid, stop: &UnixStream, gone: &dyn Fn(String)) {
    let Ok(ends) = pidfd_open(client, PidfdFlags::empty()) else {
        return gone("the end of its client cannot be seen".into());
    };
    let (request, answers) = start_looking(root);
    loop {
        let mut fds =
            [stop.as_fd(), ends.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let _ = poll(&mut fds, Some(&LOOK));
        if !fds[0].revents().is_empty() {
            return;
        }
        if !fds[1].revents().is_empty() {
            return gone("its client has ended".into());
        }
        let _ = request.send(());
        match answers.recv_timeout(TIMEOUT) {
            Ok(Ok(())) => {}
            Ok(Err(e)) => gone(e.to_string()),
            // The caller kills it.
            Err(RecvTimeoutError::Timeout) => {
                return gone(format!(
                    "its client has not answered for {} s",
                    TIMEOUT.as_secs()
                ));
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// A thread that looks at each request: a look may hang.
fn start_looking(root: &Path) -> (SyncSender<()>, Receiver<io::Result<()>>) {
    let (request, requests) = sync_channel::<()>(1);
    let (sender, answers): (Sender<io::Result<()>>, _) = channel();
    let root = root.to_owned();
    let looking = move || {
        while requests.recv().is_ok() && sender.send(look(&root)).is_ok() {}
    };
    // Without it the other end is closed at once.
    let thread = std::thread::Builder::new().name("tarn-looks".into());
    let _ = thread.spawn(looking);
    (request, answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_empty_is_hidden() {
        let dir = tempfile::tempdir().unwrap();
        let (empty, full) = (dir.path().join("empty"), dir.path().join("full"));
        std::fs::create_dir_all(full.join("file")).unwrap();
        std::fs::create_dir(&empty).unwrap();
        assert_eq!(covered(&empty.join("me/tier")), Some(empty.clone()));
        assert_eq!(covered(&full.join("me/tier")), None);
        assert_eq!(covered(&full), Some(full.clone()), "the tier itself");
        assert_eq!(covered(Path::new("/no-such-folder/tier")), None);
    }
}
