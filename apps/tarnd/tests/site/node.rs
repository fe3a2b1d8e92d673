//! A real `tarnd --site`, and the controller's side of a session with it.

#[path = "../../../../checkpoint/ranks/tests/common/ports.rs"]
mod ports;

use crate::munged::Daemon;
use ports::free_port;
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tarn_munge::{MungeSessionReader, MungeSessionWriter, SecretBytes, SessionError, open};
use tarn_proto::local::Code;
use tarn_proto::site::*;
use tempfile::TempDir;

pub(crate) const ALICE: Uid = 20_001;
pub(crate) const BOB: Uid = 20_002;
pub(crate) const SOON: Duration = Duration::from_secs(120);

/// A node: its tarnd, and folders that are its own.
pub(crate) struct Node {
    pub(crate) name: &'static str,
    options: &'static [&'static str],
    /// The values of `--store`; relative to its folder.
    pub(crate) stores: Vec<String>,
    pub(crate) tarnd: Child,
    pub(crate) folder: TempDir,
    pub(crate) port: u16,
    pub(crate) socket: PathBuf,
}

/// The controller's side of a session.
pub(crate) struct Session {
    pub(crate) reader: MungeSessionReader,
    writer: Orders,
    pub(crate) number: u64,
    /// The data that the node held when it began.
    pub(crate) holds: Vec<(Uid, Holding)>,
    /// Those who may have held more.
    pub(crate) partial: Vec<Owner>,
    /// Keys may be wrapped with an older secret.
    pub(crate) is_behind: bool,
    /// Its stores with names.
    pub(crate) stores: Vec<NodeStoreReport>,
}

/// Orders to the node. Between them the node gets a sign that its controller is there, however long the test is kept from giving
/// one.
struct Orders(Arc<Mutex<MungeSessionWriter>>);

