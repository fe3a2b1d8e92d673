//! `tarnd --node`: a node's half of a run. docs/internals/cluster.md has its requests and how it ends.
//!
//! [`talk`] has the sessions, [`drive`] the one thread that has the node's world, [`measure`] the node's resources, [`replicas`]
//! the reads of peers here and the reads from them, [`step_sender`] and [`step_inbox`] the messages between nodes about steps. This
//! thread only waits for the end.

mod drive;
mod measure;
mod paced;
mod remote_tiers;
mod replicas;
mod step_inbox;
mod step_sender;
mod talk;

use crate::TarndError;
use crate::options::Options;
use anyhow::{Context, anyhow, bail};
use remote_tiers::RemoteTiers;
use replicas::Replicas;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::io::{self, BufRead, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use talk::NodeRun;
use tarn_data_plane::Transport;
use tarn_node::machine::host_name;
use tarn_proto::node::{NodeStartInput, NodeStartReport};
use tarn_sessions::{RunKeys, SessionServer, SessionTimeouts};
use tarn_types::codes::Exit;

/// Bytes of the line that starts a run: keys take a few thousand.
const MAX_START: u64 = 64 << 10;
/// The reason when a signal ends tarnd.
const SIGNALLED: &str = "a signal came";
/// For the run to take leave of a tarnd that a signal ends.
const FAREWELL: Duration = Duration::from_secs(2);
/// Every address of this node: a client without the key gets no answer.
const EVERYWHERE: &str = "0.0.0.0:0";

/// An event that may end the wait.
#[derive(Debug)]
enum Notice {
    /// A session has begun.
    Session,
    /// There is none any more; whether the run is over.
    Alone {
        /// See there.
        closed: bool,
    },
    /// tarnd is to end, and why.
    End(&'static str),
}

/// Serves one run until it is over.
pub(crate) fn run(options: &Options) -> Result<(), TarndError> {
    crate::server::raise_descriptors();
    let start = read_start(io::stdin().lock()).map_err(|e| TarndError::new(Exit::Usage, e))?;
    serve(options, start).map_err(|e| TarndError::new(Exit::State, e))
}

fn read_start(from: impl BufRead) -> anyhow::Result<NodeStartInput> {
    let mut line = Vec::new();
    from.take(MAX_START).read_until(b'\n', &mut line)?;
    // The error of serde_json may quote the keys.
    serde_json::from_slice(&line).map_err(|e| {
        anyhow!(
            "the first line on standard input is no start of a run ({:?} error in column {}); tarnd --node is started by `tarn run`",
            e.classify(),
            e.column()
        )
    })
}

fn serve(options: &Options, start: NodeStartInput) -> anyhow::Result<()> {
    let node = options.node_name.clone().unwrap_or_else(host_name);
    let keys: RunKeys = serde_json::from_value(start.keys)
        .map_err(|_| anyhow!("the keys of the run are not of this release of tarn"))?;
    let helper = std::env::current_exe().context("tarnd does not find itself")?;
    // First: it needs a process with one thread.
    let remote_tiers = RemoteTiers::new(start.borrow.as_ref(), &node);
    let transport: Transport = start.transport.parse()?;
    let way = transport.way()?;
    let replicas = Replicas::new(start.data, way.clone()).context("no keys can be made")?;
    let data = replicas::serve(EVERYWHERE, &replicas).context("cannot serve files to peers")?;
    let listener = TcpListener::bind(EVERYWHERE).context("cannot listen")?;
    let started = NodeStartReport {
        node: node.clone(),
        control: listener.local_addr().context("cannot listen")?.port(),
        data: data.address().port(),
    };
    let (notify, notices) = channel();
    let host = NodeRun::new(
        started.clone(),
        start.run,
        helper.with_file_name("tarn"),
        replicas,
        remote_tiers,
        notify.clone(),
    );
    let host = Arc::new(host);
    let millis = Duration::from_millis;
    let timeout = SessionTimeouts {
        heartbeat: millis(start.timeouts.0.max(1)),
        lost: millis(start.timeouts.1.max(1)),
        ..SessionTimeouts::default()
    };
    let handler = talk::Sessions(Arc::clone(&host));
    let server = SessionServer::start(listener, &keys, timeout, Arc::new(handler))?;
    watch_signals(notify.clone()).context("cannot watch signals")?;
    print_started(&started).context("cannot report where tarnd listens")?;
    std::thread::Builder::new()
        .name("tarn-stdin".into())
        .spawn(move || {
            // Nothing more comes there; it is closed when srun has gone.
            let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
            let _ = notify.send(Notice::End("standard input was closed"));
        })
        .context("cannot start a thread")?;
    let why = wait(&host, &notices, Duration::from_secs(options.keep_for));
    let sent = data.counts();
    tracing::info!(
        node,
        bytes = sent.bytes,
        pieces = sent.items,
        windows = sent.windows,
        refused = sent.refused,
        "tarnd ends: {why}"
    );
    // Not every tarnd that ends is a lost node: a cancelled job ends all of them.
    let is_notified = why == SIGNALLED && host.notify_ending();
    let stopped = host.stop();
    if is_notified {
        wait_for_leave(&notices);
    }
    drop(server);
    drop(data);
    host.end_remote_tiers();
    way.close();
    if !stopped {
        bail!("the processes on {node} do not end; they are left to the kernel");
    }
    Ok(())
}

fn print_started(started: &NodeStartReport) -> anyhow::Result<()> {
    let mut line = serde_json::to_string(started)?;
    line.push('\n');
    let mut out = io::stdout().lock();
    out.write_all(line.as_bytes())?;
    Ok(out.flush()?)
}

fn watch_signals(notify: Sender<Notice>) -> io::Result<()> {
    // A job's own signals (`scancel --signal`, `#SBATCH --signal`) reach tarnd too: they are for the programs of its steps.
    // Under nohup it outlives the terminal.
    let hangup = (!tarn_sys::process::ignores(SIGHUP)).then_some(SIGHUP);
    let watched = [SIGTERM, SIGINT, SIGUSR1, SIGUSR2]
        .into_iter()
        .chain(hangup);
    let mut signals = Signals::new(watched)?;
    std::thread::Builder::new()
        .name("tarn-signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                if ![SIGUSR1, SIGUSR2].contains(&signal) {
                    let _ = notify.send(Notice::End(SIGNALLED));
                }
            }
        })?;
    Ok(())
}

