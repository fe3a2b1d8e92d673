//! Reading `[[step]]`.

use crate::diag::{Finding, FindingCode, Findings, quoted};
use crate::foreach::{self, RawForeach};
use crate::item::{self, ITEM, RawStepItem, item_without_foreach};
use crate::namerule::{NameRule, TIER_NAME};
use crate::section::{Located, Section, in_order, kind, no_nul, place, value_of};
use miette::SourceSpan;
use std::collections::{BTreeMap, HashMap};
use tarn_types::bounds;
use tarn_types::units::Nanos;
use tarn_types::workflow::{CheckpointMethod, Restart};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

const KEYS: &[&str] = &[
    "name",
    "run",
    "prelude",
    "shell",
    "tmp",
    "env",
    "nodes",
    "tasks",
    "cores",
    "memory",
    "gpus",
    "time",
    "retries",
    "restart",
    "checkpoints",
    "images",
    "alone",
    "buddy",
    "tier",
    "partitions",
    "after",
    "foreach",
    "max",
    "allow_empty",
    "files",
    "in",
    "out",
    "inout",
];
/// Ranks of a step: each may be a part of a dataset.
const MAX_TASKS: u32 = bounds::MAX_PARTS as u32;
/// Cores of one node; the largest machines of 2026 have some hundreds.
const MAX_CORES: u32 = 65_536;
/// GPUs of one node.
const MAX_GPUS: u32 = 1024;

/// An example of a shell for a command.
const SHELL: &str = "\"bash -e\"";

const NAME: NameRule = NameRule {
    noun: "step",
    words: "letters, digits, `_`, `.` and `-`, not beginning with `.` or `-`, at most 64 bytes: it names log files",
    first: |c| c.is_ascii_alphanumeric() || c == '_',
    rest: |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'),
};

/// A step as written. A value that could not be read has its default.
pub(crate) struct RawStep {
    pub(crate) name: Located<String>,
    pub(crate) run: String,
    pub(crate) prelude: Option<String>,
    pub(crate) shell: Option<String>,
    pub(crate) shared_tmp: Option<bool>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) nodes: Option<Located<u32>>,
    pub(crate) tasks: Option<Located<u32>>,
    pub(crate) cores: Option<Located<u32>>,
    pub(crate) memory: Option<Located<u64>>,
    pub(crate) gpus: Option<Located<u32>>,
    pub(crate) time: Option<Nanos>,
    pub(crate) retries: u32,
    pub(crate) restart: Option<Restart>,
    pub(crate) restart_at: Option<miette::SourceSpan>,
    pub(crate) tier: Option<Located<String>>,
    pub(crate) partitions: Vec<Located<String>>,
    pub(crate) after: Vec<Located<String>>,
    pub(crate) foreach: Option<Located<RawForeach>>,
    pub(crate) max: Option<Located<u32>>,
    pub(crate) allow_empty: Option<Located<bool>>,
    pub(crate) files: Vec<Located<String>>,
    pub(crate) items: Vec<RawStepItem>,
}

impl RawStep {
    /// Nodes of the step.
    pub(crate) fn nodes(&self) -> u32 {
        value_of(&self.nodes).unwrap_or(1)
    }
}

/// Reads all steps.
pub(crate) fn read(out: &mut Findings, top: &Section<'_>) -> Vec<RawStep> {
    let Some(value) = top.get("step") else {
        out.add_breaking(
            Finding::error(FindingCode::MissingKey, "there is no step")
                .at(top.span, "the file has no `[[step]]`")
                .help("add a `[[step]]` with `name` and `run`"),
        );
        return Vec::new();
    };
    let DeValue::Array(list) = value.get_ref() else {
        out.add_breaking(not_steps("`step`", value));
        return Vec::new();
    };
    if list.is_empty() {
        out.add_breaking(
            Finding::error(FindingCode::MissingKey, "there is no step")
                .at(place(value), "empty")
                .help("add a `[[step]]` with `name` and `run`"),
        );
    }
    if list.len() > bounds::MAX_STEPS {
        out.add_breaking(
            Finding::error(
                FindingCode::TooLarge,
                format!("{} steps are too many", list.len()),
            )
            .at(
                place(value),
                format!("at most {} are allowed", bounds::MAX_STEPS),
            )
            .help("write steps that differ in one value as one `foreach` step"),
        );
        return Vec::new();
    }
    let shell = top.filled(out, "shell", SHELL).map(|s| s.value);
    let shared_tmp = shared_tmp(out, top);
    let mut steps = Vec::with_capacity(list.len());
    for (i, value) in list.iter().enumerate() {
        match value.get_ref().as_table() {
            Some(table) => {
                let mut step = step(out, i, table, place(value));
                step.shell = step.shell.or_else(|| shell.clone());
                step.shared_tmp = step.shared_tmp.or(shared_tmp);
                steps.push(step);
            }
            None => out.add_breaking(not_steps(&format!("step {}", i + 1), value)),
        }
    }
    check_names(out, &steps);
    steps
}

