//! The helper process of a step on one node: `tarn __step`.
//!
//! It is single-threaded, so that it may fork and enter namespaces. With namespaces there are two processes: the
//! outer one waits, the inner one is the first process of the PID namespace: it mounts, starts the command, reaps,
//! and when it ends the kernel kills whatever is left. Without, there is one, which as a subreaper stays
//! the ancestor of everything that the step starts.

use crate::fds::readable;
use crate::helper::guests::Guests;
use crate::helper::image::restore::{Imaging, Restored, Restoring, pipe_name};
use crate::helper::image::{StepImage, StepImagePlan, alone};
use crate::helper::log::StepLog;
use crate::helper::protocol::{
    BindMount, Channel, HelperCommand, HelperReport, ProcessEnd, ProcessUsage, Spec, StepIsolation,
};
use crate::helper::provider::gluster::Gluster;
use crate::helper::provider::{Provider, ProviderAddress, fill};
use crate::helper::tmp;
use crate::storage::store::warn;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use tarn_ports::Mover;
use tarn_sys::namespace::{self, NamespaceIdentity};
use tarn_sys::{network, process};
use tarn_types::event::Imaged;

/// How often orphans are reaped when nothing else happens, in nanoseconds.
const REAP_INTERVAL: i64 = 500_000_000;

/// How often a helper that fills the shared namespace reports that it is still there.
const ALIVE: Duration = Duration::from_secs(5);
/// Between two looks whether it has done so, or whether all of a step has ended.
const LOOK: Duration = Duration::from_millis(5);
/// How long what is killed may take to end before the shared namespace goes from under it.
const ENDING: Duration = Duration::from_secs(10);

/// The entry point of `tarn __step`. Standard input must be the socket to tarn. `mover` copies what a shared namespace begins with.
pub fn main(mover: fn() -> Box<dyn Mover>) -> ExitCode {
    match run(mover) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            warn(&format!("the helper of a step failed: {e}"));
            ExitCode::FAILURE
        }
    }
}

/// The score by which the kernel ends a step before tarn and tarnd when memory runs out.
const EXPENDABLE: i32 = 500;

/// Makes this process and what it starts so much likelier to be chosen when memory runs out; never less likely.
fn be_expendable() {
    let file = "/proc/self/oom_score_adj";
    let now = std::fs::read_to_string(file).ok();
    if now.is_some_and(|n| n.trim().parse::<i32>().is_ok_and(|n| n < EXPENDABLE)) {
        // If it may not be raised, the kernel chooses as it does anyway.
        let _ = std::fs::write(file, EXPENDABLE.to_string());
    }
}

fn run(mover: fn() -> Box<dyn Mover>) -> io::Result<()> {
    be_expendable();
    let mut control = Channel::new(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?));
    match control.receive()? {
        Some(HelperCommand::Prepare(spec)) => {
            bind_to_cpus(&spec);
            match enter(spec.isolate, spec.images.as_ref()) {
                Ok(NamespaceSide::Outer(inner)) => wait_for(inner),
                Ok(NamespaceSide::Inner) => serve(control, &spec, mover),
                Err(e) => control.send(&HelperReport::Refused(e.to_string())),
            }
        }
        Some(HelperCommand::MountTmpfs { at, bytes, isolate }) => match enter(isolate, None) {
            Ok(NamespaceSide::Outer(inner)) => wait_for(inner),
            Ok(NamespaceSide::Inner) => run_with_tmpfs(control, &at, bytes, mover),
            Err(e) => control.send(&HelperReport::Refused(e.to_string())),
        },
        // The step was not to be after all.
        None => Ok(()),
        Some(_) => Err(unexpected_command()),
    }
}

fn unexpected_command() -> io::Error {
    io::Error::other("`tarn __step` is started by tarn only")
}

