//! The `#SBATCH` lines of a script, as far as a step has keys for them: sbatch(1).

use crate::diag::{Finding, FindingCode, Findings, quoted};
use std::ops::Range;
use std::path::Path;
use tarn_types::bounds;
use toml::Value;

/// The beginning of a line for sbatch.
const WORD: &str = "#SBATCH";
/// Characters of a path that a shell takes as they are, beside letters and digits.
const PLAIN: &str = "/._-+,:@%";
/// Characters of a name for which a command has to be taken apart as a shell does: a change of the script could not be noticed.
const EXPANDED: &[char] = &['$', '*', '?', '[', '`', '"', '\'', '\\', '\n'];

/// An option with a value that is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SbatchOption {
    Nodes,
    Tasks,
    TasksPerNode,
    Cpus,
    Memory,
    Gpus,
    Gres,
    Time,
    Name,
    Array,
}

/// Their long names, their letters, and the kind of their value.
const OPTIONS: &[(SbatchOption, &str, Option<char>, &str)] = &[
    (
        SbatchOption::Nodes,
        "nodes",
        Some('N'),
        "a number of nodes, or the least and the most: `4`, `2-4`",
    ),
    (SbatchOption::Tasks, "ntasks", Some('n'), "a number"),
    (
        SbatchOption::TasksPerNode,
        "ntasks-per-node",
        None,
        "a number",
    ),
    (
        SbatchOption::TasksPerNode,
        "tasks-per-node",
        None,
        "a number",
    ),
    (SbatchOption::Cpus, "cpus-per-task", Some('c'), "a number"),
    (
        SbatchOption::Memory,
        "mem",
        None,
        "a size: `4G`; without a unit MiB",
    ),
    (
        SbatchOption::Gpus,
        "gpus-per-node",
        None,
        "a number, perhaps behind a type: `2`, `a100:2`",
    ),
    (
        SbatchOption::Gres,
        "gres",
        None,
        "names and numbers: `gpu:2`",
    ),
    (
        SbatchOption::Time,
        "time",
        Some('t'),
        "minutes, or `[days-]hours:minutes:seconds`",
    ),
    (SbatchOption::Name, "job-name", Some('J'), "a name"),
    (
        SbatchOption::Array,
        "array",
        Some('a'),
        "numbers and ranges: `0-15`, `1,3,5`, `0-30:10%4`",
    ),
];

/// The value of an option, and its place.
struct SbatchValue {
    option: SbatchOption,
    text: String,
    span: Range<usize>,
}

/// A job, as its script describes it.
pub(super) struct SbatchJob {
    /// The script, as the user names it.
    pub(super) script: String,
    /// The name of the step, unless it has one itself.
    pub(super) name: String,
    /// The first line of the script: the place of keys that it does not have.
    pub(super) place: Range<usize>,
    /// Keys of a step with their values in TOML, and their places.
    keys: Vec<(&'static str, String, Range<usize>)>,
}

impl SbatchJob {
    /// Reads a script that begins at `start` of all texts. Of an array at most so many `elements` are kept.
    pub(super) fn read(
        out: &mut Findings,
        (script, text): (&str, &str),
        start: usize,
        elements: usize,
    ) -> Self {
        let first = text.lines().next().unwrap_or_default();
        let given = options(text, start);
        let stem = Path::new(script).file_stem().unwrap_or_default();
        let name = last(&given, SbatchOption::Name).map(|given| given.text.clone());
        let mut job = Self {
            script: script.to_owned(),
            name: step_name(
                &name
                    .clone()
                    .unwrap_or_else(|| stem.to_string_lossy().into_owned()),
            ),
            place: start..start + first.len(),
            keys: Vec::new(),
        };
        let Some(interpreter) = first.strip_prefix("#!").filter(|it| !it.trim().is_empty()) else {
            out.add(
                Finding::error(
                    FindingCode::BadDirective,
                    format!("{} is no script for sbatch", quoted(script)),
                )
                .at(job.place.clone().into(), "this is not `#!` and a program")
                .help("begin it with `#!/bin/bash`"),
            );
            return job;
        };
        for (span, why, hint) in unusable(script, text, start) {
            out.add(
                Finding::error(
                    FindingCode::BadDirective,
                    format!("{} cannot be a step", quoted(script)),
                )
                .at(span.into(), why)
                .help(hint),
            );
        }
        let stated = job.add_resources(out, &given);
        job.add_limits(out, &given);
        let place = job.place.clone();
        let file = Path::new(script).file_name().unwrap_or_default();
        let called = name.unwrap_or_else(|| file.to_string_lossy().into_owned());
        job.add_environment(out, &given, &called, elements);
        let run = run_line(script, interpreter, &stated);
        job.add_key("run", run.into(), &place);
        job.add_key("name", job.name.clone().into(), &place);
        job
    }

