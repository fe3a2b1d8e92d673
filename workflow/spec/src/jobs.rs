//! The jobs of a workflow on a site: a script of sbatch for each step. Its `#TARN` lines describe the step and its
//! datasets as the workflow file does, so that [`parse_job`](crate::parse_job) reads them back.
//! docs/guide/on-a-site.md, "Workflow files as jobs".

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use tarn_types::id::{DataId, StepId};
use tarn_types::shell::{BASH, Command};
use tarn_types::units::SECOND;
use tarn_types::workflow::{
    CheckpointMethod, Dataset, DatasetUse, Distribution, Foreach, Keep, KeepPartition, OnFailure,
    Restart, Role, Step, Workflow,
};

/// A step as a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepJob {
    /// The step's name.
    pub name: String,
    /// The script.
    pub script: String,
    /// The positions, among the jobs, of those that must have ended before, beside those its data comes from.
    pub after: Vec<usize>,
}

/// The steps of a workflow as jobs of a site: sbatch scripts with `#TARN` lines, in the order of submission.
///
/// # Errors
/// The parts of the workflow that jobs of a site cannot do, each with an alternative.
///
/// # Examples
/// ```
/// # let text = r#"
/// #     name = "words"
/// #     [data.text]
/// #     source = "books"
/// #     [data.total]
/// #     dest = "result"
/// #     [[step]]
/// #     name = "count"
/// #     run = "cat $TARN_text/* | wc -w > $TARN_total/words"
/// #     in = ["text"]
/// #     out = ["total"]
/// # "#;
/// # let text = &text.replace("name = \"words\"", "name = \"words\"\nexternal = \"/work\"");
/// # let parsed = tarn_spec::parse("words.toml", text, "/home/me".as_ref())?;
/// let jobs = tarn_spec::step_jobs(&parsed.workflow).unwrap();
/// assert_eq!((&*jobs[0].name, jobs[0].after.len()), ("count", 0));
/// assert!(jobs[0].script.starts_with("#!") && jobs[0].script.contains("#TARN"));
/// # Ok::<(), tarn_spec::SpecError>(())
/// ```
pub fn step_jobs(workflow: &Workflow) -> Result<Vec<StepJob>, Vec<String>> {
    let steps = (0..).map(StepId).zip(&workflow.steps);
    let mut unsuited: Vec<String> = steps.flat_map(|s| unsuited_in(workflow, s)).collect();
    if workflow.erase {
        unsuited.push(
            "`erase`: a site's nodes serve other workflows beside this one; use `encrypt` for data that must not be found again".into(),
        );
    }
    let order = order(workflow).unwrap_or_else(|| {
        unsuited.push(
            "a step reads a version that is changed before the step can be submitted; jobs read what was asked for last: write the steps in another order".into(),
        );
        Vec::new()
    });
    if !unsuited.is_empty() {
        return Err(unsuited);
    }
    let place = |id: &StepId| order.iter().position(|at| *at == id.at());
    let jobs = order.iter().map(|at| {
        let step = &workflow.steps[*at];
        StepJob {
            name: step.name.clone(),
            script: script(workflow, (StepId(*at as u32), step)),
            after: step.after.iter().filter_map(place).collect(),
        }
    });
    Ok(jobs.collect())
}

