//! The status of an active run, for `tarn status` in another shell or on another node; and requests from there to stop the run.

use crate::print::message;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tarn_journal::live;
use tarn_ports::Progress;
use tarn_types::bounds::MAX_LIVE;
use tarn_types::layout::StateDir;
use tarn_types::nodes::{LIVE_FORMAT, LiveRunStatus};
use tarn_types::units::Time;

/// How often the status is written. A run that is over before writes none.
const BEAT: Duration = Duration::from_secs(1);

/// Writes the file until it is dropped, which removes it. Somebody's wish that the run stop is passed on to this process as
/// SIGTERM.
pub(crate) struct StatusFile {
    path: PathBuf,
    cancel: PathBuf,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl StatusFile {
    /// `now`: nanoseconds since the run's start.
    pub(crate) fn new(state: &StateDir, run: &str, progress: Progress, now: Time) -> Self {
        let (path, cancel) = (state.live(run), state.cancel(run));
        // The status file of a process that died.
        live::remove(&path);
        let (stop, stopped) = channel();
        let (file, cancelled, begun) = (path.clone(), cancel.clone(), Instant::now());
        let thread = std::thread::spawn(move || {
            for beat in 0.. {
                if stopped.recv_timeout(BEAT) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                if std::fs::remove_file(&cancelled).is_ok() {
                    message!("somebody asks that the run stop (tarn cancel)");
                    let own = rustix::process::getpid();
                    let _ = rustix::process::kill_process(own, rustix::process::Signal::TERM);
                }
                let elapsed = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
                let mut status = LiveRunStatus {
                    format: LIVE_FORMAT,
                    pid: std::process::id(),
                    beat,
                    now: now.saturating_add(elapsed),
                    transfers: progress.transfers(),
                    steps: progress.steps(),
                };
                status.transfers.truncate(MAX_LIVE);
                status.steps.truncate(MAX_LIVE);
                // A run continues where it cannot be watched, such as on a full disk.
                let _ = live::write(&file, &status);
            }
        });
        Self {
            path,
            cancel,
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for StatusFile {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        live::remove(&self.path);
        live::remove(&self.cancel);
    }
}
