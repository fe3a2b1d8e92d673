//! `tarn slurm`: the commands that Slurm's scripts call (`plugins/slurm`), and the state of jobs' data. docs/admin/site.md.

mod audit;
mod command;
mod controller;
pub(crate) mod health;
mod install;
mod job;
pub(crate) mod people;
mod plan;
mod queued;
mod reason;
mod submit;
mod twin;

pub(crate) use controller::ControllerClient;
pub(crate) use submit::{SubmitArgs, submit};

use crate::error::{CliError, CliResult};
use crate::globals::Globals;
use crate::print::{self, out};
use clap::{Args, Parser, Subcommand};
use command::run_command;
use std::path::PathBuf;
use std::time::Duration;
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{
    Chain, ControllerReply, ControllerRequest, JobSubmission, SlurmInfo, SlurmJobId, SlurmUpdate,
    Stage, Staging,
};
use tarn_slurm::{
    JobProgress, SlurmError, SlurmNodeState, admin_comment, apply_update, completed_job, has_wish,
    job_origins, job_progress,
};
use tarn_spec::ChainOptions;
use tarn_types::codes::Exit;
use tarn_types::energy::Draw;
use tarn_types::line::plain;
use tarn_types::units::{Bytes, Elapsed};
use tarn_types::workflow::{Role, Workflow};

/// How long Slurm's own limits leave for a controller that does not answer (`OtherTimeout`: 300 s).
pub(crate) const TIMEOUT: Duration = Duration::from_secs(240);

#[derive(Debug, Subcommand)]
pub(crate) enum SlurmCommand {
    /// Check the `#TARN` lines of a job's script, and print what they declare; reads nothing else
    Check(CheckArgs),
    /// Write tarn's part of Slurm's configuration, check it (--check), or remove it (--remove)
    Install(install::InstallArgs),
    /// No new jobs with `#TARN` lines; those that are there continue
    Off {
        #[command(flatten)]
        conf: install::ConfArgs,
        /// The reason, which sbatch shows to users
        reason: Vec<String>,
    },
    /// New jobs with `#TARN` lines again
    On {
        #[command(flatten)]
        conf: install::ConfArgs,
    },
    /// Register a job
    Setup {
        /// The job
        job: SlurmJobId,
        #[command(flatten)]
        submitted: SubmittedArgs,
    },
    /// Before a job has nodes
    DataIn {
        /// The job
        job: SlurmJobId,
    },
    /// The gate: returns when all data that a job reads is on its nodes
    PreRun {
        /// The job
        job: SlurmJobId,
    },
    /// A job's script has ended: its output is published
    PostRun {
        /// The job
        job: SlurmJobId,
    },
    /// Data with a `dest` is copied there
    DataOut {
        /// The job
        job: SlurmJobId,
    },
    /// A job is over: its data that nobody needs is removed
    Teardown {
        /// The job
        job: SlurmJobId,
        /// Wait for nothing
        #[arg(long)]
        hurry: bool,
    },
    /// The last job of a workflow was submitted: data that nobody reads any more may be removed
    End {
        /// The workflow's name
        workflow: String,
    },
    /// Wrap the keys of all encrypted data with a new secret of the site, as root
    RotateKey {
        /// Forget the older secrets: not while a node has keys that they wrap
        #[arg(long)]
        drop: bool,
        /// Forget them, even if data is lost
        #[arg(long, requires = "drop")]
        force: bool,
    },
    /// Write the history of this site, without names, as a machine and a workload for `tarn sim`
    Export(twin::ExportArgs),
    /// Say in three sentences what a planner that drives Slurm would have changed in the last days
    Advise(twin::AdviseArgs),
    /// Whether workflows delayed ordinary jobs, by Slurm's own accounting; as root
    Audit(audit::AuditArgs),
    /// The mode in which tarn acts in Slurm; as root, another one at once and for good
    Mode {
        /// observe: it plans; advise: it has jobs prefer nodes with data; drive: it reserves nodes for workflows too
        #[arg(value_parser = ["observe", "advise", "drive"])]
        mode: Option<String>,
    },
    /// The nodes, as the controller knows them
    Status,
    /// Which jobs are expected on which nodes, and when: your own whole, others' as numbers
    Plan(plan::PlanArgs),
    /// The state of a job's data, and why it waits
    Why {
        /// The job
        job: SlurmJobId,
    },
}

