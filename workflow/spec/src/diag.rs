//! The problems of a file, and notes on it: with code, place, cause and hint.

use crate::text::SourceFiles;
use miette::{Diagnostic, LabeledSpan, Severity, SourceCode, SourceSpan};
use std::fmt::{self, Display};
use std::sync::Arc;

/// Problems shown of one file: a person repairs some at a time, and drawing each reads the whole file.
pub const MAX_FINDINGS: usize = 32;
/// Characters of the user's text that a message quotes.
const MAX_QUOTED: usize = 80;

macro_rules! codes {
    ($($name:ident = $text:literal,)*) => {
        /// The stable code of a finding; docs/reference/workflow-file.md has their meanings.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[allow(missing_docs)] // each is documented in docs/reference/workflow-file.md, and a test sees to it
        pub enum FindingCode { $($name,)* }

        impl FindingCode {
            /// All codes.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The code as printed.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => concat!("tarn::flow::", $text),)* }
            }
        }
    };
}

codes! {
    Syntax = "syntax",
    TooLarge = "too_large",
    UnknownKey = "unknown_key",
    MissingKey = "missing_key",
    WrongType = "wrong_type",
    BadName = "bad_name",
    BadUnit = "bad_unit",
    BadValue = "bad_value",
    BadPath = "bad_path",
    PathOverlap = "path_overlap",
    BadPattern = "bad_pattern",
    DuplicateName = "duplicate_name",
    DuplicateUse = "duplicate_use",
    UnknownDataset = "unknown_dataset",
    UnknownStep = "unknown_step",
    UnknownPartition = "unknown_partition",
    PartitionNodes = "partition_nodes",
    BadDistribution = "bad_distribution",
    NoScatterRule = "no_scatter_rule",
    PartsClash = "parts_clash",
    TwoProducers = "two_producers",
    SourceAsOutput = "source_as_output",
    NobodyMakes = "nobody_makes",
    Cycle = "cycle",
    BadItem = "bad_item",
    BadForeach = "bad_foreach",
    ReservedEnv = "reserved_env",
    BadDirective = "bad_directive",
    ScriptsDiffer = "scripts_differ",
    NeedsExternal = "needs_external",
    TooFewNodes = "too_few_nodes",
    TooFewCores = "too_few_cores",
    TooLittleMemory = "too_little_memory",
    TooFewGpus = "too_few_gpus",
    UnknownTier = "unknown_tier",
    NoSpace = "no_room",
    NoMultiNode = "no_multi_node",
    NoShared = "no_shared",
    NoPartition = "no_partition",
    NoImages = "no_images",
    NoEncryption = "no_encryption",
    NoErasure = "no_erasure",
    NoSite = "no_site",
    NoteNoDataEdges = "note_no_data_edges",
    NoteUnusedData = "note_unused_data",
    NoteUnusedPartition = "note_unused_partition",
    NoteUnreadOutput = "note_unread_output",
    NoteUnreadDirective = "note_unread_directive",
    NoteUnsetVariable = "note_unset_variable",
}

/// A file and its text, shared by all findings about it.
pub(crate) type SourceText = Arc<SourceFiles>;

/// One problem, or one note, with the places in the file that it is about.
#[derive(Debug, Clone)]
pub struct Finding {
    code: FindingCode,
    message: String,
    labels: Vec<LabeledSpan>,
    help: Option<String>,
    severity: Severity,
    source: Option<SourceText>,
}

/// Something worth knowing about a workflow that is accepted.
pub type Note = Finding;

impl Finding {
    pub(crate) fn error(code: FindingCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            labels: Vec::new(),
            help: None,
            severity: Severity::Error,
            source: None,
        }
    }

    pub(crate) fn note(code: FindingCode, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Advice,
            ..Self::error(code, message)
        }
    }

    /// Adds a place; the first one is the primary one.
    pub(crate) fn at(mut self, span: SourceSpan, label: impl Into<String>) -> Self {
        let label = Some(label.into());
        self.labels.push(match self.labels.is_empty() {
            true => LabeledSpan::new_primary_with_span(label, span),
            false => LabeledSpan::new_with_span(label, span),
        });
        self
    }

    /// Names the file, where no place in it does.
    pub(crate) fn of_file(mut self, file: &str) -> Self {
        if !self.message.contains(file) {
            self.message = format!("{file}: {}", self.message);
        }
        self
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// The stable code.
    pub fn kind(&self) -> FindingCode {
        self.code
    }

    /// The problem, in one sentence.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The remedy.
    pub fn hint(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// Line and column of the first place, counted from 1, columns in characters.
    pub fn position(&self) -> Option<(usize, usize)> {
        let place = *self.labels.first()?.inner();
        let (_, line, column) = self.source.as_ref()?.position(place);
        Some((line, column))
    }

    /// The finding as it is shown, with the text of the file.
    pub(crate) fn marked(mut self, source: &SourceText) -> Self {
        for label in &mut self.labels {
            let (text, span) = (
                label.label().map(str::to_owned),
                source.mark(*label.inner()),
            );
            *label = match label.primary() {
                true => LabeledSpan::new_primary_with_span(text, span),
                false => LabeledSpan::new_with_span(text, span),
            };
        }
        self.source = Some(source.clone());
        self
    }
}

impl Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Finding {}

impl Diagnostic for Finding {
    fn code<'a>(&'a self) -> Option<Box<dyn Display + 'a>> {
        Some(Box::new(self.code.as_str()))
    }
    fn severity(&self) -> Option<Severity> {
        Some(self.severity)
    }
    fn help<'a>(&'a self) -> Option<Box<dyn Display + 'a>> {
        self.help.as_ref().map(|h| Box::new(h) as Box<dyn Display>)
    }
    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.source.as_deref().map(|s| s as &dyn SourceCode)
    }
    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        Some(Box::new(self.labels.iter().cloned()))
    }
}

