//! The cost of a task of tarnd that does nothing, through the local socket, beside a bare echo of packets of the same
//! sizes: the best that requests and replies over such a socket could do.

use crate::figure::{BenchFigure, median};
use crate::scratch::ScratchFolder;
use anyhow::{Context, bail, ensure};
use rustix::fd::OwnedFd;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, connect, listen, recv, send, socket_with,
};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use tarn_client::{Client, WaitCondition};
use tarn_proto::local::{
    MAX_BATCH, MAX_PACKET, TaskEnd, TaskId, TaskOperation, TaskOutcome, TaskSpec,
};

/// The argument with which this program echoes packets.
pub(crate) const ECHO_ARGUMENT: &str = "__echo";
/// How long each contender runs in a round.
const ROUND: Duration = Duration::from_millis(1500);
/// Clients of the cases with single tasks.
const CLIENTS: usize = 4;
/// How long a process may take to listen.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of the record of a durable task: two of them are written for each.
const RECORD: usize = 190;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskCase {
    /// Batches of tasks from one client
    Batch,
    /// One task at a time from each of four clients
    Single,
    /// Durable tasks, both ways
    Durable,
}

/// The tarnd to measure, its state folder, and the rounds.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) tarnd: Option<PathBuf>,
    pub(crate) state: PathBuf,
    pub(crate) rounds: u32,
}

/// Tasks, and seconds that each took its client.
#[derive(Default)]
struct ClientTaskTimes {
    tasks: u64,
    each: Vec<f64>,
    seconds: f64,
}

/// A process that ends with this.
struct ServerProcess(Child);

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One case.
///
/// # Errors
/// When tarnd cannot be started or a task fails.
pub(crate) fn run(case: TaskCase, setup: &Setup) -> anyhow::Result<Vec<BenchFigure>> {
    let scratch = ScratchFolder::new(&setup.state)?;
    let (socket, echo) = (scratch.path().join("tarnd"), scratch.path().join("echo"));
    let _tarnd = start_tarnd(setup, &socket, &scratch.path().join("state"))?;
    let _echo = start_echo(&echo)?;
    let mut rounds = TaskRounds::default();
    for round in 0..setup.rounds {
        match case {
            TaskCase::Batch => {
                let of_tarn = batches(&socket, false)?;
                let bare = echoes(&echo, 1, &batch_sizes(), MAX_BATCH as u64)?;
                rounds.add(&of_tarn, &bare);
            }
            TaskCase::Single => {
                let of_tarn = singles(&socket, CLIENTS, false)?;
                let bare = echoes(&echo, CLIENTS, &single_sizes(), 1)?;
                rounds.add(&of_tarn, &bare);
            }
            TaskCase::Durable => {
                let of_tarn = singles(&socket, CLIENTS, true)?;
                let bare = syncs(&scratch.path().join("syncs"))?;
                rounds.add(&of_tarn, &bare);
                rounds.batch.push(rate(&batches(&socket, true)?));
            }
        }
        eprintln!("{}/{}  tasks, {case:?}: {rounds}", round + 1, setup.rounds);
    }
    Ok(rounds.figures(case))
}

/// The results of the rounds so far.
#[derive(Default)]
struct TaskRounds {
    rate: Vec<f64>,
    bare: Vec<f64>,
    p99: Vec<f64>,
    bare_p99: Vec<f64>,
    batch: Vec<f64>,
}

impl std::fmt::Display for TaskRounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let last = |v: &[f64]| v.last().copied().unwrap_or(0.0);
        write!(
            f,
            "{:.0}/s, bare {:.0}/s",
            last(&self.rate),
            last(&self.bare)
        )
    }
}

impl TaskRounds {
    fn add(&mut self, of_tarn: &ClientTaskTimes, bare: &ClientTaskTimes) {
        self.rate.push(rate(of_tarn));
        self.bare.push(rate(bare));
        self.p99.push(p99(&of_tarn.each) * 1e3);
        self.bare_p99.push(p99(&bare.each) * 1e3);
    }

