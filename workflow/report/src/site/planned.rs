//! A page with the plan of a real site: a chart of nodes over the next hours, and its jobs as a table.

use super::charts::{MAX_BOXES, MAX_NODES};
use super::page::{GANTT, RUN, STYLE, gantt_patterns};
use crate::figure;
use crate::html::sections::{SCENE, counted};
use crate::html::text::{escape, json_in_script, micros};
use crate::html::{LAST, LISTS, TOOLS, ZOOM, begin, end};
use serde_json::json;
use std::fmt::Write;
use tarn_types::id::NodeId;
use tarn_types::site::result::ranges;
use tarn_types::units::{Elapsed, Nanos};

/// Rows of the table: the jobs that begin first.
const MAX_ROWS: usize = 2_000;
/// Slices of time of the curve of nodes in use.
const SLICES: u64 = 600;

/// A plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanChart {
    /// The policy that planned.
    pub policy: String,
    /// The mode of the site: `observe`, `advise`.
    pub mode: String,
    /// When it was made, for people.
    pub made: String,
    /// How far it reaches.
    pub length: Nanos,
    /// The names of all nodes.
    pub nodes: Vec<String>,
    /// The jobs.
    pub bars: Vec<PlanBar>,
    /// Jobs without a place, with the reason.
    pub unplanned: Vec<(u32, String)>,
    /// Others' jobs without a place.
    pub others_unplanned: u32,
}

/// A job. Times count from the plan's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanBar {
    /// Its name.
    pub name: String,
    /// Its workflow.
    pub workflow: Option<String>,
    /// Its nodes, by their positions.
    pub nodes: Vec<u32>,
    /// Whether it has them.
    pub has_begun: bool,
    /// When it gets them.
    pub begin: Nanos,
    /// When it is expected to give them back.
    pub end: Nanos,
    /// Why there and then; empty where that is not known.
    pub why: String,
}

/// The page of a plan. It needs no network.
pub fn plan_page(plan: &PlanChart) -> String {
    let mut page = begin("plan – tarn slurm", STYLE);
    let waits = plan.bars.iter().filter(|bar| !bar.has_begun).count();
    let about = [
        counted(plan.nodes.len() as u64, "node"),
        counted((plan.bars.len() - waits) as u64, "running job"),
        counted(waits as u64, "planned job"),
        format!("mode {}", plan.mode),
        format!("policy {}", plan.policy),
    ];
    let _ = writeln!(
        page,
        "<header>{SCENE}<div class=\"wrap\"><p class=\"brand\"><svg viewBox=\"0 0 24 24\" aria-hidden=\"true\">\
         <path d=\"M2 15 9 5l4 6 3-3 6 7z\"/><path d=\"M4 18h16M7 21h10\"/></svg>tarn slurm plan</p>\n\
         <h1>The next {}</h1>\n<p class=\"sub\">{} · made {}</p></div></header>\n<main>",
        escape(&Elapsed(plan.length).to_string()),
        escape(&about.join(" · ")),
        escape(&plan.made),
    );
    chart(&mut page, plan);
    table(&mut page, plan);
    page.push_str("</main>\n");
    let _ = writeln!(
        page,
        "<footer>Written by tarn {}. A plan is no promise: Slurm starts the jobs.</footer>",
        env!("CARGO_PKG_VERSION")
    );
    let _ = writeln!(
        page,
        "<script type=\"application/json\" id=\"tarn-run\">{}</script>",
        json_in_script(&drawing(plan))
    );
    end(&mut page, &[RUN, TOOLS, ZOOM, LISTS, GANTT, LAST].concat());
    page
}

fn is_drawn(plan: &PlanChart) -> bool {
    let boxes: usize = plan.bars.iter().map(|bar| bar.nodes.len()).sum();
    boxes <= MAX_BOXES && plan.nodes.len() <= MAX_NODES as usize
}

fn chart(page: &mut String, plan: &PlanChart) {
    gantt_patterns(page, "Which job is expected on which nodes");
    page.push_str("<div id=\"chart-0\" class=\"chart\"></div>\n");
    let hidden = if is_drawn(plan) {
        String::new()
    } else {
        format!(
            " With more than {MAX_BOXES} boxes or {MAX_NODES} nodes, only the use of nodes is drawn."
        )
    };
    let _ = writeln!(
        page,
        "<p class=\"fine\">Times count from when the plan was made. A box is a job on its nodes, as long as earlier jobs of its \
         kind ran, or for half of its limit. Others’ jobs have a number only. Ctrl and wheel zoom, dragging moves.{hidden}</p></section>"
    );
}

