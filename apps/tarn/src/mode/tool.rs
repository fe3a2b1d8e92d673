//! Other people's programs, within bounds of time and output.

use rustix::process::{Pid, Signal, kill_process_group};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a query may take: ipmctl queries each module by itself, a second each.
pub(super) const QUESTION: Duration = Duration::from_secs(60);
/// How long a change may take: making a page map of some TiB is the longest.
pub(super) const CHANGE: Duration = Duration::from_secs(900);
/// The folders of such programs, for a caller whose `PATH` has ordinary users' folders only, as slurmd's may.
const SYSTEM: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Why a program gave no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ToolError {
    #[error("it is missing")]
    Missing,
    #[error("it does not start: {0}")]
    Start(std::io::Error),
    #[error("it did not answer within {} s", .0.as_secs())]
    Slow(Duration),
    #[error("its output is longer than {} bytes", tarn_memory_modes::MAX_OUTPUT)]
    Much,
}

/// The result of a program.
pub(super) struct ToolOutput {
    pub(super) success: bool,
    pub(super) out: String,
    pub(super) err: String,
}

impl ToolOutput {
    /// The most useful line of a failed program's output.
    pub(super) fn complaint(&self) -> String {
        let lines = self.err.lines().chain(self.out.lines());
        let first = lines.map(str::trim).find(|l| !l.is_empty());
        first
            .unwrap_or("it failed without a reason")
            .chars()
            .take(200)
            .collect()
    }
}

/// The path of a program.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(SYSTEM.map(PathBuf::from));
    places.map(|p| p.join(program)).find(|p| p.is_file())
}

/// Runs a program to its end, or kills it and all that it has started.
pub(super) fn run(
    program: &str,
    args: &[&str],
    timeout: Duration,
) -> Result<ToolOutput, ToolError> {
    let path = find(program).ok_or(ToolError::Missing)?;
    let mut child = Command::new(path)
        .args(args)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(ToolError::Start)?;
    let until = Instant::now() + timeout;
    let out = drain(child.stdout.take());
    let err = drain(child.stderr.take());
    let left = || until.saturating_duration_since(Instant::now());
    let output = out
        .recv_timeout(left())
        .and_then(|out| Ok((out, err.recv_timeout(left())?)));
    let status = output.as_ref().ok().and_then(|_| {
        loop {
            match child.try_wait() {
                Ok(None) if !left().is_zero() => std::thread::sleep(Duration::from_millis(5)),
                ended => return ended.ok().flatten(),
            }
        }
    });
    if status.is_none() {
        if let Some(group) = Pid::from_raw(child.id().cast_signed()) {
            // It may just have ended by itself.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = child.wait();
    }
    let (Ok((out, err)), Some(status)) = (output, status) else {
        return Err(ToolError::Slow(timeout));
    };
    if out.len() > tarn_memory_modes::MAX_OUTPUT || err.len() > tarn_memory_modes::MAX_OUTPUT {
        return Err(ToolError::Much);
    }
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(ToolOutput {
        success: status.success(),
        out: text(out),
        err: text(err),
    })
}

/// Reads all output; beyond the bound it is thrown away, so that the program ends.
fn drain(from: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (to, received) = mpsc::channel();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        if let Some(mut from) = from {
            let bound = tarn_memory_modes::MAX_OUTPUT as u64 + 1;
            let _ = from.by_ref().take(bound).read_to_end(&mut kept);
            let _ = std::io::copy(&mut from, &mut std::io::sink());
        }
        // Nobody may wait any more.
        let _ = to.send(kept);
    });
    received
}