    fn figures(&self, case: TaskCase) -> Vec<BenchFigure> {
        let figure =
            |name: &str, values: &[f64], unit, against: Option<(&str, &[f64])>| BenchFigure {
                name: name.into(),
                value: median(values),
                unit,
                against: against.map(|(name, values)| (name.into(), median(values))),
            };
        let echo = "echo of packets of the same sizes";
        match case {
            TaskCase::Batch => vec![figure(
                "tasks-batch",
                &self.rate,
                "tasks/s",
                Some((echo, &self.bare)),
            )],
            TaskCase::Single => vec![
                figure(
                    "tasks-single, 4 clients",
                    &self.rate,
                    "tasks/s",
                    Some((echo, &self.bare)),
                ),
                figure(
                    "tasks-single, 4 clients, p99",
                    &self.p99,
                    "ms",
                    Some((echo, &self.bare_p99)),
                ),
            ],
            TaskCase::Durable => vec![
                figure(
                    "tasks-durable, 4 clients, one at a time",
                    &self.rate,
                    "tasks/s",
                    Some(("two appends, each synced, by one process", &self.bare)),
                ),
                figure(
                    "tasks-durable, 4 clients, one at a time, p99",
                    &self.p99,
                    "ms",
                    Some(("two appends, each synced, by one process", &self.bare_p99)),
                ),
                figure(
                    "tasks-durable, batches of one client",
                    &self.batch,
                    "tasks/s",
                    None,
                ),
            ],
        }
    }
}

fn rate(took: &ClientTaskTimes) -> f64 {
    took.tasks as f64 / took.seconds
}

fn p99(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() * 99 / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or(0.0)
}

fn start_tarnd(setup: &Setup, socket: &Path, state: &Path) -> anyhow::Result<ServerProcess> {
    let path = match &setup.tarnd {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("tarnd"),
    };
    let child = Command::new(&path)
        .arg("--socket")
        .arg(socket)
        .arg("--state")
        .arg(state)
        .args(["--log-level", "warn"])
        .spawn()
        .with_context(|| {
            format!(
                "cannot start {}; build it (cargo build --release -p tarnd) or name it with --tarnd",
                path.display()
            )
        })?;
    wait_for(ServerProcess(child), socket)
}

fn start_echo(socket: &Path) -> anyhow::Result<ServerProcess> {
    let child = Command::new(std::env::current_exe()?)
        .arg(ECHO_ARGUMENT)
        .arg(socket)
        .stdin(Stdio::null())
        .spawn()?;
    wait_for(ServerProcess(child), socket)
}

fn wait_for(mut server: ServerProcess, socket: &Path) -> anyhow::Result<ServerProcess> {
    let until = Instant::now() + TIMEOUT;
    while dial(socket).is_err() {
        ensure!(
            Instant::now() < until && server.0.try_wait()?.is_none(),
            "nothing listens at {}",
            socket.display()
        );
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(server)
}

fn dial(path: &Path) -> anyhow::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect(&fd, &SocketAddrUnix::new(path)?)?;
    Ok(fd)
}

/// The process `tarn-bench __echo SOCKET`: a thread for each connection gives every packet back.
pub(crate) fn echo_main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(2) else {
        return ExitCode::FAILURE;
    };
    match echo(Path::new(&path)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            crate::print::message!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn echo(path: &Path) -> anyhow::Result<()> {
    let flags = SocketFlags::CLOEXEC;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&listener, &SocketAddrUnix::new(path)?)?;
    listen(&listener, 16)?;
    loop {
        let fd = accept_with(&listener, flags)?;
        std::thread::spawn(move || {
            let mut buffer = vec![0; MAX_PACKET];
            while let Ok((n, _)) = recv(&fd, &mut buffer[..], RecvFlags::empty()) {
                if n == 0 || send(&fd, &buffer[..n], SendFlags::NOSIGNAL).is_err() {
                    return;
                }
            }
        });
    }
}

fn task(durable: bool) -> TaskSpec {
    TaskSpec {
        durable,
        ..TaskSpec::new(TaskOperation::Nothing)
    }
}

/// Bytes of the larger packet of each request and its reply.
fn batch_sizes() -> Vec<usize> {
    let tasks = vec![task(false); MAX_BATCH];
    let id: TaskId = 1 << 40;
    sizes(tasks, &vec![id; MAX_BATCH])
}

fn single_sizes() -> Vec<usize> {
    sizes(vec![task(false)], &[1 << 40])
}

fn sizes(tasks: Vec<TaskSpec>, ids: &[TaskId]) -> Vec<usize> {
    use tarn_proto::local::{LocalRequest, Reply, VERSION, encode};
    let outcome = |id: &TaskId| TaskOutcome {
        id: *id,
        end: TaskEnd::Done,
        bytes: 0,
        nanos: 0,
        late: false,
        checksum: None,
    };
    let request = |request: &LocalRequest| {
        let mut packet = Vec::new();
        encode(VERSION, 1, request, &mut packet).map_or(0, |()| packet.len())
    };
    let reply = |reply: &Reply| {
        let mut packet = Vec::new();
        encode(VERSION, 1, reply, &mut packet).map_or(0, |()| packet.len())
    };
    let wait = LocalRequest::Wait {
        ids: ids.to_vec(),
        any: false,
        timeout: u64::MAX,
    };
    let submitted = Reply::Submitted(ids.iter().copied().map(Ok).collect());
    let outcomes = Reply::Outcomes(ids.iter().map(outcome).collect());
    vec![
        request(&LocalRequest::Submit(tasks)).max(reply(&submitted)),
        request(&wait).max(reply(&outcomes)),
    ]
}

