//! `tarn submit`: the jobs of a whole workflow, held until all are there.

use super::command::run_command;
use super::controller::{ControllerClient, RetryPauses};
use super::queued::{QueuedJobs, SubmissionFilter, list};
use super::refused;
use crate::error::{CliError, CliResult, ExitWith};
use crate::globals::Globals;
use crate::print::{self, message, out};
use crate::workflow;
use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tarn_proto::local::Code;
use tarn_proto::site::{ControllerReply, ControllerRequest, SlurmJobId};
use tarn_spec::{StepJob, step_jobs};
use tarn_types::codes::Exit;
use tarn_types::workflow::Workflow;

/// How long the controller may take to take in all jobs: it reads Slurm's queue and their scripts, some 3 ms for each.
const TIMEOUT: Duration = Duration::from_secs(90);
/// How long the controller may take to answer before anything is submitted: it may be starting.
const REACHABLE: Duration = Duration::from_secs(5);
/// Steps of a workflow file that are submitted: Slurm's own limit for all jobs is 10,000, unless the site says otherwise.
const MAX_JOBS: usize = 5_000;

#[derive(Debug, Clone, Args)]
pub(crate) struct SubmitArgs {
    /// A workflow file; or the scripts of its jobs, in the order of its steps, each with the workflow's name
    #[arg(required = true, value_name = "WORKFLOW")]
    files: Vec<PathBuf>,
    /// More jobs of this workflow will come: its data stays until `tarn slurm end`, or its lease is over
    #[arg(long)]
    open: bool,
    /// Show the jobs of a workflow file, and submit nothing
    #[arg(long)]
    dry_run: bool,
    /// Options for each sbatch, such as --partition=short
    #[arg(last = true, value_name = "SBATCH OPTION")]
    options: Vec<String>,
}

/// The script for sbatch.
enum BatchScript<'a> {
    /// A file of the user's.
    File(&'a Path),
    /// A step of a workflow file, to be run from its folder.
    Step(StepJob, &'a Path),
}

impl std::fmt::Display for BatchScript<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Step(step, _) => step.name.fmt(f),
        }
    }
}

pub(crate) fn submit(globals: &Globals, args: &SubmitArgs) -> CliResult {
    // All together make sense, or none is submitted.
    let parsed = workflow::load(&args.files)?;
    let scripts = scripts(&args.files, &parsed.workflow)?;
    if args.dry_run {
        for script in &scripts {
            match script {
                BatchScript::File(path) => out!("{}", path.display())?,
                BatchScript::Step(step, _) => print::text(&format!("{}\n", step.script))?,
            }
        }
        return Ok(Exit::Success);
    }
    reachable()?;
    let known = known(&scripts, &parsed.workflow);
    // If Slurm does not answer, it takes no jobs either.
    let before = known.queued().unwrap_or_default();
    print_queued_jobs(&before);
    let stop = SubmitInterrupt::new()?;
    let mut jobs = Vec::new();
    let submitted = submit_held(&scripts, &args.options, &stop, &mut jobs);
    let released = submitted.and_then(|()| {
        // While they are held: if one cannot be, none is.
        let known = wait_until_known(&jobs)?;
        stop.check()?;
        run_command("scontrol", &["release", &list(&jobs, ",")])?;
        Ok(known)
    });
    let is_known = match released {
        Ok(is_known) => is_known,
        Err(why) => {
            cancel(&jobs, &known, &before);
            return Err(why);
        }
    };
    for (job, script) in jobs.iter().zip(&scripts) {
        if globals.json {
            print::json(&serde_json::json!({"job": job, "step": script.to_string()}))?
        } else {
            out!("{job} {script}")?
        }
    }
    let is_alone = matches!(scripts[..], [BatchScript::File(_)]);
    if !args.open && !is_alone {
        end(&parsed.workflow.name, is_known);
    }
    Ok(Exit::Success)
}

