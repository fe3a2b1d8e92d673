//! Variables that the commands of steps read: messages about those that nobody sets, and the steps that have those of a job if
//! there is no Slurm.

use super::files::RunFiles;
use crate::print::message;
use crate::workflow::is_set_in;
use std::collections::{BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::path::{Component, Path, PathBuf};
use tarn_spec::{StepText, UnsetVariable};
use tarn_types::id::StepId;
use tarn_types::workflow::{Step, Workflow};

/// The most messages.
const MAX_NOTED: usize = 20;
/// Bytes of a file that is looked into: one with more is no script that somebody wrote.
const MAX_BYTES: u64 = 1 << 20;
/// Files of a step that are looked into.
const MAX_FILES: usize = 1000;
/// Bytes of the texts of a step that are looked into.
const MAX_TOTAL: usize = 8 << 20;
/// A variable that a step of an sbatch script has. A step with it gets the other variables of a job too, unless there is a job
/// around the run.
const JOB_NAME: &str = "SLURM_JOB_NAME";
const JOB: &str = "SLURM_JOB_ID";

/// Warns of variables that will be empty.
pub(super) fn warn_unset_variables(w: &Workflow, files: &RunFiles) {
    let mut noted = BTreeSet::new();
    let mut left = 0;
    let mut cut = Vec::new();
    let is_set = |name: &str| is_set_in(name, &|name| std::env::var_os(name));
    for (id, step) in (0u32..).map(StepId).zip(&w.steps) {
        let texts = texts(w, step, files);
        if texts.is_cut {
            cut.push(step.name.as_str());
        }
        for found in tarn_spec::unset(w, id, &texts.all, &is_set) {
            // Steps may share a script.
            if !noted.insert((found.name.clone(), found.place.clone())) {
                continue;
            }
            if noted.len() > MAX_NOTED {
                left += 1
            } else {
                print_unset_variable(&step.name, &found)
            }
        }
    }
    if left > 0 {
        message!("warning: {left} more variables that steps read are not set");
    }
    if let [first, others @ ..] = &cut[..] {
        let others = match others.len() {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        message!(
            "note: step `{first}`{others} runs more than {} MiB of scripts and programs; tarn looked only into the first of them for \
             variables that are not set",
            MAX_TOTAL >> 20
        );
    }
}

fn print_unset_variable(step: &str, found: &UnsetVariable) {
    let UnsetVariable { name, place, .. } = found;
    match found.scheduler {
        Some(scheduler) => message!(
            "note: step `{step}` reads `{name}` ({place}), which is not set where there is no {scheduler}: {}",
            found.remedy()
        ),
        None => {
            let hint = found.hint.as_deref();
            let hint = hint.map_or(String::new(), |hint| format!("; {hint}"));
            message!(
                "warning: step `{step}` reads `{name}` ({place}), which tarn does not set: it is empty there{hint}"
            );
        }
    }
}

/// Marks the steps that are to have the variables of a job: those that read them, where no job is around the run. It is decided once,
/// where the run begins, so that all nodes of it agree.
pub(super) fn with_jobs(w: &mut Workflow, files: &RunFiles, env: &[(OsString, OsString)]) {
    let is_job =
        |(name, value): &(OsString, OsString)| name == OsStr::new(JOB) && !value.is_empty();
    if env.iter().any(is_job) {
        return;
    }
    let steps = w.steps.iter();
    let needs: Vec<bool> = steps
        .map(|step| tarn_spec::needs_job(&texts(w, step, files).all))
        .collect();
    for (step, _) in w.steps.iter_mut().zip(needs).filter(|(_, needs)| *needs) {
        let name = step.name.clone();
        step.env.entry(JOB_NAME.into()).or_insert(name);
    }
}

/// The texts of a step to search.
struct StepTexts {
    all: Vec<StepText>,
    /// There is more, beyond [`MAX_TOTAL`].
    is_cut: bool,
}

/// The texts that a step runs: those in the workflow file, the files that it names or watches there, and the scripts of the
/// workflow's folder that these name.
fn texts(w: &Workflow, step: &Step, files: &RunFiles) -> StepTexts {
    let mut all = StepText::of_step(step);
    let mut total: usize = all.iter().map(StepText::bytes).sum();
    let mut is_cut = false;
    let named = files.named_by(w, step);
    let mut seen: BTreeSet<PathBuf> = named.iter().cloned().collect();
    let mut left: VecDeque<(PathBuf, bool)> = named.into_iter().map(|path| (path, true)).collect();
    while let Some((path, is_named)) = left.pop_front() {
        let text = text_of(w, &path, files);
        let text = text.filter(|text| text.is_known() || (is_named && text.may_matter()));
        total += text.as_ref().map_or(0, StepText::bytes);
        if total > MAX_TOTAL {
            is_cut = true;
            break;
        }
        let more = match &text {
            None => files_in(&path),
            Some(text) => {
                let beside = path.parent().unwrap_or(&w.folder);
                let names = text.file_names();
                let both = names
                    .iter()
                    .flat_map(|name| [&w.folder, beside].map(|f| plain(&f.join(name))));
                let inside = both.filter(|p| p.starts_with(&w.folder) && p.is_file());
                inside.collect()
            }
        };
        for path in more {
            if seen.len() < MAX_FILES && seen.insert(path.clone()) {
                left.push_back((path, false));
            }
        }
        all.extend(text.filter(StepText::may_matter));
    }
    StepTexts { all, is_cut }
}

/// The files in a watched folder.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    all.sort();
    all
}

/// Without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            other => plain.push(other),
        }
    }
    plain
}

/// The text of a file, if it is one that somebody wrote.
fn text_of(w: &Workflow, path: &Path, files: &RunFiles) -> Option<StepText> {
    let shown = path.strip_prefix(&w.folder).unwrap_or(path).display();
    let is_script = |m: &Metadata| m.is_file() && m.len() <= MAX_BYTES;
    std::fs::metadata(path).ok().filter(is_script)?;
    let bytes = std::fs::read(path).ok()?;
    StepText::of_file(&shown.to_string(), &bytes, files.is_submitted(path))
}
