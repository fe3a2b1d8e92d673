//! Commands of Slurm: each with a bound on its time and on the bytes of its output.

use crate::SlurmError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// For an answer that can be done without.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// Between two checks of a child on kernels without pidfds (before Linux 5.3).
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// For what a command has written to arrive once it has ended: children of it may still hold the pipe.
const LAST_OUTPUT: Duration = Duration::from_secs(1);

/// The bounds of one command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CommandLimits {
    /// Bytes of its standard output, and of its standard error.
    pub(crate) bytes: u64,
    /// Until it is killed.
    pub(crate) time: Duration,
}

impl CommandLimits {
    /// For a short answer: 10,000 node names take some 200 KiB.
    pub(crate) const fn short(time: Duration) -> Self {
        Self {
            bytes: 4 << 20,
            time,
        }
    }
}

/// Waits for a child until then; returns as soon as it has ended. `None`: it has not.
pub(crate) fn wait_until(child: &mut Child, until: Instant) -> Option<ExitStatus> {
    let end = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).ok();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) => {}
            Err(_) => return None,
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        match (&end, Timespec::try_from(left)) {
            (Some(end), Ok(left)) => {
                // A signal ends the wait early: the loop looks again.
                let _ = poll(&mut [PollFd::new(end, PollFlags::IN)], Some(&left));
            }
            _ => std::thread::sleep(left.min(CHECK_INTERVAL)),
        }
    }
}

/// Runs a command to its end, killed after `timeout`; returns its standard output.
pub(crate) fn answer(
    program: &str,
    words: &[&str],
    timeout: Duration,
) -> Result<String, SlurmError> {
    let mut command = Command::new(program);
    command.args(words);
    let output = answer_of(&mut command, CommandLimits::short(timeout))?;
    Ok(String::from_utf8_lossy(&output).into_owned())
}

/// The same of a command that reads this.
pub(crate) fn answer_to(
    program: &str,
    words: &[&str],
    input: String,
    timeout: Duration,
) -> Result<String, SlurmError> {
    let mut command = Command::new(program);
    command.args(words);
    let output = run(&mut command, Some(input), CommandLimits::short(timeout))?;
    Ok(String::from_utf8_lossy(&output).into_owned())
}

/// Runs a command to its end; returns its standard output as it is.
///
/// # Errors
/// When it cannot be run, fails, or needs more time or bytes than its limits allow.
pub(crate) fn answer_of(
    command: &mut Command,
    limits: CommandLimits,
) -> Result<Vec<u8>, SlurmError> {
    run(command, None, limits)
}

fn run(
    command: &mut Command,
    input: Option<String>,
    limits: CommandLimits,
) -> Result<Vec<u8>, SlurmError> {
    let shown = shown(command);
    let mut child = command
        .stdin(match input {
            Some(_) => Stdio::piped(),
            None => Stdio::null(),
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| SlurmError::Command {
            command: shown.clone(),
            source,
        })?;
    if let (Some(input), Some(mut pipe)) = (input, child.stdin.take()) {
        // A command that has ended says why.
        std::thread::spawn(move || drop(pipe.write_all(input.as_bytes())));
    }
    let out = reader(child.stdout.take(), limits.bytes);
    let err = reader(child.stderr.take(), limits.bytes);
    let ended = wait_until(&mut child, Instant::now() + limits.time);
    if ended.is_none() {
        // It may have ended meanwhile.
        let _ = child.kill();
        let _ = child.wait();
    }
    let bytes = |output: std::sync::mpsc::Receiver<Vec<u8>>| {
        output.recv_timeout(LAST_OUTPUT).unwrap_or_default()
    };
    let (output, errors) = (bytes(out), bytes(err));
    let is_too_long = output.len() as u64 > limits.bytes;
    match ended {
        // The command ends by SIGPIPE then, or its last bytes are missing.
        Some(_) if is_too_long => Err(SlurmError::TooLong {
            command: shown,
            bytes: limits.bytes,
        }),
        Some(status) if status.success() => Ok(output),
        Some(status) => {
            let text = String::from_utf8_lossy(&errors) + String::from_utf8_lossy(&output);
            Err(SlurmError::Failed {
                command: shown,
                status: status.to_string(),
                output: text.trim().to_owned(),
            })
        }
        None => Err(SlurmError::Late {
            command: shown,
            timeout: limits.time,
        }),
    }
}

/// A command as messages name it.
fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    format!("`{}`", words.join(" "))
}

/// Reads to the end, or one byte more than `most`.
fn reader(
    from: Option<impl Read + Send + 'static>,
    most: u64,
) -> std::sync::mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(from) = from {
            // Unreadable output counts as none.
            let _ = from.take(most.saturating_add(1)).read_to_end(&mut bytes);
        }
        let _ = sender.send(bytes);
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_answers_fails_or_is_killed() {
        let run = |script: &str, ms| answer("sh", &["-c", script], Duration::from_millis(ms));
        assert_eq!(run("echo yes", 10_000).unwrap(), "yes\n");
        let failed = run("echo no >&2; exit 3", 10_000).unwrap_err().to_string();
        assert!(failed.contains("no") && failed.contains('3'), "{failed}");
        let began = Instant::now();
        assert!(matches!(run("sleep 60", 100), Err(SlurmError::Late { .. })));
        assert!(began.elapsed() < Duration::from_secs(10));
        let missing = answer("no-such-command", &[], Duration::from_secs(1)).unwrap_err();
        assert!(missing.to_string().contains("PATH"), "{missing}");
    }

    #[test]
    fn a_command_reads_its_input_or_ends_without() {
        let run = |script: &str| {
            let lines = "a line\n".repeat(20_000);
            answer_to("sh", &["-c", script], lines, Duration::from_secs(20))
        };
        assert_eq!(run("wc -l").unwrap().trim(), "20000");
        assert!(run("exit 3").is_err());
        assert_eq!(run("true").unwrap(), "");
    }

    #[test]
    fn an_answer_above_its_bound_is_an_error_not_a_part_of_it() {
        let run = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            let time = Duration::from_secs(20);
            answer_of(&mut command, CommandLimits { bytes: 4, time })
        };
        assert_eq!(run("printf 1234").unwrap(), b"1234");
        for long in ["printf 12345", "yes"] {
            let error = run(long).unwrap_err();
            assert!(
                matches!(error, SlurmError::TooLong { bytes: 4, .. }),
                "{error}"
            );
        }
    }

    /// A wait that only looks every 20 ms needs 200 ms and more for these 20 children, one after another.
    #[test]
    fn the_end_of_a_child_ends_the_wait_at_once() {
        let mut late = Vec::new();
        for _ in 0..20 {
            let mut child = Command::new("sh")
                .args(["-c", "read line"])
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            let input = child.stdin.take();
            let closer = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(5));
                drop(input);
                Instant::now()
            });
            assert!(wait_until(&mut child, Instant::now() + Duration::from_secs(20)).is_some());
            let returned = Instant::now();
            late.push(returned.saturating_duration_since(closer.join().unwrap()));
        }
        late.sort();
        // The quickest is measured: others may wait for a processor.
        assert!(late[0] < Duration::from_millis(5), "{late:?}");
    }

    #[test]
    fn a_child_that_does_not_end_is_waited_for_until_then() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let began = Instant::now();
        assert!(wait_until(&mut child, began + Duration::from_millis(50)).is_none());
        assert!(began.elapsed() >= Duration::from_millis(50));
        child.kill().unwrap();
        assert!(wait_until(&mut child, Instant::now() + Duration::from_secs(20)).is_some());
    }
}
