//! Variables that a step reads and nobody sets: misspelt ones of tarn's own, and those of a scheduler where
//! there is none. A path below an empty variable is another path: `rm -rf scratch/$SLURM_JOB_ID` is all of
//! `scratch`.

use crate::calls::{self, is_program};
use crate::code;
use crate::schedulers::{SCHEDULERS, SET, is_of_scheduler, remedy, scheduler};
use crate::suggest::did_you_mean;
use crate::variable_read::VariableRead;
use crate::variables::{is_shell, reads, set_in};
use std::collections::BTreeSet;
use tarn_types::id::StepId;
use tarn_types::shell::{BASH, OWN_JOB};
use tarn_types::workflow::{Step, Workflow};

/// The prefix of all variables of tarn.
const OURS: &str = "TARN_";
/// Those that every step has, or may have.
const OF_EACH_STEP: &[&str] = &[
    "TARN_DATASETS",
    "TARN_STEP",
    "TARN_RUN",
    "TARN_NODE",
    "TARN_NODES",
    "TARN_TASKS",
    "TARN_CORES",
    "TARN_ATTEMPT",
    "TARN_HOSTFILE",
    "TARN_SCRATCH",
    "TARN_WORKFLOW_DIR",
    "TARN_EXEC_DIR",
    "TARN_EXEC_DIRS",
    "TARN_SOCKET",
    "TARN_STEP_SOCKET",
    OWN_JOB,
];

/// A text that a step runs: its `prelude`, its `run`, or a file that these name.
#[derive(Debug, Clone)]
pub struct StepText {
    shown: String,
    text: String,
    by_shell: bool,
    /// An sbatch script, whose variables of Slurm have been reported already.
    is_job: bool,
}

impl StepText {
    /// The texts of the workflow file.
    pub fn of_step(step: &Step) -> Vec<Self> {
        let shell = step.shell.as_deref().unwrap_or(BASH);
        let program = shell.split_whitespace().next().unwrap_or_default();
        let text = |key: &str, text: &String| Self {
            shown: format!("`{key}`"),
            text: text.clone(),
            by_shell: match text.starts_with("#!") && key == "run" {
                true => is_shell("", text),
                false => is_shell("", &format!("#!{program}\n")),
            },
            is_job: false,
        };
        let prelude = step.prelude.iter().map(|p| text("prelude", p));
        prelude.chain([text("run", &step.run)]).collect()
    }

    /// A file that a step names; nothing if it is no text.
    pub fn of_file(shown: &str, bytes: &[u8], is_job: bool) -> Option<Self> {
        let text = String::from_utf8_lossy(bytes).into_owned();
        (!text.contains('\0')).then(|| Self {
            by_shell: is_shell(shown, &text),
            shown: shown.to_owned(),
            text,
            is_job,
        })
    }

    /// Relative paths that this text may name files by, from the workflow's folder on or from its own: of a
    /// script or program in a language that is known.
    pub fn file_names(&self) -> Vec<String> {
        let names = match (self.by_shell, is_program(&self.shown, &self.text)) {
            (_, true) => calls::file_names(&self.text),
            (true, _) => code::file_names(&self.text),
            _ => Vec::new(),
        };
        // `$HERE/lib.sh`: any folder.
        let below = |name: String| match name.starts_with(['$', '/']) {
            true => name.split_once('/').map(|(_, rest)| rest.to_owned()),
            false => Some(name),
        };
        let names = names.into_iter().filter_map(below);
        names.filter(|name| code::is_inside(name)).collect()
    }

    /// Whether it is a script or a program in a language that is known.
    pub fn is_known(&self) -> bool {
        self.by_shell || is_program(&self.shown, &self.text)
    }

    /// Bytes of it.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// Whether it may have a variable that [`unset`] or [`needs_job`] looks for: others need not be looked
    /// into, nor kept.
    pub fn may_matter(&self) -> bool {
        let mut prefixes = SCHEDULERS.iter().map(|(prefix, _)| *prefix).chain([OURS]);
        prefixes.any(|prefix| self.text.contains(prefix))
    }
}

/// A variable that a step reads without a default, and that is not set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsetVariable {
    /// Its name.
    pub name: String,
    /// The text, and the number of the line in it.
    pub place: String,
    /// The scheduler that would set it; `None` for one of tarn's own.
    pub scheduler: Option<&'static str>,
    /// Python or R reads it by a call.
    pub is_call: bool,
    /// A variable of a similar name.
    pub hint: Option<String>,
}

