//! A page that compares policies: figures as a table, Gantt charts above each other on one axis of time, in the manner of
//! Weiland et al.'s Figures 8 and 9.

use super::charts::{Chart, MAX_BOXES, MAX_NODES};
use super::summary::{MAX_REFUSED, SiteSummary};
use super::table::{rows, time, times};
use crate::figure;
use crate::html::sections::{HATCH, SCENE, counted};
use crate::html::tables::list;
use crate::html::text::{escape, json_in_script};
use crate::html::{LAST, LISTS, TOOLS, ZOOM, begin, end};
use serde_json::json;
use std::fmt::Write;
use tarn_types::site::{Machine, Workload};

pub(super) const STYLE: &str = include_str!("../../page/site.css");
pub(super) const GANTT: &str = include_str!("../../page/gantt.js");
/// The script that reads the page's data.
pub(super) const RUN: &str = "const byId = (id) => document.getElementById(id);\nconst run = JSON.parse(byId('tarn-run').textContent);\n";

/// The page for these policies, at least one.
pub fn page(machine: &Machine, workload: &Workload, runs: &[(SiteSummary, Chart)]) -> String {
    let summaries: Vec<SiteSummary> = runs.iter().map(|(s, _)| s.clone()).collect();
    let charts: Vec<&Chart> = runs.iter().map(|(_, c)| c).collect();
    let mut page = begin(&format!("{} – tarn sim", machine.name), STYLE);
    header(&mut page, machine, workload);
    page.push_str("<main>\n");
    cards(&mut page, workload, &summaries);
    left_out(&mut page, &summaries);
    gantt(&mut page, &charts);
    figures(&mut page, &summaries);
    let boxes: usize = charts.iter().map(|c| c.boxes()).sum();
    if boxes > 0 {
        let note = "Of each policy, every job with its nodes: what the charts show.";
        list(&mut page, "jobs", ("Every job", boxes), note);
    }
    page.push_str("</main>\n");
    let _ = writeln!(
        page,
        "<footer>Written by tarn {} from a simulation; every figure is also in this page as JSON \
         (<code>#tarn-summary</code>).</footer>",
        env!("CARGO_PKG_VERSION")
    );
    let islands = machine.islands.iter();
    let islands: Vec<_> = islands.map(|i| json!([i.name, i.nodes])).collect();
    let flows: Vec<&str> = workload.flows.iter().map(|f| f.name.as_str()).collect();
    let ends = charts.iter().map(|c| c.end());
    let drawing = json!({
        "end": ends.max().unwrap_or(0), "islands": islands, "flows": flows, "charts": charts,
    });
    for (id, data) in [
        ("tarn-summary", json_in_script(&summaries)),
        ("tarn-run", json_in_script(&drawing)),
    ] {
        let _ = writeln!(
            page,
            "<script type=\"application/json\" id=\"{id}\">{data}</script>"
        );
    }
    end(&mut page, &[RUN, TOOLS, ZOOM, LISTS, GANTT, LAST].concat());
    page
}

fn header(page: &mut String, machine: &Machine, workload: &Workload) {
    let steps = workload
        .jobs
        .iter()
        .filter(|j| j.job.flow.is_some())
        .count();
    let ordinary = workload.jobs.len() - steps;
    let mut what = vec![counted(machine.nodes().into(), "node")];
    if ordinary > 0 {
        what.push(counted(ordinary as u64, "ordinary job"));
    }
    if steps > 0 {
        let flows = counted(workload.flows.len() as u64, "workflow");
        what.push(format!("{flows} with {}", counted(steps as u64, "job")));
    }
    let _ = writeln!(
        page,
        "<header>{SCENE}<div class=\"wrap\"><p class=\"brand\"><svg viewBox=\"0 0 24 24\" aria-hidden=\"true\">\
         <path d=\"M2 15 9 5l4 6 3-3 6 7z\"/><path d=\"M4 18h16M7 21h10\"/></svg>tarn sim</p>\n\
         <h1>{}</h1>\n<p class=\"sub\">{}</p></div></header>",
        escape(&machine.name),
        what.join(" · ")
    );
}

/// Each policy's makespan, and its workflow's time if there is just one.
fn cards(page: &mut String, workload: &Workload, runs: &[SiteSummary]) {
    page.push_str("<section class=\"cards\">\n");
    for run in runs {
        let mut flows = run.workflows.iter();
        let (label, value, bound) = match (flows.next(), flows.next()) {
            (Some((name, flow)), None) => (
                format!(
                    "time to solution of workflow {name}{}",
                    its_jobs(workload, flow.jobs + flow.not_done)
                ),
                flow.time_s,
                flow.lower_bound_s,
            ),
            _ => ("makespan".to_owned(), run.makespan_s, run.lower_bound_s),
        };
        let below = match times(value, bound).trim() {
            "" => String::new(),
            _ => format!(
                "{:.2} times the lower bound of {}",
                value / bound,
                time(bound)
            ),
        };
        let _ = writeln!(
            page,
            "<div class=\"card\"><p><b>{}</b> · {}</p><strong>{}</strong><small>{below}</small></div>",
            escape(&run.policy),
            escape(&label),
            time(value)
        );
    }
    page.push_str("</section>\n");
}

