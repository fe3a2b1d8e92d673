//! A workflow from sbatch scripts: each script is a step. The content of their `#TARN` lines is put together to one
//! document, with the options of their `#SBATCH` lines in the same keys, and checked as any workflow file is.
//! docs/guide/sbatch-scripts.md.

mod sbatch;
pub(crate) mod variables;

use crate::diag::{Finding, FindingCode, Findings, SpecError, quoted};
use crate::elsewhere::no_workflow;
use crate::parsed::{Parsed, check, refuse, syntax, too_large};
use crate::section::{in_order, integer, place};
use crate::text::SourceFiles;
use sbatch::SbatchJob;
use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use tarn_types::bounds;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The beginning of a line for tarn.
const WORD: &str = "#TARN";
/// Bytes of the `#TARN` lines of a script: slurmctld waits while they are read.
const MAX_LINES_BYTES: usize = 64 << 10;
/// Datasets and partitions of a job: the controller of a site keeps all of them in memory, and looks through them often.
const MAX_JOB_DATA: usize = 1024;
/// Keys of a step that the job has by other means, and these means.
const SET_ELSEWHERE: &[(&str, &str)] = &[
    ("run", "the script itself is what is run"),
    ("prelude", "write it into the script"),
    ("shell", "the first line of the script names what runs it"),
    ("env", "export it in the script"),
    ("nodes", "`#SBATCH --nodes` sets it"),
    ("tasks", "`#SBATCH --ntasks` sets it"),
    ("cores", "`#SBATCH --cpus-per-task` sets it"),
    ("memory", "`#SBATCH --mem` sets it"),
    ("gpus", "`#SBATCH --gpus-per-node` sets it"),
    ("time", "`#SBATCH --time` sets it"),
    ("foreach", "`#SBATCH --array` sets it"),
    ("max", "`#SBATCH --array` sets it"),
];

/// An sbatch script.
#[derive(Debug, Clone, Copy)]
pub struct SbatchScript<'a> {
    /// Its path as the user names it: for messages, and to be run from the folder where the job is submitted.
    pub name: &'a str,
    /// Its text.
    pub text: &'a str,
}