fn not_steps(what: &str, value: &Spanned<DeValue<'_>>) -> Finding {
    let found = kind(value.get_ref());
    let want = if what == "`step`" {
        "an array of tables"
    } else {
        "a table"
    };
    Finding::error(
        FindingCode::WrongType,
        format!("{what} must be {want}, not {found}"),
    )
    .at(place(value), found)
    .help("write each step as a separate table: `[[step]]` (two brackets), with its keys below")
}

fn step(out: &mut Findings, at: usize, table: &DeTable<'_>, span: SourceSpan) -> RawStep {
    let what = match table.get("name").and_then(|n| n.get_ref().as_str()) {
        Some(name) => format!("step {}", quoted(name)),
        None => format!("step {}", at + 1),
    };
    let section = Section::new(out, table, span, what, "a step", KEYS);
    section.require(out, "name", "\"...\"");
    section.require(out, "run", "\"command\"");
    let name = section.name(out, "name", &NAME);
    let run = section.filled(out, "run", "\"command\"");
    let prelude = section.string(out, "prelude", "\"module load gcc\"");
    let shell = section.filled(out, "shell", SHELL);
    for (key, text) in [("run", &run), ("prelude", &prelude), ("shell", &shell)] {
        if let Some(text) = text {
            refuse_item(out, key, &section.what, text);
        }
    }
    let step = RawStep {
        // The place of a nameless step is its header; the name cannot be taken for another step's.
        name: name.unwrap_or_else(|| Located::new(format!("step {}", at + 1), span)),
        run: run.map(|r| r.value).unwrap_or_default(),
        prelude: prelude.map(|p| p.value),
        shell: shell.map(|s| s.value),
        shared_tmp: shared_tmp(out, &section),
        env: env(out, &section),
        nodes: section.count(out, "nodes", 1, bounds::MAX_NODES as u32),
        tasks: section.count(out, "tasks", 1, MAX_TASKS),
        cores: section.count(out, "cores", 1, MAX_CORES),
        memory: section.size(out, "memory"),
        gpus: section.count(out, "gpus", 0, MAX_GPUS),
        time: section.time(out, "time").map(|t| t.value),
        retries: section
            .count(out, "retries", 0, bounds::MAX_RETRIES)
            .map_or(0, |r| r.value),
        restart: restart(out, &section),
        restart_at: section.get("restart").map(place),
        tier: section.name(out, "tier", &TIER_NAME),
        partitions: section
            .list(out, "partitions", "[\"field\"]")
            .unwrap_or_default(),
        after: section.list(out, "after", "[\"step\"]").unwrap_or_default(),
        foreach: foreach::read(out, &section),
        max: section.count(out, "max", 1, bounds::MAX_INSTANCES),
        allow_empty: section
            .flag(out, "allow_empty")
            .zip(section.get("allow_empty"))
            .map(|(flag, value)| Located::new(flag, place(value))),
        files: files(out, &section),
        items: item::read(out, &section),
    };
    check_tasks(out, &section, &step);
    check_image(out, &section, &step);
    // An unreadable `max` or `foreach` must not be taken for a missing one.
    out.uses_broken |= section.get("max").is_some() && step.max.is_none();
    out.uses_broken |= section.get("foreach").is_some() && step.foreach.is_none();
    step
}

/// Whether `/tmp` is that of all.
fn shared_tmp(out: &mut Findings, section: &Section<'_>) -> Option<bool> {
    let word = section.string(out, "tmp", "\"shared\"")?;
    match word.value.as_str() {
        "shared" => Some(true),
        "private" => Some(false),
        other => {
            let message = format!("`tmp` of {} cannot be {}", section.what, quoted(other));
            out.add(
                Finding::error(FindingCode::BadValue, message)
                    .at(word.span, "not known")
                    .help("write \"private\" for a /tmp of the step's own, \"shared\" for that of the node"),
            );
            None
        }
    }
}