/// Waits for the end; why it is one.
fn wait(host: &NodeRun, notices: &Receiver<Notice>, keep_for: Duration) -> &'static str {
    let mut alone = Some(Instant::now());
    loop {
        let notice = match alone {
            None => notices.recv().map_err(RecvTimeoutError::from),
            Some(since) => notices.recv_timeout(keep_for.saturating_sub(since.elapsed())),
        };
        match notice {
            Ok(Notice::Session) => alone = None,
            Ok(Notice::Alone { closed: true }) => return "the run is over",
            Ok(Notice::Alone { closed: false }) => alone = Some(Instant::now()),
            Ok(Notice::End(why)) => return why,
            Err(_) => {
                if host.give_up() {
                    return "nobody has come back to the run";
                }
                // Somebody has come at the last moment: that is noticed next.
                alone = None;
            }
        }
    }
}

/// Until the sessions have ended.
fn wait_for_leave(notices: &Receiver<Notice>) {
    let until = Instant::now() + FAREWELL;
    let left = || until.saturating_duration_since(Instant::now());
    while let Ok(notice) = notices.recv_timeout(left())
        && !matches!(notice, Notice::Alone { .. })
    {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_start_is_refused_without_being_quoted() {
        let secret = br#"{"keys": {"key": "abc"}, "run": 7}"#;
        for line in [
            &b""[..],
            b"\n",
            b"{}",
            b"\xff\xfe\n",
            &[b'['; 100_000],
            secret,
        ] {
            let why = read_start(line).err().expect("refused").to_string();
            assert!(
                why.contains("no start of a run") && !why.contains("abc"),
                "{why}"
            );
        }
    }
}