/// The order in which jobs are submitted: what makes a version before what reads it, that before what makes
/// the next one, and else as in the file. `None` if there is none.
fn order(workflow: &Workflow) -> Option<Vec<usize>> {
    let steps = &workflow.steps;
    // By dataset and version: the steps that make it, and those that only read it.
    let mut makers: BTreeMap<(DataId, u32), usize> = BTreeMap::new();
    let mut readers: BTreeMap<(DataId, u32), Vec<usize>> = BTreeMap::new();
    for (at, step) in steps.iter().enumerate() {
        for used in &step.uses {
            if let Some(version) = used.makes {
                makers.insert((used.data, version), at);
            } else if let Some(version) = used.reads {
                readers.entry((used.data, version)).or_default().push(at);
            }
        }
        if let Some(Foreach::Entries { data, version, .. }) = &step.foreach {
            readers.entry((*data, *version)).or_default().push(at);
        }
    }
    let mut before: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); steps.len()];
    for (at, step) in steps.iter().enumerate() {
        before[at].extend(step.after.iter().map(|id| id.at()));
    }
    for ((data, version), maker) in &makers {
        for reader in readers.get(&(*data, *version)).into_iter().flatten() {
            before[*reader].insert(*maker);
        }
        let previous = version.checked_sub(1).map(|version| (*data, version));
        if let Some(previous) = previous {
            before[*maker].extend(makers.get(&previous));
            before[*maker].extend(readers.get(&previous).into_iter().flatten());
        }
    }
    let mut left: Vec<usize> = before.iter().map(BTreeSet::len).collect();
    let mut behind: Vec<Vec<usize>> = vec![Vec::new(); steps.len()];
    for (at, all) in before.iter().enumerate() {
        all.iter().for_each(|other| behind[*other].push(at));
    }
    let ready = left.iter().enumerate().filter(|(_, n)| **n == 0);
    let mut ready: BTreeSet<usize> = ready.map(|(at, _)| at).collect();
    let mut order = Vec::with_capacity(steps.len());
    while let Some(at) = ready.pop_first() {
        order.push(at);
        for next in &behind[at] {
            left[*next] -= 1;
            if left[*next] == 0 {
                ready.insert(*next);
            }
        }
    }
    (order.len() == steps.len()).then_some(order)
}

/// The settings of a step that jobs cannot have.
fn unsuited_in(workflow: &Workflow, (id, step): (StepId, &Step)) -> Vec<String> {
    let mut all = Vec::new();
    let mut reject = |what: &str, instead: &str| {
        all.push(format!("step `{}`: {what}; {instead}", step.name));
    };
    if step
        .restart
        .is_some_and(|r| r.from == CheckpointMethod::Image)
    {
        reject(Restart::NO_IMAGES.0, Restart::NO_IMAGES.1);
    }
    if step.restart.is_some() && step.foreach.is_some() {
        reject(
            "`restart`: all instances of the step are one job, and would have one folder of checkpoints",
            "write a job array",
        );
    }
    for (_, partition) in workflow.partitions_of(id) {
        let name = &partition.name;
        if partition.keep == KeepPartition::Workflow {
            reject(
                &format!(
                    "partition `{name}`: `keep`: a job has its partitions as long as it is there"
                ),
                "leave it out",
            );
        }
        if step.foreach.is_some() {
            reject(
                &format!(
                    "partition `{name}`: all instances of the step are one job, and would have one together"
                ),
                "write a job array",
            );
        }
    }
    for used in &step.uses {
        let data = workflow.dataset(used.data);
        let name = &data.name;
        if data.encrypt && used.makes.is_some() && data.size.is_none() {
            reject(
                &format!("`{name}` has `encrypt`: a job writes it to memory"),
                "add `size`, the most that it writes",
            );
        }
        if used.distribution == Distribution::Shared && step.nodes > 1 {
            let (why, instead) = Distribution::NO_SHARED;
            reject(&format!("`{name}:shared`: {why}"), instead);
        }
        let is_rescued = data.on_failure == OnFailure::Drain && used.makes.is_some();
        if is_rescued && workflow.external.is_none() && !goes_out(workflow, used) {
            reject(
                &format!(
                    "`{name}` is to be rescued when a job fails that does not make its last version"
                ),
                "name an `external` folder at the top of the file",
            );
        }
    }
    all
}

/// Seconds before the limit at which a job is put back into the queue, to continue from its checkpoints. Slurm may send the signal
/// a minute earlier (sbatch(1)).
const LIMIT_SIGNAL: u64 = 60;

/// Whether a job is put back into the queue when its time is nearly over.
fn is_put_back_at_its_limit(step: &Step) -> bool {
    step.restart.is_some() && step.retries > 0
}

/// The datasets that a step uses, with the one whose entries it goes through.
fn uses(step: &Step) -> Vec<DatasetUse> {
    let mut all = step.uses.clone();
    if let Some(Foreach::Entries { data, version, .. }) = &step.foreach
        && !all.iter().any(|used| used.data == *data)
    {
        all.push(DatasetUse {
            data: *data,
            role: Role::In,
            distribution: Distribution::Single,
            entry: None,
            reads: Some(*version),
            makes: None,
        });
    }
    all
}