    /// Adds nodes, tasks, cores and GPUs. Returns the stated ones, as the shell sets variables before a command.
    fn add_resources(&mut self, out: &mut Findings, given: &[SbatchValue]) -> String {
        let number = |out: &mut Findings, option| {
            let given = last(given, option)?;
            let number = number(option, &given.text);
            Some((checked(out, given, number)?, given.span.clone()))
        };
        let nodes = number(out, SbatchOption::Nodes);
        let per_node = number(out, SbatchOption::TasksPerNode);
        let cpus = number(out, SbatchOption::Cpus);
        let all = number(out, SbatchOption::Tasks);
        let nodes = nodes.or_else(|| {
            let ((each, span), (all, _)) = (per_node.as_ref()?, all.as_ref()?);
            Some((all.div_ceil((*each).max(1)), span.clone()))
        });
        let on = nodes.as_ref().map_or(1, |(nodes, _)| *nodes);
        let tasks = all.or_else(|| {
            let (each, span) = per_node.clone()?;
            Some((each.saturating_mul(on), span))
        });
        let stated = [
            ("SLURM_JOB_NUM_NODES", &nodes),
            ("SLURM_NTASKS", &tasks),
            ("SLURM_CPUS_PER_TASK", &cpus),
        ];
        let stated: String = stated
            .into_iter()
            .filter_map(|(name, value)| Some(format!("{name}={} ", value.as_ref()?.0)))
            .collect();
        let each = tasks
            .as_ref()
            .map_or(1, |(tasks, _)| tasks.div_ceil(on.max(1)));
        let cores = cpus.or_else(|| Some((1, tasks.as_ref()?.1.clone())));
        let cores = cores.map(|(cpus, span)| (cpus.saturating_mul(each.max(1)), span));
        let gpus = number(out, SbatchOption::Gpus).or_else(|| number(out, SbatchOption::Gres));
        for (key, value) in [
            ("nodes", nodes),
            ("tasks", tasks),
            ("cores", cores),
            ("gpus", gpus),
        ] {
            if let Some((number, span)) = value {
                self.keys.push((key, number.to_string(), span));
            }
        }
        stated
    }

    /// Memory and time.
    fn add_limits(&mut self, out: &mut Findings, given: &[SbatchValue]) {
        if let Some(given) = last(given, SbatchOption::Memory)
            && let Some(mib) = checked(out, given, mib(&given.text)).filter(|mib| *mib > 0)
        {
            self.add_key("memory", format!("{mib} MiB").into(), &given.span);
        }
        if let Some(given) = last(given, SbatchOption::Time)
            && let Some(Some(seconds)) = checked(out, given, seconds(&given.text))
        {
            self.add_key("time", format!("{seconds} s").into(), &given.span);
        }
    }