impl UnsetVariable {
    /// The remedy, for a variable of a scheduler.
    pub fn remedy(&self) -> String {
        remedy(&self.name, self.is_call)
    }
}

/// The variables that a step reads without a default, and that are not set: each once in each text. `is_set`
/// returns whether the environment of the run has a variable.
///
/// # Examples
/// ```
/// use tarn_spec::{StepText, unset};
/// use tarn_types::id::StepId;
///
/// # let text = r#"
/// #     name = "words"
/// #     [data.text]
/// #     source = "books"
/// #     [data.total]
/// #     dest = "result"
/// #     [[step]]
/// #     name = "count"
/// #     run = "cat $TARN_text/* | wc $PBS_NODEFILE > $TARN_total/words"
/// #     in = ["text"]
/// #     out = ["total"]
/// # "#;
/// # let workflow = tarn_spec::parse("words.toml", text, "/home/me".as_ref())?.workflow;
/// // The step's command reads $PBS_NODEFILE, which only PBS sets.
/// let texts = StepText::of_step(&workflow.steps[0]);
/// let found = unset(&workflow, StepId(0), &texts, &|_| false);
/// assert_eq!(found[0].name, "PBS_NODEFILE");
/// assert!(unset(&workflow, StepId(0), &texts, &|name| name == "PBS_NODEFILE").is_empty());
/// # Ok::<(), tarn_spec::SpecError>(())
/// ```
pub fn unset(
    workflow: &Workflow,
    id: StepId,
    texts: &[StepText],
    is_set: &dyn Fn(&str) -> bool,
) -> Vec<UnsetVariable> {
    let step = workflow.step(id);
    let ours = variables_of(workflow, id, step);
    // The other texts set no variable of such a name.
    let texts: Vec<&StepText> = texts.iter().filter(|text| text.may_matter()).collect();
    let set = texts.iter().flat_map(|t| set_in(&t.shown, &t.text));
    let set: BTreeSet<&str> = set.collect();
    let is_known = |name: &str| set.contains(name) || step.env.contains_key(name);
    let mut found = Vec::new();
    for text in texts {
        let mut named = BTreeSet::new();
        // The reads are in their order: lines are counted from the one before on.
        let (mut line, mut counted) = (1, 0);
        for read in reads(&text.text) {
            let name = read.name;
            if read.has_default || read.is_literal || is_known(name) {
                continue;
            }
            let is_ours = name.starts_with(OURS);
            let is_unset = match is_ours {
                true => (text.by_shell || read.is_call) && !ours.contains(name),
                false => {
                    is_of_scheduler(name)
                        && !text.is_job
                        && !read.is_test
                        && !is_given(step, name)
                        && !is_set(name)
                }
            };
            if is_unset && named.insert(name) {
                line += text.text[counted..read.at].matches('\n').count();
                counted = read.at;
                found.push(UnsetVariable {
                    name: name.to_owned(),
                    place: format!("{}, line {line}", text.shown),
                    scheduler: (!is_ours).then(|| scheduler(name)),
                    is_call: read.is_call,
                    hint: match is_ours {
                        true => did_you_mean(name, ours.iter().map(String::as_str)),
                        false => None,
                    },
                });
            }
        }
    }
    found
}

/// Whether a step is to have the variables of a job where there is no Slurm: a text reads one of those that
/// tarn can set, without a value for the case that it is empty. A program that it writes or starts may read it too.
pub fn needs_job(texts: &[StepText]) -> bool {
    let is_open =
        |read: &VariableRead<'_>| !read.has_default && !read.is_test && SET.contains(&read.name);
    let mut texts = texts.iter().filter(|text| text.may_matter());
    texts.any(|text| reads(&text.text).iter().any(is_open))
}

/// Whether a step that needs a job has it from tarn.
fn is_given(step: &Step, name: &str) -> bool {
    SET.contains(&name)
        || (name == "SLURM_MEM_PER_NODE" && step.memory > 0)
        || (name == "SLURM_GPUS_ON_NODE" && step.gpus > 0)
}