/// Reads and checks sbatch scripts that are one workflow, in the order of their submission. `folder` is where
/// they are submitted, absolute: relative paths start there, and each script runs there. Nothing is read or
/// looked up beside the texts.
///
/// # Errors
/// All that is wrong with them.
///
/// # Examples
/// ```
/// use tarn_spec::{SbatchScript, parse_scripts};
///
/// let text = r#"#!/bin/bash
/// #SBATCH --job-name=count
/// #TARN name = "words"
/// #TARN data.text.source = "books"
/// #TARN data.total.dest = "result"
/// #TARN [[step]]
/// #TARN in = ["text"]
/// #TARN out = ["total"]
/// cat $TARN_text/* | wc -w > $TARN_total/words
/// "#;
/// let scripts = [SbatchScript { name: "count.sbatch", text }];
/// let parsed = parse_scripts(&scripts, "/home/me".as_ref())?;
/// assert_eq!(&*parsed.workflow.steps[0].name, "count");
/// # Ok::<(), tarn_spec::SpecError>(())
/// ```
pub fn parse_scripts(scripts: &[SbatchScript<'_>], folder: &Path) -> Result<Parsed, SpecError> {
    let bytes = scripts.iter().map(|script| script.text.len()).sum();
    let Some((first, others)) = scripts.split_first() else {
        return refuse(Findings::new(Arc::new(SourceFiles::new("", ""))), "nothing");
    };
    if bytes > bounds::MAX_WORKFLOW_BYTES {
        return Err(too_large(first.name, bytes));
    }
    let mut text = SourceFiles::new(first.name, first.text);
    let starts = others.iter().map(|it| text.add(it.name, it.text));
    let starts: Vec<usize> = std::iter::once(0).chain(starts).collect();
    let mut out = Findings::new(Arc::new(text));
    let texts: Vec<String> = scripts.iter().map(|it| directives(it.text)).collect();
    let jobs: Vec<SbatchJob> = scripts
        .iter()
        .zip(&starts)
        .map(|(script, start)| SbatchJob::read(&mut out, (script.name, script.text), *start, ALL))
        .collect();
    let keys: Vec<String> = jobs.iter().map(SbatchJob::as_step).collect();
    let mut whole = DeTable::new();
    for (at, script) in scripts.iter().enumerate() {
        let (mut document, errors) = DeTable::parse_recoverable(&texts[at]);
        let is_right = errors.is_empty();
        for error in errors {
            out.add(syntax(&error, starts[at]));
        }
        if !is_right {
            continue;
        }
        if texts[at].trim().is_empty() {
            out.add(missing_tarn_lines(script.name, starts[at]));
            continue;
        }
        let document = std::mem::take(document.get_mut());
        let mut document = moved(document, starts[at]);
        step(&mut out, &mut document, &jobs[at], &keys[at]);
        if scripts.len() == 1 {
            name(&mut document, &jobs[at]);
        } else if !document.contains_key("name") {
            out.add(nameless(&jobs[at]));
        }
        join(&mut out, &mut whole, document);
    }
    let mut ignored = Vec::new();
    for (script, start) in scripts.iter().zip(&starts) {
        ignored.extend(unread(script.text).map(|span| not_read(span, *start)));
        ignored.extend(variables::not_set(script.text).map(|read| variables::note(read, *start)));
    }
    match out.is_empty() {
        true => {
            let mut parsed = check(out, &whole, folder)?;
            parsed.add_notes(ignored);
            Ok(parsed)
        }
        false => refuse(out, first.name),
    }
}

/// A job's script by itself.
#[derive(Debug, Clone)]
pub struct JobScript {
    /// A workflow of one step. A dataset without a source that it only reads is another job's.
    pub parsed: Parsed,
    /// It has no `name`: it is a workflow by itself.
    pub is_alone: bool,
}

/// Reads and checks the script of one job of a site. Its workflow may have other jobs: the script need not
/// describe their outputs, or how they divide these. `folder` is where it was submitted. `None` when it has no
/// `#TARN` line; a job that is `chained` is a part of a workflow in any case.
///
/// # Errors
/// All that is wrong with it.
///
/// # Examples
/// ```
/// use tarn_spec::{SbatchScript, parse_job};
///
/// let plain = SbatchScript { name: "job", text: "#!/bin/sh\n#SBATCH -n 4\nsrun ./solve\n" };
/// assert!(parse_job(&plain, "/home/me".as_ref(), false)?.is_none()); // nothing for tarn
/// # Ok::<(), tarn_spec::SpecError>(())
/// ```
pub fn parse_job(
    script: &SbatchScript<'_>,
    folder: &Path,
    chained: bool,
) -> Result<Option<JobScript>, SpecError> {
    let bytes = script.text.len();
    if bytes > bounds::MAX_WORKFLOW_BYTES {
        return Err(too_large(script.name, bytes));
    }
    let mut out = Findings::new(Arc::new(SourceFiles::new(script.name, script.text)));
    let text = directives(script.text);
    if text.trim().is_empty() && !chained {
        return Ok(None);
    }
    let bytes: usize = text.lines().map(|line| line.trim().len()).sum();
    if bytes > MAX_LINES_BYTES {
        let what = format!("its `{WORD}` lines have {bytes} bytes");
        return Err(too_much(script.name, what, MAX_LINES_BYTES));
    }
    // Slurm has the array. This runs inside slurmctld too, which is not to be held up by a long one.
    let job = SbatchJob::read(&mut out, (script.name, script.text), 0, 1);
    let keys = job.as_step();
    let (mut document, errors) = DeTable::parse_recoverable(&text);
    for error in errors {
        out.add(syntax(&error, 0));
    }
    if !out.is_empty() {
        return refuse(out, script.name);
    }
    let mut document = std::mem::take(document.get_mut());
    step(&mut out, &mut document, &job, &keys);
    let is_alone = !document.contains_key("name");
    if is_alone {
        name(&mut document, &job);
    }
    if !is_alone || chained {
        open(&mut document, &job);
    }
    if !out.is_empty() {
        return refuse(out, script.name);
    }
    let mut parsed = check(out, &document, folder)?;
    let data = parsed.workflow.data.len() + parsed.workflow.partitions.len();
    if data > MAX_JOB_DATA {
        let what = format!("it has {data} datasets and partitions");
        return Err(too_much(script.name, what, MAX_JOB_DATA));
    }
    parsed.add_notes(unread(script.text).map(|span| not_read(span, 0)));
    for dataset in &mut parsed.workflow.data {
        if dataset.source.as_deref() == Some(Path::new(OTHERS)) {
            dataset.source = None;
        }
        if dataset
            .scatter
            .as_ref()
            .is_some_and(|r| r.as_str() == OTHERS_RULE)
        {
            dataset.scatter = None;
        }
    }
    let mut data = parsed.workflow.data.iter().zip(&parsed.spans.data);
    let unnamed = data.find_map(|(dataset, spans)| no_workflow(dataset, spans.elsewhere));
    match unnamed {
        Some(finding) => {
            let mut out = Findings::new(parsed.source.clone());
            out.add(finding);
            Err(out.into_rejected())
        }
        None => Ok(Some(JobScript { parsed, is_alone })),
    }
}

/// All elements of an array.
const ALL: usize = bounds::MAX_INSTANCES as usize;

/// The placeholders for the source and for the rule of a dataset that another job makes. No file can have this
/// name.
const OTHERS: &str = "/dev/null/made by another job";
const OTHERS_RULE: &str = "made by another job {rank}";

/// Gives the placeholders to each dataset of the step for which the script has no source or no rule.
fn open(document: &mut DeTable<'_>, job: &SbatchJob) {
    let used = used_by(document);
    let spanned = |value| Spanned::new(job.place.clone(), value);
    let key = |text: &str| spanned_key(job, text);
    let data = document
        .entry(key("data"))
        .or_insert_with(|| spanned(DeValue::Table(DeTable::new())));
    let DeValue::Table(data) = data.get_mut() else {
        return;
    };
    for (dataset, is_scattered, is_read) in used {
        let about = data
            .entry(key(&dataset))
            .or_insert_with(|| spanned(DeValue::Table(DeTable::new())));
        let DeValue::Table(about) = about.get_mut() else {
            continue;
        };
        let text = |value: &str| spanned(DeValue::String(Cow::Owned(value.to_owned())));
        // Another workflow's or a project's dataset is there, and nobody divides it.
        if about.contains_key("of") || about.contains_key("project") {
            continue;
        }
        if is_read {
            about.entry(key("source")).or_insert_with(|| text(OTHERS));
        }
        if is_scattered {
            about
                .entry(key("scatter"))
                .or_insert_with(|| text(OTHERS_RULE));
        }
    }
}

fn spanned_key<'d>(job: &SbatchJob, text: &str) -> Spanned<Cow<'d, str>> {
    Spanned::new(job.place.clone(), Cow::Owned(text.to_owned()))
}

/// The datasets that the script's step uses, whether it scatters them, and whether it reads them.
fn used_by(document: &DeTable<'_>) -> Vec<(String, bool, bool)> {
    let steps = document.get("step").map(Spanned::get_ref);
    let steps = steps.and_then(|steps| steps.as_array());
    let step = steps.and_then(|steps| steps.iter().next()?.get_ref().as_table());
    let lists = ["in", "inout", "out"].iter();
    let lists = lists.filter_map(|key| Some((*key, step?.get(*key)?.get_ref().as_array()?)));
    let words = lists.flat_map(|(key, list)| {
        let words = list.iter().filter_map(|item| item.get_ref().as_str());
        words.map(move |word| (key, word))
    });
    let names = words.map(|(key, word)| {
        let name = word.split([':', '/']).next().unwrap_or(word);
        (name.to_owned(), word.ends_with(":scatter"), key != "out")
    });
    names.collect()
}

/// A script without its `#SBATCH` and `#TARN` lines: the commands for its shell. A change of those lines alone, such
/// as more time, therefore does not change the step.
///
/// # Examples
/// ```
/// let script = b"#!/bin/sh\n#SBATCH --time=1:00\necho 1\n";
/// let longer = b"#!/bin/sh\n#SBATCH --time=2:00\necho 1\n";
/// assert_eq!(tarn_spec::without_directives(script), tarn_spec::without_directives(longer));
/// ```
pub fn without_directives(script: &[u8]) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(script) else {
        return script.to_vec();
    };
    let (head, rest) = text.split_at(head(text));
    let lines = head.split_inclusive('\n');
    let shell = lines.filter(|line| !is_ours(line) && !line.starts_with("#SBATCH"));
    let shell: String = shell.collect();
    (shell + rest).into_bytes()
}