/// Mounts the private memory, which tarn fills before it sends the step's setup.
fn run_with_tmpfs(
    mut control: Channel,
    at: &Path,
    bytes: u64,
    mover: fn() -> Box<dyn Mover>,
) -> io::Result<()> {
    let mounted = namespace::make_private()
        .map_err(|e| explain("mounts cannot be made private", &e))
        .and_then(|()| {
            namespace::mount_memory(at, bytes)
                .map_err(|e| explain("no memory can be mounted for encrypted data", &e))
        });
    if let Err(e) = mounted {
        return control.send(&HelperReport::Refused(e.to_string()));
    }
    control.send(&HelperReport::Mounted)?;
    match control.receive()? {
        Some(HelperCommand::Prepare(spec)) => {
            bind_to_cpus(&spec);
            serve(control, &spec, mover)
        }
        None => Ok(()),
        Some(_) => Err(unexpected_command()),
    }
}

fn bind_to_cpus(spec: &Spec) {
    if !spec.cpus.is_empty()
        && let Err(e) = crate::sockets::bind(&spec.cpus)
    {
        // Processors that were there when the run began are not any more: it runs where it may.
        warn(&format!(
            "the step is not bound to processors {:?}: {e}",
            spec.cpus
        ));
    }
}

enum NamespaceSide {
    Outer(Pid),
    Inner,
}

fn enter(isolate: StepIsolation, images: Option<&StepImagePlan>) -> io::Result<NamespaceSide> {
    let StepIsolation::Namespaces { user } = isolate else {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        return Ok(NamespaceSide::Inner);
    };
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // CRIU must be somebody who may become anybody; and clocks that go back would keep a program waiting that went on from an image.
    let known = match images {
        Some(_) => NamespaceIdentity::AsRoot,
        None => NamespaceIdentity::AsItself,
    };
    let from = images.and_then(|p| p.from.as_ref());
    let addresses = match (images.is_some_and(|p| p.alone.is_some()), from) {
        (true, Some(image)) => Some(image.addresses().to_vec()),
        (true, None) => Some(network::addresses()?),
        (false, _) => None,
    };
    let known = user.then_some(known);
    namespace::enter(known, from.map(StepImage::clocks), addresses.is_some())
        .map_err(|e| explain("namespaces are not allowed here", &e))?;
    if let Some(addresses) = addresses {
        network::begin(&addresses)
            .map_err(|e| explain("a network of the step's own cannot be made", &e))?;
    }
    match process::fork()? {
        process::Fork::Parent(inner) => Ok(NamespaceSide::Outer(inner)),
        process::Fork::Child => {
            // If the outer process dies before this call, the control socket ends.
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            Ok(NamespaceSide::Inner)
        }
    }
}

fn explain(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

fn wait_for(inner: Pid) -> io::Result<()> {
    loop {
        if process::reap(true)?.is_some_and(|r| r.pid == inner) {
            return Ok(());
        }
    }
}

fn serve(mut control: Channel, spec: &Spec, mover: fn() -> Box<dyn Mover>) -> io::Result<()> {
    let mut provider: Option<Box<dyn Provider + '_>> = match &spec.shared {
        Some(plan) => Some(Box::new(Gluster::new(plan))),
        None => None,
    };
    let started = |provider: &mut Option<Box<dyn Provider + '_>>| {
        provider.as_mut().map(|p| p.start()).transpose()
    };
    let prepared = prepare(spec).and_then(|guests| Ok((guests, started(&mut provider)?)));
    let (guests, provider_address) = match prepared {
        Ok(prepared) => prepared,
        Err(e) => return control.send(&HelperReport::Refused(e.to_string())),
    };
    control.send(&HelperReport::Ready(provider_address))?;
    let mut helper = HelperRuntime {
        spec,
        control,
        guests,
        provider,
        mover,
        command: None,
        log: None,
        imaging: None,
        restoring: None,
        pipe: String::new(),
        end: None,
        usage: process::ResourceUsage::default(),
        io_before: process::io_bytes().unwrap_or_default(),
    };
    let served = helper.events();
    // Nothing of the step outlives its helper, however this went.
    let ended = helper.end_all();
    helper.log.iter_mut().for_each(StepLog::finish);
    ended.and(served)
}

