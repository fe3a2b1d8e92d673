//! Variables of Slurm, and of schedulers like it, that a script reads, where there may be none.

use super::shifted;
use crate::diag::{Finding, FindingCode};
use crate::schedulers::{SET, is_of_scheduler, remedy, scheduler};
use crate::variable_read::VariableRead;
use crate::variables::{reads, set_in};
use std::collections::BTreeSet;
use std::ops::Range;

/// The same, with the options that the script must have for them.
const SET_IF: &[(&str, &[&str])] = &[
    ("SLURM_ARRAY_", &["--array", "-a"]),
    ("SLURM_MEM_PER_NODE", &["--mem"]),
    ("SLURM_GPUS_ON_NODE", &["--gpus-per-node", "--gres"]),
];
/// A variable, and where it is read first.
pub(crate) struct VariableUse<'s> {
    name: &'s str,
    at: Range<usize>,
    /// Python or R reads it by a call.
    is_call: bool,
}

/// Those that are read without a default and set by nobody, each once.
pub(crate) fn not_set(text: &str) -> impl Iterator<Item = VariableUse<'_>> {
    let set = set_in("", text);
    let prefixes = option_variables(text);
    let mut named = BTreeSet::new();
    let reads = reads(text).into_iter();
    let is_settled = |read: &VariableRead<'_>| {
        read.has_default || read.is_literal || (read.is_call && read.is_test)
    };
    let open = reads.filter(move |read| !is_settled(read));
    let ours = open.filter(|read| is_of_scheduler(read.name));
    ours.filter(move |read| {
        !is_set(&prefixes, read.name) && !set.contains(read.name) && named.insert(read.name)
    })
    .map(|read| VariableUse {
        name: read.name,
        at: read.at..read.at + read.len(text),
        is_call: read.is_call,
    })
}

/// The prefixes of the variables for which the script has an option.
fn option_variables(text: &str) -> Vec<&'static str> {
    let lines = text.lines().filter(|line| line.starts_with("#SBATCH"));
    let options: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    let is_given = |option: &&str| {
        options.iter().any(|word| {
            word.split('=').next() == Some(*option)
                || (option.len() == 2 && word.starts_with(*option))
        })
    };
    let given = SET_IF.iter().filter(|(_, by)| by.iter().any(is_given));
    given.map(|(set, _)| *set).collect()
}

/// Whether tarn sets it.
fn is_set(prefixes: &[&str], name: &str) -> bool {
    SET.contains(&name) || prefixes.iter().any(|set| name.starts_with(set))
}

/// The note about it.
pub(super) fn note(read: VariableUse<'_>, start: usize) -> Finding {
    let name = read.name;
    Finding::note(
        FindingCode::NoteUnsetVariable,
        format!("`{name}` is not set where there is no {}", scheduler(name)),
    )
    .at(shifted(&read.at, start).into(), "read here")
    .help(remedy(name, read.is_call))
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
                    export SLURM_F=1; echo $SLURM_F $SLURMD_DEBUG $HOME $PBS_JOBID ${LSB_JOBID:-0}\n";
        let expected = [
            "SLURM_JOB_PARTITION",
            "SLURM_E",
            "SLURM_MEM_PER_NODE",
            "SLURMD_DEBUG",
            "PBS_JOBID",
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
