//! Variables that the commands of steps read: what is said of those that nobody sets, and which steps have those of a job where there is
//! no Slurm.

use super::files::Files;
use crate::print::say;
use crate::workflow::is_set_in;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use tarn_base::id::StepId;
use tarn_base::workflow::{Step, Workflow};
use tarn_flow::{StepText, Unset};

/// Messages that are said at most.
const MAX_SAID: usize = 20;
/// Bytes of a file that is looked into: one with more is no script that somebody wrote.
const MAX_BYTES: u64 = 1 << 20;
/// What a script of sbatch says of its step. One that has it has the other variables of a job too, unless there is one around it.
const JOB_NAME: &str = "SLURM_JOB_NAME";
const JOB: &str = "SLURM_JOB_ID";

/// Warns of variables that will be empty.
pub(super) fn tell(w: &Workflow, files: &Files) {
    let mut said = BTreeSet::new();
    let mut left = 0;
    let is_set = |name: &str| is_set_in(name, &|name| std::env::var_os(name));
    for (id, step) in (0u32..).map(StepId).zip(&w.steps) {
        for found in tarn_flow::unset(w, id, &texts(w, step, files), &is_set) {
            // Steps may share a script.
            if !said.insert((found.name.clone(), found.place.clone())) {
                continue;
            }
            match said.len() > MAX_SAID {
                true => left += 1,
                false => tell_of(&step.name, &found),
            }
        }
    }
    if left > 0 {
        say!("warning: {left} more variables that steps read are not set");
    }
}

fn tell_of(step: &str, found: &Unset) {
    let Unset { name, place, .. } = found;
    match found.scheduler {
        Some(scheduler) => say!(
            "note: step `{step}` reads `{name}` ({place}), which is not set where there is no {scheduler}: give it a value that does no \
             harm, such as `${{{name}:-none}}`, or set it before `tarn run`"
        ),
        None => {
            let hint = found.hint.as_deref();
            let hint = hint.map_or(String::new(), |hint| format!("; {hint}"));
            say!(
                "warning: step `{step}` reads `{name}` ({place}), which tarn does not set: it is empty there{hint}"
            );
        }
    }
}

/// Marks the steps that are to have the variables of a job: those that read them, where no job is around the run. It is decided once,
/// where the run begins, so that all nodes of it agree.
pub(super) fn with_jobs(w: &mut Workflow, files: &Files, env: &[(OsString, OsString)]) {
    let is_job =
        |(name, value): &(OsString, OsString)| name == OsStr::new(JOB) && !value.is_empty();
    if env.iter().any(is_job) {
        return;
    }
    let steps = w.steps.iter();
    let needs: Vec<bool> = steps
        .map(|step| tarn_flow::needs_job(&texts(w, step, files)))
        .collect();
    for (step, _) in w.steps.iter_mut().zip(needs).filter(|(_, needs)| *needs) {
        let name = step.name.clone();
        step.env.entry(JOB_NAME.into()).or_insert(name);
    }
}

/// What a step runs: what stands in the workflow file, and the files that it names there.
fn texts(w: &Workflow, step: &Step, files: &Files) -> Vec<StepText> {
    let mut all = StepText::of_step(step);
    for path in files.named_by(w, step) {
        let shown = path.strip_prefix(&w.folder).unwrap_or(&path).display();
        let is_script = |m: &Metadata| m.is_file() && m.len() <= MAX_BYTES;
        let status = std::fs::metadata(&path).ok().filter(is_script);
        let bytes = status.and_then(|_| std::fs::read(&path).ok());
        let is_job = files.is_submitted(&path);
        all.extend(bytes.and_then(|b| StepText::of_file(&shown.to_string(), &b, is_job)));
    }
    all
}
