//! Which allocation this process is in, and how long it lasts.

use crate::SlurmError;
use crate::command::answer;
use std::time::Duration;

/// For a command that asks slurmctld: it may be busy, but not for long.
const PATIENCE: Duration = Duration::from_secs(30);

/// The allocation that sbatch or salloc made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    /// The job's number.
    pub job: String,
    /// Its nodes, as Slurm names and orders them.
    pub nodes: Vec<String>,
}

impl Allocation {
    /// The allocation of this process's environment; `None` when it is in none.
    ///
    /// # Errors
    /// When the environment is only half of one, or Slurm cannot be asked.
    pub fn here() -> Result<Option<Self>, SlurmError> {
        let variable = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        let Some(job) = variable("SLURM_JOB_ID") else {
            return Ok(None);
        };
        if !job.bytes().all(|b| b.is_ascii_digit()) {
            let what = format!("SLURM_JOB_ID is `{job}`, which is no job's number");
            return Err(SlurmError::Environment { what });
        }
        let Some(list) = variable("SLURM_JOB_NODELIST") else {
            let what = format!("SLURM_JOB_ID is {job}, but SLURM_JOB_NODELIST is not set");
            return Err(SlurmError::Environment { what });
        };
        let said = answer("scontrol", &["show", "hostnames", &list], PATIENCE)?;
        let nodes = names(&said);
        if nodes.is_empty() {
            let what = format!("SLURM_JOB_NODELIST is `{list}`, in which scontrol sees no node");
            return Err(SlurmError::Environment { what });
        }
        Ok(Some(Self { job, nodes }))
    }

    /// The first `asked` of the nodes, or all.
    ///
    /// # Errors
    /// When there are fewer.
    pub fn narrowed(mut self, asked: Option<u32>) -> Result<Self, SlurmError> {
        if let Some(asked) = asked {
            let wanted = usize::try_from(asked).unwrap_or(usize::MAX);
            if wanted > self.nodes.len() {
                return Err(SlurmError::TooMany {
                    asked,
                    job: self.job,
                    there: self.nodes.len(),
                });
            }
            self.nodes.truncate(wanted);
        }
        Ok(self)
    }

    /// How long the allocation lasts from now on; `None` when it has no end.
    ///
    /// # Errors
    /// When Slurm cannot be asked, or knows no such job any more.
    pub fn time_left(&self) -> Result<Option<Duration>, SlurmError> {
        // Not the time of its end: that is in whatever time zone Slurm's commands are told.
        let words = ["--noheader", "--jobs", &self.job, "--format", "%L"];
        let said = answer("squeue", &words, PATIENCE)?;
        let said = said.trim();
        time_left(said).ok_or_else(|| SlurmError::Answer {
            command: format!("`squeue {}`", words.join(" ")),
            answer: said.to_owned(),
        })
    }
}

fn names(said: &str) -> Vec<String> {
    let names = said.lines().map(str::trim).filter(|l| !l.is_empty());
    names.map(str::to_owned).collect()
}

/// `[days-]hours:minutes:seconds`, without what is zero in front; `UNLIMITED`, `NOT_SET`.
fn time_left(text: &str) -> Option<Option<Duration>> {
    if matches!(text, "UNLIMITED" | "NOT_SET") {
        return Some(None);
    }
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (days.parse::<u64>().ok()?, clock),
        None => (0, text),
    };
    let fields: Option<Vec<u64>> = clock.split(':').map(|f| f.parse().ok()).collect();
    let fields = fields.filter(|f| (2..=3).contains(&f.len()))?;
    let seconds = fields
        .iter()
        .try_fold(0u64, |sum, field| sum.checked_mul(60)?.checked_add(*field))?;
    let all = days.checked_mul(24 * 3600)?.checked_add(seconds)?;
    Some(Some(Duration::from_secs(all)))
}

/// Whether a variable of the environment says something of one step, task or node of a job, or of how to start the next one: a
/// program that runs elsewhere must not take it for its own.
pub fn is_of_step(name: &str) -> bool {
    const NAMES: [&str; 7] = [
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURM_TASK_PID",
        "SLURM_GTIDS",
        "SLURMD_NODENAME",
        "SLURM_UMASK",
    ];
    // As PMI and PMIx name theirs; a user's own PMIEN is none.
    const PREFIXES: [&str; 9] = [
        "SLURM_STEP",
        "SLURM_SRUN",
        "SLURM_LAUNCH",
        "SLURM_CPU_BIND",
        "SLURM_MEM",
        "PMI_",
        "PMI2_",
        "PMIX_",
        "SLURM_PMI",
    ];
    NAMES.contains(&name) || PREFIXES.iter().any(|p| name.starts_with(p))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_limit_is_read() {
        let seconds = |text| time_left(text).map(|t| t.map(|t| t.as_secs()));
        assert_eq!(seconds("0:00"), Some(Some(0)));
        assert_eq!(seconds("59:07"), Some(Some(59 * 60 + 7)));
        assert_eq!(seconds("2:00:00"), Some(Some(7200)));
        assert_eq!(seconds("1-02:00:01"), Some(Some(26 * 3600 + 1)));
        assert_eq!(seconds("UNLIMITED"), Some(None));
        assert_eq!(seconds("NOT_SET"), Some(None));
        for bad in [
            "",
            "INVALID",
            "5",
            "-1:00",
            "1:2:3:4",
            "a-1:00",
            "1-",
            "99999999999999999999:00",
        ] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
        assert_eq!(seconds("18446744073709551615-00:00"), None);
    }

    #[test]
    fn names_are_lines() {
        assert_eq!(names("node1\nnode2\n\n"), ["node1", "node2"]);
        assert!(names("\n").is_empty());
    }

    #[test]
    fn so_many_nodes_as_are_asked_for() {
        let all = Allocation {
            job: "7".into(),
            nodes: vec!["a".into(), "b".into()],
        };
        assert_eq!(all.clone().narrowed(None).unwrap().nodes.len(), 2);
        assert_eq!(all.clone().narrowed(Some(1)).unwrap().nodes, ["a"]);
        let why = all.narrowed(Some(3)).unwrap_err().to_string();
        assert!(
            why.contains("job 7 has (2)") && why.contains("--nodes"),
            "{why}"
        );
    }

    #[test]
    fn a_program_does_not_take_a_steps_variables_for_its_own() {
        for name in [
            "SLURM_STEP_ID",
            "SLURM_PROCID",
            "PMIX_RANK",
            "PMI_FD",
            "SLURM_MEM_PER_NODE",
        ] {
            assert!(is_of_step(name), "{name}");
        }
        for name in [
            "SLURM_JOB_ID",
            "SLURM_JOB_NODELIST",
            "SLURM_CONF",
            "PATH",
            "PMIEN",
        ] {
            assert!(!is_of_step(name), "{name}");
        }
    }
}