/// The end of the lines before the first command: Slurm reads these.
fn head(text: &str) -> usize {
    let lines = text.split_inclusive('\n');
    let before =
        lines.take_while(|line| line.trim_start().starts_with('#') || line.trim().is_empty());
    before.map(str::len).sum()
}

/// Whether a line is one of ours.
fn is_ours(line: &str) -> bool {
    let rest = line.strip_prefix(WORD);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
}

/// The script with spaces for all that is not for tarn: every place is where it was.
fn directives(text: &str) -> String {
    let lines = text[..head(text)].split_inclusive('\n');
    let ours = lines.map(|line| match is_ours(line) {
        true => format!("{:width$}{}", "", &line[WORD.len()..], width = WORD.len()),
        false => match line.strip_suffix('\n') {
            Some(line) => " ".repeat(line.len()) + "\n",
            None => " ".repeat(line.len()),
        },
    });
    ours.collect()
}

/// The error for a job with more than the controller of a site takes in. Nothing in its text is pointed at.
fn too_much(name: &str, what: String, most: usize) -> SpecError {
    let mut out = Findings::new(Arc::new(SourceFiles::new(name, "")));
    let help = format!("at most {most} are allowed: make one dataset of what the same jobs read");
    out.add(Finding::error(FindingCode::TooLarge, what).help(help));
    out.into_rejected()
}

