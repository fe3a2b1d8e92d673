//! The figures of several policies side by side, for terminals.

use super::summary::{SiteDistribution, SiteSummary};
use std::fmt::Write;
use tarn_types::units::{Bytes, Elapsed, Nanos, SECOND};

/// Workflows with a row of their own; of more, only their mean against the bound is shown, and JSON has them all.
const MAX_FLOW_ROWS: usize = 20;

/// A row: its label, and a cell for each policy.
pub(super) type PolicyRow = (String, Vec<String>);

pub(super) fn time(seconds: f64) -> String {
    Elapsed((seconds * SECOND as f64).round() as Nanos).to_string()
}

/// How many times the bound; empty without one.
pub(super) fn times(value: f64, bound: f64) -> String {
    if bound <= 0.0 {
        return String::new();
    }
    format!(" ({:.2}x)", value / bound)
}

pub(super) fn joules(joules: f64) -> String {
    let units = [
        ("J", 1.0),
        ("kJ", 1e3),
        ("MJ", 1e6),
        ("GJ", 1e9),
        ("TJ", 1e12),
    ];
    let fitting = units.iter().rev().find(|(_, unit)| joules >= *unit);
    let (name, unit) = fitting.unwrap_or(&units[0]);
    format!("{:.2} {name}", joules / unit)
}

/// All rows, empty ones left out.
pub(super) fn rows(runs: &[SiteSummary]) -> Vec<PolicyRow> {
    let mut rows: Vec<PolicyRow> = Vec::new();
    let mut row = |label: &str, cell: &dyn Fn(&SiteSummary) -> String| {
        rows.push((label.to_owned(), runs.iter().map(cell).collect()));
    };
    row("makespan", &|s| {
        time(s.makespan_s) + &times(s.makespan_s, s.lower_bound_s)
    });
    row("  lower bound", &|s| time(s.lower_bound_s));
    rows.extend(flow_rows(runs));
    rows.extend(job_rows(runs));
    let mut row = |label: &str, cell: &dyn Fn(&SiteSummary) -> String| {
        rows.push((label.to_owned(), runs.iter().map(cell).collect()));
    };
    let bytes = |bytes: u64| Bytes(bytes).to_string();
    row("from the external store", &|s| bytes(s.bytes.external_in));
    row("to the external store", &|s| bytes(s.bytes.external_out));
    row("between nodes", &|s| bytes(s.bytes.peer));
    row("read locally", &|s| bytes(s.bytes.retained));
    row("reading and writing, of job time", &|s| percent(s.io_share));
    row("nodes in use", &|s| percent(s.utilisation));
    row("fullest node's tiers", &|s| bytes(s.tier_peak_node));
    row("all tiers together", &|s| bytes(s.tier_peak_all));
    // Nodes whose power the cluster file does not give draw none.
    if runs.iter().any(|s| s.energy_j > 0.0) {
        row("energy", &|s| joules(s.energy_j));
    }
    if runs.iter().any(|s| s.mode_changes > 0) {
        row("memory mode changes", &|s| s.mode_changes.to_string());
    }
    if runs.iter().any(|s| s.refused > 0) {
        row("jobs taken out", &|s| s.refused.to_string());
    }
    row("events", &|s| s.events.to_string());
    row("simulated in", &|s| time(s.wall_s));
    rows
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn flow_rows(runs: &[SiteSummary]) -> Vec<PolicyRow> {
    let Some(first) = runs.first().filter(|s| !s.workflows.is_empty()) else {
        return Vec::new();
    };
    if first.workflows.len() > MAX_FLOW_ROWS {
        let cells = runs.iter().map(|s| {
            let flows = s.workflows.values().filter(|f| f.lower_bound_s > 0.0);
            let logs: Vec<f64> = flows.map(|f| (f.time_s / f.lower_bound_s).ln()).collect();
            let mean = logs.iter().sum::<f64>() / (logs.len() as f64).max(1.0);
            format!("{:.2}x", mean.exp())
        });
        let label = format!(
            "{} workflows, against their bounds (geometric mean)",
            first.workflows.len()
        );
        return vec![(label, cells.collect())];
    }
    let names = first.workflows.keys();
    let row = |name: &String| {
        let cell = |s: &SiteSummary| match s.workflows.get(name) {
            Some(f) if f.not_done > 0 => format!("{} jobs not done", f.not_done),
            Some(f) => time(f.time_s) + &times(f.time_s, f.lower_bound_s),
            None => String::new(),
        };
        (format!("workflow {name}"), runs.iter().map(cell).collect())
    };
    names.map(row).collect()
}

fn job_rows(runs: &[SiteSummary]) -> Vec<PolicyRow> {
    let mut rows = Vec::new();
    for (kind, ordinary) in [("ordinary jobs", true), ("workflow jobs", false)] {
        let of = |s: &SiteSummary| {
            if ordinary {
                s.ordinary_jobs.clone()
            } else {
                s.workflow_jobs.clone()
            }
        };
        let all: Vec<_> = runs.iter().map(of).collect();
        if all.iter().all(|j| j.done + j.not_done == 0) {
            continue;
        }
        let mut row = |label: String, cells: Vec<String>| rows.push((label, cells));
        let done = all.iter().map(|j| match j.not_done {
            0 => j.done.to_string(),
            open => format!("{}, {open} not done", j.done),
        });
        row(kind.to_owned(), done.collect());
        let wait = |d: &SiteDistribution| format!("{} / {}", time(d.mean), time(d.p99));
        let waits = all.iter().map(|j| wait(&j.wait_s)).collect();
        row("  wait, mean / p99".into(), waits);
        let slow = |d: &SiteDistribution| format!("{:.2} / {:.2}", d.mean, d.p99);
        let slow = all.iter().map(|j| slow(&j.bounded_slowdown)).collect();
        row("  bounded slow-down, mean / p99".into(), slow);
        if all.iter().any(|j| j.retries > 0) {
            let retries = all.iter().map(|j| j.retries.to_string()).collect();
            row("  retries".into(), retries);
        }
    }
    rows
}

/// The table: policies as columns.
pub fn table(runs: &[SiteSummary]) -> String {
    let mut rows = rows(runs);
    let head = runs.iter().map(|s| s.policy.clone()).collect();
    rows.insert(0, (String::new(), head));
    let width = |text: &str| text.chars().count();
    let label = rows.iter().map(|r| width(&r.0)).max().unwrap_or(0);
    let column = |n: usize| rows.iter().map(|r| width(&r.1[n])).max().unwrap_or(0);
    let columns: Vec<usize> = (0..runs.len()).map(column).collect();
    let mut text = String::new();
    for (name, cells) in &rows {
        let _ = write!(text, "{name:label$}");
        for (cell, width) in cells.iter().zip(&columns) {
            let _ = write!(text, "  {cell:>width$}");
        }
        let kept = text.trim_end().len();
        text.truncate(kept);
        text.push('\n');
    }
    text
}
