//! A recorded workflow as its file has it, and checks of its names and numbers.

use crate::diag::{Finding, FindingCode, Findings, quoted};
use miette::SourceSpan;

/// Bytes that a file may have: sums fit into 64 bits.
pub(crate) const MAX_BYTES: f64 = 1e18;

/// The common content of the format's versions.
#[derive(Default)]
pub(crate) struct RecordedWorkflow {
    pub(crate) tasks: Vec<RecordedTask>,
    /// Files with their sizes.
    pub(crate) files: Vec<(String, f64)>,
    /// Each task has the sizes of its files (version 1.4): the largest counts.
    pub(crate) sizes_may_differ: bool,
}

/// A task as recorded.
pub(crate) struct RecordedTask {
    pub(crate) id: String,
    /// Another name by which it may be referred to.
    pub(crate) alias: Option<String>,
    pub(crate) runtime: Option<f64>,
    pub(crate) cores: Option<f64>,
    pub(crate) memory: Option<f64>,
    pub(crate) parents: Vec<String>,
    pub(crate) children: Vec<String>,
    pub(crate) inputs: Vec<String>,
    pub(crate) outputs: Vec<String>,
}

/// Collects findings about names: the place is where a name is first mentioned.
pub(crate) struct Checks<'c> {
    pub(crate) out: &'c mut Findings,
    pub(crate) whole: SourceSpan,
}

impl Checks<'_> {
    pub(crate) fn report(&mut self, code: FindingCode, message: String, name: &str, help: &str) {
        let span = match self.out.is_full() {
            true => self.whole,
            false => self.out.find(self.whole, &format!("\"{name}\"")),
        };
        let finding = Finding::error(code, message).at(span, "first named here");
        self.out.add(finding.help(help));
    }

    /// A number from 0 to `most`; 0, reported, if it is none.
    pub(crate) fn number(&mut self, value: f64, most: f64, what: &str, name: &str) -> f64 {
        if (0.0..=most).contains(&value) {
            return value;
        }
        self.report(
            FindingCode::BadValue,
            format!("{what} of {} is {value}", quoted(name)),
            name,
            &format!("it must be from 0 to {most:e}: the record is damaged"),
        );
        0.0
    }
}
