//! Starting the helpers of a step and seeing them through: time limit, stop, end.

use crate::fds::{reached, readable};
use crate::helper::protocol::{
    Channel, HELPER_ARGUMENT, HelperCommand, HelperReport, ProcessEnd, ProcessUsage, Spec,
    StepIsolation,
};
use crate::helper::provider::ProviderAddress;
use crate::storage::store::warn;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tarn_ports::{Meter, MeteredActivity};
use tarn_types::energy::Energy;
use tarn_types::event::Imaged;
use tarn_types::units::Elapsed;

/// From SIGTERM to SIGKILL.
pub const GRACE: Duration = Duration::from_secs(5);
/// How long a helper may take to set up or to take leave, and the kernel to end it; it does nothing slow.
pub(crate) const HELPER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a helper that is ordered to leave may take before it is killed.
const LEAVE: Duration = Duration::from_secs(2);

/// Why a node's helper, or all helpers of a step, cannot begin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    #[error("its helper has no instructions")]
    NoInstructions,
    #[error("it has no helper")]
    NoHelper,
    #[error("the helper process of node `{node}` takes no orders: {source}")]
    TakesNoOrders { node: String, source: io::Error },
    /// Its socket does not take the order to mount the shared namespace.
    #[error("its helper has gone: {0}")]
    TakesNoMount(io::Error),
    #[error("the helper process ended at once; its log may show why")]
    EndedAtOnce,
    #[error("the helper process has gone; its log may show why")]
    HasGone,
    #[error("the helper process does not answer: {0}")]
    NoAnswer(io::Error),
    /// The reason of the helper, or of the node that runs it elsewhere.
    #[error("{0}")]
    Refused(String),
    #[error("the memory that its helper has mounted cannot be reached: {0}")]
    MemoryUnreachable(rustix::io::Errno),
    #[error("the memory that its helper has mounted is not where it was asked for")]
    MemoryElsewhere,
    /// The step is stopped while its data is put into the shared namespace.
    #[error("stopped before it started")]
    Stopped,
    #[error("it was lost before the step began")]
    LostNode,
    #[error("its helper process has gone")]
    RemoteHasGone,
    #[error("its helper process does not answer")]
    RemoteSilent,
    #[error("node `{node}`: {why}")]
    OfNode { node: String, why: Box<Self> },
}

impl LaunchError {
    fn of_node(self, node: &str) -> Self {
        Self::OfNode {
            node: node.to_owned(),
            why: Box::new(self),
        }
    }
}

/// How urgently a step is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StopUrgency {
    /// SIGTERM, and SIGKILL after [`GRACE`].
    Terminate = 1,
    /// SIGKILL.
    Kill = 2,
}

/// Requests the end of a running step, from another thread.
#[derive(Debug)]
pub(crate) struct StepStopper {
    level: AtomicU8,
    wake: OwnedFd,
    /// Why, if it has used up memory.
    overran: OnceLock<String>,
}

impl StepStopper {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            level: AtomicU8::new(0),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            overran: OnceLock::new(),
        })
    }

    pub(crate) fn ask(&self, urgency: StopUrgency) {
        self.level.fetch_max(urgency as u8, Ordering::SeqCst);
        self.wake();
    }

    /// Kills it because it has used up memory; `why` is the error text.
    pub(crate) fn out_of_memory(&self, why: String) {
        // Once is enough.
        let _ = self.overran.set(why);
        self.ask(StopUrgency::Kill);
    }

    /// Why it was killed, if that was for memory.
    pub(crate) fn overran(&self) -> Option<&str> {
        self.overran.get().map(String::as_str)
    }

    /// Wakes the thread that sees the step through: there is something for it.
    pub(crate) fn wake(&self) {
        // It fails only when the counter is full, and then the reader is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub(crate) fn is_requested(&self) -> bool {
        self.level.load(Ordering::SeqCst) > 0
    }

    /// Whether it is awake by itself again; how urgently it is to end (0: not at all).
    pub(crate) fn take(&self) -> u8 {
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        self.level.load(Ordering::SeqCst)
    }

    /// The descriptor to poll for beside others.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// The task of a helper.