/// Lines that look like ours and are not read: behind the first command, or written otherwise.
fn unread(text: &str) -> impl Iterator<Item = Range<usize>> {
    let head = head(text);
    let mut at = 0;
    text.split_inclusive('\n').filter_map(move |line| {
        let start = at;
        at += line.len();
        let is_unread = match start < head {
            true => !is_ours(line) && looks_like_ours(line),
            false => is_ours(line),
        };
        is_unread.then(|| start..start + line.trim_end().len())
    })
}

/// Whether a comment may be meant for tarn: `#TARN[[step]]`, `# TARN in = ["x"]`, `#tarn name = "w"`.
fn looks_like_ours(line: &str) -> bool {
    let rest = line.trim_start().trim_start_matches('#').trim_start();
    let own = rest
        .get(..4)
        .filter(|own| own.eq_ignore_ascii_case(&WORD[1..]));
    own.is_some() && rest.contains(['=', '['])
}

fn not_read(span: Range<usize>, start: usize) -> Finding {
    Finding::note(
        FindingCode::NoteUnreadDirective,
        "a line that looks like a directive is not read",
    )
    .at(shifted(&span, start).into(), "ignored")
    .help("if it is for tarn, begin it with `#TARN` and a space, above the first command")
}

fn missing_tarn_lines(name: &str, start: usize) -> Finding {
    Finding::error(
        FindingCode::MissingKey,
        format!("{} has no lines for tarn", quoted(name)),
    )
    .at((start, 0).into(), "no `#TARN` line above the first command")
    .help("declare what data the job needs and leaves: `#TARN data.mesh.source = \"/lustre/mesh\"`, `#TARN [[step]]`, `#TARN in = [\"mesh\"]`")
}

fn nameless(job: &SbatchJob) -> Finding {
    Finding::error(
        FindingCode::MissingKey,
        format!(
            "{} does not say which workflow it belongs to",
            quoted(&job.script)
        ),
    )
    .at(
        job.place.clone().into(),
        "`name` is required in each of several scripts",
    )
    .help("add `#TARN name = \"...\"`, the same in all of them")
}

fn shifted(span: &Range<usize>, by: usize) -> Range<usize> {
    span.start + by..span.end + by
}

