//! The script of a job finds the variables of Slurm where there is no Slurm. docs/guide/sbatch-scripts.md.

use crate::storage::run_facts::RunFacts;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};
use tarn_types::action::AttemptSpec;
use tarn_types::hash::Hasher;
use tarn_types::shell::OWN_JOB;
use tarn_types::workflow::Step;

/// A script of sbatch gives it to its step; to another step that reads such variables, the run gives it.
const NAME: &str = "SLURM_JOB_NAME";
/// The variable with the number of a job. If it is set already, there is a job around all this.
const JOB: &str = "SLURM_JOB_ID";
const ELEMENT: &str = "SLURM_ARRAY_TASK_ID";
/// Numbers from here on are given here: those of Slurm are smaller (`MaxJobId`), so none is another job's. Programs read them into 32 bits.
const FIRST: u64 = 1_000_000_000;

/// The numbers of jobs that are none of Slurm's: each its own, and other ones in each run.
#[derive(Debug)]
pub(crate) struct SyntheticJobIds {
    base: u64,
    /// By step, and of an instance by its element too.
    given: Mutex<BTreeMap<(String, Option<String>), u64>>,
}

impl SyntheticJobIds {
    pub(crate) fn new(workspace: &str, run: &str) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(0));
        let host = rustix::system::uname();
        let mut hasher = Hasher::new();
        hasher
            .field(workspace.as_bytes())
            .field(run.as_bytes())
            .field(host.nodename().to_bytes())
            .number(now)
            .number(u64::from(std::process::id()));
        let low = hasher.finish().0 as u64;
        Self {
            base: FIRST + low % FIRST,
            given: Mutex::default(),
        }
    }

    /// The same for all attempts, as of a job that is requeued.
    fn number(&self, step: &Step, item: Option<&str>) -> u64 {
        let mut given = self
            .given
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let next = self.base + given.len() as u64;
        let key = (step.name.clone(), item.map(str::to_owned));
        *given.entry(key).or_insert(next)
    }
}

/// A step of a script, as Slurm would have it as a job.
struct SyntheticJob<'a> {
    facts: &'a RunFacts,
    step: &'a Step,
    run: &'a AttemptSpec,
    number: u64,
    nodes: Vec<&'a str>,
}

impl SyntheticJob<'_> {
    /// The variables that Slurm would set on the node named `node`.
    fn variables(&self, node: &str, scratch: &Path) -> Vec<(&'static str, OsString)> {
        let step = self.step;
        let count = self.nodes.len().max(1);
        let on_each = step.tasks.div_ceil(step.nodes.max(1)).max(1);
        let each = |what: u32| match count {
            1 => what.to_string(),
            n => format!("{what}(x{n})"),
        };
        let at = self.nodes.iter().position(|name| *name == node);
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy().into_owned();
        let list = self.nodes.join(",");
        let job = self.number.to_string();
        let user = rustix::process::getuid().as_raw().to_string();
        let folder = self.facts.workflow.folder.clone();
        let mut all: Vec<(&str, OsString)> = vec![
            (JOB, job.clone().into()),
            ("SLURM_JOBID", job.clone().into()),
            ("SLURM_NNODES", count.to_string().into()),
            ("SLURM_JOB_NUM_NODES", count.to_string().into()),
            ("SLURM_JOB_NODELIST", list.clone().into()),
            ("SLURM_NODELIST", list.into()),
            ("SLURM_NTASKS", step.tasks.to_string().into()),
            ("SLURM_NPROCS", step.tasks.to_string().into()),
            ("SLURM_TASKS_PER_NODE", each(on_each).into()),
            (
                "SLURM_CPUS_PER_TASK",
                (step.cores / on_each).max(1).to_string().into(),
            ),
            ("SLURM_CPUS_ON_NODE", step.cores.to_string().into()),
            ("SLURM_JOB_CPUS_PER_NODE", each(step.cores).into()),
            ("SLURM_NODEID", at.unwrap_or(0).to_string().into()),
            ("SLURM_PROCID", "0".into()),
            ("SLURM_LOCALID", "0".into()),
            ("SLURM_SUBMIT_DIR", folder.into()),
            ("SLURM_SUBMIT_HOST", host.into()),
            ("SLURMD_NODENAME", node.into()),
            ("SLURM_JOB_UID", user.into()),
            ("SLURM_TMPDIR", scratch.into()),
        ];
        if step.memory > 0 {
            let mib = step.memory.div_ceil(1 << 20);
            all.push(("SLURM_MEM_PER_NODE", mib.to_string().into()));
        }
        if step.gpus > 0 {
            all.push(("SLURM_GPUS_ON_NODE", step.gpus.to_string().into()));
        }
        if self.run.attempt > 1 {
            let before = self.run.attempt - 1;
            all.push(("SLURM_RESTART_COUNT", before.to_string().into()));
        }
        // tarn itself, and mpirun, would take that for a job of Slurm, and start their processes by `srun`.
        all.push((OWN_JOB, job.into()));
        all
    }

    /// Keeps launchers of MPI programs from asking Slurm, which knows nothing of the job.
    fn launcher_settings(&self) -> Vec<(&'static str, OsString)> {
        let mut all = vec![
            ("OMPI_MCA_plm", "^slurm"),
            ("OMPI_MCA_ras", "^slurm"),
            ("PRTE_MCA_plm", "^slurm"),
            ("PRTE_MCA_ras", "^slurm"),
            ("HYDRA_RMK", "user"),
        ];
        if self.nodes.len() <= 1 {
            all.extend(["HYDRA_BOOTSTRAP", "I_MPI_HYDRA_BOOTSTRAP"].map(|name| (name, "fork")));
        }
        let pairs = all.into_iter().map(|(name, value)| (name, value.into()));
        pairs.collect()
    }
}

/// Adds the variables that Slurm would set for a job of this step, if it is a script's and no job is around it.
pub(crate) fn describe(
    env: &mut BTreeMap<OsString, OsString>,
    jobs: &SyntheticJobIds,
    facts: &RunFacts,
    (step, run): (&Step, &AttemptSpec),
    node: &str,
    scratch: &Path,
) {
    let around = env.get(OsStr::new(JOB)).is_some_and(|job| !job.is_empty());
    if around || !step.env.contains_key(NAME) {
        return;
    }
    let item = run.item.as_deref();
    let nodes = run.nodes.iter();
    let nodes = nodes.filter_map(|s| facts.cluster.nodes.get(s.node.at()));
    let job = SyntheticJob {
        facts,
        step,
        run,
        number: jobs.number(step, item),
        nodes: nodes.map(|n| n.name.as_str()).collect(),
    };
    let mut all = job.variables(node, scratch);
    if let Some(user) = env.get(OsStr::new("USER")) {
        all.push(("SLURM_JOB_USER", user.clone()));
    }
    if item.is_some() && step.env.contains_key(ELEMENT) {
        let array = jobs.number(step, None);
        all.push(("SLURM_ARRAY_JOB_ID", array.to_string().into()));
    }
    all.extend(job.launcher_settings());
    for (name, value) in all {
        // An empty value counts as unset: a path below it would begin at the root.
        let has = env.get(OsStr::new(name)).is_some_and(|v| !v.is_empty());
        if !has {
            env.insert(name.into(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_never_those_of_slurm_nor_of_another_run() {
        let (one, other) = (
            SyntheticJobIds::new("ws", "w-1"),
            SyntheticJobIds::new("ws", "w-1"),
        );
        assert_ne!(one.base, other.base);
        for jobs in [one, other] {
            assert!((FIRST..2 * FIRST).contains(&jobs.base), "{}", jobs.base);
        }
    }
}
