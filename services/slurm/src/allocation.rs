//! Which allocation this process is in, and how long it lasts.

use crate::SlurmError;
use crate::command::answer;
use crate::snapshot::values::limit;
use crate::{SlurmNodeState, expand_hostlist};
use std::collections::BTreeMap;
use std::time::Duration;
use tarn_types::shell::OWN_JOB;

/// For a command that queries slurmctld: it may be busy, but not for long.
const TIMEOUT: Duration = Duration::from_secs(30);
/// For a command whose output is optional.
const SOON: Duration = Duration::from_secs(10);

/// The allocation that sbatch or salloc made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmAllocation {
    /// The job's number.
    pub job: String,
    /// Its nodes, as Slurm names and orders them: those that it has now and that answer Slurm.
    pub nodes: Vec<String>,
    /// Nodes that it had when it began, and that are not among these: each with why.
    pub gone: Vec<(String, String)>,
}

impl SlurmAllocation {
    /// The allocation of this process's environment; `None` when it is in none.
    ///
    /// # Errors
    /// When the environment is only half of one, or Slurm cannot be asked.
    pub fn here() -> Result<Option<Self>, SlurmError> {
        let variable = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        let Some(job) = variable("SLURM_JOB_ID") else {
            return Ok(None);
        };
        // The script of a job that `tarn run` runs itself where there is no Slurm.
        if variable(OWN_JOB).is_some_and(|own| own == job) {
            return Ok(None);
        }
        if !job.bytes().all(|b| b.is_ascii_digit()) {
            let what = format!("SLURM_JOB_ID is `{job}`, which is no job's number");
            return Err(SlurmError::Environment { what });
        }
        let Some(list) = variable("SLURM_JOB_NODELIST") else {
            let what = format!("SLURM_JOB_ID is {job}, but SLURM_JOB_NODELIST is not set");
            return Err(SlurmError::Environment { what });
        };
        let nodes = expand_hostlist(&list)?;
        if nodes.is_empty() {
            let what = format!("SLURM_JOB_NODELIST is `{list}`, which names no node");
            return Err(SlurmError::Environment { what });
        }
        Ok(Some(Self::of(job, nodes)))
    }

    /// The environment gives the nodes with which the job began. A job that survives the loss of a node (`--no-kill`)
    /// has fewer by now, and to start anything on all that it had would fail. If Slurm does not answer, the environment
    /// is believed.
    fn of(job: String, began: Vec<String>) -> Self {
        let words = ["--noheader", "--jobs", &job, "--format", "%N"];
        let now = answer("squeue", &words, SOON).ok();
        let now = now.filter(|output| !output.trim().is_empty());
        let now = now.and_then(|list| expand_hostlist(list.trim()).ok());
        let now = now.unwrap_or_else(|| began.clone());
        let list = now.join(",");
        let words = [
            "--noheader",
            "--Node",
            "--nodes",
            &list,
            "--format",
            "%N %T",
        ];
        let states = answer("sinfo", &words, SOON).unwrap_or_default();
        let dead = dead(&states);
        let why = |name: &String| match (dead.get(name.as_str()), now.contains(name)) {
            (Some(state), _) => Some(format!("Slurm reports that it is {state}")),
            (None, false) => Some("the job does not have it any more".to_owned()),
            (None, true) => None,
        };
        let gone: Vec<_> = began
            .iter()
            .filter_map(|name| Some((name.clone(), why(name)?)))
            .collect();
        let there = |name: &String| !dead.contains_key(name.as_str());
        Self {
            nodes: now.iter().filter(|n| there(n)).cloned().collect(),
            job,
            gone,
        }
    }

    /// The first `requested` of the nodes, or all.
    ///
    /// # Errors
    /// When there are fewer.
    pub fn narrowed(mut self, requested: Option<u32>) -> Result<Self, SlurmError> {
        if let Some(requested) = requested {
            let wanted = usize::try_from(requested).unwrap_or(usize::MAX);
            if wanted > self.nodes.len() {
                return Err(SlurmError::TooMany {
                    requested,
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
        // Not the time of its end: that is in the time zone of Slurm's commands.
        let words = ["--noheader", "--jobs", &self.job, "--format", "%L"];
        let output = answer("squeue", &words, TIMEOUT)?;
        let output = output.trim();
        limit(output).ok_or_else(|| SlurmError::Answer {
            command: format!("`squeue {}`", words.join(" ")),
            answer: output.to_owned(),
        })
    }
}

/// The nodes on which nothing can be started, as `sinfo` reports: down, or not responding.
fn dead(states: &str) -> BTreeMap<&str, &str> {
    let lines = states.lines().filter_map(|l| l.trim().split_once(' '));
    let states = lines.map(|(name, state)| (name, state.trim()));
    states
        .filter(|(_, state)| !SlurmNodeState::parse(state).responds())
        .collect()
}

/// Whether a variable of the environment describes one step, task or node of a job, or of how to start the next one: a
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
    fn nodes_that_slurm_does_not_hear_of_are_left_out() {
        let states = "n1 mixed\nn2 down*\nn3 allocated*\nn4 down\nn1 mixed\nn5 draining\n\n";
        let dead: Vec<_> = dead(states).into_iter().collect();
        assert_eq!(
            dead,
            [("n2", "down*"), ("n3", "allocated*"), ("n4", "down")]
        );
    }

    #[test]
    fn so_many_nodes_as_are_asked_for() {
        let all = SlurmAllocation {
            job: "7".into(),
            nodes: vec!["a".into(), "b".into()],
            gone: Vec::new(),
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
