//! Jobs of a submission that Slurm has already. A submission that was killed leaves no record, but its jobs: tarn queries Slurm
//! for them.

use super::command::run_command;
use crate::error::CliResult;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tarn_proto::site::SlurmJobId;
use tarn_types::workflow::Workflow;

/// Tells the jobs of a submission from others. Options for sbatch that name jobs or folders otherwise hide them.
pub(super) enum SubmissionFilter {
    /// Files of the user's, by their paths.
    Scripts(BTreeSet<String>),
    /// The jobs of a workflow file, as `NAME|FOLDER`.
    Steps(BTreeSet<String>),
}

/// Jobs, and whether each is held.
pub(super) type QueuedJobs = BTreeMap<SlurmJobId, bool>;

impl SubmissionFilter {
    pub(super) fn scripts<'a>(files: impl Iterator<Item = &'a Path>) -> Self {
        Self::Scripts(files.map(real).collect())
    }

    pub(super) fn steps<'a>(workflow: &Workflow, names: impl Iterator<Item = &'a str>) -> Self {
        let folder = workflow.folder.display();
        let name = |name| format!("{}/{name}|{folder}", workflow.name);
        Self::Steps(names.map(name).collect())
    }

    /// Those that have not ended.
    ///
    /// # Errors
    /// When Slurm does not say.
    pub(super) fn queued(&self) -> CliResult<QueuedJobs> {
        let user = rustix::process::getuid().as_raw().to_string();
        // The user's own text is last.
        let format = match self {
            Self::Scripts(_) => "%F|%r|%o",
            Self::Steps(_) => "%F|%r|%j|%Z",
        };
        let queue = run_command("squeue", &["-h", "-u", &user, "-o", format])?;
        Ok(queue.lines().filter_map(|line| self.job(line)).collect())
    }

    fn job(&self, line: &str) -> Option<(SlurmJobId, bool)> {
        let mut fields = line.splitn(3, '|');
        let (job, reason, what) = (fields.next()?, fields.next()?, fields.next()?);
        let is_known = match self {
            Self::Scripts(all) => all.contains(&real(Path::new(what.trim_end()))),
            Self::Steps(all) => all.contains(what.trim_end()),
        };
        let job = job.trim().parse().ok().filter(|_| is_known)?;
        Some((job, reason.trim().starts_with("JobHeld")))
    }
}

/// A path without links.
fn real(path: &Path) -> String {
    let real = path.canonicalize();
    real.as_deref().unwrap_or(path).display().to_string()
}

/// Jobs as commands of Slurm take them.
pub(super) fn list<'a>(jobs: impl IntoIterator<Item = &'a SlurmJobId>, between: &str) -> String {
    let jobs: Vec<String> = jobs.into_iter().map(SlurmJobId::to_string).collect();
    jobs.join(between)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_known_by_name_and_folder_or_by_their_script() {
        let steps = SubmissionFilter::Steps(["w/a|/x y".to_owned()].into());
        assert_eq!(steps.job("7|JobHeldUser|w/a|/x y"), Some((7, true)));
        assert_eq!(steps.job("7|Priority|w/a|/x y"), Some((7, false)));
        for line in ["7|None|w/a|/x", "7|None|w/ab|/x y", "x|None|w/a|/x y", "7"] {
            assert_eq!(steps.job(line), None, "{line}");
        }
        let scripts = SubmissionFilter::scripts([Path::new("/dev/../dev/null")].into_iter());
        assert_eq!(scripts.job("8|None|/dev/null"), Some((8, false)));
        assert_eq!(scripts.job("8|None|/dev/zero"), None);
    }
}
