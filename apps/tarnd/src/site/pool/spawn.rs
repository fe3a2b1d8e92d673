//! How a worker begins.

use super::super::talk::{WorkerCommand, WorkerNotification, receive_message, send_message};
use super::super::{project, user_folder};
use super::worker::{Listening, UserWorker};
use super::{WorkerPool, lock};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{Gid, Uid};
use tarn_sys::process::become_user;

/// How long a worker may be silent: it gives a sign every [`WorkerNotification::BEAT`].
const SILENCE: Duration = Duration::from_secs(5 * WorkerNotification::BEAT.as_secs());
/// How long it may take to begin: it removes half-done work of its predecessors. Its user's orders alone wait meanwhile.
const BEGINNING: Duration = Duration::from_secs(120);
/// How long a worker before it may take to end by itself, and to be killed.
const ENDING: Duration = Duration::from_secs(2);
const KILLED: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);
/// A process number takes ten digits.
const MAX_NUMBER: u64 = 16;

impl WorkerPool {
    /// Starts a worker of a user, and receives its first message.
    pub(super) fn spawn_worker(
        self: &Arc<Self>,
        user: Uid,
        group: Gid,
    ) -> Result<(UserWorker, Listening), RequestError> {
        let failed = |e: io::Error| {
            let text = format!("no worker of user {user} can be started: {e}");
            RequestError::new(Code::Internal, text)
        };
        let (group, groups) = project::standing(user, group).map_err(failed)?;
        let keys = lock(&self.secrets)
            .as_ref()
            .map(|all| all.of_user(user, &groups));
        let keys = keys.ok_or_else(|| failed(io::Error::other("no controller was here")))?;
        for root in self.stores.roots() {
            user_folder(root, user, group).map_err(failed)?;
        }
        let mut lock_file = self.alone(user).map_err(failed)?;
        let mut projects = project::all(&self.stores);
        projects.retain(|gid| groups.contains(gid));
        let (near, far) = UnixStream::pair().map_err(failed)?;
        let started = self.start_program((user, group, &groups), far, &lock_file);
        let mut child = started.map_err(failed)?;
        let command = WorkerCommand::Begin {
            stores: self.stores.places(),
            node: self.node.clone(),
            keys,
            projects,
            worker_config: self.worker_config.clone(),
        };
        let first = note_process(&mut lock_file, child.id())
            .and_then(|()| near.set_read_timeout(Some(SILENCE)))
            .and_then(|()| near.set_write_timeout(Some(SILENCE)))
            .and_then(|()| send_message(&near, &command))
            .and_then(|()| first_word(&near));
        let port = first.map_err(|e| {
            give_up(&mut child);
            failed(e)
        })?;
        let socket = near.try_clone().map_err(failed)?;
        let worker = UserWorker {
            user,
            groups,
            socket,
            port,
            pending: Mutex::default(),
            audit: Arc::clone(&self.audit),
            is_mute: AtomicBool::new(false),
        };
        let pool = Arc::clone(self);
        let answered = move || {
            let queue = lock(&pool.queues.0).get(&user).cloned();
            if let Some(queue) = queue {
                queue.answered();
            }
        };
        let listening = Listening {
            child,
            socket: near,
            answered: Box::new(answered),
        };
        Ok((worker, listening))
    }

    /// Starts a worker's program as its user, with an end of the socket to it.
    fn start_program(
        &self,
        (user, group, groups): (Uid, Gid, &[Gid]),
        socket: UnixStream,
        lock_file: &File,
    ) -> io::Result<Child> {
        // Dropped with this function: the end of the socket is the child's alone then, and when that ends, tarnd notices.
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("--worker")
            .env_clear()
            // Jobs' memory is reached from there, and by no path.
            .current_dir(&self.memory)
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(socket)))
            // Locked as long as it runs: its user cannot reach its open files.
            .stdout(Stdio::from(lock_file.try_clone()?));
        become_user(&mut command, user, group, groups.to_vec()).spawn()
    }

    /// A lock that the user's next worker has as long as it runs: no other one runs then. One that does not end, of a tarnd before
    /// this one too, is killed.
    fn alone(&self, user: Uid) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let path = self.locks.join(format!("u{user}"));
        let mut file = File::from(open(&path, flags, Mode::from_raw_mode(0o600))?);
        let began = Instant::now();
        let mut is_killed = false;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            if began.elapsed() >= KILLED {
                return Err(io::Error::other("the one before it does not end"));
            }
            if !is_killed && began.elapsed() >= ENDING {
                is_killed = true;
                kill_holder(&mut file);
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// The worker's port, when it has begun. Until then it gives signs that it is there.
fn first_word(near: &UnixStream) -> io::Result<u16> {
    let until = Instant::now() + BEGINNING;
    loop {
        match receive_message(near)? {
            Some(WorkerNotification::Serving { port }) => return Ok(port),
            Some(WorkerNotification::Alive) if Instant::now() < until => {}
            Some(_) => return Err(io::Error::other("it takes too long to begin")),
            None => {
                let text = "it ended at once; its own words are in tarnd's log";
                return Err(io::Error::other(text));
            }
        }
    }
}

/// Writes into the user's lock which process has it.
fn note_process(lock_file: &mut File, pid: u32) -> io::Result<()> {
    lock_file.set_len(0)?;
    lock_file.rewind()?;
    lock_file.write_all(format!("{pid}\n").as_bytes())
}

fn give_up(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Kills the process that has this lock, if its id is in the file.
fn kill_holder(file: &mut File) {
    let kill = |file: &mut File| -> Option<()> {
        let mut text = String::new();
        file.rewind().ok()?;
        file.take(MAX_NUMBER).read_to_string(&mut text).ok()?;
        let pid = Pid::from_raw(text.trim().parse().ok()?)?;
        // Another process that gets the number meanwhile is not meant.
        let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let theirs = std::fs::metadata(format!("/proc/{}/fd/1", pid.as_raw_nonzero())).ok()?;
        let own = file.metadata().ok()?;
        let is_it = (theirs.dev(), theirs.ino()) == (own.dev(), own.ino());
        is_it.then(|| pidfd_send_signal(process, Signal::KILL).ok())?
    };
    match kill(file) {
        Some(()) => tracing::warn!("a worker that did not end by itself was killed"),
        None => tracing::warn!("a worker does not end, and its process id is not known"),
    }
}
