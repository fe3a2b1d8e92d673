//! One attempt of a step, from its views to its commit; runs on a thread of its own.

use crate::attempt::commit::{commit, undeclared};
use crate::attempt::env;
use crate::attempt::handle::Handle;
use crate::attempt::hints;
use crate::attempt::local_node::{Attempted, LocalNode};
use crate::attempt::member::Member;
use crate::attempt::node_context::NodeContext;
use crate::attempt::node_task::{ResourceShortage, StepNodeTask, StepNodeTaskResult};
use crate::attempt::relay::Relay;
use crate::attempt::remote_node::{RemoteNode, RemoteNodes};
use crate::attempt::step_needs::needs;
use crate::attempt::team::Team;
use crate::helper::launch::{CommandOutcome, Launcher, Leaving, broken, execute};
use crate::helper::protocol::{ProcessEnd, ProcessUsage, StepIsolation};
use crate::storage::store::{failure, tail};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tarn_types::action::AttemptSpec;
use tarn_types::bounds::LOG_TAIL_BYTES;
use tarn_types::checkpoint::{CheckpointId, newest};
use tarn_types::event::{AttemptOutcome, Event, RunError, RunErrorKind, Usage};
use tarn_types::id::TierRef;
use tarn_types::nodes::Phase;
use tarn_types::part::StoreKey;
use tarn_types::text::{COMMAND_ENDED, FATE, FATE_AND_LOG};
use tarn_types::units::Elapsed;
use tarn_types::workflow::Step;

