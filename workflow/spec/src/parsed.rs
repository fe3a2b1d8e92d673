//! The stages of a check, and its result.

use crate::code;
use crate::data::{self, RawDataset};
use crate::diag::{Finding, FindingCode, Findings, Note, SourceText, SpecError, quoted};
use crate::item::Dist;
use crate::namerule::NameRule;
use crate::notes;
use crate::partition::{self, RawPartition};
use crate::resolve::{ResolvedWorkflow, resolve};
use crate::section::{Located, Section, place, value_of};
use crate::spans::{DataSpans, Spans, StepSpans};
use crate::step::{self, RawStep};
use crate::text::SourceFiles;
use crate::versions::Resolved;
use crate::{foreach_check, graph, paths};
use miette::SourceSpan;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tarn_types::bounds;
use tarn_types::hash::Hash;
use tarn_types::id::StepId;
use tarn_types::workflow::{Dataset, OnFailure, Step, VersionPartitioning, Workflow};
use toml::de::DeTable;

/// A workflow file that makes sense; [`crate::check_cluster`] checks whether a machine can run it.
#[derive(Debug, Clone)]
pub struct Parsed {
    /// The workflow. [`Step::code`] is 0 until [`Parsed::finish_codes`].
    pub workflow: Workflow,
    /// The notes on it.
    pub notes: Vec<Note>,
    pub(crate) source: SourceText,
    pub(crate) spans: Spans,
}

impl Parsed {
    /// Adds notes on its source.
    pub(crate) fn add_notes(&mut self, notes: impl IntoIterator<Item = Finding>) {
        let source = &self.source;
        let notes = notes.into_iter().map(|note| note.marked(source));
        self.notes.extend(notes);
    }

    /// The files and folders that a step watches beside those that its command names: its `files`, as absolute
    /// paths.
    pub fn watched(&self, step: StepId) -> &[PathBuf] {
        let spans = self.spans.steps.get(step.at());
        spans.map_or(&[], |s| s.files.as_slice())
    }

    /// Fills every [`Step::code`]. `read_script` gives the bytes of a regular file, or `None` when there is
    /// none; it is called once for each path.
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
    /// # let mut parsed = tarn_spec::parse("words.toml", text, "/home/me".as_ref())?;
    /// let before = parsed.workflow.steps[0].code;
    /// parsed.finish_codes(&|path| std::fs::read(path).ok());
    /// assert_ne!(parsed.workflow.steps[0].code, before);
    /// # Ok::<(), tarn_spec::SpecError>(())
    /// ```
    pub fn finish_codes(&mut self, read_script: &dyn Fn(&Path) -> Option<Vec<u8>>) {
        let steps = self.spans.steps.iter();
        let files: Vec<&[PathBuf]> = steps.map(|s| s.files.as_slice()).collect();
        let codes = code::all(&self.workflow, &files, read_script);
        for (step, code) in self.workflow.steps.iter_mut().zip(codes) {
            step.code = code;
        }
    }
}

const TOP_KEYS: &[&str] = &[
    "name",
    "external",
    "erase",
    "shell",
    "tmp",
    "data",
    "partition",
    "step",
];
const NAME: NameRule = NameRule {
    noun: "workflow",
    words: "a letter, then letters, digits, `_` and `-`, at most 64 bytes",
    first: |c| c.is_ascii_alphabetic(),
    rest: |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'),
};

/// Reads and checks the text of a workflow file. `name` is the file's name in messages, `folder` its folder,
/// absolute: relative paths start there. Nothing is read or looked up beside the text. The crate's first page
/// has an example.
///
/// # Errors
/// All that is wrong with it, at most [`MAX_FINDINGS`](crate::MAX_FINDINGS) problems.
pub fn parse(name: &str, text: &str, folder: &Path) -> Result<Parsed, SpecError> {
    if text.len() > bounds::MAX_WORKFLOW_BYTES {
        return Err(too_large(name, text.len()));
    }
    let mut out = Findings::new(Arc::new(SourceFiles::new(name, text)));
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        out.add(syntax(&error, 0));
    }
    if !out.is_empty() {
        return refuse(out, name);
    }
    check(out, document.get_ref(), folder)
}