/// Mounts and names, inside the namespaces.
fn prepare(spec: &Spec) -> io::Result<Guests> {
    let guests = Guests::listen(spec)?;
    if spec.isolate == StepIsolation::Group {
        return Ok(guests);
    }
    namespace::make_private().map_err(|e| explain("mounts cannot be made private", &e))?;
    if spec.rename_host {
        namespace::set_hostname(&spec.node)
            .map_err(|e| explain("the host name cannot be set", &e))?;
    }
    if let Some(stage) = &spec.stage {
        namespace::mount_folders(&stage.folder, &stage.names).map_err(|e| {
            let what = format!("nothing can be mounted at {}", stage.folder.display());
            explain(&what, &e)
        })?;
    }
    bind_folders(spec)?;
    mount_own_proc(spec)?;
    // Last: earlier mounts are shown again with the folders that they are in.
    tmp::begin(spec.tmp.as_ref())?;
    Ok(guests)
}

/// Binds the step's folders. Order matters: a bind takes over the read-only flag of its source, so what is bound writable is bound
/// before the folder around it is locked.
fn bind_folders(spec: &Spec) -> io::Result<()> {
    let memory = spec.tmpfs.as_deref();
    let is_in_memory = |b: &&BindMount| memory.is_some_and(|memory| b.from.starts_with(memory));
    let (in_memory, others): (Vec<&BindMount>, Vec<&BindMount>) =
        spec.binds.iter().partition(is_in_memory);
    if let Some(memory) = memory {
        bind_memory(memory, &in_memory)?;
    }
    let (writable, read_only): (Vec<&BindMount>, Vec<&BindMount>) =
        others.into_iter().partition(|b| b.writable);
    writable.into_iter().try_for_each(bind_folder)?;
    for folder in &spec.locked {
        let bound = namespace::bind(folder, folder);
        bound.map_err(|e| not_read_only(folder, &e))?;
        make_read_only(folder)?;
    }
    read_only.into_iter().try_for_each(bind_folder)
}

/// Binds folders of the memory that only this step has, and unmounts the rest of it: all of it at once would be writable there.
fn bind_memory(memory: &Path, binds: &[&BindMount]) -> io::Result<()> {
    for b in binds {
        bind_folder(b)?;
        if !b.writable {
            make_read_only(&b.to)?;
        }
    }
    namespace::unmount(memory).map_err(|e| {
        let what = format!("{} cannot be taken away", memory.display());
        explain(&what, &e)
    })
}

fn bind_folder(b: &BindMount) -> io::Result<()> {
    namespace::bind(&b.from, &b.to).map_err(|e| {
        let what = format!(
            "{} cannot be mounted at {}",
            b.from.display(),
            b.to.display()
        );
        explain(&what, &e)
    })
}

fn make_read_only(folder: &Path) -> io::Result<()> {
    namespace::read_only(folder).map_err(|e| not_read_only(folder, &e))
}

fn not_read_only(folder: &Path, error: &io::Error) -> io::Error {
    let what = format!("{} cannot be made read-only", folder.display());
    explain(&what, error)
}

/// Mounts a `/proc` of the step's own. Containers that mask parts of `/proc` forbid this; the old one is then still right for other
/// processes, so that only a step that needs its own fails.
fn mount_own_proc(spec: &Spec) -> io::Result<()> {
    let own = namespace::mount_proc();
    if spec.shared.is_some() {
        // It distinguishes the file system's processes from the step's.
        own.map_err(|e| explain("a shared namespace needs a /proc of the step's own", &e))?;
    } else if spec.images.is_some() {
        own.map_err(|e| explain("images of a step's processes need a private /proc", &e))?;
    }
    Ok(())
}

struct HelperRuntime<'a> {
    spec: &'a Spec,
    control: Channel,
    guests: Guests,
    /// The provider of the namespace that it shares with the step's other nodes.
    provider: Option<Box<dyn Provider + 'a>>,
    mover: fn() -> Box<dyn Mover>,
    command: Option<StepProcess>,
    /// The log of the command's output.
    log: Option<StepLog>,
    /// The taking of its images.
    imaging: Option<Imaging<'a>>,
    /// It is being made of one.
    restoring: Option<Restoring>,
    /// The pipe that it prints to, as others see it.
    pipe: String,
    end: Option<(ProcessEnd, u64)>,
    usage: process::ResourceUsage,
    io_before: (u64, u64),
}