/// Whether the step makes the last version of a dataset that has a `dest`.
fn goes_out(workflow: &Workflow, used: &DatasetUse) -> bool {
    let has_dest = workflow.dataset(used.data).dest.is_some();
    has_dest && used.makes == Some(workflow.last_version(used.data)) && used.makes.is_some()
}

fn script(workflow: &Workflow, (id, step): (StepId, &Step)) -> String {
    let mut text = String::from("#!/bin/bash\n");
    // Writing to a string cannot fail.
    let mut slurm = |option: &str, value: String| {
        let _ = writeln!(text, "#SBATCH --{option}={value}");
    };
    slurm("job-name", format!("{}/{}", workflow.name, step.name));
    slurm("output", format!("{}-{}-%j.out", workflow.name, step.name));
    slurm("nodes", step.nodes.to_string());
    slurm("ntasks", step.tasks.to_string());
    let each = step.tasks.div_ceil(step.nodes.max(1)).max(1);
    if step.nodes > 1 {
        // Else Slurm fills the first node as far as the others keep one: ranks are in blocks, as scattered data is.
        slurm("ntasks-per-node", each.to_string());
    }
    slurm("cpus-per-task", step.cores.div_ceil(each).to_string());
    if step.memory > 0 {
        slurm("mem", format!("{}M", step.memory.div_ceil(1 << 20)));
    }
    if step.gpus > 0 {
        slurm("gpus-per-node", step.gpus.to_string());
    }
    if step.restart.is_some() {
        slurm("open-mode", "append".into());
    }
    if let (true, Some(time)) = (is_put_back_at_its_limit(step), step.time) {
        let ahead = (time / SECOND / 4).clamp(1, LIMIT_SIGNAL);
        slurm("signal", format!("B:USR1@{ahead}"));
    }
    if let Some(time) = step.time {
        let seconds = time.div_ceil(SECOND);
        let (minutes, seconds) = (seconds / 60, seconds % 60);
        slurm("time", format!("{minutes}:{seconds:02}"));
    }
    for line in directives(workflow, (id, step)) {
        let _ = writeln!(text, "#TARN {line}");
    }
    text + &body(workflow, step)
}

/// The keys for tarn, each on a line of its own.
fn directives(workflow: &Workflow, (id, step): (StepId, &Step)) -> Vec<String> {
    let mut lines = vec![format!("name = {}", quoted(&workflow.name))];
    if let Some(external) = &workflow.external {
        lines.push(format!("external = {}", path(external)));
    }
    let mut described: Vec<&str> = Vec::new();
    let uses = uses(step);
    for used in &uses {
        let data = workflow.dataset(used.data);
        if !described.contains(&&*data.name) {
            described.push(&data.name);
            lines.extend(about(workflow, step, data, used));
        }
    }
    let mut partitions = Vec::new();
    for (_, p) in workflow.partitions_of(id) {
        lines.push(format!("partition.{}.size = \"{} B\"", p.name, p.size));
        if let Some(unit) = p.unit {
            lines.push(format!("partition.{}.unit = \"{unit} B\"", p.name));
        }
        if let Some(tier) = &p.tier {
            lines.push(format!("partition.{}.tier = {}", p.name, quoted(tier)));
        }
        partitions.push(quoted(&p.name));
    }
    lines.push("[[step]]".into());
    lines.push(format!("name = {}", quoted(&step.name)));
    if !partitions.is_empty() {
        lines.push(format!("partitions = [{}]", partitions.join(", ")));
    }
    if let Some(tier) = &step.tier {
        lines.push(format!("tier = {}", quoted(tier)));
    }
    if let Some(restart) = step.restart {
        let word = match restart.from {
            CheckpointMethod::Phx => "phx",
            CheckpointMethod::Files => "files",
            CheckpointMethod::Image => "image",
        };
        lines.push(format!("restart = \"{word}\""));
        if restart.space > 0 {
            lines.push(format!("checkpoints = \"{} B\"", restart.space));
        }
    }
    for (key, role) in [("in", Role::In), ("out", Role::Out), ("inout", Role::Inout)] {
        let mut words: Vec<String> = Vec::new();
        for used in uses.iter().filter(|used| used.role == role) {
            let word = quoted(&item(workflow, step, used));
            // Of single entries, all of the dataset is there.
            if !words.contains(&word) {
                words.push(word);
            }
        }
        if !words.is_empty() {
            lines.push(format!("{key} = [{}]", words.join(", ")));
        }
    }
    lines
}