/// Variables of tarn's own that a step has.
fn variables_of(workflow: &Workflow, id: StepId, step: &Step) -> BTreeSet<String> {
    let mut all: BTreeSet<String> = OF_EACH_STEP.iter().map(|&name| name.to_owned()).collect();
    let mut add = |name: &str| {
        all.insert(format!("{OURS}{name}"));
    };
    for used in &step.uses {
        add(&workflow.dataset(used.data).name);
    }
    for (_, partition) in workflow.partitions_of(id) {
        add(&format!("PARTITION_{}", partition.name));
        add(&format!("BLOCK_{}", partition.name));
    }
    if step.foreach.is_some() {
        add("ITEM");
    }
    if step.restart.is_some() {
        for name in ["CHECKPOINTS", "PHX_TIER", "PHX_MEMORY", "PHX_RUN"] {
            add(name);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::time::{Duration, Instant};

    fn unset_of(run: &str, script: (&str, &str)) -> Vec<(String, String, Option<String>)> {
        let text = format!(
            "name = \"w\"\n[data.out]\ndest = \"o\"\n[[step]]\nname = \"a\"\nout = [\"out\"]\nenv = {{ PBS_X = \"1\" }}\nrun = '''\n{run}'''\n"
        );
        let w = crate::parse("w.toml", &text, Path::new("/w"))
            .expect("it is right")
            .workflow;
        let mut texts = StepText::of_step(&w.steps[0]);
        texts.extend(StepText::of_file(script.0, script.1.as_bytes(), false));
        let found = unset(&w, StepId(0), &texts, &|name| name == "LSB_X");
        let shown = |u: UnsetVariable| (u.name, u.place, u.hint);
        found.into_iter().map(shown).collect()
    }

    #[test]
    fn what_nobody_sets_is_named_with_its_place() {
        let script = "#!/bin/sh\n. ./lib.sh\nmkdir .$TARN_ouf/x $TARN_out\necho $TARN_own $TARN_x ${TARN_y:-1} $PBS_X $LSB_X $LSB_Y\n";
        let found = unset_of(
            "TARN_own=1\n: ${TARN_x:=2}\n./a $SLURM_JOB_ID",
            ("a", script),
        );
        let expected = [
            ("TARN_ouf", "a, line 3", Some("did you mean `TARN_out`?")),
            ("LSB_Y", "a, line 4", None),
        ];
        let expected = expected.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.map(str::to_owned)));
        assert_eq!(found, expected);
        assert!(unset_of("true", ("a.pl", "$TARN_x = 1; print $TARN_y")).is_empty());
        assert!(unset_of("#!/usr/bin/perl\nprint $TARN_y", ("a", "")).is_empty());
        assert_eq!(unset_of("echo $TARN_ITEM", ("a", ""))[0].1, "`run`, line 1");
    }

    #[test]
    fn a_job_is_needed_where_its_number_is_read_without_a_default() {
        let needs = |text: &str| {
            needs_job(&[StepText::of_file("a.py", text.as_bytes(), false).expect("a text")])
        };
        assert!(needs("rm -rf x/$SLURM_JOB_ID"));
        assert!(needs("bash <<'E'\nrm -rf x/${SLURM_JOBID}\nE\n"));
        assert!(needs("ssh x \"rm -rf \\$SLURM_TMPDIR\""));
        for not in [
            "# $SLURM_JOB_ID",
            "rm x/${SLURM_JOB_ID:-none}",
            "if [ -n \"$SLURM_JOB_ID\" ]; then srun x; fi",
            "echo $SLURM_JOB_PARTITION",
        ] {
            assert!(!needs(not), "{not}");
        }
    }

    /// A search that takes time with the square of a text's lines, of a line's length or of its variables takes
    /// minutes for each of these.
    #[test]
    fn large_texts_are_looked_into_once() {
        let of = |line: &str| line.repeat((1 << 19) / line.len());
        let many: String = (0..25_000)
            .map(|n| format!("echo $SBATCH_{n} $TARN_{n}\n"))
            .collect();
        let began = Instant::now();
        for (name, text) in [
            ("a.cpp", of("std::cout << x;\n")),
            ("a.sh", of("a << b;\n")),
            ("a.sh", of("a <<- b;\n\t\tb c\n")),
            ("a.cpp", of("getenv(\"X\") + ")),
            ("a.py", of("os.environ['X'] = os.getenv(\"Y\"); ")),
            ("a.sh", of("$SLURM_ARRAY_TASK_ID ")),
            ("a.sh", many),
        ] {
            let text = format!("{text}\necho $SLURM_JOB_ID $LSB_LAST\n");
            let found = unset_of("true", (name, &text));
            let last = found.iter().any(|(name, ..)| name == "LSB_LAST");
            assert!(last, "{name}: {}", found.len());
            let texts = StepText::of_file(name, text.as_bytes(), false);
            assert!(needs_job(&Vec::from_iter(texts)));
            let job = format!("#!/bin/bash\n#SBATCH -N1\n{text}");
            assert!(crate::script::variables::not_set(&job).count() > 0);
            assert!(began.elapsed() < Duration::from_secs(90), "{name}");
        }
    }
}