    /// The variables of the job and of its array, which is a `foreach`.
    fn add_environment(
        &mut self,
        out: &mut Findings,
        given: &[SbatchValue],
        called: &str,
        elements: usize,
    ) {
        let mut env = vec![("SLURM_JOB_NAME", called.replace("{item}", "item"))];
        let mut at = self.place.clone();
        if let Some(given) = last(given, SbatchOption::Array)
            && let Some(all) = checked(out, given, array(&given.text, elements))
        {
            let apart = all.windows(2).map(|two| two[1] - two[0]).min().unwrap_or(1);
            let ends = [all.first(), all.last()].map(|id| id.copied().unwrap_or(0));
            env.extend([
                ("SLURM_ARRAY_TASK_ID", "{item}".to_owned()),
                ("SLURM_ARRAY_TASK_COUNT", all.len().to_string()),
                ("SLURM_ARRAY_TASK_MIN", ends[0].to_string()),
                ("SLURM_ARRAY_TASK_MAX", ends[1].to_string()),
                ("SLURM_ARRAY_TASK_STEP", apart.to_string()),
            ]);
            let all = all.iter().map(|id| Value::from(id.to_string())).collect();
            self.add_key("foreach", Value::Array(all), &given.span);
            at = given.span.clone();
        }
        let env = env.into_iter();
        let env = env.map(|(name, value)| (name.to_owned(), Value::from(value)));
        self.add_key("env", Value::Table(env.collect()), &at);
    }

    fn add_key(&mut self, key: &'static str, value: Value, span: &Range<usize>) {
        self.keys.push((key, value.to_string(), span.clone()));
    }

    /// The keys of the step that it is, in TOML.
    pub(super) fn as_step(&self) -> String {
        let lines = self
            .keys
            .iter()
            .map(|(key, value, _)| format!("{key} = {value}\n"));
        lines.collect()
    }