pub(crate) struct HelperLaunch {
    pub(crate) spec: Spec,
    /// The file with the helper's identity, for the clean-up after a crash.
    pub(crate) note: PathBuf,
    /// The meter of this machine, and the cores that the step takes of it.
    pub(crate) meter: Option<(Arc<dyn Meter>, u32)>,
    /// Called with the images of its processes.
    pub(crate) on_image: Option<ImageListener>,
}

/// Called for each image of a step's processes.
pub(crate) type ImageListener = Box<dyn Fn(Imaged) + Send>;

/// How the command of a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CommandOutcome {
    Ended(ProcessEnd),
    TimedOut,
    Stopped,
    /// It could not be started, or a helper was killed by somebody; why.
    Broken(String),
    /// It could not resume from its image; why.
    NotRestored(String),
}

/// The helper of one node of a step, wherever that node is.
pub(crate) trait Launcher {
    /// The node's name.
    fn node(&self) -> &str;

    /// Orders it to set everything up.
    fn prepare(&mut self) -> Result<(), LaunchError>;

    /// Waits until it has; where its part of the shared namespace is reached, if there is one.
    fn ready(&mut self) -> Result<Option<ProviderAddress>, LaunchError>;

    /// Waits until it has the shared namespace, which may take long where that is filled; until it should stop.
    fn mounted(&mut self, stop: &StepStopper) -> Result<(), LaunchError>;

    /// The descriptor to poll for; without one, the event of the step's [`StepStopper`] signals a report.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    fn order(&mut self, order: &HelperCommand) -> io::Result<()>;

    /// Its next report, if there is one; `Some(None)`: it is gone.
    fn next_report(&mut self) -> Option<Option<HelperReport>>;

    /// Waits for the usage of its processes, for [`HELPER_TIMEOUT`] at most.
    fn last_words(&mut self) -> Option<ProcessUsage>;

    /// The usage of its processes, once they have ended.
    fn used(&mut self) -> &mut Option<ProcessUsage>;

    /// Ends the process at once; does not wait.
    fn kill(&mut self);

    /// Ends the process; whether it has gone. One that hangs in the kernel (a dead network file system) does not.
    fn end(&mut self) -> bool;

    /// Its step is over: it may leave. The process itself is waited for later.
    fn leave(&mut self);

    /// Which process it is, for messages.
    fn process(&self) -> String;
}

/// A helper process. It waits for its orders: it is started first, and comes up while the step is prepared.
pub(crate) struct HelperProcess {
    node: String,
    launch: Option<HelperLaunch>,
    meter: Option<(Arc<dyn Meter>, u32)>,
    on_image: Option<ImageListener>,
    /// The energy that the machine draws for it, from when all is set up on this node.
    metered: Option<Box<dyn MeteredActivity>>,
    child: Child,
    channel: Channel,
    used: Option<ProcessUsage>,
}