fn known(scripts: &[BatchScript<'_>], workflow: &Workflow) -> SubmissionFilter {
    let files = scripts.iter().filter_map(|script| match script {
        BatchScript::File(path) => Some(*path),
        BatchScript::Step(..) => None,
    });
    let steps = scripts.iter().filter_map(|script| match script {
        BatchScript::File(_) => None,
        BatchScript::Step(step, _) => Some(&*step.name),
    });
    match scripts.first() {
        Some(BatchScript::File(_)) => SubmissionFilter::scripts(files),
        _ => SubmissionFilter::steps(workflow, steps),
    }
}

/// Says what is there already: nobody submits the same twice without knowing.
fn print_queued_jobs(queue: &QueuedJobs) {
    let (held, others): (Vec<_>, Vec<_>) = queue.iter().partition(|(_, is_held)| **is_held);
    let [held, others] = [held, others].map(|jobs| jobs.into_iter().map(|(job, _)| job));
    if others.len() > 0 {
        let others = list(others, ", ");
        message!(
            "note: jobs {others} of the same workflow or scripts are in Slurm's queue already"
        );
    }
    if held.len() > 0 {
        let (jobs, words) = (list(held.clone(), ", "), list(held, " "));
        message!(
            "note: jobs {jobs} of the same workflow or scripts are held, as a submission leaves them that was killed: `scancel {words}` removes them"
        );
    }
}

/// Whether a signal has stopped the submission.
struct SubmitInterrupt(Arc<AtomicUsize>);

impl SubmitInterrupt {
    fn new() -> CliResult<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        for (number, exit) in [
            (SIGINT, Exit::Interrupted),
            (SIGTERM, Exit::Terminated),
            (SIGHUP, Exit::Terminated),
        ] {
            // Under nohup it outlives the terminal.
            if number == SIGHUP && tarn_sys::process::ignores(SIGHUP) {
                continue;
            }
            signal_hook::flag::register_usize(number, signal.clone(), exit as usize)
                .exit(Exit::State)?;
        }
        Ok(Self(signal))
    }

    fn requested_exit(&self) -> Option<Exit> {
        match self.0.load(Ordering::SeqCst) {
            0 => None,
            code if code == Exit::Interrupted as usize => Some(Exit::Interrupted),
            _ => Some(Exit::Terminated),
        }
    }

    /// Refuses once there was one.
    fn check(&self) -> CliResult<()> {
        match self.requested_exit() {
            None => Ok(()),
            Some(exit) => Err(CliError::new(exit, "a signal has ended the submission")),
        }
    }
}

/// Refuses where no controller of a site is: jobs that need data would wait for it for ever, or run without it.
fn reachable() -> CliResult<()> {
    let controller = ControllerClient::of_environment();
    let until = Instant::now() + REACHABLE;
    let mut pauses = RetryPauses::default();
    loop {
        // Any answer shows that the controller is there.
        let Err(why) = controller.ask_once(&ControllerRequest::Nodes, REACHABLE) else {
            return Ok(());
        };
        if Instant::now() >= until {
            let text = format!(
                "{why}; nothing was submitted: jobs would run without their data. Where a site has no tarn, `tarn run` inside an \
                 allocation needs none"
            );
            return Err(CliError::new(why.exit, text));
        }
        pauses.sleep();
    }
}

/// The user's scripts, or those that a workflow file gives.
fn scripts<'a>(files: &'a [PathBuf], workflow: &'a Workflow) -> CliResult<Vec<BatchScript<'a>>> {
    let is_script = |file: &Path| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.starts_with("#!")
    };
    if files.iter().all(|file| is_script(file)) {
        return Ok(files.iter().map(|file| BatchScript::File(file)).collect());
    }
    if workflow.steps.len() > MAX_JOBS {
        let text = format!(
            "it has {} steps, and at most {MAX_JOBS} are submitted as jobs; run it by `tarn run` inside an allocation",
            workflow.steps.len()
        );
        return Err(CliError::new(Exit::NoSpace, text));
    }
    match step_jobs(workflow) {
        Ok(jobs) => {
            let steps = jobs
                .into_iter()
                .map(|step| BatchScript::Step(step, &workflow.folder));
            Ok(steps.collect())
        }
        Err(unsuited) => {
            let text = format!(
                "as jobs of a site it cannot be run: {}",
                unsuited.join("; ")
            );
            Err(CliError::new(Exit::InvalidWorkflow, text))
        }
    }
}