    /// The place of a key.
    pub(super) fn place_of(&self, key: &str) -> Range<usize> {
        let found = self.keys.iter().find(|(name, _, _)| *name == key);
        found.map_or_else(|| self.place.clone(), |(_, _, span)| span.clone())
    }
}

/// The value of an option: the last counts.
fn last(given: &[SbatchValue], option: SbatchOption) -> Option<&SbatchValue> {
    given.iter().rev().find(|given| given.option == option)
}

/// The command that runs a script with its interpreter, `stated` before it.
fn run_line(script: &str, interpreter: &str, stated: &str) -> String {
    // As the kernel does: a program, and perhaps one argument.
    let interpreter = interpreter.trim();
    let (program, argument) = interpreter
        .split_once(char::is_whitespace)
        .unwrap_or((interpreter, ""));
    let mut command = shell_word(program);
    if !argument.is_empty() {
        command = format!("{command} {}", shell_word(argument.trim()));
    }
    let dash = if script.starts_with('-') { "./" } else { "" };
    format!(
        "cd \"$TARN_WORKFLOW_DIR\" && SLURM_SUBMIT_DIR=\"$TARN_WORKFLOW_DIR\" {stated}{command} {}",
        shell_word(&format!("{dash}{script}"))
    )
}

/// The value of an option, or a problem where it has none.
fn checked<T>(out: &mut Findings, given: &SbatchValue, value: Option<T>) -> Option<T> {
    if value.is_none() {
        let all = OPTIONS.iter().find(|(option, ..)| *option == given.option);
        let (long, want) = all.map_or(("", ""), |(_, long, _, want)| (*long, *want));
        out.add(
            Finding::error(
                FindingCode::BadValue,
                format!("`--{long}` cannot be {}", quoted(&given.text)),
            )
            .at(given.span.clone().into(), "not understood")
            .help(format!("write {want}, as sbatch(1) has it")),
        );
    }
    value
}

/// The reasons why a script cannot be a step: the place, the reason, and the remedy.
fn unusable(
    script: &str,
    text: &str,
    start: usize,
) -> Vec<(Range<usize>, &'static str, &'static str)> {
    let mut all = Vec::new();
    if script.contains(EXPANDED) {
        all.push((
            start..start,
            "the script's name holds what a shell changes",
            "give it a name without `$`, `*`, `?`, `[`, quotes and backslashes",
        ));
    }
    let mut at = start;
    for line in text[..super::head(text)].split_inclusive('\n') {
        let span = at..at + line.trim_end().len();
        at += line.len();
        if line.ends_with("\r\n") && all.is_empty() {
            let why = "its lines end as those of DOS do";
            all.push((span.clone(), why, "convert it: dos2unix does"));
        }
        let mut words = line
            .strip_prefix(WORD)
            .unwrap_or_default()
            .split_whitespace();
        let word = words.next().unwrap_or_default().to_ascii_lowercase();
        if ["hetjob", "packjob"].contains(&word.as_str()) {
            let hint = "write a script for each component, and name them together";
            all.push((span, "a heterogeneous job is several", hint));
        }
    }
    all
}

/// All options that are looked at, in the order of the script.
fn options(text: &str, start: usize) -> Vec<SbatchValue> {
    let mut all = Vec::new();
    let mut at = start;
    for line in text[..super::head(text)].split_inclusive('\n') {
        if let Some(rest) = line.strip_prefix(WORD) {
            line_of(&mut all, rest, at + WORD.len());
        }
        at += line.len();
    }
    all
}

/// The options of a line.
fn line_of(all: &mut Vec<SbatchValue>, line: &str, at: usize) {
    let mut words = words(line).into_iter().peekable();
    while let Some((word, span)) = words.next() {
        let known = OPTIONS.iter().find_map(|(option, long, letter, _)| {
            let rest = match word.strip_prefix("--") {
                Some(word) => word.strip_prefix(long)?,
                None => word.strip_prefix('-')?.strip_prefix((*letter)?)?,
            };
            let is_long = word.starts_with("--");
            match rest.strip_prefix('=') {
                Some(value) => Some((*option, Some(value.to_owned()))),
                None if rest.is_empty() => Some((*option, None)),
                None => (!is_long).then(|| (*option, Some(rest.to_owned()))),
            }
        });
        let Some((option, value)) = known else {
            continue;
        };
        let (text, end) = match value {
            Some(value) => (value, span.end),
            // A value that is missing at the end of the line is empty.
            None => words
                .next()
                .map_or((String::new(), span.end), |(word, next)| (word, next.end)),
        };
        let span = at + span.start..at + end;
        all.push(SbatchValue { option, text, span });
    }
}

/// The words of a line, without quotes, up to a comment.
fn words(line: &str) -> Vec<(String, Range<usize>)> {
    let mut all: Vec<(String, Range<usize>)> = Vec::new();
    let mut quote = None;
    let mut is_word = false;
    for (at, c) in line.char_indices() {
        match quote {
            None if c.is_whitespace() => {
                is_word = false;
                continue;
            }
            None if c == '#' && !is_word => break,
            _ => {}
        }
        if !is_word {
            is_word = true;
            all.push((String::new(), at..at));
        }
        let Some((word, span)) = all.last_mut() else {
            break;
        };
        span.end = at + c.len_utf8();
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '"' || c == '\'' => quote = Some(c),
            _ => word.push(c),
        }
    }
    all
}

/// A number that an option has; the least where it has two.
fn number(option: SbatchOption, text: &str) -> Option<u32> {
    match option {
        SbatchOption::Nodes => text.split('-').next()?.parse().ok(),
        SbatchOption::Gpus => text.split(',').map(gpus).sum(),
        SbatchOption::Gres => {
            let all = text.split(',').map(str::trim);
            let all = all.map(|it| it.strip_prefix("gres:").unwrap_or(it));
            let ours = all.filter_map(|it| it.strip_prefix("gpu"));
            let ours = ours.filter(|it| it.is_empty() || it.starts_with(':'));
            ours.map(|it| gpus(it.trim_start_matches(':'))).sum()
        }
        _ => text.parse().ok(),
    }
}