/// Checks a document.
pub(crate) fn check(
    mut out: Findings,
    document: &DeTable<'_>,
    folder: &Path,
) -> Result<Parsed, SpecError> {
    let top = Section::new(
        &mut out,
        document,
        (0, 0).into(),
        "the workflow",
        "the file's top level",
        TOP_KEYS,
    );
    top.require(&mut out, "name", "\"...\"");
    let title = top.name(&mut out, "name", &NAME);
    let external = top.place(&mut out, "external", folder);
    let erase = top.flag(&mut out, "erase");
    let data = data::read(&mut out, &top, folder);
    let mut partitions = partition::read(&mut out, &top);
    let steps = step::read(&mut out, &top);
    partition::resolve(&mut out, &data, &mut partitions, &steps);
    for step in &steps {
        foreach_check::check(&mut out, step);
    }
    if external.is_some() || top.get("external").is_none() {
        check_drains(&mut out, &data, external.is_some());
    }
    paths::check(&mut out, &data, external.as_ref(), folder);
    let resolution = resolve(&mut out, &data, &steps);
    if let Some(resolution) = &resolution {
        graph::check(&mut out, &data, &steps, &resolution.edges);
    }
    match (resolution, title) {
        (Some(resolution), Some(title)) if out.is_empty() => {
            let spans = spans(&top, &data, &partitions, &steps, folder);
            let places: Vec<SourceSpan> = data.iter().map(|d| d.name.span).collect();
            let workflow = assemble(
                title.value,
                (external.map(|e| e.value), erase.unwrap_or(false)),
                folder,
                (data, partitions, steps),
                resolution,
            );
            let notes = notes::notes(&workflow, &places, &spans)
                .into_iter()
                .map(|n| out.note(n))
                .collect();
            Ok(Parsed {
                workflow,
                notes,
                source: out.source(),
                spans,
            })
        }
        _ => {
            let name = out.file();
            refuse(out, &name)
        }
    }
}

/// The refusal. Every way here has reported a problem; should one not have, the file is refused all the same.
pub(crate) fn refuse<T>(mut out: Findings, name: &str) -> Result<T, SpecError> {
    if out.is_empty() {
        out.add(
            Finding::error(
                FindingCode::Syntax,
                format!("{} cannot be understood", quoted(name)),
            )
            .help("this is a mistake of tarn's: please report it with the file"),
        );
    }
    Err(out.into_rejected())
}

pub(crate) fn too_large(name: &str, bytes: usize) -> SpecError {
    // The text is not kept: nothing in it is pointed at.
    let mut out = Findings::new(Arc::new(SourceFiles::new(name, "")));
    out.add(
        Finding::error(
            FindingCode::TooLarge,
            format!("the workflow file has {bytes} bytes"),
        )
        .help(format!(
            "at most {} are read; write steps that differ in one value as one `foreach` step",
            bounds::MAX_WORKFLOW_BYTES
        )),
    );
    out.into_rejected()
}

/// The syntax error of a text that begins at `start`.
pub(crate) fn syntax(error: &toml::de::Error, start: usize) -> Finding {
    let span = error.span().unwrap_or(0..0);
    Finding::error(
        FindingCode::Syntax,
        format!(
            "the file is not TOML: {}",
            crate::section::shorten(&error.message())
        ),
    )
    .at((start + span.start..start + span.end).into(), "here")
    .help("see https://toml.io; strings need quotes, and a key or table may be there only once")
}

