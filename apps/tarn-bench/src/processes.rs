//! Measurements in processes of their own.

use anyhow::{Context, ensure};
use std::io::Read;
use std::process::{Child, Command};
use std::sync::mpsc::channel;

/// The output of each process, once all have ended well. A process that fails ends the others: they might wait for it until a
/// timeout.
///
/// # Errors
/// When one cannot be started, or fails.
pub(super) fn outputs(
    commands: impl IntoIterator<Item = anyhow::Result<Command>>,
) -> anyhow::Result<Vec<Vec<u8>>> {
    let mut processes = Processes(Vec::new());
    let (to, ended) = channel();
    for (number, command) in commands.into_iter().enumerate() {
        let mut child = command?.spawn().context("cannot start a process")?;
        let out = child.stdout.take();
        processes.0.push(child);
        let to = to.clone();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let read = out.map_or(Ok(0), |mut out| out.read_to_end(&mut bytes));
            // Nobody listens once another has failed.
            let _ = to.send((number, read.map(|_| bytes)));
        });
    }
    drop(to);
    let mut outputs = vec![Vec::new(); processes.0.len()];
    for (number, bytes) in ended {
        let status = processes.0[number].wait()?;
        ensure!(status.success(), "process {number} ended with {status}");
        outputs[number] = bytes?;
    }
    Ok(outputs)
}

/// None of them outlives this.
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may have ended by itself; then there is nothing to end.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Adds the seconds of the processor that this thread takes for something: the machine's other work is not in them.
pub(super) fn timed<T>(into: &mut Vec<f64>, what: impl FnOnce() -> T) -> T {
    let now = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    };
    let began = now();
    let value = what();
    into.push(now() - began);
    value
}

/// Bytes of this process in memory.
///
/// # Errors
/// When Linux does not state it.
pub(super) fn resident() -> anyhow::Result<u64> {
    const STATM: &str = "/proc/self/statm";
    /// Linux counts there in pages.
    const PAGE: u64 = 4096;
    let text = std::fs::read_to_string(STATM).with_context(|| format!("cannot read {STATM}"))?;
    let pages = text.split_whitespace().nth(1).and_then(|p| p.parse().ok());
    let pages: u64 = pages.with_context(|| format!("{STATM} has no number of pages: {text}"))?;
    Ok(pages * PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::process::Stdio;

    fn shell(script: &str, dir: &Path) -> anyhow::Result<Command> {
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(dir);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        Ok(command)
    }

    #[test]
    fn one_that_fails_ends_those_that_wait_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let waits = "echo $$ > new; mv new waits; exec sleep 600";
        let fails = "until [ -s waits ]; do sleep 0.01; done; exit 3";
        for (scripts, failed) in [([waits, fails], "process 1"), ([fails, waits], "process 0")] {
            let all = scripts.map(|script| shell(script, dir.path()));
            let why = outputs(all).unwrap_err().to_string();
            assert!(why.starts_with(failed) && why.contains('3'), "{why}");
            let waits = dir.path().join("waits");
            let process = std::fs::read_to_string(&waits).unwrap();
            assert!(!Path::new("/proc").join(process.trim()).exists());
            std::fs::remove_file(waits).unwrap();
        }
        let all = ["echo one", "head -c 200000 /dev/zero"].map(|script| shell(script, dir.path()));
        let lengths: Vec<usize> = outputs(all).unwrap().iter().map(Vec::len).collect();
        assert_eq!(lengths, [4, 200_000]);
    }
}