/// Submits batches and waits for them, one after the other.
fn batches(socket: &Path, durable: bool) -> anyhow::Result<ClientTaskTimes> {
    let client = Client::connect(socket, None)?;
    let tasks = vec![task(durable); MAX_BATCH];
    let mut took = ClientTaskTimes::default();
    let began = Instant::now();
    while began.elapsed() < ROUND {
        do_tasks(&client, &tasks)?;
        took.tasks += tasks.len() as u64;
    }
    took.seconds = began.elapsed().as_secs_f64();
    Ok(took)
}

fn do_tasks(client: &Client, tasks: &[TaskSpec]) -> anyhow::Result<()> {
    let submitted = client.submit(tasks)?;
    let ids = submitted.into_iter().collect::<Result<Vec<_>, _>>()?;
    let ends = client.wait(&ids, WaitCondition::All, None)?;
    if ends.len() != ids.len() || ends.iter().any(|o| o.end != TaskEnd::Done) {
        bail!("{} of {} tasks were done", ends.len(), ids.len());
    }
    Ok(())
}

/// Clients that each do one task after the other.
fn singles(socket: &Path, clients: usize, durable: bool) -> anyhow::Result<ClientTaskTimes> {
    let tasks = [task(durable)];
    run_clients(clients, || {
        let client = Client::connect(socket, None)?;
        let tasks = &tasks;
        Ok(move || do_tasks(&client, tasks))
    })
}

/// Clients that send packets of these sizes and get them back; after all of them, so many tasks count as done.
fn echoes(
    socket: &Path,
    clients: usize,
    sizes: &[usize],
    tasks: u64,
) -> anyhow::Result<ClientTaskTimes> {
    let mut took = run_clients(clients, || {
        let fd = dial(socket)?;
        let mut buffer = vec![0; MAX_PACKET];
        Ok(move || {
            for size in sizes {
                send(&fd, &buffer[..*size], SendFlags::NOSIGNAL)?;
                let (n, _) = recv(&fd, &mut buffer[..], RecvFlags::empty())?;
                ensure!(n == *size, "an echo of {n} bytes to {size}");
            }
            Ok(())
        })
    })?;
    took.tasks *= tasks;
    Ok(took)
}

/// Runs the closures of `make` in so many threads, again and again, for a round.
fn run_clients<F>(
    clients: usize,
    make: impl Fn() -> anyhow::Result<F> + Sync,
) -> anyhow::Result<ClientTaskTimes>
where
    F: FnMut() -> anyhow::Result<()> + Send,
{
    let client = || -> anyhow::Result<Vec<f64>> {
        let mut one = make()?;
        let mut each = Vec::new();
        let began = Instant::now();
        while began.elapsed() < ROUND {
            let before = Instant::now();
            one()?;
            each.push(before.elapsed().as_secs_f64());
        }
        Ok(each)
    };
    let began = Instant::now();
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        threads.into_iter().map(|t| t.join()).collect()
    });
    let mut took = ClientTaskTimes {
        seconds: began.elapsed().as_secs_f64(),
        ..ClientTaskTimes::default()
    };
    for result in results {
        match result {
            Ok(each) => took.each.extend(each?),
            Err(_) => bail!("a client of the benchmark panicked"),
        }
    }
    took.tasks = took.each.len() as u64;
    Ok(took)
}

/// The least cost of durability, task by task: two records appended, each synced.
fn syncs(path: &Path) -> anyhow::Result<ClientTaskTimes> {
    let mut file = std::fs::File::create(path)?;
    let record = [b'x'; RECORD];
    let mut took = ClientTaskTimes::default();
    let began = Instant::now();
    while began.elapsed() < ROUND {
        let before = Instant::now();
        for _ in 0..2 {
            file.write_all(&record)?;
            file.sync_data()?;
        }
        took.each.push(before.elapsed().as_secs_f64());
    }
    took.seconds = began.elapsed().as_secs_f64();
    took.tasks = took.each.len() as u64;
    Ok(took)
}