/// GPUs of `2`, of `a100:2`, or of a type alone, which is one.
fn gpus(text: &str) -> Option<u32> {
    let count = text.rsplit(':').next().unwrap_or_default().trim();
    match count.starts_with(|c: char| c.is_ascii_digit()) {
        true => count.parse().ok(),
        false => Some(1),
    }
}

/// MiB of a size; 0 for all that a node has.
fn mib(text: &str) -> Option<u64> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    match text[digits..].trim_end_matches(['b', 'B']) {
        "" | "m" | "M" => Some(number),
        "k" | "K" => Some(number.div_ceil(1024)),
        "g" | "G" => number.checked_mul(1 << 10),
        "t" | "T" => number.checked_mul(1 << 20),
        _ => None,
    }
}

/// Seconds of a limit; none in it where there is no limit.
fn seconds(text: &str) -> Option<Option<u64>> {
    if ["infinite", "unlimited"].contains(&text.to_ascii_lowercase().as_str()) || text == "-1" {
        return Some(None);
    }
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (days.parse::<u64>().ok()?, Some(clock)),
        None => (0, None),
    };
    let parts: Vec<u64> = clock
        .unwrap_or(text)
        .split(':')
        .map(|part| part.parse().ok())
        .collect::<Option<_>>()?;
    // Behind days come hours; else one number is minutes, and two are minutes and seconds.
    let (hours, minutes, rest) = match (clock.is_some(), parts.as_slice()) {
        (true, [hours]) => (*hours, 0, 0),
        (true, [hours, minutes]) => (*hours, *minutes, 0),
        (false, [minutes]) => (0, *minutes, 0),
        (false, [minutes, seconds]) => (0, *minutes, *seconds),
        (_, [hours, minutes, seconds]) => (*hours, *minutes, *seconds),
        _ => return None,
    };
    let hours = days.checked_mul(24)?.checked_add(hours)?;
    let minutes = hours.checked_mul(60)?.checked_add(minutes)?;
    let all = minutes.checked_mul(60)?.checked_add(rest)?;
    // Slurm counts in minutes. 0 is no limit.
    let all = all.div_ceil(60).checked_mul(60)?;
    Some(Some(all).filter(|all| *all > 0))
}

/// The numbers of an array's jobs, each once, and at most so many of them.
fn array(text: &str, elements: usize) -> Option<Vec<u32>> {
    let most = bounds::MAX_INSTANCES as usize;
    let text = match text.rsplit_once('%') {
        Some((text, limit)) => limit.parse::<u32>().ok().map(|_| text)?,
        None => text,
    };
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let text = bare.unwrap_or(text);
    let mut all = std::collections::BTreeSet::new();
    let mut named = 0;
    for part in text.split(',') {
        let (range, step) = part.split_once(':').unwrap_or((part, "1"));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        let step: usize = step.parse().ok().filter(|step| *step > 0)?;
        named += last.checked_sub(first)? as usize / step + 1;
        // Those that are named twice cost time as well.
        if named > most {
            return None;
        }
        let space = elements.saturating_sub(all.len());
        all.extend((first..=last).step_by(step).take(space));
    }
    Some(all.into_iter().collect())
}

/// A name of a step for a job of any name.
fn step_name(text: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let text = text.chars().map(|c| if fits(c) { c } else { '_' });
    let name: String = text.take(bounds::MAX_NAME_BYTES).collect();
    match name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
        true => name,
        false => format!("_{}", name.get(1..).unwrap_or_default()),
    }
}