/// Paths of files and folders that a step's result depends on.
fn files(out: &mut Findings, section: &Section<'_>) -> Vec<Located<String>> {
    let all = section.list(out, "files", "[\"params.toml\"]");
    let mut all = all.unwrap_or_default();
    all.retain(|file| {
        let why = match file.value.as_str() {
            "" => "empty",
            text if text.starts_with('~') => "`~` is not expanded",
            text if text.contains(['$', '*', '?']) => "nothing is expanded",
            text if text.contains("://") => "a URL is not a path",
            _ => return true,
        };
        out.add(
            Finding::error(
                FindingCode::BadPath,
                format!("`files` of {} has no usable path", section.what),
            )
            .at(file.span, why)
            .help("name a file or a folder, relative to the folder of the workflow file"),
        );
        false
    });
    all
}

/// How long after an image the next is taken if the step has no value, in nanoseconds: at a failure a day it costs 5
/// minutes of work on average, and an image of 10 s less than 2 % of the time.
const IMAGES_EVERY: Nanos = 600_000_000_000;

fn restart(out: &mut Findings, section: &Section<'_>) -> Option<Restart> {
    let word = section.string(out, "restart", "\"phx\"");
    let space = section.size(out, "checkpoints");
    let every = section.time(out, "images");
    let alone = section.flag(out, "alone");
    let buddy = section.flag(out, "buddy");
    let Some(word) = word else {
        if section.get("restart").is_none() {
            refuse_without_restart(out, section, &space, &every);
        }
        return None;
    };
    let from = match word.value.as_str() {
        "phx" => CheckpointMethod::Phx,
        "files" => CheckpointMethod::Files,
        "image" => CheckpointMethod::Image,
        other => {
            out.add(
                Finding::error(
                    FindingCode::BadValue,
                    format!("{} is no way to restart {}", quoted(other), section.what),
                )
                .at(word.span, "not known")
                .help("write \"phx\" for a program that uses libtarn, \"files\" for one with its own restart files, \"image\" for any other program"),
            );
            return None;
        }
    };
    let images = [
        ("images", every.as_ref().map(|e| e.span)),
        ("alone", section.get("alone").map(place)),
        ("buddy", section.get("buddy").map(place)),
    ];
    for (key, span) in images {
        let (Some(span), false) = (span, from == CheckpointMethod::Image) else {
            continue;
        };
        out.add(
            Finding::error(
                FindingCode::BadValue,
                format!(
                    "{} has `{key}`, and resumes from other checkpoints",
                    section.what
                ),
            )
            .at(span, "images of its processes are not taken")
            .help(format!("write `restart = \"image\"`, or remove `{key}`")),
        );
    }
    Some(Restart {
        from,
        space: value_of(&space).unwrap_or(0),
        every: (from == CheckpointMethod::Image).then(|| value_of(&every).unwrap_or(IMAGES_EVERY)),
        alone: alone.unwrap_or(false),
        buddy: buddy.unwrap_or(false),
    })
}

/// Keys about the restart of a step, in a step without one.
fn refuse_without_restart(
    out: &mut Findings,
    section: &Section<'_>,
    space: &Option<Located<u64>>,
    every: &Option<Located<Nanos>>,
) {
    let label = "space for checkpoints that are never used";
    without_restart(out, section, "checkpoints", space, label);
    let label = "of what is never restarted from";
    without_restart(out, section, "images", every, label);
    for key in ["alone", "buddy"] {
        let stated = section.get(key).map(|v| Located::new(0, place(v)));
        let label = "for images that are never taken";
        without_restart(out, section, key, &stated, label);
    }
}

fn without_restart(
    out: &mut Findings,
    section: &Section<'_>,
    key: &str,
    value: &Option<Located<u64>>,
    label: &str,
) {
    if let Some(value) = value {
        out.add(
            Finding::error(
                FindingCode::MissingKey,
                format!("{} has `{key}` and no `restart`", section.what),
            )
            .at(value.span, label)
            .help("add `restart = \"phx\"`, `restart = \"files\"` or `restart = \"image\"`, or remove it"),
        );
    }
}

