//! A worker, as the node's tarnd has it.

use super::super::audit::Audit;
use super::super::keys::Secrets;
use super::super::talk::{WorkerCommand, WorkerNotification, receive_message, send_message};
use super::{WorkerOrder, WorkerTask, lock};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{Gid, Report, Uid, WorkResult};

/// A worker that takes orders. One thread at a time writes to it, its queue's; another one [listens](UserWorker::listen).
pub(super) struct UserWorker {
    pub(super) user: Uid,
    /// The user's, as they were when it began.
    pub(super) groups: Vec<Gid>,
    pub(super) socket: UnixStream,
    pub(super) port: u16,
    /// Its tasks, by the number under which it knows them.
    pub(super) pending: Mutex<PendingWorkerTasks>,
    pub(super) audit: Arc<Audit>,
    /// It was given up, as it took nothing.
    pub(super) is_mute: AtomicBool,
}

/// Why a worker is given up.
const MUTE: &str = "it does not answer";

#[derive(Default)]
pub(super) struct PendingWorkerTasks {
    next: u64,
    works: BTreeMap<u64, WorkerTask>,
    /// It is over: why.
    over: Option<String>,
}

/// The parts with which a thread listens to a worker.
pub(super) struct Listening {
    pub(super) child: Child,
    /// A copy of the worker's, with the timeout that it has.
    pub(super) socket: UnixStream,
    pub(super) answered: Box<dyn Fn() + Send>,
}

fn is_late(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn is_cut(e: &std::io::Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof
    )
}

impl UserWorker {
    /// Has it do something; its end is reported.
    pub(super) fn give(&self, task: WorkerTask) {
        let work = match &task.order {
            WorkerOrder::Port => {
                let (number, port) = (task.number, self.port);
                let _ = task.reports.send(Report::Serving { number, port });
                return;
            }
            WorkerOrder::Work(work) => work.clone(),
        };
        let own = {
            let mut pending = lock(&self.pending);
            if let Some(why) = pending.over.clone() {
                drop(pending);
                return self.fail(task, &why);
            }
            pending.next += 1;
            let own = pending.next;
            pending.works.insert(own, task);
            own
        };
        let sent = self.send_command(&WorkerCommand::Work { number: own, work });
        if sent.is_err()
            && let Some(task) = lock(&self.pending).works.remove(&own)
        {
            self.fail(task, "it takes no orders");
        }
    }

    fn fail(&self, task: WorkerTask, why: &str) {
        let text = format!("the worker of user {} has ended: {why}", self.user);
        task.refuse(self.user, &self.audit, RequestError::new(Code::Io, text));
    }

    /// Whether it does something for this number.
    pub(super) fn has(&self, number: u64) -> bool {
        let pending = lock(&self.pending);
        pending.works.values().any(|task| task.number == number)
    }

    /// Stops its work of this number, if there is any.
    pub(super) fn stop(&self, number: u64) {
        let own = {
            let pending = lock(&self.pending);
            let found = pending.works.iter().find(|(_, t)| t.number == number);
            found.map(|(own, _)| *own)
        };
        if let Some(own) = own {
            let _ = self.send_command(&WorkerCommand::Stop(own));
        }
    }

    /// It has the keys of these secrets from now on.
    pub(super) fn rekey(&self, secrets: &Secrets) {
        let keys = secrets.of_user(self.user, &self.groups);
        // One that ends meanwhile has a successor.
        let _ = self.send_command(&WorkerCommand::Keys(keys));
    }

    /// Says something; one that takes nothing for a while is given up.
    fn send_command(&self, command: &WorkerCommand) -> std::io::Result<()> {
        send_message(&self.socket, command).inspect_err(|e| {
            self.is_mute.fetch_or(is_late(e), Ordering::Relaxed);
            // Half a message may have been sent. The listening thread notices it.
            let _ = self.socket.shutdown(Shutdown::Both);
        })
    }

    /// Passes on its messages until it ends, or is silent for too long: then why.
    pub(super) fn listen(&self, listening: Listening) -> Option<String> {
        let Listening {
            mut child,
            socket,
            answered,
        } = listening;
        let silent = loop {
            match receive_message::<WorkerNotification>(&socket) {
                Ok(Some(WorkerNotification::Worked { number, what })) => {
                    answered();
                    self.ended(number, what);
                }
                Ok(Some(WorkerNotification::Serving { .. } | WorkerNotification::Alive)) => {}
                Ok(None) => break None,
                // It was killed while something was on its way.
                Err(e) if is_cut(&e) => break None,
                Err(e) if is_late(&e) => break Some(MUTE.to_owned()),
                Err(e) => break Some(format!("it sent a message that no worker sends: {e}")),
            }
        };
        let is_mute = self.is_mute.load(Ordering::Relaxed);
        let silent = silent.or(is_mute.then(|| MUTE.to_owned()));
        if let Some(why) = &silent {
            tracing::warn!(user = self.user, "a worker is killed: {why}");
        }
        let _ = child.kill();
        // One that the kernel does not let go of yet is waited for by nobody else.
        let reap = std::thread::Builder::new().name("reap".into());
        let _ = reap.spawn(move || child.wait());
        silent
    }

    fn ended(&self, own: u64, what: WorkResult) {
        let task = lock(&self.pending).works.remove(&own);
        if let Some(task) = task {
            task.ended(self.user, &self.audit, what);
        }
    }

    /// Its pending tasks fail.
    pub(super) fn over(&self, why: &str) {
        let works = {
            let mut pending = lock(&self.pending);
            pending.over = Some(why.to_owned());
            std::mem::take(&mut pending.works)
        };
        for task in works.into_values() {
            self.fail(task, why);
        }
    }
}