fn item(workflow: &Workflow, step: &Step, used: &DatasetUse) -> String {
    let name = &workflow.dataset(used.data).name;
    let word = match used.distribution {
        _ if step.nodes == 1 => return name.clone(),
        Distribution::Single => "single",
        Distribution::Scatter => "scatter",
        Distribution::Broadcast => "broadcast",
        Distribution::Shared => "shared",
    };
    format!("{name}:{word}")
}

/// The keys for a dataset in a job: those that concern the version that it reads, or makes.
fn about(workflow: &Workflow, step: &Step, data: &Dataset, used: &DatasetUse) -> Vec<String> {
    let mut keys = Vec::new();
    let mut set =
        |key: &str, value: String| keys.push(format!("data.{}.{key} = {value}", data.name));
    if let Some(of) = &data.of {
        match (&of.whose, &of.workflow) {
            (tarn_types::named::Whose::Project(group), None)
                if used.makes.is_some() || of.dataset == data.name =>
            {
                set("project", quoted(group));
            }
            _ => {
                set("of", quoted(&of.to_string()));
                return keys;
            }
        }
    }
    if let Some(source) = data.source.as_deref().filter(|_| used.reads == Some(0)) {
        set("source", path(source));
    }
    if let Some(dest) = data.dest.as_deref().filter(|_| goes_out(workflow, used)) {
        set("dest", path(dest));
    }
    if let Some(size) = data.size {
        set("size", format!("\"{size} B\""));
    }
    if let Some(rule) = data.scatter.as_ref().filter(|_| step.nodes > 1) {
        set("scatter", quoted(rule.as_str()));
    }
    match data.keep {
        Keep::UntilConsumed => {}
        Keep::Workflow => set("keep", "\"workflow\"".into()),
        Keep::For(time) => set("keep", format!("\"{time} ns\"")),
        Keep::Forever => set("keep", "\"forever\"".into()),
    }
    if data.encrypt {
        set("encrypt", "true".into());
    }
    if let Some(tier) = &data.tier {
        set("tier", quoted(tier));
    }
    if data.copies > 1 {
        set("copies", data.copies.to_string());
    }
    if data.on_failure == OnFailure::Drain && used.makes.is_some() {
        set("on_failure", "\"drain\"".into());
    }
    if keys.is_empty() {
        keys.push(format!("data.{} = {{}}", data.name));
    }
    keys
}

/// The commands, as `tarn run` runs them: in an empty folder that is removed with the job, the workflow's own first in
/// `PATH`.
fn body(workflow: &Workflow, step: &Step) -> String {
    let mut text = String::from(
        "TARN_SCRATCH=$(mktemp -d) && export TARN_SCRATCH && cd \"$TARN_SCRATCH\" || exit\ntrap 'cd / && rm -rf -- \"$TARN_SCRATCH\"' EXIT\n",
    );
    let folder = shell(&workflow.folder.to_string_lossy());
    let _ = write!(
        text,
        "export TARN_WORKFLOW_DIR={folder}\nexport PATH=\"$TARN_WORKFLOW_DIR:$PATH\"\n"
    );
    let shell_of_step = step.shell.as_deref().unwrap_or(BASH);
    let command = Command::new(&step.run, step.prelude.as_deref(), shell_of_step);
    let argv: Vec<String> = command.argv.iter().map(|word| shell(word)).collect();
    let mut command_line = argv.join(" ");
    if let Some(file) = &command.file {
        // Not in the folder where it runs: that is the step's.
        let _ = write!(
            text,
            "TARN_COMMAND=$(mktemp) && export TARN_COMMAND || exit\n\
             trap 'cd / && rm -rf -- \"$TARN_SCRATCH\" \"$TARN_COMMAND\"' EXIT\n\
             printf %s {} > \"$TARN_COMMAND\" || exit\n",
            shell(file)
        );
        command_line += " \"$TARN_COMMAND\"";
    }
    let env: Vec<(String, String)> = step
        .env
        .iter()
        .map(|(name, value)| (name.clone(), shell(value)))
        .collect();
    let mut commands = String::new();
    match &step.foreach {
        None => {
            for (name, value) in env {
                let _ = writeln!(commands, "export {name}={value}");
            }
            let _ = writeln!(commands, "{command_line}");
        }
        Some(foreach) => {
            let mut instance = String::new();
            for (name, value) in env {
                let value = value.replace("{item}", "'\"$TARN_ITEM\"'");
                let _ = writeln!(instance, "export {name}={value}");
            }
            instance += "here=$(mktemp -d -p \"$TARN_SCRATCH\") && cd \"$here\" || exit 255\n";
            let _ = writeln!(instance, "{command_line} || exit 255");
            let each = format!("export TARN_ITEM=$1\n{instance}");
            let _ = writeln!(
                commands,
                "{} |\n    xargs -0 -r -n 1 -P \"$((${{SLURM_CPUS_ON_NODE:-1}} / {} > 0 ? ${{SLURM_CPUS_ON_NODE:-1}} / {} : 1))\" /bin/bash -c {} tarn",
                elements(workflow, foreach),
                step.cores,
                step.cores,
                shell(&each)
            );
        }
    }
    text += &match step.retries {
        0 => commands,
        _ => put_back(step, &commands),
    };
    text
}