fn check_drains(out: &mut Findings, data: &[RawDataset], external: bool) {
    for d in data {
        if let (Some(on_failure), false, None) = (&d.on_failure, external, &d.dest)
            && on_failure.value == OnFailure::Drain
        {
            out.add(
                Finding::error(FindingCode::NeedsExternal, format!("dataset {} cannot be drained", quoted(&d.name.value)))
                    .at(on_failure.span, "there is nowhere to put it")
                    .help("add `external = \"/path/of/a/directory\"` at the top of the file, or a `dest` to the dataset"),
            );
        }
    }
}

fn spans(
    top: &Section<'_>,
    data: &[RawDataset],
    partitions: &[RawPartition],
    steps: &[RawStep],
    folder: &Path,
) -> Spans {
    fn span<T>(located: &Option<Located<T>>) -> Option<SourceSpan> {
        located.as_ref().map(|l| l.span)
    }
    Spans {
        erase: top.get("erase").map(place),
        data: data
            .iter()
            .map(|d| DataSpans {
                size: span(&d.size),
                copies: span(&d.copies),
                tier: span(&d.tier),
                encrypt: span(&d.encrypt),
                elsewhere: span(&d.elsewhere),
            })
            .collect(),
        partitions: partitions.iter().map(RawPartition::spans).collect(),
        steps: steps
            .iter()
            .map(|s| StepSpans {
                name: s.name.span,
                nodes: span(&s.nodes),
                cores: span(&s.cores),
                memory: span(&s.memory),
                gpus: span(&s.gpus),
                tier: span(&s.tier),
                restart: s.restart_at,
                uses: s
                    .items
                    .iter()
                    .map(|i| (i.span, i.dist == Some(Dist::Shared)))
                    .collect(),
                files: s.files.iter().map(|f| folder.join(&f.value)).collect(),
            })
            .collect(),
    }
}

fn assemble(
    name: String,
    (external, erase): (Option<PathBuf>, bool),
    folder: &Path,
    (data, partitions, steps): (Vec<RawDataset>, Vec<RawPartition>, Vec<RawStep>),
    resolution: ResolvedWorkflow,
) -> Workflow {
    Workflow {
        name,
        external,
        erase,
        folder: folder.to_owned(),
        data: data
            .into_iter()
            .zip(resolution.partitions)
            .map(|(d, p)| dataset(d, p))
            .collect(),
        partitions: partitions.into_iter().map(RawPartition::finished).collect(),
        steps: steps
            .into_iter()
            .zip(resolution.steps)
            .map(|(s, r)| finished(s, r))
            .collect(),
    }
}

fn dataset(raw: RawDataset, partition: VersionPartitioning) -> Dataset {
    Dataset {
        name: raw.name.value,
        source: raw.source.map(|p| p.value),
        dest: raw.dest.map(|p| p.value),
        size: value_of(&raw.size),
        scatter: raw.scatter.map(|r| r.value),
        keep: raw.keep,
        copies: value_of(&raw.copies).unwrap_or(1),
        on_failure: value_of(&raw.on_failure).unwrap_or(OnFailure::Discard),
        tier: raw.tier.map(|t| t.value),
        encrypt: value_of(&raw.encrypt).unwrap_or(false),
        of: raw.elsewhere.map(|e| e.value.named),
        partition,
    }
}

fn finished(raw: RawStep, resolved: Resolved) -> Step {
    let nodes = raw.nodes();
    Step {
        nodes,
        tasks: value_of(&raw.tasks).unwrap_or(nodes),
        cores: value_of(&raw.cores).unwrap_or(1),
        memory: value_of(&raw.memory).unwrap_or(0),
        gpus: value_of(&raw.gpus).unwrap_or(0),
        name: raw.name.value,
        run: raw.run,
        prelude: raw.prelude,
        shell: raw.shell,
        shared_tmp: raw.shared_tmp.unwrap_or(false),
        env: raw.env,
        time: raw.time,
        retries: raw.retries,
        restart: raw.restart,
        tier: raw.tier.map(|t| t.value),
        after: resolved.after.into_iter().map(|(id, _)| id).collect(),
        foreach: resolved.foreach,
        uses: resolved.uses,
        code: Hash::default(),
    }
}
