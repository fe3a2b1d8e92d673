//! A program that measures: its output is taken, its messages pass through, and it ends in time.

use crate::print::message;
use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tarn_types::codes::Exit;

/// Bytes of its standard output.
const MAX_RESULT: u64 = 16 << 20;
/// Bytes of its last message that are kept.
const MAX_MESSAGE: usize = 2048;
/// From SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_secs(20);
/// Between two looks at it.
const PAUSE: Duration = Duration::from_millis(20);

/// How it ended.
pub(super) enum ChildOutcome {
    /// Well, with this output.
    Succeeded(Vec<u8>),
    /// Otherwise; why.
    Failed(String),
    /// By a signal to this program.
    Interrupted,
}

/// Signals that this program gets from now on.
pub(super) struct Signals(Arc<AtomicUsize>);

impl Signals {
    /// # Errors
    /// When the system refuses.
    pub(super) fn watch() -> anyhow::Result<Self> {
        let last = Arc::new(AtomicUsize::new(0));
        // Under nohup it outlives the terminal.
        let hangup = (!tarn_sys::process::ignores(SIGHUP)).then_some(SIGHUP);
        for number in [SIGINT, SIGTERM].into_iter().chain(hangup) {
            signal_hook::flag::register_usize(number, last.clone(), number as usize)
                .context("cannot listen to signals")?;
        }
        Ok(Self(last))
    }

    /// The exit that the last one wants, if there was any.
    pub(super) fn exit(&self) -> Option<Exit> {
        match self.0.load(Ordering::Relaxed) as i32 {
            0 => None,
            SIGINT => Some(Exit::Interrupted),
            _ => Some(Exit::Terminated),
        }
    }
}

/// A program under way, in a process group of its own.
pub(super) struct Child {
    process: std::process::Child,
    output: JoinHandle<Vec<u8>>,
    last: JoinHandle<String>,
}

impl Child {
    /// # Errors
    /// When it cannot be started.
    pub(super) fn start(program: &Path, words: &[OsString]) -> anyhow::Result<Self> {
        let mut process = Command::new(program)
            // Cache that a run leaves must not spare the next one the measured work.
            .env("TARN_CACHE", "0")
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
        let output = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut stdout) = stdout {
                // One byte more than allowed shows that there are too many; the rest is read so that it can end.
                let _ = stdout.by_ref().take(MAX_RESULT + 1).read_to_end(&mut bytes);
                let _ = std::io::copy(&mut stdout, &mut std::io::sink());
            }
            bytes
        });
        let last = std::thread::spawn(move || stderr.map(pass_on).unwrap_or_default());
        Ok(Self {
            process,
            output,
            last,
        })
    }

    /// Waits for its end, for at most so long.
    pub(super) fn wait(mut self, timeout: Duration, signals: &Signals) -> ChildOutcome {
        let began = Instant::now();
        let mut terminated = None;
        let status = loop {
            match self.process.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) => {}
                Err(e) => return ChildOutcome::Failed(format!("its end cannot be known: {e}")),
            }
            let interrupted = signals.exit().is_some();
            match terminated {
                None if interrupted || began.elapsed() > timeout => {
                    self.send(Signal::TERM);
                    terminated = Some(Instant::now());
                }
                Some(at) if Instant::now().duration_since(at) > GRACE => self.send(Signal::KILL),
                _ => {}
            }
            std::thread::sleep(PAUSE);
        };
        // Processes that it has left running hold its output open, and measure nothing any more.
        self.send(Signal::KILL);
        let output = self.output.join().unwrap_or_default();
        let last = self.last.join().unwrap_or_default();
        if signals.exit().is_some() {
            return ChildOutcome::Interrupted;
        }
        if terminated.is_some() {
            return ChildOutcome::Failed(format!(
                "it did not end within {:.0} minutes",
                timeout.as_secs_f64() / 60.0
            ));
        }
        ended(status, output, last)
    }

    fn send(&self, signal: Signal) {
        if let Some(group) = i32::try_from(self.process.id())
            .ok()
            .and_then(Pid::from_raw)
        {
            // A process that has ended already needs none.
            let _ = kill_process_group(group, signal);
        }
    }
}

fn ended(status: ExitStatus, output: Vec<u8>, last: String) -> ChildOutcome {
    if !status.success() {
        let why = if last.is_empty() {
            status.to_string()
        } else {
            last
        };
        return ChildOutcome::Failed(why);
    }
    if output.len() as u64 > MAX_RESULT {
        return ChildOutcome::Failed(format!("its results have more than {MAX_RESULT} bytes"));
    }
    ChildOutcome::Succeeded(output)
}

/// Shows its messages as they come; the last of them.
fn pass_on(messages: impl Read) -> String {
    let mut last = String::new();
    let mut messages = BufReader::new(messages);
    let mut line = Vec::new();
    loop {
        line.clear();
        let most = MAX_MESSAGE as u64;
        match messages.by_ref().take(most).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return last,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if !text.is_empty() {
            message!("  {text}");
            last = text.to_owned();
        }
    }
}