impl HelperProcess {
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
        ours.set_read_timeout(Some(HELPER_TIMEOUT))?;
        ours.set_write_timeout(Some(HELPER_TIMEOUT))?;
        Ok(Self {
            node: String::new(),
            launch: None,
            meter: None,
            on_image: None,
            metered: None,
            child,
            channel: Channel::new(ours),
            used: None,
        })
    }

    /// Makes it mount a file system in memory at this empty folder, in the namespaces of its step. Returns that file system's
    /// top: this process reaches it as long as that is open, and no other does but the step.
    pub(crate) fn mount_tmpfs(
        &mut self,
        at: &Path,
        bytes: u64,
        isolate: StepIsolation,
    ) -> Result<OwnedFd, LaunchError> {
        let order = HelperCommand::MountTmpfs {
            at: at.into(),
            bytes,
            isolate,
        };
        let reply = self
            .channel
            .send(&order)
            .and_then(|()| self.channel.receive());
        match reply {
            Ok(Some(HelperReport::Mounted)) => {}
            Ok(Some(HelperReport::Refused(why))) => return Err(LaunchError::Refused(why)),
            Ok(_) => return Err(LaunchError::EndedAtOnce),
            Err(e) => return Err(LaunchError::NoAnswer(e)),
        }
        // As the helper sees it; here the folder is empty.
        let mut seen = format!("/proc/{}/root", self.child.id()).into_bytes();
        seen.extend_from_slice(at.as_os_str().as_encoded_bytes());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let top = openat(CWD, &*seen, flags, Mode::empty());
        let top = top.map_err(LaunchError::MemoryUnreachable)?;
        if tarn_sys::memory::in_memory(&reached(&top)) {
            Ok(top)
        } else {
            Err(LaunchError::MemoryElsewhere)
        }
    }

    /// Sets the setup that it will be ordered to make.
    pub(crate) fn equip(&mut self, launch: HelperLaunch) {
        self.node = launch.spec.node.clone();
        self.launch = Some(launch);
    }

    /// Its report; the last one with the energy that this machine drew for the step.
    fn measured(&mut self, mut report: HelperReport) -> HelperReport {
        if let HelperReport::Ended { used, .. } = &mut report {
            used.energy = self.metered.take().and_then(|m| m.end());
        }
        report
    }

    fn note(&self, at: &Path) -> io::Result<()> {
        let pid = i32::try_from(self.child.id()).map_err(io::Error::other)?;
        match tarn_sys::process::start_time(pid) {
            Some(start) => std::fs::write(at, format!("{pid} {start}\n")),
            None => Ok(()),
        }
    }
}

impl HelperProcess {
    /// Whether the process has ended, or does so in this time.
    fn ends_within(&mut self, timeout: Duration) -> bool {
        let begun = Instant::now();
        loop {
            // An error shows that it is no child any more.
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            let left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return false;
            }
            match pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty()) {
                // The result does not matter: the process is checked again.
                Ok(fd) => drop(poll(
                    &mut [PollFd::new(&fd, PollFlags::IN)],
                    Some(&timespec(left)),
                )),
                Err(_) => std::thread::sleep(left.min(Duration::from_millis(5))),
            }
        }
    }
}

impl Launcher for HelperProcess {
    fn node(&self) -> &str {
        &self.node
    }

    fn prepare(&mut self) -> Result<(), LaunchError> {
        let Some(launch) = self.launch.take() else {
            return Err(LaunchError::NoInstructions);
        };
        let HelperLaunch { spec, note, .. } = launch;
        (self.meter, self.on_image) = (launch.meter, launch.on_image);
        self.note(&note)
            .and_then(|()| self.channel.send(&HelperCommand::Prepare(Box::new(spec))))
            .map_err(|source| LaunchError::TakesNoOrders {
                node: self.node.clone(),
                source,
            })
    }

    fn ready(&mut self) -> Result<Option<ProviderAddress>, LaunchError> {
        match self.channel.receive() {
            Ok(Some(HelperReport::Ready(provider_address))) => {
                let meter = self.meter.take();
                self.metered = meter.and_then(|(meter, cores)| meter.begin(cores));
                Ok(provider_address)
            }
            Ok(Some(HelperReport::Refused(why))) => Err(LaunchError::Refused(why)),
            Ok(_) => Err(LaunchError::EndedAtOnce),
            Err(e) => Err(LaunchError::NoAnswer(e)),
        }
    }

    fn mounted(&mut self, stop: &StepStopper) -> Result<(), LaunchError> {
        loop {
            match self.channel.receive() {
                Ok(Some(HelperReport::Busy)) if stop.is_requested() => {
                    return Err(LaunchError::Stopped);
                }
                Ok(Some(HelperReport::Busy)) => {}
                Ok(Some(HelperReport::Ready(_))) => return Ok(()),
                Ok(Some(HelperReport::Refused(why))) => return Err(LaunchError::Refused(why)),
                Ok(_) => return Err(LaunchError::HasGone),
                Err(e) => return Err(LaunchError::NoAnswer(e)),
            }
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.channel.socket.as_fd())
    }