/// A refused file: everything that is wrong with it. One problem is shown as itself, several as related ones.
#[derive(Debug, Clone)]
pub struct SpecError {
    file: String,
    problems: Vec<Finding>,
    dropped: usize,
}

impl SpecError {
    /// The problems, in the order of the file as far as they were found together.
    pub fn problems(&self) -> &[Finding] {
        &self.problems
    }

    fn only(&self) -> Option<&Finding> {
        match self.problems.as_slice() {
            [one] if self.dropped == 0 => Some(one),
            _ => None,
        }
    }
}

impl Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(one) = self.only() {
            return one.fmt(f);
        }
        let all = self.problems.len() + self.dropped;
        write!(f, "{all} problems in {}; nothing was started", self.file)?;
        match self.dropped {
            0 => Ok(()),
            _ => write!(f, " (the first {} are shown)", self.problems.len()),
        }
    }
}

impl std::error::Error for SpecError {}

impl Diagnostic for SpecError {
    fn code<'a>(&'a self) -> Option<Box<dyn Display + 'a>> {
        self.only()?.code()
    }
    fn severity(&self) -> Option<Severity> {
        Some(Severity::Error)
    }
    fn help<'a>(&'a self) -> Option<Box<dyn Display + 'a>> {
        self.only()?.help()
    }
    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.only()?.source_code()
    }
    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        self.only()?.labels()
    }
    fn related<'a>(&'a self) -> Option<Box<dyn Iterator<Item = &'a dyn Diagnostic> + 'a>> {
        match self.only() {
            Some(_) => None,
            None => Some(Box::new(self.problems.iter().map(|p| p as &dyn Diagnostic))),
        }
    }
}

/// Collects findings while a file is checked.
pub(crate) struct Findings {
    source: SourceText,
    problems: Vec<Finding>,
    dropped: usize,
    /// The list of datasets could not be read: their names cannot be checked.
    pub(crate) data_broken: bool,
    /// The uses could not be read: versions and order cannot be checked.
    pub(crate) uses_broken: bool,
}

impl Findings {
    pub(crate) fn new(source: SourceText) -> Self {
        Self {
            source,
            problems: Vec::new(),
            dropped: 0,
            data_broken: false,
            uses_broken: false,
        }
    }

    pub(crate) fn add(&mut self, finding: Finding) {
        if self.problems.len() == MAX_FINDINGS {
            self.dropped += 1;
            return;
        }
        self.problems.push(finding.marked(&self.source));
    }

    /// Adds a problem that leaves the uses of datasets open.
    pub(crate) fn add_breaking(&mut self, finding: Finding) {
        self.uses_broken = true;
        self.add(finding);
    }

    /// A hint that takes work to find: not sought when it would not be shown.
    pub(crate) fn suggest(&self, hint: impl FnOnce() -> Option<String>) -> Option<String> {
        (self.problems.len() < MAX_FINDINGS).then(hint).flatten()
    }

    /// The name of the file.
    pub(crate) fn file(&self) -> String {
        self.source.name()
    }

    /// The text.
    pub(crate) fn source(&self) -> SourceText {
        self.source.clone()
    }

    /// Whether no more problems are shown: their places need not be sought.
    pub(crate) fn is_full(&self) -> bool {
        self.problems.len() >= MAX_FINDINGS
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }

    pub(crate) fn note(&self, note: Finding) -> Note {
        note.marked(&self.source)
    }

    /// The first place of a text within a span.
    pub(crate) fn find(&self, span: SourceSpan, needle: &str) -> SourceSpan {
        self.source.find(span, needle)
    }

    /// The refusal, sorted by place, so that the file can be repaired from top to bottom.
    pub(crate) fn into_rejected(mut self) -> SpecError {
        self.problems
            .sort_by_key(|p| p.labels.first().map_or(0, LabeledSpan::offset));
        SpecError {
            file: self.source.name(),
            problems: self.problems,
            dropped: self.dropped,
        }
    }
}

/// The user's text in a message: quoted, without control characters, not too long.
pub(crate) fn quoted(text: &str) -> String {
    let mut shown = String::from("`");
    for c in text.chars().take(MAX_QUOTED) {
        match c {
            '"' | '\'' | '\\' => shown.push(c),
            _ => shown.extend(c.escape_debug()),
        }
    }
    if text.chars().nth(MAX_QUOTED).is_some() {
        shown.push_str("...");
    }
    shown.push('`');
    shown
}
