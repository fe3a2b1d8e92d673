//! Variables of schedulers, and those of Slurm that tarn sets itself.

/// The variables that tarn sets itself: docs/guide/sbatch-scripts.md, "Without Slurm".
pub(crate) const SET: &[&str] = &[
    "SLURM_JOB_ID",
    "SLURM_JOBID",
    "SLURM_JOB_NAME",
    "SLURM_NNODES",
    "SLURM_JOB_NUM_NODES",
    "SLURM_JOB_NODELIST",
    "SLURM_NODELIST",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_TASKS_PER_NODE",
    "SLURM_CPUS_PER_TASK",
    "SLURM_CPUS_ON_NODE",
    "SLURM_JOB_CPUS_PER_NODE",
    "SLURM_NODEID",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_SUBMIT_DIR",
    "SLURM_SUBMIT_HOST",
    "SLURMD_NODENAME",
    "SLURM_JOB_UID",
    "SLURM_JOB_USER",
    "SLURM_TMPDIR",
];
/// Variables of schedulers, and the names of these.
pub(crate) const SCHEDULERS: [(&str, &str); 5] = [
    ("SLURM_", "Slurm"),
    ("SLURMD_", "Slurm"),
    ("SBATCH_", "Slurm"),
    ("PBS_", "PBS"),
    ("LSB_", "LSF"),
];
/// The scheduler whose variable it is; Slurm for any other.
pub(crate) fn scheduler(name: &str) -> &'static str {
    let mut all = SCHEDULERS.iter();
    all.find(|(prefix, _)| name.starts_with(prefix))
        .map_or("Slurm", |(_, scheduler)| scheduler)
}

pub(crate) fn is_of_scheduler(name: &str) -> bool {
    SCHEDULERS
        .iter()
        .any(|(prefix, _)| name.starts_with(prefix))
}

/// The remedy for a variable that nobody sets; `is_call`: it is read by a call.
pub(crate) fn remedy(name: &str, is_call: bool) -> String {
    match is_call {
        true => format!(
            "give the call a default value that does no harm, or set `{name}` before `tarn run`"
        ),
        false => format!(
            "give it a value that does no harm, such as `${{{name}:-none}}`, or set it before `tarn run`"
        ),
    }
}
