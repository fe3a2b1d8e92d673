//! The workers: one a user, begun when there is something to do. They end by themselves when they are idle.

use super::keys::Secrets;
use super::stores::Stores;
use super::talk::{Manner, Said, Told, hear, say};
use super::{project, user_folder};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tarn_proto::local::{Code, Refusal};
use tarn_proto::site::{Gid, Report, Uid, Work, Worked};
use tarn_sys::process::become_user;

/// How long a worker may take to begin: others' orders wait meanwhile.
const PATIENCE: Duration = Duration::from_secs(10);
/// Users that have a worker at a time.
const MAX_WORKERS: usize = 4096;

/// The workers of this node.
pub(super) struct Crew {
    stores: Arc<Stores>,
    memory: PathBuf,
    node: String,
    min_uid: Uid,
    manner: Manner,
    workers: Mutex<BTreeMap<Uid, Arc<Worker>>>,
    /// Of the session that began last.
    secrets: Mutex<Option<Secrets>>,
}

/// A worker.
pub(super) struct Worker {
    user: Uid,
    /// The user's, as they were when it began.
    groups: Vec<Gid>,
    socket: UnixStream,
    pub(super) port: u16,
    /// Whom the end of each work is told, and by which number.
    pending: Mutex<Pending>,
    /// Messages are written whole. Not under the lock above: who writes may wait for who reads.
    writing: Mutex<()>,
}

#[derive(Default)]
struct Pending {
    next: u64,
    works: BTreeMap<u64, (u64, Sender<Report>)>,
    is_over: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Crew {
    pub(super) fn new(
        stores: Arc<Stores>,
        memory: &Path,
        node: String,
        (min_uid, manner): (Uid, Manner),
    ) -> Self {
        Self {
            manner,
            stores,
            memory: memory.to_owned(),
            node,
            min_uid,
            workers: Mutex::default(),
            secrets: Mutex::default(),
        }
    }

    /// The users that have something in some store.
    pub(super) fn users(&self) -> BTreeSet<Uid> {
        let entries = self.stores.roots().map(std::fs::read_dir);
        let names = entries.flatten().flatten().flatten();
        let numbers = names.filter_map(|e| {
            let name = e.file_name();
            let number = name.to_str()?.strip_prefix('u')?.parse().ok()?;
            (number >= self.min_uid).then_some(number)
        });
        numbers.collect()
    }

    /// A user's worker, begun if there is none.
    pub(super) fn worker(self: &Arc<Self>, user: Uid, group: Gid) -> Result<Arc<Worker>, Refusal> {
        if user < self.min_uid {
            let text = format!(
                "user {user} cannot have data here: users below {} cannot (`--min-uid`)",
                self.min_uid
            );
            return Err(Refusal::new(Code::Denied, text));
        }
        let mut workers = lock(&self.workers);
        if let Some(worker) = workers.get(&user).filter(|w| !lock(&w.pending).is_over) {
            return Ok(Arc::clone(worker));
        }
        if workers.len() >= MAX_WORKERS {
            let text = format!("{MAX_WORKERS} users have something done here at a time");
            return Err(Refusal::new(Code::Busy, text));
        }
        let worker = Arc::new(self.hire(user, group)?);
        workers.insert(user, Arc::clone(&worker));
        Ok(worker)
    }

    /// Stops it, whoever does it.
    pub(super) fn stop(&self, number: u64) {
        let workers: Vec<_> = lock(&self.workers).values().cloned().collect();
        for worker in workers {
            worker.stop(number);
        }
    }

    /// Workers have the keys of these secrets from now on.
    pub(super) fn rekey(&self, secrets: &Secrets) {
        *lock(&self.secrets) = Some(secrets.clone());
        // Whoever is begun now gets these; whoever was is told.
        let workers: Vec<_> = lock(&self.workers).values().cloned().collect();
        for worker in workers {
            // One that ends meanwhile has a successor.
            let _ = worker.tell(&Told::Keys(secrets.of_user(worker.user, &worker.groups)));
        }
    }

    fn hire(self: &Arc<Self>, user: Uid, group: Gid) -> Result<Worker, Refusal> {
        let failed = |e: std::io::Error| {
            let text = format!("no worker of user {user} can be started: {e}");
            Refusal::new(Code::Internal, text)
        };
        let (group, groups) = project::standing(user, group).map_err(failed)?;
        let keys = lock(&self.secrets)
            .as_ref()
            .map(|all| all.of_user(user, &groups));
        let keys = keys.ok_or_else(|| failed(std::io::Error::other("no controller was here")))?;
        for root in self.stores.roots() {
            user_folder(root, user, group).map_err(failed)?;
        }
        let mut projects = project::all(&self.stores);
        projects.retain(|gid| groups.contains(gid));
        let (near, far) = UnixStream::pair().map_err(failed)?;
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(program);
        command
            .arg("--worker")
            .env_clear()
            // Jobs' memory is reached from there, and by no path.
            .current_dir(&self.memory)
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(far)))
            .stdout(Stdio::null());
        let mut child = become_user(&mut command, user, group, groups.clone())
            .spawn()
            .map_err(failed)?;
        // Its end of the socket is the child's alone now: when that ends, this is told.
        drop(command);
        let told = Told::Begin {
            stores: self.stores.places(),
            node: self.node.clone(),
            keys,
            projects,
            manner: self.manner.clone(),
        };
        // The worker before this one may still be ending.
        let first = near
            .set_read_timeout(Some(PATIENCE))
            .and_then(|()| say(&near, &told))
            .and_then(|()| hear(&near));
        near.set_read_timeout(None).map_err(failed)?;
        let port = match first {
            Ok(Some(Said::Serving { port })) => port,
            other => {
                let _ = child.kill();
                let _ = child.wait();
                let why = match other {
                    Err(e) => e.to_string(),
                    _ => "it ended at once; its own words are in tarnd's log".into(),
                };
                return Err(failed(std::io::Error::other(why)));
            }
        };
        let worker = Worker {
            user,
            groups,
            socket: near.try_clone().map_err(failed)?,
            port,
            pending: Mutex::default(),
            writing: Mutex::default(),
        };
        let crew = Arc::clone(self);
        let thread = std::thread::Builder::new().name("worker".into());
        thread
            .spawn(move || crew.listen(user, &near, child))
            .map_err(failed)?;
        Ok(worker)
    }

    /// Passes on what a worker says, until it ends.
    fn listen(&self, user: Uid, socket: &UnixStream, mut child: Child) {
        loop {
            match hear::<Said>(socket) {
                Ok(Some(Said::Worked { number, what })) => {
                    let worker = lock(&self.workers).get(&user).cloned();
                    if let Some(worker) = worker {
                        worker.ended(number, what);
                    }
                }
                Ok(Some(Said::Serving { .. })) => {}
                Ok(None) => break,
                Err(e) => {
                    tracing::warn!(user, "a worker says what is no word of one: {e}");
                    break;
                }
            }
        }
        let _ = child.kill();
        let _ = child.wait();
        let worker = lock(&self.workers).remove(&user);
        if let Some(worker) = worker {
            worker.over();
        }
    }
}

