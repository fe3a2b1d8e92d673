//! Descriptors beside the standard streams: those that a process was started with, and those that it hands to one that it starts.

use rustix::process::{Resource, getrlimit};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Keeps the descriptors for a command's process until it was started.
#[derive(Debug)]
pub struct HandedOver {
    _held: Vec<OwnedFd>,
}

/// The remedy for a number that is too large.
const REMEDY: &str = "open it under a lower number, or raise the limit of open files (`ulimit -n`)";

/// No number is that of a standard stream, beyond what a process may have, or given twice.
fn check_numbers(numbers: impl Iterator<Item = i32>) -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let mut seen = BTreeSet::new();
    let refused = |text: String| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    for number in numbers {
        match u64::try_from(number) {
            Ok(n) if n < 3 => {
                return refused(format!("descriptor {number} is a standard stream"));
            }
            Err(_) => return refused(format!("{number} is not a descriptor number")),
            Ok(n) if n >= limit => {
                return refused(format!(
                    "descriptor {number} is beyond the {limit} that a process may have here; {REMEDY}"
                ));
            }
            Ok(_) if !seen.insert(number) => {
                return refused(format!("descriptor {number} is given twice"));
            }
            Ok(_) => {}
        }
    }
    Ok(())
}

/// Hands descriptors to the command's process, each under its number (3 or more), beside its standard streams.
///
/// # Errors
/// When a number is too large for this process, or not one that can be handed over.
pub fn hand_over(command: &mut Command, fds: Vec<(i32, OwnedFd)>) -> io::Result<HandedOver> {
    let Some(last) = fds.iter().map(|(number, _)| *number).max() else {
        return Ok(HandedOver { _held: Vec::new() });
    };
    check_numbers(fds.iter().map(|(number, _)| *number))?;
    let (mut held, mut pairs) = (Vec::new(), Vec::new());
    for (number, fd) in fds {
        let beyond = |e: rustix::io::Errno| {
            let e = io::Error::from(e);
            let text =
                format!("descriptor {number} cannot be handed on beside the others: {e}; {REMEDY}");
            io::Error::new(e.kind(), text)
        };
        // Above all the numbers: none is written over before it is handed on.
        let above = rustix::io::fcntl_dupfd_cloexec(&fd, last.saturating_add(1)).map_err(beyond)?;
        // A descriptor that is opened to start the process must not get this number: it would be overwritten.
        held.push(rustix::io::fcntl_dupfd_cloexec(&fd, number).map_err(beyond)?);
        pairs.push((above.as_raw_fd(), number));
        held.push(above);
    }
    // SAFETY: the closure only makes system calls (dup2), which are async-signal-safe, and allocates nothing. The descriptors are open as
    // long as `HandedOver` is, and the numbers are those of this process's copy alone.
    unsafe {
        command.pre_exec(move || {
            for (from, to) in &pairs {
                if libc::dup2(*from, *to) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    Ok(HandedOver { _held: held })
}

/// The descriptors beside the standard streams that this process leaves to a program that it becomes, by their numbers.
///
/// # Errors
/// The error of reading `/proc`.
pub fn inherited() -> io::Result<Vec<i32>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_str().and_then(|n| n.parse().ok());
        // SAFETY: a number that is not open any more is refused.
        let flags = number.map(|n: i32| (n, unsafe { libc::fcntl(n, libc::F_GETFD) }));
        match flags {
            Some((n, flags)) if n > 2 && flags >= 0 && flags & libc::FD_CLOEXEC == 0 => {
                numbers.push(n);
            }
            _ => {}
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// A copy of one of [`inherited`].
///
/// # Errors
/// When it is not open any more.
pub fn inherited_fd(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: a number that is not open any more is refused; the result is a new descriptor that nobody else has.
    unsafe {
        match libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) {
            fd if fd >= 0 => Ok(OwnedFd::from_raw_fd(fd)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn descriptors_keep_their_numbers() {
        let (mut first, one) = io::pipe().unwrap();
        let (mut second, two) = io::pipe().unwrap();
        let mut command = Command::new("sh");
        // The numbers are each other's, as far as they can be.
        let numbers = [two.as_raw_fd().max(3), one.as_raw_fd().max(3)];
        // By their names: a shell may take one digit alone after `>&`.
        let [one_is, two_is] = numbers;
        let script = format!("echo one >/dev/fd/{one_is}; echo two >/dev/fd/{two_is}");
        let fds = vec![(numbers[0], one.into()), (numbers[1], two.into())];
        let handed = hand_over(&mut command, fds).unwrap();
        assert!(command.args(["-c", &script]).status().unwrap().success());
        drop((handed, command));
        let (mut output, mut other) = (String::new(), String::new());
        first.read_to_string(&mut output).unwrap();
        second.read_to_string(&mut other).unwrap();
        assert_eq!((&output[..], &other[..]), ("one\n", "two\n"));
    }

    #[test]
    fn standard_streams_are_not_handed_over() {
        let (reader, _writer) = io::pipe().unwrap();
        let refused = hand_over(&mut Command::new("true"), vec![(1, reader.into())]);
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(inherited().unwrap().iter().all(|n| *n > 2));
        assert!(inherited_fd(i32::MAX).is_err());
    }
}
