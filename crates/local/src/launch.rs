//! Starting the helpers of a step and seeing them through: time limit, stop, end.

use crate::protocol::{Channel, End, HELPER_ARGUMENT, Order, Report, Spec, Used};
use crate::store::warn;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};
use tarn_base::units::Elapsed;

/// From SIGTERM to SIGKILL.
pub const GRACE: Duration = Duration::from_secs(5);
/// How long a helper may take to set up or to take leave, and the kernel to end it; it does nothing slow.
const HELPER_PATIENCE: Duration = Duration::from_secs(30);
/// How long a helper that is told to leave may take before it is killed.
const LEAVE: Duration = Duration::from_secs(2);

/// How urgently a step is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// SIGTERM, and SIGKILL after [`GRACE`].
    Terminate = 1,
    /// SIGKILL.
    Kill = 2,
}

/// Asks a running step to end, from another thread.
#[derive(Debug)]
pub(crate) struct Stop {
    level: AtomicU8,
    wake: OwnedFd,
}

impl Stop {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            level: AtomicU8::new(0),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub(crate) fn ask(&self, urgency: Urgency) {
        self.level.fetch_max(urgency as u8, Ordering::SeqCst);
        // It fails only when the counter is full, and then the reader is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub(crate) fn asked(&self) -> bool {
        self.level.load(Ordering::SeqCst) > 0
    }

    fn take(&self) -> u8 {
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        self.level.load(Ordering::SeqCst)
    }
}

/// One node of a step.
pub(crate) struct Launch<'a> {
    pub(crate) spec: Spec,
    /// Where the helper's identity is noted, for whoever cleans up after a crash.
    pub(crate) note: &'a Path,
}

/// How the command of a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ended(End),
    TimedOut,
    Stopped,
    /// It could not be started, or a helper was killed by somebody; why.
    Broken(String),
}

/// A helper process. It waits for its orders: it is started first, and comes up while the step is prepared.
pub(crate) struct Helper {
    node: String,
    child: Child,
    channel: Channel,
    used: Option<Used>,
}

impl Helper {
    /// Starts a helper that writes to `log`, as its step will. It ends with the thread that started it.
    pub(crate) fn spawn(exe: &Path, log: File) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(exe);
        command
            .arg(HELPER_ARGUMENT)
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(log.try_clone()?)
            .stderr(log)
            // The terminal's Ctrl-C is for tarn, which then decides.
            .process_group(0);
        let child = command.spawn()?;
        ours.set_read_timeout(Some(HELPER_PATIENCE))?;
        ours.set_write_timeout(Some(HELPER_PATIENCE))?;
        Ok(Self {
            node: String::new(),
            child,
            channel: Channel::new(ours),
            used: None,
        })
    }

    fn prepare(&mut self, launch: Launch<'_>) -> io::Result<()> {
        self.node = launch.spec.node.clone();
        self.note(launch.note)?;
        self.channel.send(&Order::Prepare(Box::new(launch.spec)))
    }

    /// What is said of a step whose helper does not answer any more.
    fn stuck(&self) -> String {
        format!(
            "the helper process {} of node `{}` was told to end the step and did not within {}: something of it hangs in \
             the kernel, perhaps on a file system that does not answer",
            self.child.id(),
            self.node,
            Elapsed(u64::try_from(HELPER_PATIENCE.as_nanos()).unwrap_or(u64::MAX))
        )
    }

    fn note(&self, at: &Path) -> io::Result<()> {
        let pid = i32::try_from(self.child.id()).map_err(io::Error::other)?;
        match tarn_sys::process::start_time(pid) {
            Some(start) => std::fs::write(at, format!("{pid} {start}\n")),
            None => Ok(()),
        }
    }

    fn ready(&mut self) -> Result<(), String> {
        match self.channel.receive() {
            Ok(Some(Report::Ready)) => Ok(()),
            Ok(Some(Report::Refused(why))) => Err(why),
            Ok(_) => Err("the helper process ended at once; its log may tell why".into()),
            Err(e) => Err(format!("the helper process does not answer: {e}")),
        }
    }
}