fn table(page: &mut String, plan: &PlanChart) {
    let _ = writeln!(page, "<section id=\"figures\"><h2>Jobs</h2>");
    let head = ["job", "nodes", "begins", "ends", "why"];
    let head: Vec<(String, bool)> = head
        .iter()
        .map(|name| ((*name).to_owned(), false))
        .collect();
    let when = |at: Nanos| match at {
        0 => "now".to_owned(),
        at => format!("in {}", Elapsed(at)),
    };
    let row = |bar: &PlanBar| -> Vec<String> {
        let begins = if bar.has_begun {
            "runs".to_owned()
        } else {
            when(bar.begin)
        };
        let cells = [
            bar.name.clone(),
            nodes(plan, bar),
            begins,
            when(bar.end),
            bar.why.clone(),
        ];
        cells.iter().map(|cell| escape(cell)).collect()
    };
    let rows: Vec<Vec<String>> = plan.bars.iter().take(MAX_ROWS).map(row).collect();
    figure::table(page, "plain", &head, &rows);
    if plan.bars.len() > MAX_ROWS {
        let more = plan.bars.len() - MAX_ROWS;
        let _ = writeln!(page, "<p class=\"fine\">And {more} jobs more.</p>");
    }
    page.push_str("</section>\n");
    if plan.unplanned.is_empty() && plan.others_unplanned == 0 {
        return;
    }
    page.push_str(
        "<section id=\"left-out\"><h2>Without a place in the plan</h2>\n<ol class=\"notes\">\n",
    );
    for (job, why) in plan.unplanned.iter().take(MAX_ROWS) {
        let why = escape(why);
        let _ = writeln!(
            page,
            "<li><time>{job}</time><div><span>{why}</span></div></li>"
        );
    }
    let others = plan.others_unplanned as usize + plan.unplanned.len().saturating_sub(MAX_ROWS);
    if others > 0 {
        let _ = writeln!(page, "<li><time></time><div>and {others} more</div></li>");
    }
    page.push_str("</ol></section>\n");
}

/// The nodes of a job, in few words.
fn nodes(plan: &PlanChart, bar: &PlanBar) -> String {
    const NAMED: usize = 4;
    let names = bar.nodes.iter().filter_map(|n| plan.nodes.get(*n as usize));
    let mut names: Vec<&str> = names.map(|name| &name[..]).collect();
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    match more {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

/// How long the chart is: until the last job has ended, or as far as the plan reaches.
fn chart_length(plan: &PlanChart) -> Nanos {
    let last = plan.bars.iter().map(|bar| bar.end).max();
    last.unwrap_or(plan.length).clamp(1, plan.length.max(1))
}

/// The chart's data, in the form of `page/gantt.js`.
fn drawing(plan: &PlanChart) -> serde_json::Value {
    let length = chart_length(plan);
    let mut flows: Vec<&str> = Vec::new();
    let mut boxes: Vec<[i64; 8]> = Vec::new();
    let time = |at: Nanos| i64::try_from(micros(at)).unwrap_or(i64::MAX);
    let drawn: &[PlanBar] = if is_drawn(plan) { &plan.bars } else { &[] };
    for (number, bar) in (0..).zip(drawn) {
        let flow = bar.workflow.as_deref().map_or(-1, |name| {
            let known = flows.iter().position(|flow| *flow == name);
            let at = known.unwrap_or(flows.len());
            if known.is_none() {
                flows.push(name);
            }
            at as i64
        });
        let nodes: Vec<NodeId> = bar.nodes.iter().copied().map(NodeId).collect();
        for (first, last) in ranges(&nodes) {
            let (first, last) = (i64::from(first), i64::from(last));
            let (begin, end) = (time(bar.begin), time(bar.end.min(length)));
            boxes.push([number, flow, first, last, begin, end, 1, number]);
        }
    }
    let names: Vec<&str> = drawn.iter().map(|bar| &bar.name[..]).collect();
    json!({
        "end": micros(length), "islands": [["", plan.nodes.len()]], "nodes": plan.nodes, "flows": flows,
        "charts": [{
            "policy": plan.policy, "end": micros(length), "names": names, "boxes": boxes,
            "phases": [], "moves": [], "off": [], "used": used(plan),
        }],
    })
}

/// Nodes in use over time, in thousandths: by ordinary jobs and by workflows.
fn used(plan: &PlanChart) -> Vec<[u32; 2]> {
    let length = chart_length(plan);
    let slice = (length / SLICES).max(1);
    let mut sums = vec![[0u64; 2]; SLICES as usize];
    for bar in &plan.bars {
        let kind = usize::from(bar.workflow.is_some());
        let (from, to) = (bar.begin / slice, bar.end.min(length) / slice);
        for sum in sums.iter_mut().take(to as usize).skip(from as usize) {
            sum[kind] += bar.nodes.len() as u64;
        }
    }
    let all = plan.nodes.len().max(1) as u64;
    let share = |sum: u64| (sum * 1000 / all).min(1000) as u32;
    sums.iter().map(|s| s.map(share)).collect()
}
