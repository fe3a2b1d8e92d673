//! `tarn submit`: the jobs of a whole workflow, held until all are there.

use super::controller::Controller;
use super::job::ask;
use crate::args::Cli;
use crate::error::{CliError, CliResult};
use crate::print::{out, say};
use crate::workflow;
use clap::Args;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use tarn_base::codes::Exit;
use tarn_proto::site::{Ask, Job, Said};

/// How long the controller may take to know all jobs: it takes them in some seconds after Slurm has told it.
const PATIENCE: Duration = Duration::from_secs(90);
/// Between two looks at that.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Args)]
pub(crate) struct SubmitArgs {
    /// The scripts of its jobs, in the order of its steps; each says the workflow's name
    #[arg(required = true)]
    scripts: Vec<PathBuf>,
    /// More jobs of this workflow will come: its data stays until `tarn slurm end`, or its lease is over
    #[arg(long)]
    open: bool,
    /// Options for each sbatch, such as --partition=short
    #[arg(last = true, value_name = "SBATCH OPTION")]
    options: Vec<String>,
}

pub(crate) fn submit(_: &Cli, args: &SubmitArgs) -> CliResult {
    // All together make sense, or none is submitted.
    let parsed = workflow::load(&args.scripts)?;
    for script in &args.scripts {
        let text = std::fs::read_to_string(script).unwrap_or_default();
        if !text.starts_with("#!") {
            let text = format!(
                "{} is no script: jobs are submitted by their scripts, with `#TARN` lines (docs/workflow-file.md); a workflow file is run by `tarn run` inside an allocation",
                script.display()
            );
            return Err(CliError::new(Exit::Usage, text));
        }
    }
    let jobs = held(args)?;
    let list: Vec<String> = jobs.iter().map(Job::to_string).collect();
    if let Err(why) = ask("scontrol", &["release", &list.join(",")]) {
        cancel(&jobs);
        return Err(why);
    }
    for (job, script) in jobs.iter().zip(&args.scripts) {
        out!("{job} {}", script.display())?;
    }
    let is_alone = args.scripts.len() == 1;
    if !args.open && !is_alone {
        end(&parsed.workflow.name, &jobs);
    }
    Ok(Exit::Success)
}

/// Submits each script, held; if one is refused, none stays.
fn held(args: &SubmitArgs) -> CliResult<Vec<Job>> {
    let mut jobs = Vec::new();
    for script in &args.scripts {
        let said = Command::new("sbatch")
            .args(["--parsable", "--hold"])
            .args(&args.options)
            .arg(script)
            .output();
        let failed = |why: String| {
            CliError::new(
                Exit::WorkflowFailed,
                format!("`sbatch {}`: {why}", script.display()),
            )
        };
        let why = match said {
            Ok(said) if said.status.success() => {
                let text = String::from_utf8_lossy(&said.stdout).into_owned();
                // `17`, or `17;cluster`.
                match text.trim().split(';').next().and_then(|n| n.parse().ok()) {
                    Some(job) => {
                        jobs.push(job);
                        continue;
                    }
                    None => format!("it says `{}`, which is no job's number", text.trim()),
                }
            }
            Ok(said) => String::from_utf8_lossy(&said.stderr).trim().to_owned(),
            Err(e) => e.to_string(),
        };
        cancel(&jobs);
        return Err(failed(why));
    }
    Ok(jobs)
}

fn cancel(jobs: &[Job]) {
    let list: Vec<String> = jobs.iter().map(Job::to_string).collect();
    if list.is_empty() {
        return;
    }
    let words: Vec<&str> = list.iter().map(String::as_str).collect();
    if let Err(why) = ask("scancel", &words) {
        say!("jobs {} stay held: {why}", list.join(", "));
    }
}

/// Tells the controller that the workflow is whole, when it knows all its jobs.
fn end(workflow: &str, jobs: &[Job]) {
    let controller = Controller::of_environment();
    let until = Instant::now() + PATIENCE;
    let known = |job: &Job| {
        let said = controller.ask_once(&Ask::Job(*job), PAUSE);
        matches!(said, Ok(Said::Job(_)))
    };
    while !jobs.iter().all(known) {
        if Instant::now() >= until {
            say!(
                "the controller does not know all these jobs yet; when it does (`tarn slurm why JOB`), say `tarn slurm end {workflow}`, so that its data goes when nobody reads it any more"
            );
            return;
        }
        std::thread::sleep(PAUSE);
    }
    let ask = Ask::End {
        user: rustix::process::getuid().as_raw(),
        workflow: workflow.to_owned(),
    };
    match controller.ask_once(&ask, PATIENCE) {
        Ok(Said::Done) => {}
        Ok(other) => say!("the workflow's end is not known: {other:?}"),
        Err(why) => say!("the workflow's end is not known: {why}"),
    }
}
