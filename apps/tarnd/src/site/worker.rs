//! `tarnd --worker`: work with a user's rights on a node. It is started as that user, by the node's tarnd.

use super::store::UserStore;
use super::talk::{WorkerCommand, WorkerNotification, receive_message, send_message};
use crate::TarndError;
use anyhow::Context;
use rustix::fd::{AsFd, OwnedFd};
use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tarn_ports::Control;
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{Work, WorkResult};
use tarn_types::codes::Exit;

/// Works at a time; the others wait.
const MAX_WORKS: usize = 16;
/// Moves between stores among them, and parts that are read again, of each: jobs wait for the others.
const MAX_SLOW: usize = 2;
/// A worker that had nothing to do for so long ends.
const IDLE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_secs(5);

struct WorkerProcessState {
    store: UserStore,
    /// Messages are written whole, and not under the queue's lock: a writer may wait for a reader.
    socket: Arc<Mutex<UnixStream>>,
    /// To end it.
    closer: UnixStream,
    queue: Mutex<StoreWorkQueue>,
}

#[derive(Default)]
struct StoreWorkQueue {
    waiting: std::collections::VecDeque<(u64, Work, Arc<Control>)>,
    controls: BTreeMap<u64, Arc<Control>>,
    threads: usize,
    /// Of each kind of slow work, those under way.
    slow: [usize; 2],
}

impl StoreWorkQueue {
    /// The next work: slow work comes after all else, and only so much of it at a time.
    fn next(&mut self) -> Option<(u64, Work, Arc<Control>)> {
        let find = |may: &dyn Fn(Option<SlowWork>) -> bool| {
            let mut waiting = self.waiting.iter();
            waiting.position(|(_, work, _)| may(SlowWork::of(work)))
        };
        let has_space =
            |slow: Option<SlowWork>| slow.is_some_and(|s| self.slow[s as usize] < MAX_SLOW);
        let at = find(&|slow| slow.is_none()).or_else(|| find(&has_space))?;
        let next = self.waiting.remove(at)?;
        if let Some(slow) = SlowWork::of(&next.1) {
            self.slow[slow as usize] += 1;
        }
        Some(next)
    }
}

/// Work that takes long, and that jobs seldom wait for; any member of a project may have much of it read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlowWork {
    Move,
    Check,
}

impl SlowWork {
    fn of(work: &Work) -> Option<Self> {
        match work {
            Work::Move { .. } => Some(Self::Move),
            Work::Check(_) | Work::CheckIn(..) => Some(Self::Check),
            _ => None,
        }
    }
}

/// Works until the node's tarnd ends, or lets go of it. Its standard input is the socket.
pub(crate) fn run() -> Result<(), TarndError> {
    let fault = |e: anyhow::Error| TarndError::new(Exit::State, e);
    // Its key is not for other programs of the user.
    tarn_sys::process::be_opaque()
        .context("prctl")
        .map_err(fault)?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let stdin: OwnedFd = std::io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .context("standard input")
        .map_err(fault)?;
    let socket = UnixStream::from(stdin);
    serve(socket).map_err(fault)
}

fn serve(socket: UnixStream) -> anyhow::Result<()> {
    let Some(first) = receive_message(&socket)
        .context("standard input is no socket of a tarnd: workers are started by `tarnd --site`")?
    else {
        return Ok(());
    };
    let WorkerCommand::Begin {
        stores,
        node,
        keys,
        projects,
        worker_config,
    } = first
    else {
        anyhow::bail!("the first word of tarnd is not the beginning");
    };
    let speaking = Arc::new(Mutex::new(socket.try_clone()?));
    let beating = Arc::clone(&speaking);
    let thread = std::thread::Builder::new().name("beat".into());
    thread.spawn(move || beat(&beating))?;
    let store = UserStore::open(stores, node, (&keys, worker_config), projects)?;
    speak(
        &speaking,
        &WorkerNotification::Serving { port: store.port() },
    )?;
    let shared = Arc::new(WorkerProcessState {
        store,
        socket: speaking,
        closer: socket.try_clone()?,
        queue: Mutex::default(),
    });
    let idle = Arc::clone(&shared);
    let thread = std::thread::Builder::new().name("idle".into());
    thread.spawn(move || idle.end_when_idle())?;
    while let Some(command) = receive_message(&socket)? {
        match command {
            WorkerCommand::Begin { .. } => {}
            WorkerCommand::Work { number, work } => shared.begin(number, *work)?,
            WorkerCommand::Keys(keys) => shared.store.rekey(keys.wrapping()),
            WorkerCommand::Stop(number) => {
                if let Some(control) = shared.queue().controls.get(&number) {
                    control.cancel.store(true, Ordering::Relaxed);
                }
            }
        }
    }
    Ok(())
}