/// Refuses the settings that an image of a step's processes cannot hold.
fn check_image(out: &mut Findings, section: &Section<'_>, step: &RawStep) {
    if step
        .restart
        .is_none_or(|r| r.from != CheckpointMethod::Image)
    {
        return;
    }
    let mut refuse = |at: &Located<u32>, what: &str| {
        out.add(
            Finding::error(
                FindingCode::BadValue,
                format!("{} has `restart = \"image\"` and {what}", section.what),
            )
            .at(at.span, "no image of its processes can hold this")
            .help("write `restart = \"phx\"` or `restart = \"files\"` for a program that makes its checkpoints itself, or remove one of the two"),
        );
    };
    if let Some(nodes) = step.nodes.as_ref().filter(|n| n.value > 1) {
        refuse(nodes, "several nodes: connections between them would break");
    }
    if let Some(gpus) = step.gpus.as_ref().filter(|g| g.value > 0) {
        refuse(gpus, "GPUs, whose memory is not in it");
    }
}

fn refuse_item(out: &mut Findings, key: &str, what: &str, text: &Located<String>) {
    if text.value.contains(ITEM) {
        out.add(
            Finding::error(FindingCode::BadItem, format!("`{ITEM}` cannot stand in `{key}` of {what}"))
                .at(out.find(text.span, ITEM), "not replaced here")
                .help("write \"$TARN_ITEM\" (with the quotes): text put into a shell command would be read as shell code"),
        );
    }
}

fn check_tasks(out: &mut Findings, section: &Section<'_>, step: &RawStep) {
    if let (Some(tasks), nodes) = (&step.tasks, step.nodes())
        && tasks.value < nodes
    {
        let mut problem = Finding::error(
            FindingCode::BadValue,
            format!(
                "{} has fewer tasks ({}) than nodes ({nodes})",
                section.what, tasks.value
            ),
        )
        .at(tasks.span, "ranks over all nodes");
        if let Some(nodes) = &step.nodes {
            problem = problem.at(nodes.span, "nodes");
        }
        out.add(problem.help("every node gets at least one rank: raise `tasks`, or lower `nodes`"));
    }
}

fn env(out: &mut Findings, section: &Section<'_>) -> BTreeMap<String, String> {
    let Some(value) = section.get("env") else {
        return BTreeMap::new();
    };
    let Some(table) = value.get_ref().as_table() else {
        section.wrong_type(
            out,
            "env",
            value,
            "a table of strings",
            "{ OMP_NUM_THREADS = \"4\" }",
        );
        return BTreeMap::new();
    };
    let mut env = BTreeMap::new();
    for (key, value) in in_order(table) {
        let valid = check_variable(out, &key, &section.what);
        match value.get_ref().as_str() {
            Some(text) if valid && no_nul(out, text, place(value)) => {
                env.insert(key.value.to_owned(), text.to_owned());
                if text.contains(ITEM) && section.get("foreach").is_none() {
                    out.add(item_without_foreach(
                        out.find(place(value), ITEM),
                        &section.what,
                    ));
                }
            }
            Some(_) => {}
            None => out.add(
                Finding::error(
                    FindingCode::WrongType,
                    format!("`env` of {} must hold strings", section.what),
                )
                .at(place(value), kind(value.get_ref()))
                .help("put the value in quotes: variables are text"),
            ),
        }
    }
    env
}

fn check_variable(out: &mut Findings, key: &Located<&str>, what: &str) -> bool {
    let mut letters = key.value.chars();
    let first = letters
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    let problem = if !first || !letters.all(|c| c.is_ascii_alphanumeric() || c == '_') {
        Finding::error(
            FindingCode::BadName,
            format!("{} is not a name for a variable", quoted(key.value)),
        )
        .at(key.span, "in `env`")
        .help("a variable name is a letter or `_`, then letters, digits and `_`")
    } else if key.value.starts_with("TARN_") {
        Finding::error(
            FindingCode::ReservedEnv,
            format!("{what} sets `{}`", quoted(key.value).trim_matches('`')),
        )
        .at(key.span, "names that begin with TARN_ are tarn's own")
        .help("choose another name; a dataset is at $TARN_<name>, an element in $TARN_ITEM")
    } else {
        return true;
    };
    out.add(problem);
    false
}

fn check_names(out: &mut Findings, steps: &[RawStep]) {
    let mut seen: HashMap<&str, SourceSpan> = HashMap::with_capacity(steps.len());
    for step in steps {
        match seen.get(step.name.value.as_str()) {
            None => {
                seen.insert(&step.name.value, step.name.span);
            }
            Some(first) => out.add(
                Finding::error(FindingCode::DuplicateName, format!("two steps are named {}", quoted(&step.name.value)))
                    .at(step.name.span, "again here")
                    .at(*first, "first here")
                    .help("give each step its own name; steps that differ in one value can be one `foreach` step"),
            ),
        }
    }
}
