//! The executed workflow: its graph, the command of each step, the places of the results, and the environment.

use super::graph::{MAX_BOXES, WorkflowGraph, step_colour};
use super::links::PageLinks;
use super::text::escape;
use crate::names::RunNames;
use crate::summary::Summary;
use crate::trace::RunTrace;
use std::fmt::Write;
use tarn_types::text::minute;
use tarn_types::units::{Bytes, Elapsed};
use tarn_types::workflow::{Foreach, Step};

/// Commands that are listed, and lines of one that are shown at once.
const MAX_COMMANDS: usize = 300;
const MAX_LINES: usize = 12;

pub(super) fn workflow(page: &mut String, trace: &RunTrace, names: &RunNames<'_>, s: &Summary) {
    let steps = &trace.start.workflow.steps;
    if steps.is_empty() {
        return;
    }
    page.push_str(
        "<section id=\"workflow\"><h2>Workflow</h2>\n<div class=\"beside\"><div class=\"graph\">\n",
    );
    let graph = WorkflowGraph::of(trace, names, s);
    if graph.boxes() <= MAX_BOXES {
        graph.draw(page);
        page.push_str(
            "<p class=\"fine\">Rectangles are steps, rounded boxes are datasets; a thick border marks a result. Dashed \
             lines are <code>after</code>.</p>\n",
        );
    } else {
        let _ = writeln!(
            page,
            "<p class=\"fine\">The graph has {} steps and datasets; up to {MAX_BOXES} are drawn.</p>",
            graph.boxes()
        );
    }
    page.push_str("</div>\n<div class=\"commands\">\n");
    for (at, step) in steps.iter().enumerate().take(MAX_COMMANDS) {
        command(page, names, at, step);
    }
    if steps.len() > MAX_COMMANDS {
        let more = steps.len() - MAX_COMMANDS;
        let _ = writeln!(page, "<p class=\"fine\">And {more} more steps.</p>");
    }
    page.push_str("</div></div></section>\n");
}

fn command(page: &mut String, names: &RunNames<'_>, at: usize, step: &Step) {
    let mut about: Vec<String> = Vec::new();
    match &step.foreach {
        None => {}
        Some(Foreach::Values(values)) => about.push(format!("for each of {} values", values.len())),
        Some(Foreach::Entries { data, pattern, .. }) => {
            about.push(format!(
                "for each {}/{}",
                names.data(*data),
                pattern.as_str()
            ));
        }
    }
    for (count, what) in [
        (step.nodes, "nodes"),
        (step.tasks, "tasks"),
        (step.cores, "cores"),
    ] {
        if count > 1 {
            about.push(format!("{count} {what}"));
        }
    }
    let _ = write!(
        page,
        "<article><h3><i class=\"dot\" style=\"--c:{}\"></i>{} <small>{}</small></h3>",
        step_colour(at),
        escape(&step.name),
        escape(&about.join(" · "))
    );
    let run = step.run.trim_end();
    let lines = run.lines().count();
    if lines > MAX_LINES {
        let _ = writeln!(
            page,
            "<details><summary>{lines} lines</summary><pre>{}</pre></details></article>",
            escape(run)
        );
    } else {
        let _ = writeln!(page, "<pre>{}</pre></article>", escape(run));
    }
}

/// Datasets with a `dest`: where each is, or that it is not.
pub(super) fn results(page: &mut String, trace: &RunTrace, links: &PageLinks) {
    let workflow = &trace.start.workflow;
    let wanted = || (0..).map(tarn_types::id::DataId).zip(&workflow.data);
    let wanted = || wanted().filter_map(|(id, d)| Some((id, d, d.dest.as_ref()?)));
    if wanted().next().is_none() {
        return;
    }
    page.push_str("<section id=\"results\"><h2>Results</h2>\n<dl class=\"facts\">\n");
    for (id, dataset, dest) in wanted() {
        let shown = escape(&dest.display().to_string());
        let delivery = trace.history.delivered.get(&id);
        let place = match links.to(dest).filter(|_| delivery.is_some()) {
            Some(url) => format!("<a href=\"{url}\">{shown}</a>"),
            None => shown,
        };
        let about = match delivery {
            None => "not delivered by this run".to_string(),
            Some(delivery) => {
                let parts = trace.history.parts_of(id, delivery.version);
                let bytes = parts.fold(0u64, |sum, (_, info)| sum.saturating_add(info.bytes));
                format!("{}, delivered at {}", Bytes(bytes), Elapsed(delivery.at))
            }
        };
        let _ = writeln!(
            page,
            "<div><dt>{}</dt><dd>{place}<small>{about}</small></dd></div>",
            escape(&dataset.name)
        );
    }
    page.push_str("</dl></section>\n");
}

/// The environment of the run: versions, machines, folders.
pub(super) fn environment(page: &mut String, trace: &RunTrace, s: &Summary) {
    let start = &trace.start;
    let hosts = start.cluster.hosts.iter().take(64).map(|host| {
        let memory = if host.memory > 0 {
            format!(", {} of memory", Bytes(host.memory))
        } else {
            String::new()
        };
        format!("{} ({} cores{memory})", host.name, host.cores)
    });
    let mut hosts: Vec<String> = hosts.collect();
    if let Some(more @ 1..) = start.cluster.hosts.len().checked_sub(hosts.len()) {
        hosts.push(format!("and {more} more"));
    }
    let mut facts = vec![
        ("tarn", env!("CARGO_PKG_VERSION").to_string()),
        ("hosts", hosts.join("; ")),
        (
            "workflow folder",
            start.workflow.folder.display().to_string(),
        ),
        ("run", s.run.clone()),
        ("policy", s.policy.clone()),
        ("started", minute(s.started)),
    ];
    if s.resumed == 0 {
        let end = s.started.saturating_add(s.makespan_ns / 1_000_000_000);
        let word = if trace.history.outcome.is_some() {
            "ended"
        } else {
            "last record"
        };
        facts.push((word, minute(end)));
    }
    if let Some(job) = &start.allocation {
        facts.push(("job", job.clone()));
    }
    page.push_str("<section id=\"environment\"><h2>Environment</h2>\n<dl class=\"facts\">\n");
    for (name, fact) in facts {
        let _ = writeln!(page, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(&fact));
    }
    page.push_str("</dl></section>\n");
}
