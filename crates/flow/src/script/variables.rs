//! Variables of Slurm that a script reads, where there may be no Slurm.

use super::shifted;
use crate::diag::{Code, Finding};
use std::collections::BTreeSet;
use std::ops::Range;

/// What tarn sets itself: docs/guide/sbatch-scripts.md, "Without Slurm".
const SET: &[&str] = &[
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
/// The same with what must be said in the script for that.
const SET_IF: &[(&str, &[&str])] = &[
    ("SLURM_ARRAY_", &["--array", "-a"]),
    ("SLURM_MEM_PER_NODE", &["--mem"]),
    ("SLURM_GPUS_ON_NODE", &["--gpus-per-node", "--gres"]),
];
/// Names of Slurm.
const PREFIXES: [&str; 3] = ["SLURM_", "SLURMD_", "SBATCH_"];

/// A variable, and where it is read first.
pub(super) struct Read<'s> {
    name: &'s str,
    at: Range<usize>,
}

/// Those that are read without a default and set by nobody, each once.
pub(super) fn not_set(text: &str) -> impl Iterator<Item = Read<'_>> {
    let mut named = BTreeSet::new();
    let mut start = 0;
    let lines = text.split_inclusive('\n').map(move |line| {
        let at = start;
        start += line.len();
        (at, line)
    });
    let code = lines.filter(|(_, line)| !line.trim_start().starts_with('#'));
    let reads = code.flat_map(|(at, line)| {
        let dollars = line.match_indices('$');
        let escaped = |dollar: usize| line[..dollar].ends_with('\\');
        let read = dollars.filter(move |(dollar, _)| !escaped(*dollar));
        read.filter_map(move |(dollar, _)| variable(&line[dollar..], at + dollar))
    });
    reads.filter(move |read| !is_set(text, read.name) && named.insert(read.name.to_owned()))
}

/// The variable of Slurm that a text begins with; none where a default follows it.
fn variable(text: &str, at: usize) -> Option<Read<'_>> {
    let rest = text.strip_prefix('$')?;
    let braced = rest.strip_prefix('{');
    let rest = braced.unwrap_or(rest);
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let end = rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
    let (name, behind) = rest.split_at(end);
    let has_default = braced.is_some() && behind.starts_with([':', '-', '+', '=', '?']);
    let is_slice = behind.starts_with(':') && !behind[1..].starts_with(['-', '+', '=', '?']);
    let is_ours = PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let length = text.len() - behind.len();
    (is_ours && (!has_default || is_slice)).then(|| Read {
        name,
        at: at..at + length,
    })
}

/// Whether tarn sets it, or the script itself.
fn is_set(text: &str, name: &str) -> bool {
    let options = || {
        let lines = text.lines().filter(|line| line.starts_with("#SBATCH"));
        lines.flat_map(str::split_whitespace)
    };
    let is_said = |option: &&str| {
        options().any(|word| {
            word.split('=').next() == Some(*option)
                || (option.len() == 2 && word.starts_with(*option))
        })
    };
    let asked = SET_IF
        .iter()
        .any(|(set, by)| name.starts_with(set) && by.iter().any(is_said));
    let assigned = || {
        let mut found = text.match_indices(name);
        found.any(|(at, _)| {
            let before = text[..at].chars().next_back();
            let is_start = before.is_none_or(|c| c.is_whitespace() || ";&|(".contains(c));
            is_start && text[at + name.len()..].starts_with('=')
        })
    };
    SET.contains(&name) || asked || assigned()
}

/// What is said of it.
pub(super) fn note(read: Read<'_>, start: usize) -> Finding {
    let name = read.name;
    Finding::note(
        Code::NoteUnsetVariable,
        format!("`{name}` is not set where there is no Slurm"),
    )
    .at(shifted(&read.at, start).into(), "read here")
    .help(format!("give it a value that does no harm, such as `${{{name}:-none}}`, or set it before `tarn run`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<&str> {
        not_set(text).map(|read| read.name).collect()
    }

    #[test]
    fn what_is_read_and_not_set_is_found_once() {
        let text = "#!/bin/bash\n#SBATCH --array=1-3\n# $SLURM_JOB_ACCOUNT\nrm -rf x/$SLURM_JOB_ID \"${SLURM_JOB_PARTITION}\"/$SLURM_JOB_PARTITION\n\
                    echo ${SLURM_A:-1} ${SLURM_B-} ${SLURM_C:+x} \\$SLURM_D ${SLURM_E:2} $SLURM_ARRAY_TASK_ID $SLURM_MEM_PER_NODE\n\
                    export SLURM_F=1; echo $SLURM_F $SLURMD_DEBUG $HOME\n";
        let expected = [
            "SLURM_JOB_PARTITION",
            "SLURM_E",
            "SLURM_MEM_PER_NODE",
            "SLURMD_DEBUG",
        ];
        assert_eq!(names(text), expected);
        let read = not_set(text).next().expect("one");
        assert_eq!(&text[read.at], "${SLURM_JOB_PARTITION");
        assert!(names("#SBATCH -a1-2\necho $SLURM_ARRAY_TASK_MIN\n").is_empty());
        assert_eq!(
            names("echo $SLURM_ARRAY_TASK_MIN\n"),
            ["SLURM_ARRAY_TASK_MIN"]
        );
    }
}
