//! Results for terminals: all of them, or those that a reader of the page has to know at once.

use super::numbers::{FigureCell, short};
use super::{ClaimVerdict, EvidenceCell, EvidenceTable, Experiment, PaperClaim, Results};
use crate::html::sections::counted;
use std::fmt::Write;

/// All results: each experiment's tables and claims, differences from the paper, and how long all took.
pub fn text(results: &Results) -> String {
    let mut out = String::new();
    for experiment in &results.experiments {
        write_experiment(&mut out, experiment);
    }
    let _ = writeln!(out, "{}; {}", results.counts(), results.took());
    out
}

/// The claims that do not hold, the experiments that were not run, the number of claims by verdict, and the time of all.
pub fn brief(results: &Results) -> String {
    let mut out = String::new();
    for e in &results.experiments {
        for c in e.claims.iter().filter(|c| c.verdict == ClaimVerdict::Fails) {
            let _ = writeln!(out, "{}: {}", e.experiment, claim(e, c));
        }
    }
    for e in &results.experiments {
        if let Some(why) = &e.not_run {
            let _ = writeln!(out, "{}: not run: {why}", e.experiment);
        }
    }
    let _ = writeln!(out, "{}\n{}", results.counts(), results.took());
    out
}

/// A claim with its verdict, the paper's figure and this machine's.
fn claim(e: &Experiment, claim: &PaperClaim) -> String {
    let how = e.how(claim.how.as_ref()).map(|how| format!(", {how}"));
    format!(
        "{}: {} (paper: {}; here{}: {})",
        claim.verdict.words(),
        claim.claim,
        claim.paper,
        how.unwrap_or_default(),
        claim.here
    )
}

fn write_experiment(out: &mut String, e: &Experiment) {
    let _ = writeln!(out, "{}: {} ({})", e.experiment, e.title, e.source);
    if let Some(why) = &e.not_run {
        let _ = writeln!(out, "  not run: {why}\n");
        return;
    }
    let how = e.how(None).unwrap_or_default();
    for emulated in &e.emulated {
        let _ = writeln!(out, "  {how}: {emulated}");
    }
    for t in &e.tables {
        let how = e.how(t.how.as_ref()).map(|how| format!(" ({how})"));
        let _ = writeln!(out, "  {}{}", t.title, how.unwrap_or_default());
        table(out, t);
    }
    for c in e.claims_by_verdict() {
        let _ = writeln!(out, "  {}", claim(e, c));
    }
    for what in &e.differs {
        let _ = writeln!(out, "  differs from the paper: {what}");
    }
    let repeated = e.repeated().map(|r| r + "; ").unwrap_or_default();
    let _ = writeln!(out, "  {repeated}took {} s\n", short(e.seconds.round()));
}

fn table(out: &mut String, table: &EvidenceTable) {
    let rows: Vec<Vec<String>> = table
        .rows
        .iter()
        .map(|row| {
            row.iter()
                .enumerate()
                .map(|(at, c)| cell(c, table.is_whole(at)))
                .collect()
        })
        .collect();
    let mut widths: Vec<usize> = table.columns.iter().map(|c| c.chars().count()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for row in std::iter::once(&table.columns).chain(&rows) {
        out.push_str("   ");
        for (column, (width, cell)) in widths.iter().zip(row).enumerate() {
            let _ = match column {
                0 => write!(out, " {cell:width$}"),
                _ => write!(out, "  {cell:>width$}"),
            };
        }
        out.push('\n');
    }
}

/// A cell in words: the figure, its spread, the paper's.
fn cell(cell: &EvidenceCell, is_whole: bool) -> String {
    let shown = FigureCell::of(cell, is_whole);
    let mut out = shown.value;
    if let Some((low, high)) = shown.spread {
        let _ = write!(out, " ({low} to {high})");
    }
    if let Some(paper) = shown.paper {
        let _ = write!(out, " [paper {paper}]");
    }
    out
}

impl Results {
    /// How many claims have which verdict, and how many experiments were not run.
    pub(super) fn counts(&self) -> String {
        let all = || self.experiments.iter().flat_map(|e| &e.claims);
        let count = |verdict| all().filter(|c| c.verdict == verdict).count();
        let not_run = self.experiments.iter().filter(|e| e.not_run.is_some());
        let not_run = match not_run.count() {
            0 => String::new(),
            n => format!("; {} not run", counted(n as u64, "experiment")),
        };
        let claims = counted(all().count() as u64, "claim");
        format!(
            "{claims}: {} do not hold, {} undecided, {} hold{not_run}",
            count(ClaimVerdict::Fails),
            count(ClaimVerdict::Unclear),
            count(ClaimVerdict::Holds)
        )
    }
}

impl Experiment {
    /// Failed claims first, claims that hold last.
    pub(super) fn claims_by_verdict(&self) -> impl Iterator<Item = &PaperClaim> {
        ClaimVerdict::BY_WEIGHT
            .into_iter()
            .flat_map(|verdict| self.claims.iter().filter(move |c| c.verdict == verdict))
    }
}