/// Commands; when they fail, or the job's time is nearly over and it continues from checkpoints, Slurm has the job run again, as
/// often as the step may.
fn put_back(step: &Step, commands: &str) -> String {
    let trap = match is_put_back_at_its_limit(step) {
        true => "trap tarn_again USR1\n",
        false => "",
    };
    // The shell runs no trap before its command in the foreground has ended.
    format!(
        "tarn_again() {{\n    \
         [ \"${{SLURM_RESTART_COUNT:-0}}\" -lt {} ] && scontrol requeue \"$SLURM_JOB_ID\"\n}}\n\
         tarn_step() {{\n{commands}}}\n\
         {trap}\
         tarn_step &\n\
         while :; do wait \"$!\"; code=$?; kill -0 \"$!\" 2> /dev/null || break; done\n\
         [ \"$code\" -eq 0 ] || tarn_again\n\
         exit \"$code\"\n",
        step.retries
    )
}

/// A command that prints the elements of a `foreach`, each ended by a NUL; more than it may have is an error.
fn elements(workflow: &Workflow, foreach: &Foreach) -> String {
    match foreach {
        Foreach::Values(values) => {
            let words: Vec<String> = values.iter().map(|value| shell(value)).collect();
            format!("set -o pipefail; printf '%s\\0' {}", words.join(" "))
        }
        Foreach::Entries {
            data,
            pattern,
            max,
            allow_empty,
            ..
        } => {
            let name = &workflow.dataset(*data).name;
            // Only `*` means something; other patterns of find(1) stand for themselves.
            let mut literal = String::new();
            for letter in pattern.as_str().chars() {
                if matches!(letter, '\\' | '?' | '[' | ']') {
                    literal.push('\\');
                }
                literal.push(letter);
            }
            let shown = shell(pattern.as_str());
            let pattern = shell(&literal);
            let some = match allow_empty {
                true => String::new(),
                false => format!(
                    "[ \"$count\" -gt 0 ] || {{ printf 'tarn: no entry of {name} matches %s (allow_empty = true allows that)\\n' {shown} >&2; exit 1; }}\n"
                ),
            };
            format!(
                "set -o pipefail\n\
                 count=$(find \"$TARN_{name}/\" -mindepth 1 -maxdepth 1 -name {pattern} -printf x | wc -c)\n\
                 [ \"$count\" -le {max} ] || {{ echo \"tarn: $count entries of {name} match, {max} may (max)\" >&2; exit 1; }}\n\
                 {some}\
                 find \"$TARN_{name}/\" -mindepth 1 -maxdepth 1 -name {pattern} -printf '%f\\0' | sort -z"
            )
        }
    }
}

/// A string of TOML on one line. JSON's strings are, but for one character.
fn quoted(text: &str) -> String {
    let json = serde_json::Value::from(text).to_string();
    json.replace('\u{7f}', "\\u007f")
}

fn path(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

/// A word of the shell.
fn shell(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}
