//! Commands that must not take for ever.

use crate::SlurmError;
use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Bytes of an answer that are read: 10,000 node names take some 200 KiB.
const MAX_ANSWER: u64 = 4 << 20;
/// For an answer that can be done without.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// Between two looks at whether a child has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Waits for a child until then.
pub(crate) fn wait_until(child: &mut Child, until: Instant) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < until => std::thread::sleep(LOOK),
            Ok(None) | Err(_) => return None,
        }
    }
}

/// The nodes of a list of Slurm's (`node[1-3]`), in its order.
pub(crate) fn hostnames(list: &str, timeout: Duration) -> Result<Vec<String>, SlurmError> {
    let output = answer("scontrol", &["show", "hostnames", list], timeout)?;
    Ok(output.split_whitespace().map(str::to_owned).collect())
}

/// Runs a command to its end, killed after `timeout`; returns its standard output.
pub(crate) fn answer(
    program: &str,
    words: &[&str],
    timeout: Duration,
) -> Result<String, SlurmError> {
    let command = || format!("`{program} {}`", words.join(" "));
    let system = |source| SlurmError::Command {
        command: command(),
        source,
    };
    let mut child = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(system)?;
    let out = reader(child.stdout.take());
    let err = reader(child.stderr.take());
    let ended = wait_until(&mut child, Instant::now() + timeout);
    if ended.is_none() {
        // It may have ended meanwhile.
        let _ = child.kill();
        let _ = child.wait();
    }
    // Children of the command may hold the pipes still: the wait for them is short.
    let text = |read: std::sync::mpsc::Receiver<String>| {
        read.recv_timeout(Duration::from_secs(1))
            .unwrap_or_default()
    };
    let (output, errors) = (text(out), text(err));
    match ended {
        Some(status) if status.success() => Ok(output),
        Some(status) => Err(SlurmError::Failed {
            command: command(),
            status: status.to_string(),
            output: format!("{errors}{output}").trim().to_owned(),
        }),
        None => Err(SlurmError::Late {
            command: command(),
            timeout,
        }),
    }
}

fn reader(from: Option<impl Read + Send + 'static>) -> std::sync::mpsc::Receiver<String> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(from) = from {
            // Unreadable output counts as none.
            let _ = from.take(MAX_ANSWER).read_to_end(&mut bytes);
        }
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_answers_fails_or_is_killed() {
        let ask = |script: &str, ms| answer("sh", &["-c", script], Duration::from_millis(ms));
        assert_eq!(ask("echo yes", 10_000).unwrap(), "yes\n");
        let failed = ask("echo no >&2; exit 3", 10_000).unwrap_err().to_string();
        assert!(failed.contains("no") && failed.contains('3'), "{failed}");
        let began = Instant::now();
        assert!(matches!(ask("sleep 60", 100), Err(SlurmError::Late { .. })));
        assert!(began.elapsed() < Duration::from_secs(10));
        let missing = answer("no-such-command", &[], Duration::from_secs(1)).unwrap_err();
        assert!(missing.to_string().contains("PATH"), "{missing}");
    }
}
