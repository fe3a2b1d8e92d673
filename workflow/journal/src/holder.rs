//! The process that holds a lock: it cannot be mistaken for a process of the same number on another host, nor for one
//! that took its number later.

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fmt;
use std::io;
use std::path::Path;
use std::str::FromStr;

/// A process, wherever it runs. In a lock file: `pid start boot namespace host`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its number there.
    pub pid: u32,
    /// When it began, in ticks of its host's clock since boot.
    started: u64,
    place: ProcessScope,
}

/// The scope in which a process number is unique.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ProcessScope {
    /// The kernel's name for this boot.
    boot: String,
    /// The namespace of process numbers.
    namespace: String,
    host: String,
}

impl ProcessScope {
    fn here() -> io::Result<Self> {
        let kernel = |name: &str| {
            let text = std::fs::read_to_string(Path::new("/proc/sys/kernel").join(name))?;
            Ok::<_, io::Error>(text.trim().to_owned())
        };
        Ok(Self {
            boot: kernel("random/boot_id")?,
            namespace: std::fs::read_link("/proc/self/ns/pid")?
                .to_string_lossy()
                .into_owned(),
            host: kernel("hostname")?,
        })
    }
}

impl Holder {
    /// This process.
    ///
    /// # Errors
    /// When /proc cannot be read.
    pub fn this() -> io::Result<Self> {
        Self::of(std::process::id())
    }

    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        let started = stat(pid)?.ok_or(io::ErrorKind::NotFound)?.1;
        let place = ProcessScope::here()?;
        Ok(Self {
            pid,
            started,
            place,
        })
    }

    /// The host that it runs on.
    pub fn host(&self) -> &str {
        &self.place.host
    }

    /// Whether it runs (or ran) where its number has the same meaning as here.
    pub fn is_here(&self) -> bool {
        ProcessScope::here().is_ok_and(|here| here == self.place)
    }

    /// Whether it is known to be gone, or was killed and nobody has collected its status. For a process elsewhere that is
    /// not known.
    pub fn is_dead(&self) -> bool {
        let gone = |found: Option<(char, u64)>| {
            found.is_none_or(|(state, started)| {
                started != self.started || matches!(state, 'Z' | 'X')
            })
        };
        self.is_here() && stat(self.pid).is_ok_and(gone)
    }

    /// Asks it to end (SIGTERM). False if it is gone or elsewhere: nobody else gets the signal.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn terminate(&self) -> io::Result<bool> {
        if !self.is_here() {
            return Ok(false);
        }
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else {
            return Ok(false);
        };
        // The descriptor stays with one process: whether that is the holder is checked after it was opened.
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(Errno::SRCH) => return Ok(false),
            Err(e) => return Err(e.into()),
        };
        if self.is_dead() {
            return Ok(false);
        }
        match pidfd_send_signal(&process, Signal::TERM) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    pub(crate) fn line(&self) -> String {
        let ProcessScope {
            boot,
            namespace,
            host,
        } = &self.place;
        format!("{} {} {boot} {namespace} {host}", self.pid, self.started)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} on {}", self.pid, self.place.host)
    }
}

/// A lock file that names no process with its place.
#[derive(Debug)]
pub struct Unknown;

impl FromStr for Holder {
    type Err = Unknown;

    fn from_str(line: &str) -> Result<Self, Unknown> {
        let mut words = line.split_whitespace();
        let mut word = || words.next().ok_or(Unknown);
        let pid = word()?.parse().map_err(|_| Unknown)?;
        let started = word()?.parse().map_err(|_| Unknown)?;
        let place = ProcessScope {
            boot: word()?.to_owned(),
            namespace: word()?.to_owned(),
            host: word()?.to_owned(),
        };
        Ok(Self {
            pid,
            started,
            place,
        })
    }
}

/// State and start of a process of this host; `None` when there is none of the number.
fn stat(pid: u32) -> io::Result<Option<(char, u64)>> {
    let text = match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(text) => text,
        Err(e) if e.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => return Ok(None),
        Err(e) if e.kind() == io::ErrorKind::NotFound && Path::new("/proc/self").exists() => {
            return Ok(None);
        }
        Err(e) => return Err(e),
    };
    // They come behind the name in parentheses, which may hold anything: the third field, and the twenty-second.
    let fields = text.rsplit_once(") ").map(|(_, rest)| rest.split(' '));
    let found = fields.and_then(|mut fields| {
        let state = fields.next()?.chars().next()?;
        Some((state, fields.nth(18)?.parse().ok()?))
    });
    found
        .map(Some)
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    fn sleeper() -> Child {
        let mut sleep = Command::new("sleep");
        sleep.arg("60").stdin(Stdio::null()).spawn().unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let this = Holder::this().unwrap();
        assert_eq!(this.line().parse::<Holder>().unwrap(), this);
        assert!(this.is_here() && !this.is_dead());
        for other in ["", "12", "12 x b n h", "x 1 b n h", "1 2 3 4"] {
            assert!(other.parse::<Holder>().is_err(), "{other}");
        }
        assert!(this.to_string().ends_with(this.host()), "{this}");
    }

    #[test]
    fn one_of_the_same_number_elsewhere_or_later_gets_no_signal() {
        let mut child = sleeper();
        let own = Holder::of(child.id()).unwrap();
        let with = |change: &dyn Fn(&mut Holder)| {
            let mut other = own.clone();
            change(&mut other);
            other
        };
        for elsewhere in [
            with(&|h| h.place.host.push('x')),
            with(&|h| h.place.boot.push('x')),
            with(&|h| h.place.namespace.push('x')),
        ] {
            assert!(!elsewhere.is_here() && !elsewhere.is_dead());
            assert!(!elsewhere.terminate().unwrap());
        }
        let later = with(&|h| h.started += 1);
        assert!(later.is_here() && later.is_dead());
        assert!(!later.terminate().unwrap());
        assert_eq!(child.try_wait().unwrap(), None);
        assert!(own.terminate().unwrap());
        child.wait().unwrap();
        assert!(own.is_dead() && !own.terminate().unwrap());
    }
}
