//! The table of steps, and where their time went.

use super::graph::step_colour;
use super::text::{escape, percent};
use crate::shares::{AttemptTimeShares, shares};
use crate::summary::{StepSummary, Summary};
use crate::trace::RunTrace;
use std::fmt::Write;
use tarn_types::units::{Bytes, Elapsed};

/// Rows of the table: beyond, those that took longest. A foreach step is one row.
pub(super) const MAX_STEP_ROWS: usize = 1000;

/// The columns: title, whether it has numbers.
const COLUMNS: [(&str, bool); 8] = [
    ("step", false),
    ("run time", true),
    ("before the run", true),
    ("CPU time", true),
    ("read, written", true),
    ("inputs", true),
    ("energy", true),
    ("where the time went", false),
];

/// The parts of the bar: class, title.
const PARTS: [(&str, &str); 4] = [
    ("user", "computing"),
    ("kernel", "in the kernel"),
    ("off", "off the processor"),
    ("own", "tarn: prepare and commit"),
];

pub(super) fn steps(page: &mut String, trace: &RunTrace, s: &Summary) {
    page.push_str("<section><h2>Steps</h2>\n<div class=\"legend\">");
    for (class, title) in PARTS {
        let _ = write!(page, "<span><i class=\"{class}\"></i>{title}</span>");
    }
    page.push_str("</div>\n<table class=\"sortable stack\" id=\"steps\"><thead><tr>");
    let measured = s.energy.measured.is_some();
    let columns = || COLUMNS.iter().filter(|c| measured || c.0 != "energy");
    for (title, number) in columns() {
        let class = if *number { " class=\"n\"" } else { "" };
        let _ = write!(page, "<th{class}>{title}</th>");
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    let all = shares(trace, s.steps.len());
    let mut rows: Vec<(usize, &StepSummary)> = s.steps.iter().enumerate().collect();
    if rows.len() > MAX_STEP_ROWS {
        rows.sort_by_key(|r| std::cmp::Reverse(r.1.run_ns));
        rows.truncate(MAX_STEP_ROWS);
    }
    for (at, row) in rows {
        step_row(page, at, row, &all[at], measured);
    }
    page.push_str("</tbody></table>\n");
    if s.steps.len() > MAX_STEP_ROWS {
        let _ = writeln!(
            page,
            "<p class=\"fine\">The {MAX_STEP_ROWS} steps of {} that ran longest.</p>",
            s.steps.len()
        );
    }
    page.push_str(
        "<p class=\"fine\">Sums over all attempts of all instances. CPU time and bytes read and written are those of \
         the step's processes. <b>Where the time went</b> divides the time of the attempts. Computing and kernel: CPU \
         time divided by the cores in use. Off the processor: the command waited for files or the network, slept, or \
         waited for a free processor; tarn does not measure which, so it is no measure of I/O.</p></section>\n",
    );
}

/// A cell: a title for narrow screens, a value to sort by, the text, and a smaller line.
fn cell(page: &mut String, title: &str, value: u64, shown: &str, below: &str) {
    let _ = write!(
        page,
        "<td class=\"n\" data-label=\"{title}\" data-v=\"{value}\">{shown}"
    );
    if !below.is_empty() {
        let _ = write!(page, "<small>{below}</small>");
    }
    page.push_str("</td>");
}

fn time(t: u64) -> String {
    if t == 0 {
        "·".into()
    } else {
        Elapsed(t).to_string()
    }
}

/// The parts of a time, those that are not 0.
fn two(one: (&str, u64), other: (&str, u64)) -> String {
    let parts = [one, other].into_iter().filter(|(_, t)| *t > 0);
    let parts: Vec<String> = parts
        .map(|(what, t)| format!("{what} {}", Elapsed(t)))
        .collect();
    parts.join("<br>")
}

fn bytes(b: u64) -> String {
    if b == 0 {
        "·".into()
    } else {
        Bytes(b).to_string()
    }
}

fn step_row(
    page: &mut String,
    at: usize,
    r: &StepSummary,
    shares: &AttemptTimeShares,
    measured: bool,
) {
    let i = &r.instances;
    let counts = [
        (i.run, "run"),
        (i.reused, "reused"),
        (i.failed, "failed"),
        (i.open, "not run"),
    ];
    let counts: Vec<String> = counts
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, what)| format!("{n} {what}"))
        .collect();
    let _ = write!(
        page,
        "<tr><td><i class=\"dot\" style=\"--c:{}\"></i>{}<small>{}</small></td>",
        step_colour(at),
        escape(&r.name),
        counts.join(" · ")
    );
    let longest = match i.run + i.failed {
        0 | 1 => String::new(),
        _ => format!("longest {}", time(r.longest_ns)),
    };
    cell(page, COLUMNS[1].0, r.run_ns, &time(r.run_ns), &longest);
    let before = r.staging_ns.saturating_add(r.waiting_ns);
    let parts = two(("staging", r.staging_ns), ("waiting", r.waiting_ns));
    cell(page, COLUMNS[2].0, before, &time(before), &parts);
    let cpu = r.user_ns.saturating_add(r.system_ns);
    let parts = two(("user", r.user_ns), ("kernel", r.system_ns));
    cell(page, COLUMNS[3].0, cpu, &time(cpu), &parts);
    cell(
        page,
        COLUMNS[4].0,
        r.read,
        &bytes(r.read),
        &format!("{} written", bytes(r.written)),
    );
    let kept = if r.input == 0 {
        String::new()
    } else {
        format!(
            "{:.0} % in place",
            percent(r.retained.into(), r.input.into())
        )
    };
    cell(page, COLUMNS[5].0, r.input, &bytes(r.input), &kept);
    if measured {
        let energy = r.energy.measured;
        let value = energy.map_or(0, |e| e.millijoules);
        let shown = energy.map_or("·".to_string(), |e| e.to_string());
        let known = escape(&r.energy.to_string());
        cell(page, COLUMNS[6].0, value, &shown, &known);
    }
    split(page, shares);
    page.push_str("</tr>\n");
}

/// The bar of where the time went; its parts are also written out.
fn split(page: &mut String, s: &AttemptTimeShares) {
    let parts = [s.user, s.system, s.off, s.own];
    let whole: u128 = parts.iter().map(|p| u128::from(*p)).sum();
    let title = COLUMNS[7].0;
    let _ = write!(
        page,
        "<td class=\"time\" data-label=\"{title}\" data-v=\"{whole}\">"
    );
    if whole == 0 {
        page.push_str("·</td>");
        return;
    }
    page.push_str("<span class=\"split\">");
    let mut percents = Vec::new();
    for ((class, name), part) in PARTS.iter().zip(parts) {
        let share = percent(part.into(), whole);
        let _ = write!(
            page,
            "<i class=\"{class}\" style=\"width:{share:.1}%\" title=\"{name}: {}\"></i>",
            Elapsed(part)
        );
        percents.push(format!("{share:.0}"));
    }
    let _ = write!(
        page,
        "</span><small>{} %</small></td>",
        percents.join(" · ")
    );
}