fn speak(socket: &Mutex<UnixStream>, notification: &WorkerNotification) -> std::io::Result<()> {
    let socket = socket.lock().unwrap_or_else(PoisonError::into_inner);
    send_message(&socket, notification)
}

/// Gives signs that this process is there, until nobody receives them.
fn beat(socket: &Mutex<UnixStream>) {
    while speak(socket, &WorkerNotification::Alive).is_ok() {
        std::thread::sleep(WorkerNotification::BEAT);
    }
}

impl WorkerProcessState {
    fn queue(&self) -> MutexGuard<'_, StoreWorkQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(self: &Arc<Self>, number: u64, work: Work) -> anyhow::Result<()> {
        let control = Arc::new(Control::default());
        let mut queue = self.queue();
        queue.controls.insert(number, Arc::clone(&control));
        queue.waiting.push_back((number, work, control));
        if queue.threads < MAX_WORKS {
            let shared = Arc::clone(self);
            let thread = std::thread::Builder::new().name("work".into());
            thread.spawn(move || shared.work())?;
            queue.threads += 1;
        }
        Ok(())
    }

    /// Ends the process when nothing was to be done for a while, no other node reads anything, and no piece of a partition is lent.
    fn end_when_idle(&self) {
        let mut idle = Duration::ZERO;
        while idle < IDLE {
            std::thread::sleep(LOOK);
            let is_idle = self.queue().controls.is_empty()
                && self.store.readers() == 0
                && !self.store.has_exported_pieces();
            idle = if is_idle { idle + LOOK } else { Duration::ZERO };
        }
        // The thread that listens for orders learns that there will be none.
        let _ = self.closer.shutdown(std::net::Shutdown::Both);
    }

    /// Works while there is something to do.
    fn work(&self) {
        loop {
            let (number, work, control) = {
                let mut queue = self.queue();
                let Some(next) = queue.next() else {
                    queue.threads -= 1;
                    return;
                };
                next
            };
            let slow = SlowWork::of(&work);
            let what = match control.cancelled() {
                true => {
                    let why = RequestError::new(Code::Cancelled, "it was stopped before it began");
                    WorkResult::Failed(why)
                }
                false => self
                    .store
                    .perform(work, &control)
                    .unwrap_or_else(WorkResult::Failed),
            };
            // A tarnd that is gone reads none, and ends this one.
            let _ = speak(&self.socket, &WorkerNotification::Worked { number, what });
            let mut queue = self.queue();
            queue.controls.remove(&number);
            if let Some(slow) = slow {
                queue.slow[slow as usize] -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_proto::site::{Owner, Part, StoreContent};

    #[test]
    fn what_is_read_again_waits_behind_all_else() {
        let part = Part {
            owner: Owner::Project(7),
            workflow: "w".into(),
            dataset: "x".into(),
            version: 1,
            part: 0,
        };
        let mut queue = StoreWorkQueue::default();
        let check = Work::Check(part.clone());
        let works = std::iter::repeat_n(check, 9).chain([
            Work::CheckIn(part.clone(), "slow".into()),
            Work::Remove(vec![StoreContent::Part(part)]),
        ]);
        for (number, work) in works.enumerate() {
            queue
                .waiting
                .push_back((number as u64, work, Arc::default()));
        }
        let mut next = || queue.next().map(|(number, ..)| number);
        assert_eq!([next(), next(), next()], [Some(10), Some(0), Some(1)]);
        assert_eq!(next(), None, "two at a time");
        queue.slow[SlowWork::Check as usize] -= 1;
        assert_eq!(queue.next().map(|(number, ..)| number), Some(2));
    }
}