struct StepProcess {
    pid: Pid,
    /// `None` on kernels without pidfds: then the end is seen at the next interval.
    fd: Option<OwnedFd>,
    since: Instant,
}

impl HelperRuntime<'_> {
    /// Until the command has ended or tarn orders the end (or is gone).
    fn events(&mut self) -> io::Result<()> {
        loop {
            self.wait()?;
            self.log.as_mut().map(StepLog::take);
            self.reap()?;
            if let Some((end, wall)) = self.end {
                return self.finish(Some(end), wall);
            }
            while self.control.has_message() || readable(&self.control.socket)? {
                match self.control.receive()? {
                    Some(HelperCommand::Mount(provider_addresses)) => {
                        match self.mount(&provider_addresses) {
                            Ok(()) => self.control.send(&HelperReport::Ready(None))?,
                            Err(e) => self.control.send(&HelperReport::Refused(e.to_string()))?,
                        }
                    }
                    Some(HelperCommand::Go) => self.start()?,
                    Some(HelperCommand::Terminate) => self.signal_all(Signal::TERM)?,
                    Some(HelperCommand::Finish) => {
                        let wall = self.command.as_ref().map_or(0, |c| nanos(c.since));
                        return self
                            .finish(Some(ProcessEnd::Signalled(Signal::KILL.as_raw())), wall);
                    }
                    Some(HelperCommand::Prepare(_) | HelperCommand::MountTmpfs { .. }) => {
                        return Err(io::Error::other("prepared twice"));
                    }
                    None => return Ok(()),
                }
            }
            self.guests.serve()?;
            if let Some(what) = self.imaging.as_mut().and_then(Imaging::look) {
                self.control.send(&HelperReport::Image(what))?;
            }
        }
    }

    /// Makes the shared namespace appear, on the first node with what is to be in it.
    fn mount(&mut self, provider_addresses: &[ProviderAddress]) -> io::Result<()> {
        let (Some(plan), Some(provider)) = (&self.spec.shared, &mut self.provider) else {
            return Err(io::Error::other("there is no shared namespace to mount"));
        };
        provider.mount(provider_addresses)?;
        if plan.first {
            self.fill()?;
        }
        for part in &plan.parts {
            let from = plan.mount().join(&part.name);
            namespace::bind(&from, &part.to).and_then(|()| match part.writable {
                true => Ok(()),
                false => namespace::read_only(&part.to),
            })?;
        }
        Ok(())
    }

    /// In a process of its own: a file system that does not answer stops that one only.
    fn fill(&mut self) -> io::Result<()> {
        let Some(plan) = &self.spec.shared else {
            return Ok(());
        };
        let filler = match process::fork()? {
            process::Fork::Child => {
                let filled = fill::fill(plan, &*(self.mover)());
                std::process::exit(i32::from(!filled));
            }
            process::Fork::Parent(filler) => filler,
        };
        let mut last_report = Instant::now();
        loop {
            while let Some(reaped) = no_children_is_none(process::reap(false))? {
                if reaped.pid == filler {
                    return match reaped.end {
                        process::ProcessExit::Exited(0) => Ok(()),
                        _ => Err(io::Error::other(fill::failure(plan))),
                    };
                }
                if let Some(why) = self.provider.as_ref().and_then(|p| p.health(reaped.pid)) {
                    return Err(io::Error::other(why));
                }
            }
            if last_report.elapsed() > ALIVE {
                self.control.send(&HelperReport::Busy)?;
                last_report = Instant::now();
            }
            std::thread::sleep(LOOK);
        }
    }

    fn start(&mut self) -> io::Result<()> {
        let Some([program, arguments @ ..]) = self.spec.command.as_deref() else {
            return Ok(());
        };
        let (name, program) = match crate::helper::command::program(program, &self.spec.env) {
            Ok(found) => (program, found),
            Err(why) => return self.control.send(&HelperReport::Refused(why.to_string())),
        };
        let (log, [out, error]) = StepLog::open(io::stdout().as_fd().try_clone_to_owned()?)?;
        self.log = Some(log);
        let images = self.spec.images.as_ref();
        let pipe = images.map(|_| pipe_name(&out)).transpose()?;
        self.pipe = pipe.unwrap_or_default();
        if let Some((plan, image)) = images.and_then(|p| Some((p, p.from.as_ref()?))) {
            drop(error);
            return match Restoring::begin(plan, image, &*(self.mover)(), out) {
                Ok(restoring) => {
                    self.restoring = Some(restoring);
                    Ok(())
                }
                // No report about the image: it stays.
                Err(e) => {
                    let why = explain("an image cannot be restored now", &e);
                    self.control.send(&HelperReport::Refused(why.to_string()))
                }
            };
        }
        if let Some(at) = images.and_then(|p| p.alone.as_ref())
            && let Err(e) = alone::begin(at, None, &*(self.mover)())
        {
            let why = explain(
                "shared memory and terminals of the step's own cannot be made",
                &e,
            );
            return self.control.send(&HelperReport::Refused(why.to_string()));
        }
        let mut command = Command::new(&program);
        command
            .arg0(name)
            .args(arguments)
            .current_dir(&self.spec.cwd);
        let env = self.spec.env.iter().map(|(name, value)| (name, value));
        command.env_clear().envs(env);
        command.stdin(Stdio::null()).stdout(out).stderr(error);
        if self.spec.isolate == StepIsolation::Group {
            process::die_with_parent(command.process_group(0), Signal::KILL);
        }
        if let Some(plan) = images {
            let user = self.spec.isolate == StepIsolation::Namespaces { user: true };
            process::begin_session(&mut command, user, plan.alone.is_some());
        }
        match command.spawn() {
            Ok(child) => {
                self.runs(Pid::from_child(&child));
                Ok(())
            }
            Err(e) => {
                let why = format!("{} cannot be started: {e}", program.display());
                self.control.send(&HelperReport::Refused(why))
            }
        }
    }

    /// The command's first process is this.
    fn runs(&mut self, pid: Pid) {
        self.command = Some(StepProcess {
            pid,
            fd: pidfd_open(pid, PidfdFlags::empty()).ok(),
            since: Instant::now(),
        });
        let images = self.spec.images.as_ref();
        self.imaging = images.map(|plan| Imaging::new(plan, pid, std::mem::take(&mut self.pipe)));
    }

    fn wait(&self) -> io::Result<()> {
        let mut fds = vec![PollFd::new(&self.control.socket, PollFlags::IN)];
        fds.extend(
            self.command
                .iter()
                .filter_map(|c| Some(PollFd::new(c.fd.as_ref()?, PollFlags::IN))),
        );
        fds.extend(
            self.log
                .iter()
                .filter_map(StepLog::fd)
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)),
        );
        fds.extend(
            self.guests
                .fds()
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)),
        );
        let blind = self.command.as_ref().is_some_and(|c| c.fd.is_none());
        let due = self.imaging.as_ref().and_then(Imaging::due);
        let due = due.map_or(REAP_INTERVAL, |d| {
            i64::try_from(d.as_nanos()).unwrap_or(REAP_INTERVAL)
        });
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: due.min(if blind { 5_000_000 } else { REAP_INTERVAL }),
        };
        match poll(&mut fds, Some(&timeout)) {
            Err(rustix::io::Errno::INTR) | Ok(_) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Takes every child that has ended.
    fn reap(&mut self) -> io::Result<()> {
        while let Some(reaped) = no_children_is_none(process::reap(false))? {
            if self.of_images(&reaped)? {
                continue;
            }
            self.usage = self.usage.plus(reaped.usage);
            match &self.command {
                Some(c) if c.pid == reaped.pid => {
                    self.end = Some((reaped.end.into(), nanos(c.since)))
                }
                _ => match self.provider.as_ref().and_then(|p| p.health(reaped.pid)) {
                    Some(why) => self.control.send(&HelperReport::Refused(why))?,
                    None => self.guests.ended(reaped.pid, reaped.end.into()),
                },
            }
        }
        Ok(())
    }

    /// Whether a process that has ended was one that takes or restores images; reports the result.
    fn of_images(&mut self, reaped: &process::Reaped) -> io::Result<bool> {
        let end = reaped.end.into();
        if let Some((what, torn)) = self.imaging.as_mut().and_then(|i| i.ended(reaped.pid, end)) {
            self.control.send(&HelperReport::Image(what))?;
            if torn {
                self.signal_all(Signal::KILL)?;
            }
            return Ok(true);
        }
        let Some(restoring) = &mut self.restoring else {
            return Ok(false);
        };
        let (root, id) = (restoring.root, restoring.id);
        let Some(restored) = restoring.ended(reaped.pid, end) else {
            return Ok(reaped.pid == root);
        };
        self.restoring = None;
        match restored {
            Restored::Not(why) => self.control.send(&HelperReport::NotRestored(why))?,
            Restored::Runs(end) => {
                self.control
                    .send(&HelperReport::Image(Imaged::Restored { id }))?;
                self.runs(root);
                self.end = end.map(|end| (end, 0));
            }
        }
        Ok(true)
    }

    fn signal_all(&self, signal: Signal) -> io::Result<()> {
        if self.provider.is_none() && matches!(self.spec.isolate, StepIsolation::Namespaces { .. })
        {
            return process::signal_namespace(signal);
        }
        for pid in self.of_the_step()? {
            // It may have ended meanwhile.
            let _ = rustix::process::kill_process(pid, signal);
        }
        Ok(())
    }

    /// All that the step has started; not what gives it its shared namespace.
    fn of_the_step(&self) -> io::Result<Vec<Pid>> {
        let mut all = process::descendants(rustix::process::getpid())?;
        for own in self.provider.iter().flat_map(|p| p.processes()) {
            let below = process::descendants(own)?;
            all.retain(|pid| *pid != own && !below.contains(pid));
        }
        Ok(all)
    }

    /// Ends the step before its shared namespace: its processes may still have to write to that.
    fn end_before_provider(&mut self) -> io::Result<()> {
        let begun = Instant::now();
        loop {
            while let Some(reaped) = no_children_is_none(process::reap(false))? {
                self.usage = self.usage.plus(reaped.usage);
            }
            if self.of_the_step()?.is_empty() || begun.elapsed() > ENDING {
                break;
            }
            self.signal_all(Signal::KILL)?;
            std::thread::sleep(LOOK);
        }
        if let Some(mut provider) = self.provider.take() {
            provider.stop();
        }
        Ok(())
    }

    /// Kills and reaps until no child is left: a process that forks while it is being killed is met again.
    fn end_all(&mut self) -> io::Result<()> {
        if self.provider.is_some() {
            self.end_before_provider()?;
        }
        // Mostly nobody is left: then there is nothing to look for either.
        let mut block = false;
        loop {
            match process::reap(block) {
                Ok(Some(reaped)) => self.usage = self.usage.plus(reaped.usage),
                Ok(None) => {}
                Err(e) if e.raw_os_error() == Some(rustix::io::Errno::CHILD.raw_os_error()) => {
                    return Ok(());
                }
                Err(e) => return Err(e),
            }
            self.signal_all(Signal::KILL)?;
            block = true;
        }
    }

    fn finish(&mut self, end: Option<ProcessEnd>, wall: u64) -> io::Result<()> {
        self.end_all()?;
        self.log.iter_mut().for_each(StepLog::finish);
        let passed = self.log.as_ref().map_or((0, 0), StepLog::passed);
        let (read, written) = process::io_bytes().unwrap_or_default();
        let used = ProcessUsage {
            wall,
            user: self.usage.user,
            system: self.usage.system,
            memory: self.usage.memory,
            read: read.saturating_sub(self.io_before.0 + passed.0),
            written: written.saturating_sub(self.io_before.1 + passed.1),
            energy: None,
        };
        let end = end.filter(|_| self.spec.command.is_some());
        self.control.send(&HelperReport::Ended { end, used })
    }
}

fn no_children_is_none<T>(result: io::Result<Option<T>>) -> io::Result<Option<T>> {
    match result {
        Err(e) if e.raw_os_error() == Some(rustix::io::Errno::CHILD.raw_os_error()) => Ok(None),
        other => other,
    }
}

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