/// Inside slurmctld: read by itself, as the whole command line takes longer to define than this takes.
#[derive(Debug, Clone, Parser)]
pub(crate) struct CheckArgs {
    /// The script
    script: PathBuf,
    #[command(flatten)]
    conf: install::ConfArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct SubmittedArgs {
    /// The job's user
    #[arg(long, value_name = "UID")]
    user: u32,
    /// The job's group
    #[arg(long, value_name = "GID")]
    group: u32,
    /// The job's script
    #[arg(long, value_name = "FILE")]
    script: PathBuf,
}

pub(crate) fn slurm(globals: &Globals, command: &SlurmCommand) -> CliResult {
    let controller = ControllerClient::of_environment;
    let stage = |job: SlurmJobId, stage: Stage| -> CliResult {
        let ask = ControllerRequest::Stage(Staging { job, stage });
        done(controller().ask(&ask, TIMEOUT))
    };
    match command {
        SlurmCommand::Install(args) => install::install(globals, args),
        SlurmCommand::Off { conf, reason } => install::off(conf, reason),
        SlurmCommand::On { conf } => install::on(conf),
        SlurmCommand::Check(args) => check(args),
        SlurmCommand::Setup { job, submitted } => set_up(&controller(), *job, submitted),
        SlurmCommand::DataIn { job } => stage(*job, Stage::DataIn),
        SlurmCommand::PreRun { job } => {
            let progress = found(*job, job_progress(*job))?;
            let done = if progress.nodes.is_empty() {
                let text = "Slurm has given the job no nodes yet";
                Err(CliError::new(Exit::NotFound, text))
            } else {
                stage(*job, Stage::PreRun(progress.nodes))
            };
            reason::shown(*job, &progress.comment, done)
        }
        SlurmCommand::PostRun { job } => {
            let progress = found(*job, completed_job(*job))?;
            let ok = progress.ended_well && !is_a_node_lost(&progress.nodes)?;
            let ask = ControllerRequest::Stage(Staging {
                job: *job,
                stage: Stage::PostRun { ok },
            });
            let reply = controller().ask(&ask, TIMEOUT)?;
            if let ControllerReply::Updates(updates) = &reply {
                for update in updates {
                    // It may run already: then it is where it is.
                    let _ = apply_update(update);
                }
                return Ok(Exit::Success);
            }
            reason::shown(*job, &progress.comment, done(Ok(reply)))
        }
        SlurmCommand::DataOut { job } => reason::shown(*job, "", stage(*job, Stage::DataOut)),
        SlurmCommand::Teardown { job, hurry } => match is_put_back(*job) {
            true => stage(*job, Stage::PutBack),
            false => stage(*job, Stage::Teardown { hurry: *hurry }),
        },
        SlurmCommand::End { workflow } => {
            let ask = ControllerRequest::End {
                user: rustix::process::getuid().as_raw(),
                workflow: workflow.clone(),
            };
            done(controller().ask(&ask, TIMEOUT))
        }
        SlurmCommand::RotateKey { drop, force } => {
            let (drop, force) = (*drop, *force);
            done(controller().ask(&ControllerRequest::RotateKey { drop, force }, TIMEOUT))
        }
        SlurmCommand::Export(args) => twin::export(globals, args),
        SlurmCommand::Advise(args) => twin::advise(globals, args),
        SlurmCommand::Audit(args) => audit::audit_site(globals, args),
        SlurmCommand::Mode { mode } => match mode {
            Some(mode) => {
                done(controller().ask(&ControllerRequest::SetMode(mode.clone()), TIMEOUT))
            }
            None => plan::show_mode(globals, &controller()),
        },
        SlurmCommand::Status => status(&controller()),
        SlurmCommand::Plan(args) => plan::plan(globals, &controller(), args),
        SlurmCommand::Why { job } => why(globals, &controller(), *job),
    }
}

pub(crate) fn check(args: &CheckArgs) -> CliResult {
    install::refused_while_off(&args.conf)?;
    let script = job::read(&args.script, std::path::Path::new("/"))?;
    let Some((script, _)) = script else {
        out!("ok: the script has no `#TARN` lines")?;
        return Ok(Exit::Success);
    };
    job::possible(&script)?;
    out!("ok: {}", declared(&script.parsed.workflow))?;
    Ok(Exit::Success)
}

/// The declarations of the `#TARN` lines of a job's script.
fn declared(workflow: &Workflow) -> String {
    let mut parts = vec![format!("workflow `{}`", workflow.name)];
    for step in &workflow.steps {
        for (role, verb) in [
            (Role::In, "reads"),
            (Role::Out, "writes"),
            (Role::Inout, "changes"),
        ] {
            let uses = step.uses.iter().filter(|used| used.role == role);
            let data = uses.filter_map(|used| workflow.data.get(used.data.at()));
            let names: Vec<_> = data.map(|data| format!("`{}`", data.name)).collect();
            if !names.is_empty() {
                parts.push(format!("{verb} {}", names.join(", ")));
            }
        }
    }
    for data in &workflow.data {
        if let Some(dest) = &data.dest {
            parts.push(format!("copies `{}` to {}", data.name, dest.display()));
        }
    }
    parts.join("; ")
}

/// Reads a job's script. `None` if it says nothing to tarn.
fn read(job: SlurmJobId, args: &SubmittedArgs) -> CliResult<Option<JobSubmission>> {
    let mut origins = job_origins(&[job]).map_err(slurm_error)?;
    let Some(origin) = origins.remove(&job) else {
        let text = format!("Slurm does not have job {job}");
        return Err(CliError::new(Exit::NotFound, text));
    };
    let Some((script, chain)) = job::read_of(job, &origin, &args.script)? else {
        return Ok(None);
    };
    // Since its script was written, the first job of a chain has got the numbers of the others.
    let others = match &chain {
        Some(chain) if chain.is_start => {
            let comment = admin_comment(job).map_err(slurm_error)?;
            ChainOptions::of_comment(&comment).others
        }
        _ => Vec::new(),
    };
    let workflow = script.parsed.workflow;
    let named = workflow.data.iter().filter_map(|d| d.of.as_ref());
    Ok(Some(JobSubmission {
        user: args.user,
        group: args.group,
        groups: people::groups_of(args.user, args.group)?,
        owners: people::numbers(named)?,
        is_alone: script.is_alone,
        chain: chain.map(|chain| Chain {
            prior: chain.prior,
            is_end: chain.is_end,
            same_nodes: chain.same_nodes,
            others,
        }),
        excludes: Some(origin.excluded),
        has_wish: has_wish(job).map_err(slurm_error)?,
        workflow,
    }))
}

fn slurm_error(e: SlurmError) -> CliError {
    CliError::new(Exit::State, e.to_string())
}

fn found(
    job: SlurmJobId,
    progress: Result<Option<JobProgress>, SlurmError>,
) -> CliResult<JobProgress> {
    let progress = progress.map_err(slurm_error)?;
    progress.ok_or_else(|| CliError::new(Exit::NotFound, format!("Slurm does not have job {job}")))
}

/// Whether Slurm has put a job back into its queue: it waits there. If Slurm does not answer, it has not.
fn is_put_back(job: SlurmJobId) -> bool {
    matches!(job_progress(job), Ok(Some(progress)) if progress.is_pending)
}

/// Whether a node of a job that ended well was lost meanwhile. A script whose only node is lost does not end well.
fn is_a_node_lost(nodes: &[String]) -> CliResult<bool> {
    if nodes.len() < 2 {
        return Ok(false);
    }
    let states = run_command("sinfo", &["-h", "-N", "-n", &nodes.join(","), "-o", "%t"])?;
    let mut states = states.split_whitespace();
    Ok(states.any(|state| !SlurmNodeState::parse(state).responds()))
}

/// Registers a job, and has Slurm know what it waits for, and where it would best run. Most jobs are known already.
fn set_up(controller: &ControllerClient, job: SlurmJobId, args: &SubmittedArgs) -> CliResult {
    let ask =
        |stage: Stage| controller.ask(&ControllerRequest::Stage(Staging { job, stage }), TIMEOUT);
    let mut reply = ask(Stage::Reported)?;
    // A controller of an earlier version does not know that stage.
    let is_earlier = matches!(&reply, ControllerReply::Refused(why) if why.code == Code::Invalid);
    if reply == ControllerReply::Unknown || is_earlier {
        let Some(submitted) = read(job, args)? else {
            return Ok(Exit::Success);
        };
        reply = ask(Stage::Setup(Box::new(submitted)))?;
    }
    let ControllerReply::Updates(updates) = reply else {
        return done(Ok(reply));
    };
    for update in &updates {
        change(update)?;
    }
    Ok(Exit::Success)
}

/// Changes a job. That it waits for the makers of its inputs is necessary; the gate turns it back if it has no space on its nodes.
fn change(update: &SlurmUpdate) -> CliResult<()> {
    let Err(why) = apply_update(update) else {
        return Ok(());
    };
    let mut needed = update.clone();
    needed
        .words
        .retain(|word| word.starts_with("dependency=") || word.starts_with("reqnodelist="));
    needed.unnamed.clear();
    if needed.words.is_empty() && needed.after.is_empty() {
        return Ok(());
    }
    if needed == *update {
        return Err(slurm_error(why));
    }
    apply_update(&needed).map_err(slurm_error)
}

pub(crate) fn done(reply: CliResult<ControllerReply>) -> CliResult {
    match reply? {
        ControllerReply::Done => Ok(Exit::Success),
        ControllerReply::Refused(why) => Err(refused(&why)),
        other => Err(unexpected(&other)),
    }
}

pub(crate) fn refused(why: &RequestError) -> CliError {
    let exit = match why.code {
        Code::NoSpace | Code::Quota => Exit::NoSpace,
        Code::NotFound => Exit::NotFound,
        Code::Busy => Exit::Busy,
        Code::Invalid => Exit::InvalidWorkflow,
        Code::Denied => Exit::Usage,
        _ => Exit::WorkflowFailed,
    };
    CliError::new(exit, &why.text)
}

pub(crate) fn unexpected(reply: &ControllerReply) -> CliError {
    CliError::new(
        Exit::Internal,
        format!("the controller sent an unexpected reply: {reply:?}"),
    )
}

/// A node's power draw and temperature, as far as they are known, with their sources.
fn drawn(draw: &Draw) -> String {
    let watts = draw.power.map(|p| {
        let watts = (p.milliwatts + 500) / 1000;
        format!(", {watts} W ({})", p.source)
    });
    let warm = draw.warmth.map(|w| {
        let degrees = (w.millicelsius + 500).div_euclid(1000);
        format!(", {degrees} C ({})", w.sensor.as_str())
    });
    watts.unwrap_or_default() + &warm.unwrap_or_default()
}

fn status(controller: &ControllerClient) -> CliResult {
    let nodes = match controller.ask_once(&ControllerRequest::Nodes, TIMEOUT)? {
        ControllerReply::Nodes(nodes) => nodes,
        ControllerReply::Refused(why) => return Err(refused(&why)),
        other => return Err(unexpected(&other)),
    };
    for node in nodes {
        let free = node.capacity.saturating_sub(node.taken);
        let state = if node.up { "up" } else { "down" };
        let kept = lasts(node.persistent);
        let orphans = match node.orphans {
            0 => String::new(),
            n => format!(", {n} that nobody knows"),
        };
        out!(
            "{:<16} {state:<5} {} free of {} ({kept}){}{orphans}",
            node.name,
            Bytes(free),
            Bytes(node.capacity),
            drawn(&node.draw)
        )?;
        for store in &node.stores {
            let free = store.capacity.saturating_sub(store.taken);
            let state = if store.is_away { "away" } else { "" };
            out!(
                "  {:<14} {state:<5} {} free of {} ({})",
                store.name,
                Bytes(free),
                Bytes(store.capacity),
                lasts(store.persistent)
            )?;
        }
    }
    // A controller of an earlier version does not know the question.
    if let Ok(ControllerReply::Slurm(info)) =
        controller.ask_once(&ControllerRequest::Slurm, TIMEOUT)
    {
        out!("{}", slurm_status(&info))?;
    }
    if let Ok(ControllerReply::PlanStatus(status)) =
        controller.ask_once(&ControllerRequest::PlanStatus, TIMEOUT)
    {
        for line in plan::status_lines(&status) {
            out!("{line}")?;
        }
    }
    Ok(Exit::Success)
}

/// Slurm's state as the controller knows it, and its age.
fn slurm_status(info: &SlurmInfo) -> String {
    let failure = info.failure.as_deref().map(plain);
    let failure = failure.map(|why| format!("; it cannot be read: {why}"));
    let failure = failure.unwrap_or_default();
    if info.version.is_empty() {
        return format!("Slurm: its state is not known{failure}");
    }
    format!(
        "Slurm {}: {} of {} nodes usable; {} jobs, {} with data; read {} ago ({}, {}, {}){failure}",
        info.version,
        info.usable,
        info.nodes,
        info.jobs,
        info.with_data,
        Elapsed(info.age),
        info.source,
        Bytes(info.bytes),
        Elapsed(info.took),
    )
}

/// Whether what is in a store outlives a loss of power.
fn lasts(is_persistent: bool) -> &'static str {
    if is_persistent {
        "persistent"
    } else {
        "volatile"
    }
}

/// The state of a job's data, why it waits, and what is planned for it.
pub(crate) fn why(globals: &Globals, controller: &ControllerClient, job: SlurmJobId) -> CliResult {
    let info = match controller.ask_once(&ControllerRequest::Job(job), TIMEOUT)? {
        ControllerReply::Job(info) => info,
        ControllerReply::Refused(why) => return Err(refused(&why)),
        other => return Err(unexpected(&other)),
    };
    if globals.json {
        print::json(&info)?;
        return Ok(Exit::Success);
    }
    out!("job {job}: {}", info.phase)?;
    let first = info.history.first().map_or(0, |(at, _)| *at);
    for (at, what) in &info.history {
        out!("{:>12}  {what}", Elapsed(at - first).to_string())?;
    }
    if let Some(waits) = &info.waits {
        out!("it waits: {waits}")?;
    }
    if let Some(planned) = &info.planned {
        out!("planned: {planned}")?;
    }
    for ending in &info.ending {
        out!("it ends soon: {ending}")?;
    }
    Ok(Exit::Success)
}