/// Submits each script, held.
fn submit_held(
    scripts: &[BatchScript<'_>],
    options: &[String],
    stop: &SubmitInterrupt,
    jobs: &mut Vec<SlurmJobId>,
) -> CliResult<()> {
    for script in scripts {
        stop.check()?;
        let mut sbatch = Command::new("sbatch");
        sbatch.args(["--parsable", "--hold"]).args(options);
        let output = match script {
            BatchScript::File(path) => sbatch.arg(path).output(),
            BatchScript::Step(step, folder) => {
                let after: Vec<String> =
                    step.after.iter().map(|at| jobs[*at].to_string()).collect();
                if !after.is_empty() {
                    sbatch.arg(format!("--dependency=afterok:{}", after.join(":")));
                }
                sbatch.arg("--chdir").arg(folder);
                by_pipe(sbatch, &step.script)
            }
        };
        let why = match output {
            Ok(output) if output.status.success() => {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                // `17`, or `17;cluster`.
                match text.trim().split(';').next().and_then(|n| n.parse().ok()) {
                    Some(job) => {
                        jobs.push(job);
                        continue;
                    }
                    None => format!("it printed `{}`, which is not a job number", text.trim()),
                }
            }
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(e) => e.to_string(),
        };
        // A signal of the terminal ends sbatch too.
        stop.check()?;
        let text = format!("`sbatch` of {script}: {why}");
        return Err(CliError::new(Exit::WorkflowFailed, text));
    }
    Ok(())
}

/// Runs a command that reads this.
fn by_pipe(mut command: Command, text: &str) -> io::Result<Output> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut pipe) = child.stdin.take() {
        // sbatch reads all before it says anything; if it has ended, it says why.
        let _ = pipe.write_all(text.as_bytes());
    }
    child.wait_with_output()
}

/// Nothing stays of a submission that failed; jobs that do stay are named. sbatch may have failed after Slurm had taken a job.
fn cancel(jobs: &[SlurmJobId], known: &SubmissionFilter, before: &QueuedJobs) {
    let words: Vec<String> = jobs.iter().map(SlurmJobId::to_string).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let cancelled = if words.is_empty() {
        Ok(String::new())
    } else {
        run_command("scancel", &words)
    };
    let mut left: Vec<SlurmJobId> = match (known.queued(), &cancelled) {
        (Ok(queue), _) => queue.into_keys().collect(),
        (Err(_), Ok(_)) => Vec::new(),
        (Err(_), Err(_)) => jobs.to_vec(),
    };
    left.retain(|job| !before.contains_key(job));
    if left.is_empty() {
        return;
    }
    let why = cancelled.err().map(|why| format!(": {why}"));
    let (jobs, words) = (list(&left, ", "), list(&left, " "));
    message!(
        "jobs {jobs} of this submission stay{}; `scancel {words}` removes them",
        why.unwrap_or_default()
    );
}

/// Waits until the controller has taken in all these jobs. False if that is not known in time.
fn wait_until_known(jobs: &[SlurmJobId]) -> CliResult<bool> {
    let ask = ControllerRequest::AwaitJobs(jobs.to_vec());
    match ControllerClient::of_environment().ask_once(&ask, TIMEOUT) {
        Ok(ControllerReply::Done) => Ok(true),
        // The controller is of an earlier version, or has too much to do: the jobs are taken in later.
        Ok(ControllerReply::Refused(why)) if matches!(why.code, Code::Invalid | Code::Busy) => {
            Ok(false)
        }
        Ok(ControllerReply::Refused(why)) => Err(refused(&why)),
        Ok(_) | Err(_) => Ok(false),
    }
}

/// Tells the controller that the workflow is whole, if it knows all its jobs.
fn end(workflow: &str, is_known: bool) {
    if !is_known {
        message!(
            "the controller does not know all these jobs yet; when it does (`tarn slurm why JOB`), run `tarn slurm end {workflow}`, so that its data goes when nobody reads it any more"
        );
        return;
    }
    let controller = ControllerClient::of_environment();
    let ask = ControllerRequest::End {
        user: rustix::process::getuid().as_raw(),
        workflow: workflow.to_owned(),
    };
    match controller.ask_once(&ask, TIMEOUT) {
        Ok(ControllerReply::Done) => {}
        Ok(other) => message!("the workflow's end is not known: {other:?}"),
        Err(why) => message!("the workflow's end is not known: {why}"),
    }
}