impl Worker {
    /// Has it do something; its end is reported.
    pub(super) fn give(&self, number: u64, work: Work, reports: Sender<Report>) {
        let own = {
            let mut pending = lock(&self.pending);
            pending.next += 1;
            let own = pending.next;
            pending.works.insert(own, (number, reports));
            own
        };
        let work = Box::new(work);
        let told = self.tell(&Told::Work { number: own, work });
        if told.is_err() || lock(&self.pending).is_over {
            let why = format!("the worker of user {} has ended", self.user);
            self.ended(own, Worked::Failed(Refusal::new(Code::Io, why)));
        }
    }

    /// Stops what it does for this number, if it does.
    pub(super) fn stop(&self, number: u64) {
        let own = {
            let pending = lock(&self.pending);
            let found = pending.works.iter().find(|(_, (n, _))| *n == number);
            found.map(|(own, _)| *own)
        };
        if let Some(own) = own {
            let _ = self.tell(&Told::Stop(own));
        }
    }

    fn tell(&self, told: &Told) -> std::io::Result<()> {
        let _writing = lock(&self.writing);
        say(&self.socket, told)
    }

    fn ended(&self, own: u64, what: Worked) {
        let told = lock(&self.pending).works.remove(&own);
        if let Some((number, reports)) = told {
            let _ = reports.send(Report::Worked { number, what });
        }
    }

    fn over(&self) {
        let works = {
            let mut pending = lock(&self.pending);
            pending.is_over = true;
            std::mem::take(&mut pending.works)
        };
        for (number, reports) in works.into_values() {
            let why = format!("the worker of user {} died", self.user);
            let what = Worked::Failed(Refusal::new(Code::Io, why));
            let _ = reports.send(Report::Worked { number, what });
        }
    }
}