/// A table whose places are those in all the texts together.
fn moved(table: DeTable<'_>, by: usize) -> DeTable<'_> {
    let entries = table.into_iter().map(|(key, value)| {
        let key = Spanned::new(shifted(&key.span(), by), key.into_inner());
        (key, moved_value(value, by))
    });
    entries.collect()
}

fn moved_value(value: Spanned<DeValue<'_>>, by: usize) -> Spanned<DeValue<'_>> {
    let span = shifted(&value.span(), by);
    let value = match value.into_inner() {
        DeValue::Array(list) => {
            let list = list.into_iter().map(|value| moved_value(value, by));
            DeValue::Array(list.collect())
        }
        DeValue::Table(table) => DeValue::Table(moved(table, by)),
        other => other,
    };
    Spanned::new(span, value)
}

/// Adds the job's keys to the script's step; makes the step where there is none.
fn step<'d>(out: &mut Findings, document: &mut DeTable<'d>, job: &SbatchJob, keys: &'d str) {
    if let Some(shell) = document.get("shell") {
        out.add(
            Finding::error(
                FindingCode::BadDirective,
                "`shell` does not belong into a script",
            )
            .at(place(shell), "set twice")
            .help("the first line of the script names what runs it"),
        );
    }
    let header = Spanned::new(job.place.clone(), Cow::Borrowed("step"));
    let steps = document.entry(header).or_insert_with(|| {
        let empty = DeValue::Table(DeTable::new());
        let list = [Spanned::new(job.place.clone(), empty)];
        Spanned::new(
            job.place.clone(),
            DeValue::Array(list.into_iter().collect()),
        )
    });
    let where_it_is = place(steps);
    // A value that is no list of tables is refused when the document is checked.
    let DeValue::Array(steps) = steps.get_mut() else {
        return;
    };
    if steps.len() > 1 {
        let second = steps.get(1).map_or(where_it_is, place);
        out.add(
            Finding::error(
                FindingCode::BadDirective,
                format!("{} has {} steps", quoted(&job.script), steps.len()),
            )
            .at(second, "a script is one step")
            .help("write a script for each step, and name them together"),
        );
        return;
    }
    let Some(DeValue::Table(table)) = steps.iter_mut().next().map(Spanned::get_mut) else {
        return;
    };
    for (key, _) in in_order(table) {
        if let Some((_, why)) = SET_ELSEWHERE
            .iter()
            .find(|(step_key, _)| *step_key == key.value)
        {
            out.add(
                Finding::error(
                    FindingCode::BadDirective,
                    format!("`{}` does not belong into a script", key.value),
                )
                .at(key.span, "set twice")
                .help(*why),
            );
        }
    }
    // It was written for this: it parses.
    let (keys, _) = DeTable::parse_recoverable(keys);
    for (key, value) in keys.into_inner() {
        let span = job.place_of(key.get_ref());
        let key = Spanned::new(span.clone(), key.into_inner());
        let value = Spanned::new(span, value.into_inner());
        table.entry(key).or_insert(value);
    }
}

/// A workflow of one job has the name of its step, unless it has its own.
fn name(document: &mut DeTable<'_>, job: &SbatchJob) {
    let step = match document.get("step").map(Spanned::get_ref) {
        Some(DeValue::Array(steps)) => steps.iter().next().map(Spanned::get_ref),
        _ => None,
    };
    let own = step.and_then(|step| step.as_table()?.get("name")?.get_ref().as_str());
    let own = own.unwrap_or(&job.name);
    let name = match own.starts_with(|c: char| c.is_ascii_alphabetic()) {
        true => own.to_owned(),
        false => format!("job-{own}"),
    };
    let letters = name.chars().map(|c| if c == '.' { '-' } else { c });
    let name = letters.take(bounds::MAX_NAME_BYTES).collect();
    let key = Spanned::new(job.place.clone(), Cow::Borrowed("name"));
    let value = DeValue::String(Cow::Owned(name));
    let value = Spanned::new(job.place.clone(), value);
    document.entry(key).or_insert(value);
}

/// Whether two scripts have the same values.
fn is_same(one: &DeValue<'_>, other: &DeValue<'_>) -> bool {
    let text = |value: &DeValue<'_>| value.as_str().map(str::to_owned);
    (text(one).is_some() && text(one) == text(other))
        || (integer(one).is_some() && integer(one) == integer(other))
}

/// Adds another script: its steps, and new keys. Keys that are there already must have the same values.
fn join<'d>(out: &mut Findings, whole: &mut DeTable<'d>, part: DeTable<'d>) {
    for (key, value) in part {
        match whole.get_mut(key.get_ref().as_ref()) {
            Some(there) => together(out, key.get_ref(), there, value),
            None => {
                whole.insert(key, value);
            }
        }
    }
}

/// Keys of a step: scripts have their own below `[[step]]`.
const OF_STEPS: [&str; 5] = ["in", "out", "inout", "after", "partitions"];

fn together<'d>(
    out: &mut Findings,
    key: &str,
    there: &mut Spanned<DeValue<'d>>,
    more: Spanned<DeValue<'d>>,
) {
    let (first, again) = (place(there), place(&more));
    match (there.get_mut(), more.into_inner()) {
        (DeValue::Array(there), DeValue::Array(more)) if key == "step" => {
            more.into_iter().for_each(|step| there.push(step));
        }
        (DeValue::Table(there), DeValue::Table(more)) => join(out, there, more),
        (there, more) if is_same(there, &more) => {}
        _ if OF_STEPS.contains(&key) => out.add(
            Finding::error(
                FindingCode::ScriptsDiffer,
                format!("`{key}` is a key of a step, and several scripts have it outside"),
            )
            .at(again, "also here")
            .at(first, "first here")
            .help(format!("write `{key}` below a line `#TARN [[step]]`")),
        ),
        _ => out.add(
            Finding::error(
                FindingCode::ScriptsDiffer,
                format!("the scripts have different values for {}", quoted(key)),
            )
            .at(again, "another value here")
            .at(first, "first here")
            .help("scripts of one workflow have the same `name`; describe each dataset in one script, or the same in all"),
        ),
    }
}
