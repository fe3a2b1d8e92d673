//! Ranks that are processes.

use anyhow::{Context, ensure};
use std::io::{self, Read};
use std::process::{Child, Command};
use std::time::Duration;

/// Between two looks whether they have ended.
const AGAIN: Duration = Duration::from_millis(10);

/// What each has written, once all have ended well. One that fails ends the others: they would wait for it for as long as they may.
///
/// # Errors
/// When one cannot be started, or fails.
pub(super) fn outputs(
    commands: impl IntoIterator<Item = anyhow::Result<Command>>,
) -> anyhow::Result<Vec<Vec<u8>>> {
    let mut processes = Processes(Vec::new());
    let mut outputs = Vec::new();
    for command in commands {
        let mut child = command?.spawn().context("cannot start a rank")?;
        let out = child.stdout.take();
        processes.0.push(child);
        outputs.push(std::thread::spawn(move || {
            let mut bytes = Vec::new();
            out.map_or(Ok(0), |mut out| out.read_to_end(&mut bytes))?;
            io::Result::Ok(bytes)
        }));
    }
    processes.wait()?;
    let joined = outputs.into_iter().map(|thread| {
        let read = thread.join().ok().context("a thread has panicked")?;
        Ok(read?)
    });
    joined.collect()
}

/// None of them outlives this.
struct Processes(Vec<Child>);

impl Processes {
    fn wait(&mut self) -> anyhow::Result<()> {
        loop {
            let mut running = false;
            for (rank, child) in self.0.iter_mut().enumerate() {
                match child.try_wait()? {
                    None => running = true,
                    Some(status) => ensure!(status.success(), "rank {rank} ended with {status}"),
                }
            }
            if !running {
                return Ok(());
            }
            std::thread::sleep(AGAIN);
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
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
    fn a_rank_that_fails_ends_those_that_wait_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let waits = "echo $$ > new; mv new waits; exec sleep 600";
        let fails = "until [ -s waits ]; do sleep 0.01; done; exit 3";
        for (scripts, failed) in [([waits, fails], "rank 1"), ([fails, waits], "rank 0")] {
            let ranks = scripts.map(|script| shell(script, dir.path()));
            let why = outputs(ranks).unwrap_err().to_string();
            assert!(why.starts_with(failed) && why.contains('3'), "{why}");
            let waits = dir.path().join("waits");
            let process = std::fs::read_to_string(&waits).unwrap();
            assert!(!Path::new("/proc").join(process.trim()).exists());
            std::fs::remove_file(waits).unwrap();
        }
        let ranks =
            ["echo one", "head -c 200000 /dev/zero"].map(|script| shell(script, dir.path()));
        let said: Vec<usize> = outputs(ranks).unwrap().iter().map(Vec::len).collect();
        assert_eq!(said, [4, 200_000]);
    }
}