/// A path in the quotes that a shell needs.
fn shell_word(path: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || PLAIN.contains(c);
    match path.chars().all(is_plain) {
        true => path.to_owned(),
        false => format!("'{}'", path.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_sbatch_does() {
        let text = "#!/bin/sh\n#SBATCH -N 2-4 -n16 --time=1-2 # -n 3\n\n#SBATCH --job-name='a b' --mem 4G -p debug\n\
                    #SBATCH-c 2\n # SBATCH -n 2\nhostname\n#SBATCH -n 4\n";
        let all = options(text, 100);
        let all: Vec<_> = all
            .iter()
            .map(|it| {
                (
                    it.option,
                    it.text.as_str(),
                    &text[it.span.start - 100..it.span.end - 100],
                )
            })
            .collect();
        assert_eq!(
            all,
            [
                (SbatchOption::Nodes, "2-4", "-N 2-4"),
                (SbatchOption::Tasks, "16", "-n16"),
                (SbatchOption::Time, "1-2", "--time=1-2"),
                (SbatchOption::Name, "a b", "--job-name='a b'"),
                (SbatchOption::Memory, "4G", "--mem 4G"),
                (SbatchOption::Cpus, "2", "-c 2"),
            ]
        );
    }

    #[test]
    fn values_are_those_of_sbatch() {
        for (text, all) in [
            ("90", Some(Some(5400))),
            ("1:30", Some(Some(120))),
            ("1:00:01", Some(Some(3660))),
            ("1-2", Some(Some(26 * 3600))),
            ("1-2:30", Some(Some(26 * 3600 + 1800))),
            ("0-0:0:5", Some(Some(60))),
            ("0", Some(None)),
            ("UNLIMITED", Some(None)),
            ("1:2:3:4", None),
            ("soon", None),
            ("", None),
            ("1-", None),
        ] {
            assert_eq!(seconds(text), all, "{text}");
        }
        for (text, all) in [
            ("4G", Some(4096)),
            ("4000", Some(4000)),
            ("1T", Some(1 << 20)),
            ("1025K", Some(2)),
            ("2GB", Some(2048)),
            ("0", Some(0)),
            ("4X", None),
            ("G", None),
            ("18446744073709551615T", None),
        ] {
            assert_eq!(mib(text), all, "{text}");
        }
        for (text, all) in [
            ("gpu:2", Some(2)),
            ("gpu", Some(1)),
            ("scm:4G,gpu:a100:3,gres:gpu:2", Some(5)),
            ("gpu:a100", Some(1)),
            ("scm:4G", Some(0)),
            ("gpux:3", Some(0)),
            ("gpu:1K", None),
        ] {
            assert_eq!(number(SbatchOption::Gres, text), all, "{text}");
        }
        for (text, all) in [
            ("2", Some(2)),
            ("volta:3,kepler:5", Some(8)),
            ("a100", Some(1)),
            ("x:2y", None),
        ] {
            assert_eq!(number(SbatchOption::Gpus, text), all, "{text}");
        }
        for (text, all) in [
            ("0-3", Some(vec![0, 1, 2, 3])),
            ("1,5,3,5", Some(vec![1, 3, 5])),
            ("0-10:5%2", Some(vec![0, 5, 10])),
            ("[1-3]", Some(vec![1, 2, 3])),
            ("0-3%2,5", None),
            ("4-2", None),
            ("0-4294967295", None),
            ("1-2:0", None),
            ("", None),
            ("a", None),
        ] {
            assert_eq!(array(text, usize::MAX), all, "{text}");
        }
        assert_eq!(array("1-999999,7", 1), Some(vec![1]));
    }

    #[test]
    fn names_are_made_to_fit() {
        assert_eq!(step_name("my job (1)"), "my_job__1_");
        assert_eq!(
            (step_name("-x").as_str(), step_name("").as_str()),
            ("_x", "_")
        );
        assert_eq!(step_name(&"ä".repeat(100)), "_".repeat(64));
        assert_eq!(shell_word("jobs/a.sh"), "jobs/a.sh");
        assert_eq!(shell_word("it's"), "'it'\\''s'");
    }
}