/// Runs an attempt; the event to report, and the helpers that are on their way out.
pub(crate) fn run(shared: &NodeContext, run: &AttemptSpec, handle: &Handle) -> (Event, Leaving) {
    let mut usage = Usage::default();
    let mut leaving = Leaving::default();
    let log = shared.log_path(run);
    let mut newest = None;
    let result = attempt(
        shared,
        run,
        handle,
        &mut usage,
        &log,
        (&mut leaving, &mut newest),
    );
    shared.progress.step_over(run.instance, run.attempt);
    let ended = result.unwrap_or_else(|mut failure| {
        let step = shared.workflow.steps.get(run.instance.step.at());
        let name = step.map_or_else(|| run.instance.to_string(), |s| instance_name(s, run));
        failure.message = format!("step `{name}`: {}", failure.message);
        AttemptOutcome::Failed {
            failure,
            log_tail: tail(&log, LOG_TAIL_BYTES),
            newest,
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

fn instance_name(step: &Step, run: &AttemptSpec) -> String {
    match &run.item {
        Some(item) => format!("{}[{item}]", step.name),
        None => step.name.clone(),
    }
}

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn attempt(
    shared: &NodeContext,
    run: &AttemptSpec,
    handle: &Handle,
    usage: &mut Usage,
    log: &Path,
    (leaving, newest): (&mut Leaving, &mut Option<CheckpointId>),
) -> Result<AttemptOutcome, RunError> {
    let step = shared
        .workflow
        .steps
        .get(run.instance.step.at())
        .ok_or_else(|| failure(RunErrorKind::Launch, "the workflow has no such step"))?;
    let reasons = (run.nodes.len(), &shared.multi_node);
    if let (2.., Err(why)) = reasons {
        return Err(failure(
            RunErrorKind::Launch,
            format!(
                "it needs {} nodes, and several nodes on one host need namespaces: {why}",
                run.nodes.len()
            ),
        ));
    }
    let Some(home) = run.nodes.first() else {
        return Err(failure(RunErrorKind::Launch, "it was given no node"));
    };
    let needs = needs(shared, step, run)?;
    let of = Attempted {
        shared,
        step,
        run,
        needs: &needs,
        handle,
        log,
        home: *home,
    };
    let mut team = assemble(of)?;
    let mut begun = Vec::new();
    let result = lead(of, &mut team, usage, leaving, &mut begun);
    let cleaning = Instant::now();
    // If a node is lost, that is the reason of the failure; and the work of that node counts no more.
    let result = team.lost().map_or(result, Err);
    if result.is_err() && step.restart.is_some() {
        *newest = newest_of(&mut team);
    }
    team.finish(result.is_ok());
    // A node that does not know of the commit takes its parts back.
    let result = match team.cut_off() {
        Some(failure) => result.and(Err(failure)),
        None => result,
    };
    if result.is_err() {
        for key in begun {
            // No replica has a manifest that stays: the next clean-up removes it.
            let _ = std::fs::remove_file(shared.manifest_file(&key));
        }
    }
    usage.commit = usage.commit.saturating_add(nanos(cleaning));
    result
}

/// The newest checkpoint that the nodes of a step can restore; none if they do not respond.
fn newest_of(team: &mut Team<'_>) -> Option<CheckpointId> {
    let all = team.run_and_collect(
        |_| StepNodeTask::Checkpoints,
        |done| match done {
            StepNodeTaskResult::Checkpoints(all) => Some(all),
            _ => None,
        },
    );
    newest(all.ok()?.into_iter().flatten())
}

/// The nodes of a step: own ones, and those of other worlds.
fn assemble(of: Attempted<'_>) -> Result<Team<'_>, RunError> {
    let Attempted {
        shared,
        run,
        handle,
        ..
    } = of;
    let mut team = Team {
        shared,
        members: Vec::with_capacity(run.nodes.len()),
        remote: None,
    };
    if let Some(envelopes) = &handle.envelopes {
        team.remote = Some(Rc::new(RemoteNodes::new(shared, run, handle, envelopes)?));
    }
    for (at, tier_ref) in run.nodes.iter().enumerate() {
        let member: Box<dyn Member + '_> = match &team.remote {
            Some(remote) if !shared.own.has(tier_ref.node) => {
                Box::new(RemoteNode::new(Rc::clone(remote), at, *tier_ref))
            }
            _ => Box::new(LocalNode::new(of, at, *tier_ref)),
        };
        team.members.push(member);
    }
    Ok(team)
}

/// Sees an attempt through on all of its nodes, but for its end.
fn lead(
    of: Attempted<'_>,
    team: &mut Team<'_>,
    usage: &mut Usage,
    leaving: &mut Leaving,
    begun: &mut Vec<StoreKey>,
) -> Result<AttemptOutcome, RunError> {
    let Attempted {
        shared,
        run,
        needs,
        log,
        ..
    } = of;
    let began = Instant::now();
    shared
        .progress
        .step(run.instance, run.attempt, Phase::Preparing);
    team.run_task(&StepNodeTask::Start)?;
    team.run_task(&StepNodeTask::Reserve)?;
    if let Some(path) = (shared.changed_since)(run.instance.step) {
        return Err(failure(
            RunErrorKind::Launch,
            format!(
                "{}, which its command names, is not what it was when the run began; it was not started: `tarn run` \
                 takes the file as it is now and runs again only what that changes",
                path.display()
            ),
        ));
    }
    let (outcome, used) = run_command(of, team, (began, usage))?;
    *leaving = team.leaving();
    usage.wall = used.wall;
    usage.user = used.user;
    usage.system = used.system;
    usage.read = used.read;
    usage.written = used.written;
    usage.memory = used.memory;
    usage.energy = used.energy;
    let committing = Instant::now();
    shared
        .progress
        .step(run.instance, run.attempt, Phase::Committing);
    let judged = judge(of, team, outcome, log).map_err(|f| explain_lack_of_space(team, f));
    let ended = judged.and_then(|()| {
        let outputs = commit(team, run, needs, begun)?;
        // Files that the commit took out of outputs are reported too.
        let undeclared = undeclared(team)?;
        Ok(AttemptOutcome::Committed {
            outputs,
            undeclared,
        })
    });
    usage.commit = nanos(committing);
    ended
}

/// Prepares the nodes and runs the command; again without the image that it could not resume from, if so.
fn run_command(
    of: Attempted<'_>,
    team: &mut Team<'_>,
    (began, usage): (Instant, &mut Usage),
) -> Result<(CommandOutcome, ProcessUsage), RunError> {
    let (step, run, progress) = (of.step, of.run, &of.shared.progress);
    let names: Vec<String> = team.members.iter().map(|m| m.name().to_owned()).collect();
    let hosts = env::hostfile(step, &names);
    let limit = step.time.map(Duration::from_nanos);
    loop {
        let hosts = hosts.clone();
        team.run_task(&StepNodeTask::Prepare { hosts })?;
        usage.prepare = nanos(began);
        if of.handle.stop.is_requested() {
            return Err(failure(
                RunErrorKind::Cancelled,
                "stopped before it started",
            ));
        }
        progress.step(run.instance, run.attempt, Phase::Running);
        match execute_on(of, team, limit) {
            // There are two at most, and then it begins without one.
            (CommandOutcome::NotRestored(why), _) => {
                team.run_task(&StepNodeTask::Discard { why })?
            }
            ended => return Ok(ended),
        };
        progress.step(run.instance, run.attempt, Phase::Preparing);
        team.run_task(&StepNodeTask::Start)?;
    }
}

/// Runs the command; while it runs, `tarn exec` reaches the nodes of other worlds too.
fn execute_on(
    of: Attempted<'_>,
    team: &mut Team<'_>,
    limit: Option<Duration>,
) -> (CommandOutcome, ProcessUsage) {
    let stop = &of.handle.stop;
    let members = team.members.iter_mut();
    let mut helpers: Vec<&mut dyn Launcher> = members.filter_map(|m| m.helper()).collect();
    let address = |tier_ref: &TierRef| of.shared.addresses.get(&tier_ref.node).cloned();
    let hosts: Vec<String> = of.run.nodes.iter().filter_map(address).collect();
    let Some(envelopes) = &of.handle.envelopes else {
        return execute(&mut helpers, &hosts, limit, stop);
    };
    let relay = match Relay::of_leader(of.shared, of.run, envelopes) {
        Ok(relay) => relay,
        Err(e) => {
            let why = format!("the sockets of `tarn exec` cannot be made: {e}");
            return broken(&mut helpers, why);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| relay.run());
        // The relay ends too, whatever happens to this thread.
        let _closing = envelopes.exec.closing();
        execute(&mut helpers, &hosts, limit, stop)
    })
}

/// Whether the attempt may be committed.
fn judge(
    of: Attempted<'_>,
    team: &mut Team<'_>,
    outcome: CommandOutcome,
    log: &Path,
) -> Result<(), RunError> {
    let (shared, step) = (of.shared, of.step);
    // Looked at whatever the outcome: damaged inputs must not stay.
    let inputs = match (shared.isolation, &outcome) {
        (StepIsolation::Group, _) => unchanged(of, team),
        // They were mounted read-only: the step has not changed them.
        (
            StepIsolation::Namespaces { .. },
            CommandOutcome::Ended(ProcessEnd::Exited(0)) | CommandOutcome::Stopped,
        ) => Ok(()),
        // Somebody else may have, and that would be why it failed.
        (StepIsolation::Namespaces { .. }, _) => unchanged(of, team),
    };
    let hint = hints::of_log(shared, step, of.needs, &tail(log, LOG_TAIL_BYTES));
    let log = log.display();
    match outcome {
        CommandOutcome::Ended(ProcessEnd::Exited(0)) => inputs,
        CommandOutcome::Ended(ProcessEnd::Exited(status)) => inputs.and(Err(failure(
            RunErrorKind::Exit,
            format!(
                "{COMMAND_ENDED}status {status}{}{FATE_AND_LOG}{log}{hint}",
                hints::of_status(status)
            ),
        ))),
        CommandOutcome::Ended(ProcessEnd::Signalled(signal)) => inputs.and(Err(failure(
            RunErrorKind::Signal,
            format!(
                "signal {signal} ({}) ended its command{FATE_AND_LOG}{log}",
                signal_name(signal)
            ),
        ))),
        CommandOutcome::TimedOut => inputs.and(Err(failure(
            RunErrorKind::TimedOut,
            format!(
                "it ran longer than its `time` of {} and was stopped{FATE_AND_LOG}{log}",
                Elapsed(step.time.unwrap_or(0))
            ),
        ))),
        CommandOutcome::Stopped => Err(failure(
            RunErrorKind::Cancelled,
            "it was stopped because the run ends; nothing it wrote was kept",
        )),
        CommandOutcome::Broken(why) | CommandOutcome::NotRestored(why) => {
            inputs.and(Err(failure(RunErrorKind::Launch, format!("{why}; {FATE}"))))
        }
    }
}

/// A command that fails while its tier is full, or memory is that its tier is in, has failed because of that, whatever it
/// prints itself.
fn explain_lack_of_space(team: &mut Team<'_>, failed: RunError) -> RunError {
    use RunErrorKind::{Cancelled, Exit, Launch, Signal};
    if !matches!(failed.kind, Exit | Signal | Launch | Cancelled) {
        return failed;
    }
    let lacks = team.run_and_collect(
        |_| StepNodeTask::CheckSpace,
        |done| match done {
            StepNodeTaskResult::Lacks(lack) => Some(lack),
            _ => None,
        },
    );
    let lacks: Vec<ResourceShortage> = lacks.into_iter().flatten().flatten().collect();
    let memory = lacks.iter().find_map(|l| match l {
        ResourceShortage::Memory(why) => Some(why.clone()),
        ResourceShortage::Tier(_) => None,
    });
    let tier = lacks.iter().find_map(|l| match l {
        ResourceShortage::Tier(folder) if matches!(failed.kind, Exit | Signal) => Some(format!(
            "{}; no space is left on its tier (the file system of {folder}): state the `size` of its output, or give it \
             a larger tier (--tier NAME=PATH:SIZE)",
            failed.message
        )),
        _ => None,
    });
    match memory.or(tier) {
        Some(why) => failure(RunErrorKind::NoSpace, why),
        None => failed,
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

/// Whether the inputs are what they were, on all nodes.
fn unchanged(of: Attempted<'_>, team: &mut Team<'_>) -> Result<(), RunError> {
    let changed = team.run_and_collect(
        |_| StepNodeTask::Compare,
        |done| match done {
            StepNodeTaskResult::Changed(first) => Some(first),
            _ => None,
        },
    )?;
    let first = changed.into_iter().flatten().min_by_key(|(need, _)| *need);
    let Some((need, path)) = first else {
        return Ok(());
    };
    let data = of.needs.get(need).map_or("", |n| n.name);
    match of.shared.isolation {
        StepIsolation::Namespaces { .. } => Err(failure(
            RunErrorKind::Corrupt,
            format!(
                "somebody has removed or changed its input `{data}` ({path}) while it ran, which could only read it; the \
                 damaged copy was removed and will be fetched or made again"
            ),
        )),
        StepIsolation::Group => Err(failure(
            RunErrorKind::InputChanged,
            format!(
                "it changed `{path}` of its input `{data}`, which it only reads; the damaged copy was removed and will be fetched or made again; declare `{data}` as `inout` if the step is to change it"
            ),
        )),
    }
}
