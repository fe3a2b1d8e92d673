//! One attempt of a step, from its views to its commit; runs on a thread of its own.

use crate::commit::{commit, undeclared};
use crate::launch::{Helper, Leaving, Outcome, Stop, execute};
use crate::prepare::{Need, Ready, needs, open_log, prepare, work_folder};
use crate::protocol::{End, Isolation};
use crate::shared::{Delivery, Shared};
use crate::store::{failure, first_difference, tail, warn};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tarn_base::action::{Held, Run};
use tarn_base::bounds::LOG_TAIL_BYTES;
use tarn_base::event::{Ended, Event, Failure, FailureKind, Usage};
use tarn_base::id::Spot;
use tarn_base::nodes::Phase;
use tarn_base::part::Place;
use tarn_base::units::Elapsed;
use tarn_base::workflow::{Role, Step};
use tarn_ports::{Control, MoverError};

/// How an attempt is told to end, and what its copying and hashing is told by.
pub(crate) struct Handle {
    pub(crate) stop: Stop,
    pub(crate) control: Control,
}

/// Runs an attempt; the event to report, and the helpers that are on their way out.
pub(crate) fn run(shared: &Shared, run: &Run, handle: &Handle) -> (Event, Leaving) {
    let mut usage = Usage::default();
    let mut leaving = Leaving::default();
    let log = log_path(shared, run);
    let result = attempt(shared, run, handle, &mut usage, &log, &mut leaving);
    let cleaning = Instant::now();
    for spot in &run.nodes {
        if let Ok(folder) = work_folder(shared, run, *spot)
            && let Err(MoverError(f)) = shared.mover.remove(&folder)
        {
            warn(&format!("{}; the next clean-up tries again", f.message));
        }
    }
    usage.commit = usage.commit.saturating_add(nanos(cleaning));
    shared.progress.step_over(run.instance, run.attempt);
    let ended = result.unwrap_or_else(|mut failure| {
        let step = shared.workflow.steps.get(run.instance.step.at());
        let name = step.map_or_else(|| run.instance.to_string(), |s| instance_name(s, run));
        failure.message = format!("step `{name}`: {}", failure.message);
        Ended::Failed {
            failure,
            log_tail: tail(&log, LOG_TAIL_BYTES),
        }
    });
    let event = Event::Ended {
        instance: run.instance,
        attempt: run.attempt,
        ended,
        usage,
    };
    (event, leaving)
}

fn instance_name(step: &Step, run: &Run) -> String {
    match &run.item {
        Some(item) => format!("{}[{item}]", step.name),
        None => step.name.clone(),
    }
}