    fn order(&mut self, order: &HelperCommand) -> io::Result<()> {
        self.channel.send(order)
    }

    fn next_report(&mut self) -> Option<Option<HelperReport>> {
        loop {
            let waits = self.channel.has_message();
            if !waits && !readable(&self.channel.socket).unwrap_or(true) {
                return None;
            }
            match self.channel.receive().ok().flatten() {
                Some(HelperReport::Image(what)) => {
                    self.on_image.iter().for_each(|notify| notify(what.clone()))
                }
                report => return Some(report.map(|r| self.measured(r))),
            }
        }
    }

    fn last_words(&mut self) -> Option<ProcessUsage> {
        while let Ok(Some(report)) = self.channel.receive() {
            if let HelperReport::Ended { used, .. } = self.measured(report) {
                return Some(used);
            }
        }
        None
    }

    fn used(&mut self) -> &mut Option<ProcessUsage> {
        &mut self.used
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
    }

    fn end(&mut self) -> bool {
        // Closing the socket makes the helper end everything; killing it is the safety net.
        let _ = self.channel.socket.shutdown(std::net::Shutdown::Both);
        if self.ends_within(LEAVE) {
            return true;
        }
        let _ = self.child.kill();
        self.ends_within(HELPER_TIMEOUT)
    }

    fn leave(&mut self) {
        let _ = self.channel.socket.shutdown(std::net::Shutdown::Both);
    }

    fn process(&self) -> String {
        format!("process {}", self.child.id())
    }
}

impl Drop for HelperProcess {
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
pub(crate) type Leaving = Vec<HelperProcess>;

/// Runs a step to its end on all of its nodes, a helper each; the first has the command. Afterwards nothing of it runs
/// any more. `hosts` is what the nodes are called by each other, where they share a namespace.
pub(crate) fn execute(
    helpers: &mut [&mut dyn Launcher],
    hosts: &[String],
    limit: Option<Duration>,
    stop: &StepStopper,
) -> (CommandOutcome, ProcessUsage) {
    if let Err(why) = enter(helpers, hosts, stop) {
        return broken(helpers, why.to_string());
    }
    let outcome = HelperMonitor {
        helpers,
        stop,
        limit: None,
        ending: None,
        why: None,
        timeout: HELPER_TIMEOUT,
    }
    .until_the_end(limit);
    let used = collect(helpers);
    if helpers.iter_mut().any(|h| h.used().is_none()) {
        // Something of the step may still run there: nothing may be committed before it is gone.
        let stuck = helpers.iter_mut().map(|h| (!h.end()).then(|| stuck(&**h)));
        let stuck: Vec<String> = stuck.collect::<Vec<_>>().into_iter().flatten().collect();
        let outcome = stuck
            .into_iter()
            .next()
            .map_or(outcome, CommandOutcome::Broken);
        return (outcome, used);
    }
    helpers.iter_mut().for_each(|h| h.leave());
    (outcome, used)
}

/// The outcome when a step cannot begin: nothing of it stays.
pub(crate) fn broken(
    helpers: &mut [&mut dyn Launcher],
    why: String,
) -> (CommandOutcome, ProcessUsage) {
    for helper in helpers {
        helper.end();
    }
    (CommandOutcome::Broken(why), ProcessUsage::default())
}

/// All nodes are set up, or why one is not.
fn enter(
    helpers: &mut [&mut dyn Launcher],
    hosts: &[String],
    stop: &StepStopper,
) -> Result<(), LaunchError> {
    helpers.iter_mut().try_for_each(|h| h.prepare())?;
    let ready = |h: &mut &mut dyn Launcher| h.ready().map_err(|why| why.of_node(h.node()));
    let provider_addresses: Result<Vec<Option<ProviderAddress>>, LaunchError> =
        helpers.iter_mut().map(ready).collect();
    let Some(mut provider_addresses) = provider_addresses?
        .into_iter()
        .collect::<Option<Vec<ProviderAddress>>>()
    else {
        return Ok(());
    };
    for (provider_address, host) in provider_addresses.iter_mut().zip(hosts) {
        provider_address.host.clone_from(host);
    }
    let order = HelperCommand::Mount(provider_addresses);
    // The first makes the datasets, so that no two do; then all others have them at once.
    let (first, others) = helpers.split_at_mut(1);
    for some in [first, others] {
        for h in some.iter_mut() {
            let sent = h.order(&order);
            sent.map_err(|e| LaunchError::TakesNoMount(e).of_node(h.node()))?;
        }
        for h in some.iter_mut() {
            let mounted = h.mounted(stop);
            mounted.map_err(|why| why.of_node(h.node()))?;
        }
    }
    Ok(())
}

/// The text for a step whose helper does not answer any more.
fn stuck(helper: &dyn Launcher) -> String {
    format!(
        "the helper {} of node `{}` was asked to end the step and did not within {}: something of it hangs in the kernel, \
         perhaps on a file system that does not answer",
        helper.process(),
        helper.node(),
        Elapsed(u64::try_from(HELPER_TIMEOUT.as_nanos()).unwrap_or(u64::MAX))
    )
}

struct HelperMonitor<'a, 'h> {
    helpers: &'a mut [&'h mut dyn Launcher],
    stop: &'a StepStopper,
    limit: Option<Instant>,
    ending: Option<StepEndPhase>,
    why: Option<CommandOutcome>,
    /// How long the helpers may take to end the step once they have the order.
    timeout: Duration,
}

