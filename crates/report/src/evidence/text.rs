//! Results for terminals.

use super::plot::short;
use super::{Cell, Experiment, Results, Table};
use std::fmt::Write;

/// All results: each experiment's tables and claims, what differs from the paper, and how long all took.
pub fn text(results: &Results) -> String {
    let mut out = String::new();
    for experiment in &results.experiments {
        one(&mut out, experiment);
    }
    let _ = writeln!(out, "{}", results.took());
    out
}

fn one(out: &mut String, e: &Experiment) {
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
    for claim in &e.claims {
        let verdict = claim.verdict.words();
        let how = e.how(claim.how.as_ref()).map(|how| format!(", {how}"));
        let _ = writeln!(
            out,
            "  {verdict}: {} (paper: {}; here{}: {})",
            claim.claim,
            claim.paper,
            how.unwrap_or_default(),
            claim.here
        );
    }
    for what in &e.differs {
        let _ = writeln!(out, "  differs from the paper: {what}");
    }
    let repeated = e.repeated().map(|r| r + "; ").unwrap_or_default();
    let _ = writeln!(out, "  {repeated}took {} s\n", short(e.seconds.round()));
}

fn table(out: &mut String, table: &Table) {
    let rows: Vec<Vec<String>> = table
        .rows
        .iter()
        .map(|row| row.iter().map(cell).collect())
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
pub(super) fn cell(cell: &Cell) -> String {
    let figure = match cell {
        Cell::Text(text) => return text.clone(),
        Cell::Number(number) => return short(*number),
        Cell::Figure(figure) => figure,
    };
    let mut out = short(figure.value);
    if let (Some(low), Some(high)) = (figure.low, figure.high) {
        let _ = write!(out, " ({} to {})", short(low), short(high));
    }
    if let Some(paper) = figure.paper {
        let _ = write!(out, " [paper {}]", short(paper));
    }
    out
}