/// Where an attempt's output goes.
fn log_path(shared: &Shared, run: &Run) -> PathBuf {
    let name = shared
        .workflow
        .steps
        .get(run.instance.step.at())
        .map_or("step", |s| s.name.as_str());
    let instance = format!("{name}-{}", run.instance.index);
    shared.state.step_log(&shared.run, &instance, run.attempt)
}

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn attempt(
    shared: &Shared,
    run: &Run,
    handle: &Handle,
    usage: &mut Usage,
    log: &Path,
    leaving: &mut Leaving,
) -> Result<Ended, Failure> {
    let step = shared
        .workflow
        .steps
        .get(run.instance.step.at())
        .ok_or_else(|| failure(FailureKind::Launch, "the workflow has no such step"))?;
    let reasons = (run.nodes.len(), &shared.multi_node);
    if let (2.., Err(why)) = reasons {
        return Err(failure(
            FailureKind::Launch,
            format!(
                "it needs {} nodes, and several nodes on one host need namespaces: {why}",
                run.nodes.len()
            ),
        ));
    }
    if run.nodes.is_empty() {
        return Err(failure(FailureKind::Launch, "it was given no node"));
    }
    let began = Instant::now();
    shared
        .progress
        .step(run.instance, run.attempt, Phase::Preparing);
    let helpers = helpers(shared, run, log)?;
    let mut reserved = reserve(shared, run, handle)?;
    let needs = needs(shared, step, run)?;
    let nodes = prepare(shared, step, run, &needs, &handle.control)?;
    let notes: Vec<PathBuf> = nodes.iter().map(Ready::note).collect();
    let launches = nodes
        .iter()
        .zip(&notes)
        .map(|(node, note)| node.launch(note));
    usage.prepare = nanos(began);
    if handle.stop.asked() {
        return Err(failure(FailureKind::Cancelled, "stopped before it started"));
    }
    shared
        .progress
        .step(run.instance, run.attempt, Phase::Running);
    let limit = step.time.map(Duration::from_nanos);
    let (outcome, used, helpers) = execute(helpers, launches.collect(), limit, &handle.stop);
    *leaving = helpers;
    usage.wall = used.wall;
    usage.user = used.user;
    usage.system = used.system;
    usage.read = used.read;
    usage.written = used.written;
    usage.memory = used.memory;
    let committing = Instant::now();
    shared
        .progress
        .step(run.instance, run.attempt, Phase::Committing);
    let judged = judge(shared, step, &needs, outcome, log).map_err(|f| for_lack_of_room(&nodes, f));
    let ended = judged.and_then(|()| {
        let undeclared = undeclared(&nodes);
        let outputs = commit(shared, run, &needs, &nodes, &mut reserved, &handle.control)?;
        Ok(Ended::Committed {
            outputs,
            undeclared,
        })
    });
    usage.commit = nanos(committing);
    ended
}

fn helpers(shared: &Shared, run: &Run, log: &Path) -> Result<Vec<Helper>, Failure> {
    let start = |_: &Spot| {
        Helper::spawn(&shared.helper, open_log(log)?).map_err(|e| {
            let message = format!(
                "its helper process ({}) cannot be started: {e}",
                shared.helper.display()
            );
            failure(FailureKind::Launch, message)
        })
    };
    run.nodes.iter().map(start).collect()
}

fn reserve<'a>(
    shared: &'a Shared,
    run: &Run,
    handle: &Handle,
) -> Result<Vec<crate::ledger::Reservation<'a>>, Failure> {
    let claim = |spot: &Spot| shared.reserve(*spot, run.reserve, &|| handle.stop.asked());
    run.nodes.iter().map(claim).collect()
}