impl Orders {
    fn new(writer: MungeSessionWriter) -> Self {
        let writer = Arc::new(Mutex::new(writer));
        let beaten = Arc::downgrade(&writer);
        std::thread::spawn(move || {
            while let Some(writer) = beaten.upgrade() {
                let order = NodeOrder::Beat;
                if send(&writer, &NumberedOrder { number: 0, order }).is_err() {
                    return;
                }
                drop(writer);
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        Self(writer)
    }
}

fn send(writer: &Mutex<MungeSessionWriter>, command: &NumberedOrder) -> Result<(), SessionError> {
    writer.lock().unwrap().send(command)
}

/// `None`, printed loudly, where it cannot be tried.
pub(crate) fn munge() -> Option<Daemon> {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: a node of a site is root's; run the tests as root");
        return None;
    }
    Daemon::start(42)
}

impl Node {
    pub(crate) fn start(name: &'static str, daemon: &Daemon) -> Self {
        Self::start_with(name, daemon, &[])
    }

    pub(crate) fn start_with(
        name: &'static str,
        daemon: &Daemon,
        options: &'static [&'static str],
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = format!("{}:1GiB", folder.path().join("store").display());
        Self::start_in((name, options), daemon, folder, vec![store])
    }

    /// With these stores.
    pub(crate) fn start_in(
        (name, options): (&'static str, &'static [&'static str]),
        daemon: &Daemon,
        folder: TempDir,
        stores: Vec<String>,
    ) -> Self {
        // Users reach their own files below it.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
        fs::create_dir(folder.path().join("outside")).unwrap();
        let port = free_port();
        let socket = daemon.socket();
        let tarnd = Self::spawn((name, options, &stores), folder.path(), port, &socket);
        let mut node = Self {
            name,
            options,
            stores,
            tarnd,
            folder,
            port,
            socket,
        };
        node.wait();
        node
    }

    fn spawn(
        (name, options, stores): (&str, &[&str], &[String]),
        folder: &Path,
        port: u16,
        socket: &Path,
    ) -> Child {
        let path = |what: &str| folder.join(what).display().to_string();
        Process::new(env!("CARGO_BIN_EXE_tarnd"))
            .arg("--site")
            .args(stores.iter().flat_map(|store| ["--store", store]))
            .args(["--listen", &format!("127.0.0.1:{port}")])
            .args(["--run-dir", &path("run"), "--audit", &path("audit")])
            .args(["--node-name", name, "--munge-socket"])
            .arg(socket)
            .args(options)
            .stderr(
                fs::OpenOptions::new()
                    .append(true)
                    .create(true)
                    .open(path("log"))
                    .unwrap(),
            )
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn wait(&mut self) {
        let until = Instant::now() + SOON;
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(Instant::now() < until, "it does not begin: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// The audit log has this, or soon will.
    pub(crate) fn audited(&self, what: &str) {
        let until = Instant::now() + SOON;
        loop {
            let audit = fs::read_to_string(self.folder.path().join("audit")).unwrap_or_default();
            if audit.contains(what) {
                return;
            }
            assert!(Instant::now() < until, "{what} is not in {audit}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn kill(&mut self) {
        self.tarnd.kill().unwrap();
        self.tarnd.wait().unwrap();
    }

    pub(crate) fn restart(&mut self) {
        self.kill();
        self.restart_killed();
    }

    /// The processes of its workers, begun by any thread.
    pub(crate) fn workers(&self) -> Vec<u32> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.tarnd.id()));
        let threads = threads.into_iter().flatten().flatten();
        let children = threads.filter_map(|t| fs::read_to_string(t.path().join("children")).ok());
        let children: Vec<String> = children.collect();
        let numbers = children.iter().flat_map(|line| line.split_whitespace());
        numbers.filter_map(|pid| pid.parse().ok()).collect()
    }

    /// Kills them, and no other node's.
    pub(crate) fn kill_workers(&self) {
        for worker in self.workers() {
            let worker = rustix::process::Pid::from_raw(worker as i32).unwrap();
            let _ = rustix::process::kill_process(worker, rustix::process::Signal::KILL);
        }
    }

    /// The exit code of a tarnd that does not serve.
    pub(crate) fn ends_at_once(&mut self) -> Option<i32> {
        let about = (self.name, self.options, &self.stores[..]);
        let child = Self::spawn(about, self.folder.path(), self.port, &self.socket);
        self.tarnd = child;
        self.tarnd.wait().unwrap().code()
    }

    pub(crate) fn restart_killed(&mut self) {
        self.tarnd = Self::spawn(
            (self.name, self.options, &self.stores),
            self.folder.path(),
            self.port,
            &self.socket,
        );
        self.wait();
    }

    pub(crate) fn try_begin(
        &self,
        epoch: Epoch,
        daemon: &Daemon,
    ) -> Result<Session, Box<NodeWelcome>> {
        self.try_begin_with(epoch, &[9, 10], daemon)
    }

    /// With secrets of these bytes: the site's, and those of encrypted data.
    pub(crate) fn begin_with(&self, secrets: &[u8], daemon: &Daemon) -> Session {
        self.try_begin_with(1, secrets, daemon).unwrap()
    }

    fn try_begin_with(
        &self,
        epoch: Epoch,
        secrets: &[u8],
        daemon: &Daemon,
    ) -> Result<Session, Box<NodeWelcome>> {
        let secrets: Vec<SecretBytes> =
            secrets.iter().map(|b| SecretBytes::new([*b; 32])).collect();
        let until = Instant::now() + SOON;
        // On a busy machine munge may take longer than a node waits for a silent client: a controller comes again as well.
        let (mut reader, mut writer) = loop {
            let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
            match open(stream, self.name, 0, &secrets, &daemon.munge()) {
                Err(SessionError::Io(_)) if Instant::now() < until => {}
                opened => break opened.unwrap(),
            }
        };
        writer
            .send(&Greeting {
                oldest: OLDEST,
                newest: VERSION,
                epoch,
                pieces: true,
            })
            .unwrap();
        match reader.receive(SOON).unwrap() {
            NodeWelcome::Ready {
                mut holds,
                partial,
                pieces,
                is_behind,
                stores,
                ..
            } => {
                assert!(pieces && holds.is_empty());
                loop {
                    let piece: HoldingsChunk = reader.receive(SOON).unwrap();
                    holds.extend(piece.holds);
                    if piece.is_last {
                        break;
                    }
                }
                Ok(Session {
                    stores,
                    is_behind,
                    reader,
                    writer: Orders::new(writer),
                    number: 0,
                    holds,
                    partial,
                })
            }
            other => Err(Box::new(other)),
        }
    }

    pub(crate) fn begin(&self, daemon: &Daemon) -> Session {
        self.try_begin(1, daemon).unwrap()
    }

    pub(crate) fn path(&self, what: &str) -> PathBuf {
        self.folder.path().join(what)
    }

    /// A file outside, of this user and mode.
    pub(crate) fn outside(&self, name: &str, content: &str, owner: Uid, mode: u32) -> PathBuf {
        let path = self.path("outside").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        chown(&path, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    /// Runs a script in the place of a user's program in its job: as that user.
    pub(crate) fn as_user(&self, user: Uid, script: &str) {
        let id = user.to_string();
        let done = Process::new("setpriv")
            .args([
                "--reuid",
                &id,
                "--regid",
                &id,
                "--clear-groups",
                "sh",
                "-ec",
                script,
            ])
            .current_dir(self.folder.path())
            .output()
            .unwrap();
        assert!(
            done.status.success(),
            "{script}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.tarnd.kill();
        let _ = self.tarnd.wait();
        // A tarnd that is killed leaves the memory of its jobs mounted, for its successor.
        let memory = std::fs::read_dir(self.folder.path().join("run/clear/all"));
        for job in memory.into_iter().flatten().flatten() {
            let _ = rustix::mount::unmount(job.path(), rustix::mount::UnmountFlags::DETACH);
        }
        // The folders that a failed test leaves may be 60,000 folders deep: the removal of a `TempDir` calls itself for each, and
        // would end this whole program without a word of the test.
        let _ = Process::new("rm")
            .arg("-rf")
            .arg(self.folder.path())
            .status();
    }
}

impl Session {
    /// Orders something.
    pub(crate) fn send_order(&mut self, order: NodeOrder, number: u64) {
        self.try_send_order(order, number).unwrap();
    }

    /// The same with a node that may have ended the session.
    pub(crate) fn try_send_order(
        &mut self,
        order: NodeOrder,
        number: u64,
    ) -> Result<(), SessionError> {
        send(&self.writer.0, &NumberedOrder { number, order })
    }

    pub(crate) fn order(&mut self, order: NodeOrder) -> Report {
        self.number += 1;
        let number = self.number;
        self.send_order(order, number);
        loop {
            match self.reader.receive(SOON).unwrap() {
                Report::Alive => {}
                report => return report,
            }
        }
    }

    pub(crate) fn work(&mut self, user: Uid, work: Work) -> WorkResult {
        let order = NodeOrder::Do {
            user,
            group: user,
            work: Box::new(work),
        };
        match self.order(order) {
            Report::Worked { what, .. } => what,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn done(&mut self, user: Uid, work: Work) {
        let what = self.work(user, work);
        assert_eq!(what, WorkResult::Done);
    }

    pub(crate) fn proven(&mut self, user: Uid, work: Work) -> (Proof, u64) {
        match self.work(user, work) {
            WorkResult::Proven { proof, moved } => (proof, moved),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn refused(&mut self, user: Uid, work: Work) -> (Code, String) {
        match self.work(user, work) {
            WorkResult::Failed(why) => (why.code, why.text),
            other => panic!("it was to be refused: {other:?}"),
        }
    }

    pub(crate) fn port(&mut self, user: Uid) -> u16 {
        let group = user;
        match self.order(NodeOrder::Serve { user, group }) {
            Report::Serving { port, .. } => port,
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn part(user: Uid, dataset: &str, version: u32) -> Part {
    Part {
        owner: Owner::User(user),
        workflow: "w".into(),
        dataset: dataset.into(),
        version,
        part: 0,
    }
}

pub(crate) fn fetch(user: Uid, dataset: &str, from: &Path) -> Work {
    Work::Fetch {
        store: String::new(),
        sealed: false,
        part: part(user, dataset, 0),
        from: Origin::Outside(from.to_owned()),
        proof: None,
    }
}

pub(crate) fn prepare(job: SlurmJobId, dataset: &str) -> Work {
    Work::Prepare {
        hashes: Vec::new(),
        store: String::new(),
        memory: None,
        job,
        dataset: dataset.into(),
        parts: Vec::new(),
    }
}

pub(crate) fn publish(user: Uid, job: SlurmJobId, dataset: &str, version: u32) -> Work {
    Work::Publish {
        store: String::new(),
        sealed: false,
        job,
        part: part(user, dataset, version),
        slice: None,
    }
}