impl Helper {
    /// Whether the process has ended, or does so in this time.
    fn ends_within(&mut self, patience: Duration) -> bool {
        let begun = Instant::now();
        loop {
            // An error says that it is no child any more.
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            let left = patience.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return false;
            }
            match pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty()) {
                // Whatever it says, the process is asked again.
                Ok(fd) => drop(poll(
                    &mut [PollFd::new(&fd, PollFlags::IN)],
                    Some(&timespec(left)),
                )),
                Err(_) => std::thread::sleep(left.min(Duration::from_millis(5))),
            }
        }
    }

    /// Ends the process; whether it has gone. One that hangs in the kernel (a dead network file system) does not.
    fn end(&mut self) -> bool {
        // Closing the socket makes the helper end everything; killing it is the safety net.
        let _ = self.channel.socket.shutdown(std::net::Shutdown::Both);
        if self.ends_within(LEAVE) {
            return true;
        }
        let _ = self.child.kill();
        self.ends_within(HELPER_PATIENCE)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if !self.end() {
            warn(&format!(
                "process {} of node `{}` hangs in the kernel and cannot be killed; it is left behind",
                self.child.id(),
                self.node
            ));
        }
    }
}

fn timespec(d: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: d.subsec_nanos().into(),
    }
}

/// Helpers whose step is over and reported; dropping them waits for the kernel to take their namespaces down,
/// which may as well happen while the outputs are hashed.
#[derive(Default)]
pub(crate) struct Leaving {
    _helpers: Vec<Helper>,
}

/// Runs a step to its end on all of its nodes, a helper each; the first has the command.
pub(crate) fn execute(
    mut helpers: Vec<Helper>,
    launches: Vec<Launch<'_>>,
    limit: Option<Duration>,
    stop: &Stop,
) -> (Outcome, Used, Leaving) {
    let broken = |why| (Outcome::Broken(why), Used::default(), Leaving::default());
    for (helper, launch) in helpers.iter_mut().zip(launches) {
        if let Err(e) = helper.prepare(launch) {
            let node = &helper.node;
            return broken(format!(
                "the helper process of node `{node}` takes no orders: {e}"
            ));
        }
    }
    for helper in &mut helpers {
        if let Err(why) = helper.ready() {
            return broken(format!("node `{}`: {why}", helper.node));
        }
    }
    let outcome = Watch {
        helpers: &mut helpers,
        stop,
        limit: None,
        ending: None,
        why: None,
        patience: HELPER_PATIENCE,
    }
    .until_the_end(limit);
    let used = collect(&mut helpers);
    if helpers.iter().any(|h| h.used.is_none()) {
        // Something of the step may still run there: nothing may be committed before it is gone.
        let stuck = helpers
            .iter_mut()
            .find_map(|h| (!h.end()).then(|| h.stuck()));
        let outcome = stuck.map_or(outcome, Outcome::Broken);
        return (outcome, used, Leaving::default());
    }
    for helper in &helpers {
        // It may leave; the process itself is waited for later.
        let _ = helper.channel.socket.shutdown(std::net::Shutdown::Both);
    }
    (outcome, used, Leaving { _helpers: helpers })
}

struct Watch<'a> {
    helpers: &'a mut [Helper],
    stop: &'a Stop,
    limit: Option<Instant>,
    ending: Option<Ending>,
    why: Option<Outcome>,
    /// How long the helpers may take to end the step once they are told to.
    patience: Duration,
}

/// How far the end of a step has come, and when the next means is taken.
#[derive(Debug, Clone, Copy)]
enum Ending {
    /// Its processes were sent SIGTERM.
    Asked(Instant),
    /// The helpers were told to kill it.
    Ordered(Instant),
}

impl Ending {
    fn at(self) -> Instant {
        match self {
            Self::Asked(at) | Self::Ordered(at) => at,
        }
    }
}