/// Whether the attempt may be committed.
fn judge(
    shared: &Shared,
    step: &Step,
    needs: &[Need<'_>],
    outcome: Outcome,
    log: &Path,
) -> Result<(), Failure> {
    // Looked at whatever the outcome: damaged inputs must not stay.
    let inputs = match (shared.isolation, &outcome) {
        (Isolation::Group, _) => unchanged(shared, needs),
        // They were mounted read-only: the step has not changed them.
        (Isolation::Namespaces { .. }, Outcome::Ended(End::Exited(0)) | Outcome::Stopped) => Ok(()),
        // Somebody else may have, and that would be why it failed.
        (Isolation::Namespaces { .. }, _) => unchanged(shared, needs),
    };
    let fate = "its inputs are intact, nothing it wrote was kept";
    let log = log.display();
    match outcome {
        Outcome::Ended(End::Exited(0)) => inputs,
        Outcome::Ended(End::Exited(status)) => inputs.and(Err(failure(
            FailureKind::Exit,
            format!("its command ended with status {status}; {fate}; all that it printed is in {log}"),
        ))),
        Outcome::Ended(End::Signalled(signal)) => inputs.and(Err(failure(
            FailureKind::Signal,
            format!(
                "signal {signal} ({}) ended its command; {fate}; all that it printed is in {log}",
                signal_name(signal)
            ),
        ))),
        Outcome::TimedOut => inputs.and(Err(failure(
            FailureKind::TimedOut,
            format!(
                "it ran longer than its `time` of {} and was stopped; {fate}; all that it printed is in {log}",
                Elapsed(step.time.unwrap_or(0))
            ),
        ))),
        Outcome::Stopped => Err(failure(
            FailureKind::Cancelled,
            "it was stopped because the run ends; nothing it wrote was kept",
        )),
        Outcome::Broken(why) => inputs.and(Err(failure(FailureKind::Launch, format!("{why}; {fate}")))),
    }
}

/// A tier with less than this free, in bytes, is full: programs write in larger units.
const FULL: u64 = 64 << 10;

/// A command that fails while its tier is full has failed because of that, whatever it says itself.
fn for_lack_of_room(nodes: &[Ready], failed: Failure) -> Failure {
    let free = |n: &&Ready| {
        let s = rustix::fs::statvfs(&n.work).ok()?;
        Some(s.f_bavail.saturating_mul(s.f_frsize))
    };
    let full = nodes.iter().find(|n| free(n).is_some_and(|b| b < FULL));
    match (failed.kind, full) {
        (FailureKind::Exit | FailureKind::Signal, Some(node)) => failure(
            FailureKind::NoSpace,
            format!(
                "{}; no space is left on its tier (the file system of {}): state the `size` of what it writes, or give it \
                 a larger tier (--tier NAME=PATH:SIZE)",
                failed.message,
                node.work.display()
            ),
        ),
        _ => failed,
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc_signal::ABRT => "abort",
        libc_signal::BUS => "bus error",
        libc_signal::FPE => "arithmetic error",
        libc_signal::ILL => "illegal instruction",
        libc_signal::KILL => "kill; perhaps memory ran out",
        libc_signal::SEGV => "segmentation fault",
        libc_signal::TERM => "terminate",
        _ => "see signal(7)",
    }
}

/// Signal numbers as every Linux has them.
mod libc_signal {
    pub(super) const ILL: i32 = 4;
    pub(super) const ABRT: i32 = 6;
    pub(super) const BUS: i32 = 7;
    pub(super) const FPE: i32 = 8;
    pub(super) const KILL: i32 = 9;
    pub(super) const SEGV: i32 = 11;
    pub(super) const TERM: i32 = 15;
}

/// Where inputs cannot be mounted read-only, they are compared with their manifests afterwards. A replica that
/// was changed is removed, and the engine told: it fetches or makes the part again.
fn unchanged(shared: &Shared, needs: &[Need<'_>]) -> Result<(), Failure> {
    let mut first = None;
    let inputs = needs
        .iter()
        .filter(|n| n.role == Role::In || n.role == Role::Inout);
    for need in inputs {
        for held in need.held.iter().flatten() {
            if let Some(path) = changed(shared, held)? {
                first.get_or_insert((need.name, path));
                let replica = shared.replica(held.spot, &held.key)?;
                shared.mover.remove(&replica).map_err(|MoverError(f)| f)?;
                shared.ledgers.left(held.spot, &held.key);
                shared.deliver(Delivery::News(Event::Evicted {
                    part: held.part,
                    at: Place::Node(held.spot),
                }));
            }
        }
    }
    match first {
        None => Ok(()),
        Some((data, path)) if shared.isolation != Isolation::Group => Err(failure(
            FailureKind::Corrupt,
            format!(
                "somebody has removed or changed its input `{data}` ({path}) while it ran, which could only read it; the \
                 damaged copy was removed and will be fetched or made again"
            ),
        )),
        Some((data, path)) => Err(failure(
            FailureKind::InputChanged,
            format!(
                "it changed `{path}` of its input `{data}`, which it only reads; the damaged copy was removed and will be fetched or made again; declare `{data}` as `inout` if the step is to change it"
            ),
        )),
    }
}

fn changed(shared: &Shared, held: &Held) -> Result<Option<String>, Failure> {
    let replica = shared.replica(held.spot, &held.key)?;
    let manifest = shared.manifest(&held.key)?;
    match shared.mover.list(&replica, &Control::default()) {
        Ok(listed) => Ok(first_difference(&listed, &manifest)),
        // It is gone, or holds what no dataset may hold.
        Err(MoverError(f)) => Ok(Some(f.message)),
    }
}