/// How far the end of a step has come, and when the next means is taken.
#[derive(Debug, Clone, Copy)]
enum StepEndPhase {
    /// Its processes were sent SIGTERM.
    Terminating(Instant),
    /// The helpers were ordered to kill it.
    Ordered(Instant),
}

impl StepEndPhase {
    fn at(self) -> Instant {
        match self {
            Self::Terminating(at) | Self::Ordered(at) => at,
        }
    }
}

impl HelperMonitor<'_, '_> {
    fn until_the_end(mut self, limit: Option<Duration>) -> CommandOutcome {
        // A limit beyond what a clock can hold is none.
        self.limit = limit.and_then(|l| Instant::now().checked_add(l));
        if let Err(e) = self.helpers[0].order(&HelperCommand::Go) {
            return CommandOutcome::Broken(format!("the helper process has gone: {e}"));
        }
        loop {
            // First: a request that comes after this look wakes the wait.
            let level = self.stop.take();
            if let Some(end) = self.reports() {
                return self.why.unwrap_or(end);
            }
            if let Some(broken) = self.deadlines(level) {
                return broken;
            }
            if let Err(e) = self.wait() {
                return CommandOutcome::Broken(format!("waiting for the step failed: {e}"));
            }
        }
    }

    fn wait(&mut self) -> io::Result<()> {
        let limit = self.limit.filter(|_| self.why.is_none());
        let next = self.ending.map(StepEndPhase::at).or(limit);
        let timeout = next.map(|at| timespec(at.saturating_duration_since(Instant::now())));
        let mut fds = vec![PollFd::new(&self.stop.wake, PollFlags::IN)];
        let live = self
            .helpers
            .iter_mut()
            .filter_map(|h| h.used().is_none().then_some(h));
        let sockets = live.filter_map(|h| h.fd());
        fds.extend(sockets.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        match poll(&mut fds, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) | Ok(_) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Reads the reports of the helpers; an outcome when one ends the step.
    fn reports(&mut self) -> Option<CommandOutcome> {
        for helper in self.helpers.iter_mut() {
            if helper.used().is_some() {
                continue;
            }
            match helper.next_report() {
                None => {}
                Some(Some(HelperReport::Ended {
                    end: Some(end),
                    used,
                })) => {
                    *helper.used() = Some(used);
                    return Some(CommandOutcome::Ended(end));
                }
                Some(Some(HelperReport::Refused(why))) => return Some(CommandOutcome::Broken(why)),
                // It was ordered to finish, and the first node has not replied yet.
                Some(Some(HelperReport::Ended { end: None, used })) => *helper.used() = Some(used),
                Some(Some(HelperReport::NotRestored(why))) => {
                    return Some(CommandOutcome::NotRestored(why));
                }
                Some(Some(HelperReport::Busy)) => {}
                Some(
                    Some(HelperReport::Ready(_) | HelperReport::Mounted | HelperReport::Image(_))
                    | None,
                ) => {
                    let why = format!(
                        "the helper process of node `{}` is gone: somebody (or the kernel, when memory ran out) killed it",
                        helper.node()
                    );
                    return Some(CommandOutcome::Broken(why));
                }
            }
        }
        None
    }

    /// Takes the next means to end the step when it is time; an outcome when that was the last.
    fn deadlines(&mut self, level: u8) -> Option<CommandOutcome> {
        let now = Instant::now();
        if level >= StopUrgency::Terminate as u8 && self.why.is_none() {
            self.begin_to_end(CommandOutcome::Stopped);
        }
        if self.why.is_none() && self.limit.is_some_and(|l| l <= now) {
            self.begin_to_end(CommandOutcome::TimedOut);
        }
        let impatient = level >= StopUrgency::Kill as u8;
        match self.ending {
            Some(StepEndPhase::Terminating(until)) if until <= now || impatient => {
                // The first helper's report ends the wait.
                self.order_all(&HelperCommand::Finish);
                self.ending = Some(StepEndPhase::Ordered(now + self.timeout));
                None
            }
            Some(StepEndPhase::Ordered(until)) if until <= now => {
                self.helpers.iter_mut().for_each(|h| h.kill());
                Some(CommandOutcome::Broken(stuck(&*self.helpers[0])))
            }
            _ => None,
        }
    }

    fn begin_to_end(&mut self, why: CommandOutcome) {
        self.why = Some(why);
        self.ending = Some(StepEndPhase::Terminating(Instant::now() + GRACE));
        self.order_all(&HelperCommand::Terminate);
    }

    fn order_all(&mut self, order: &HelperCommand) {
        for helper in self.helpers.iter_mut() {
            // A helper that is gone shows as the end of its socket.
            let _ = helper.order(order);
        }
    }
}

/// Ends the other nodes' helpers and sums up.
fn collect(helpers: &mut [&mut dyn Launcher]) -> ProcessUsage {
    let mut sum = ProcessUsage::default();
    let mut energies = Vec::with_capacity(helpers.len());
    for helper in helpers {
        if helper.used().is_none() && helper.order(&HelperCommand::Finish).is_ok() {
            *helper.used() = helper.last_words();
        }
        let used = helper.used().unwrap_or_default();
        sum.wall = sum.wall.max(used.wall);
        sum.user = sum.user.saturating_add(used.user);
        sum.system = sum.system.saturating_add(used.system);
        sum.memory = sum.memory.max(used.memory);
        sum.read = sum.read.saturating_add(used.read);
        sum.written = sum.written.saturating_add(used.written);
        energies.push(used.energy);
    }
    // The energy of some of its nodes only is not the energy of the step.
    let energies: Option<Vec<Energy>> = energies.into_iter().collect();
    sum.energy = energies.and_then(|all| all.into_iter().reduce(Energy::and));
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
        let mut helper = HelperProcess {
            node: "n7".into(),
            launch: None,
            meter: None,
            on_image: None,
            metered: None,
            child,
            channel: Channel::new(ours),
            used: None,
        };
        let stop = StepStopper::new().unwrap();
        stop.ask(StopUrgency::Kill);
        let begun = Instant::now();
        let outcome = HelperMonitor {
            helpers: &mut [&mut helper],
            stop: &stop,
            limit: None,
            ending: None,
            why: None,
            timeout: Duration::from_millis(50),
        }
        .until_the_end(None);
        assert!(
            matches!(&outcome, CommandOutcome::Broken(why) if why.contains("`n7` was asked to end")),
            "{outcome:?}"
        );
        assert!(helper.ends_within(Duration::from_secs(10)));
        assert!(begun.elapsed() < GRACE, "the second signal means it");
    }
}