/// The jobs of the only workflow: by name, if they are few.
fn its_jobs(workload: &Workload, number: u64) -> String {
    const NAMED: u64 = 4;
    let jobs = workload.jobs.iter().filter(|j| j.job.flow.is_some());
    let names: Vec<&str> = jobs.map(|j| &*j.name).collect();
    match number {
        0..=NAMED if !names.contains(&"") => format!(" (jobs {})", names.join(", ")),
        _ => format!(" ({})", counted(number, "job")),
    }
}

/// The beginning of a section with charts: their patterns and tools.
pub(super) fn gantt_patterns(page: &mut String, title: &str) {
    let _ = writeln!(
        page,
        "<section class=\"charts\">{HATCH}<svg width=\"0\" height=\"0\" aria-hidden=\"true\"><pattern id=\"reading\" \
         width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><path d=\"M0 0V5\"/>\
         </pattern><pattern id=\"writing\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" \
         patternTransform=\"rotate(-45)\"><path d=\"M0 0V5\"/></pattern></svg><h2>{title}</h2>\n\
         <div class=\"tools\"><div id=\"legends\" class=\"legends\"></div><div class=\"zoom\" role=\"group\" \
         aria-label=\"Zoom\"><button id=\"zoom-in\" title=\"Zoom in\">+</button><button id=\"zoom-out\" \
         title=\"Zoom out\">−</button><button id=\"zoom-all\">all</button></div></div>\n\
         <noscript><p class=\"fine\">The drawings need JavaScript, which this page carries itself.</p></noscript>"
    );
}

fn gantt(page: &mut String, charts: &[&Chart]) {
    gantt_patterns(page, "Which job had which nodes");
    for (n, chart) in charts.iter().enumerate() {
        let name = escape(chart.policy());
        let _ = writeln!(
            page,
            "<h3>{name}{}</h3>\n<div id=\"chart-{n}\" class=\"chart\"></div>",
            if chart.has_boxes() {
                " <a href=\"#jobs-list\">its jobs as a list</a>"
            } else {
                ""
            }
        );
    }
    let hidden = if charts.iter().all(|c| c.has_boxes()) {
        String::new()
    } else {
        format!(
            " Jobs are drawn if they are up to {MAX_BOXES} boxes on up to {MAX_NODES} nodes; beyond, only the use of nodes is."
        )
    };
    let _ = writeln!(
        page,
        "<p class=\"fine\">All on one axis of time, from the first submission. A box is a job on its nodes. Transfers that tarn \
         makes before and after jobs are in the strip below each node’s jobs: a node can have some while no job runs there. \
         Ctrl and wheel zoom, dragging moves.{hidden}</p></section>"
    );
}

fn figures(page: &mut String, runs: &[SiteSummary]) {
    page.push_str("<section id=\"figures\"><h2>Figures</h2>\n");
    let mut head = vec![(String::new(), false)];
    head.extend(runs.iter().map(|run| (run.policy.clone(), true)));
    let all: Vec<Vec<String>> = rows(runs)
        .into_iter()
        .map(|(label, cells)| {
            let name = escape(label.trim_start());
            let name = if label.starts_with(' ') {
                format!("<span class=\"of\">{name}</span>")
            } else {
                name
            };
            let cells = cells.iter().map(|cell| escape(cell));
            std::iter::once(name).chain(cells).collect()
        })
        .collect();
    figure::table(page, "plain", &head, &all);
    page.push_str(
        "<p class=\"fine\">In brackets: times the lower bound, which no policy can beat. A wait \
         counts from when all that a job waits for has ended; bounded slow-down is (wait + run) / max(run, 10 s).</p>\
         </section>\n",
    );
}

/// The jobs that were taken out, and the lines of the input that were left out.
fn left_out(page: &mut String, runs: &[SiteSummary]) {
    if runs.iter().all(|r| r.refused == 0 && r.skipped.is_empty()) {
        return;
    }
    page.push_str("<section id=\"left-out\"><h2>Left out</h2>\n<ol class=\"notes\">\n");
    for run in runs {
        for job in &run.refused_jobs {
            let _ = writeln!(
                page,
                "<li><time>{}</time><div><b>{}</b><span>{}</span></div></li>",
                escape(&run.policy),
                escape(&job.job),
                escape(&job.why)
            );
        }
        if run.refused > MAX_REFUSED as u64 {
            let more = run.refused - MAX_REFUSED as u64;
            let _ = writeln!(page, "<li><time></time><div>and {more} more</div></li>");
        }
    }
    // Every policy has read the same files.
    for line in runs.iter().take(1).flat_map(|r| &r.skipped) {
        let _ = writeln!(
            page,
            "<li><time>{}</time><div><b>{}</b><span>{}, the first in line {}</span></div></li>",
            counted(line.count, "record"),
            escape(&line.why),
            escape(&line.file),
            line.first_line
        );
    }
    page.push_str("</ol></section>\n");
}