impl Watch<'_> {
    fn until_the_end(mut self, limit: Option<Duration>) -> Outcome {
        // A limit beyond what a clock can hold is none.
        self.limit = limit.and_then(|l| Instant::now().checked_add(l));
        if let Err(e) = self.helpers[0].channel.send(&Order::Go) {
            return Outcome::Broken(format!("the helper process has gone: {e}"));
        }
        loop {
            if let Err(e) = self.wait() {
                return Outcome::Broken(format!("waiting for the step failed: {e}"));
            }
            if let Some(end) = self.reports() {
                return self.why.unwrap_or(end);
            }
            if let Some(broken) = self.deadlines() {
                return broken;
            }
        }
    }

    fn wait(&self) -> io::Result<()> {
        let limit = self.limit.filter(|_| self.why.is_none());
        let next = self.ending.map(Ending::at).or(limit);
        let timeout = next.map(|at| timespec(at.saturating_duration_since(Instant::now())));
        let mut fds = vec![PollFd::new(&self.stop.wake, PollFlags::IN)];
        let live = self.helpers.iter().filter(|h| h.used.is_none());
        fds.extend(live.map(|h| PollFd::new(&h.channel.socket, PollFlags::IN)));
        match poll(&mut fds, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) | Ok(_) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// What the helpers say; an outcome when that ends the step.
    fn reports(&mut self) -> Option<Outcome> {
        for at in 0..self.helpers.len() {
            let helper = &mut self.helpers[at];
            if helper.used.is_some()
                || !crate::runner::readable(&helper.channel.socket).unwrap_or(true)
            {
                continue;
            }
            match helper.channel.receive() {
                Ok(Some(Report::Ended {
                    end: Some(end),
                    used,
                })) => {
                    helper.used = Some(used);
                    return Some(Outcome::Ended(end));
                }
                Ok(Some(Report::Refused(why))) => return Some(Outcome::Broken(why)),
                // It was told to finish, and the first node has not answered yet.
                Ok(Some(Report::Ended { end: None, used })) => helper.used = Some(used),
                Ok(Some(Report::Ready)) | Ok(None) | Err(_) => {
                    let why = format!(
                        "the helper process of node `{}` is gone: somebody (or the kernel, when memory ran out) killed it",
                        helper.node
                    );
                    return Some(Outcome::Broken(why));
                }
            }
        }
        None
    }

    /// Takes the next means to end the step when it is time; an outcome when that was the last.
    fn deadlines(&mut self) -> Option<Outcome> {
        let now = Instant::now();
        let level = self.stop.take();
        if level >= Urgency::Terminate as u8 && self.why.is_none() {
            self.begin_to_end(Outcome::Stopped);
        }
        if self.why.is_none() && self.limit.is_some_and(|l| l <= now) {
            self.begin_to_end(Outcome::TimedOut);
        }
        let impatient = level >= Urgency::Kill as u8;
        match self.ending {
            Some(Ending::Asked(until)) if until <= now || impatient => {
                // The first helper's report ends the wait.
                self.order_all(&Order::Finish);
                self.ending = Some(Ending::Ordered(now + self.patience));
                None
            }
            Some(Ending::Ordered(until)) if until <= now => {
                for helper in self.helpers.iter_mut() {
                    let _ = helper.child.kill();
                }
                let first = &self.helpers[0];
                Some(Outcome::Broken(first.stuck()))
            }
            _ => None,
        }
    }

    fn begin_to_end(&mut self, why: Outcome) {
        self.why = Some(why);
        self.ending = Some(Ending::Asked(Instant::now() + GRACE));
        self.order_all(&Order::Terminate);
    }

    fn order_all(&mut self, order: &Order) {
        for helper in self.helpers.iter_mut() {
            // A helper that is gone shows as the end of its socket.
            let _ = helper.channel.send(order);
        }
    }
}

/// Ends the other nodes' helpers and sums up.
fn collect(helpers: &mut [Helper]) -> Used {
    let mut sum = Used::default();
    for helper in helpers {
        if helper.used.is_none() && helper.channel.send(&Order::Finish).is_ok() {
            while let Ok(Some(report)) = helper.channel.receive() {
                if let Report::Ended { used, .. } = report {
                    helper.used = Some(used);
                    break;
                }
            }
        }
        let used = helper.used.unwrap_or_default();
        sum.wall = sum.wall.max(used.wall);
        sum.user = sum.user.saturating_add(used.user);
        sum.system = sum.system.saturating_add(used.system);
        sum.memory = sum.memory.max(used.memory);
        sum.read = sum.read.saturating_add(used.read);
        sum.written = sum.written.saturating_add(used.written);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_helper_that_does_not_end_is_killed_and_named() {
        // It takes every order and does nothing about it.
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while theirs.read(&mut buffer).is_ok_and(|n| n > 0) {}
        });
        let child = Command::new("sleep").arg("100").spawn().unwrap();
        let mut helpers = [Helper {
            node: "n7".into(),
            child,
            channel: Channel::new(ours),
            used: None,
        }];
        let stop = Stop::new().unwrap();
        stop.ask(Urgency::Kill);
        let begun = Instant::now();
        let outcome = Watch {
            helpers: &mut helpers,
            stop: &stop,
            limit: None,
            ending: None,
            why: None,
            patience: Duration::from_millis(50),
        }
        .until_the_end(None);
        assert!(
            matches!(&outcome, Outcome::Broken(why) if why.contains("`n7` was told to end")),
            "{outcome:?}"
        );
        assert!(helpers[0].ends_within(Duration::from_secs(10)));
        assert!(begun.elapsed() < GRACE, "the second signal means it");
    }
}
