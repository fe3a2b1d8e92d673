//! The parts of the page that list: failures, steps, attempts and transfers, notes.

use super::sections::too_many;
use super::text::{escape, percent};
use crate::names::Names;
use crate::summarize::{lost_nodes, not_rescued, not_run};
use crate::summary::{EQUATION_5, MAX_NOT_RUN, StepSummary, Summary};
use crate::trace::Trace;
use crate::why::Answer;
use std::fmt::Write;
use tarn_base::history::{AttemptEnd, TransferEnd};
use tarn_base::units::{Bytes, Elapsed, Time};

/// Failures that are shown, the last ones: each may carry some kilobytes of log.
const MAX_FAILURES: usize = 100;
/// Notes that are listed, the last ones.
const MAX_NOTES: usize = 500;
/// Rows of the table of steps: beyond, those that took longest. A foreach step is one row.
const MAX_STEP_ROWS: usize = 1000;

/// What has become of images of steps' processes.
pub(super) fn images(page: &mut String, summary: &Summary) {
    let with = || summary.steps.iter().filter(|s| s.images.any());
    if with().count() == 0 {
        return;
    }
    let _ = writeln!(page, "<section id=\"images\"><h2>Images of processes</h2>");
    for step in with().take(MAX_STEP_ROWS) {
        let (name, said) = (escape(&step.name), escape(&step.images.to_string()));
        let _ = writeln!(page, "<p>{name}: {said}</p>");
    }
    let _ = writeln!(page, "</section>");
}

pub(super) fn failures(page: &mut String, trace: &Trace, names: &Names<'_>, title: &str) {
    let mut all: Vec<(Time, String, &str, &str)> = Vec::new();
    for ((id, _), a) in trace.attempts() {
        if let Some((when, AttemptEnd::Failed { failure, log_tail })) = &a.ended {
            let what = format!(
                "{}, attempt {}, on {}",
                names.instance(id),
                a.attempt,
                names.nodes(&a.nodes)
            );
            all.push((*when, what, &failure.message, log_tail));
        }
    }
    for t in trace.history.transfers.values() {
        if let Some((when, TransferEnd::Failed(failure))) = &t.ended {
            let data = names.version(t.order.data, t.order.version);
            let what = format!(
                "transfer {} of {data} to {}",
                t.order.id,
                names.place(&t.order.to)
            );
            all.push((*when, what, &failure.message, ""));
        }
    }
    let not_run = not_run(trace);
    let when = trace.history.outcome.map_or(0, |(when, _)| when);
    for step in not_run.iter().take(MAX_NOT_RUN) {
        let what = format!("{} did not run", step.step);
        all.push((when, what, &step.why, ""));
    }
    if let Some(more @ 1..) = not_run.len().checked_sub(MAX_NOT_RUN) {
        let what = format!("{more} more step(s) did not run");
        all.push((when, what, "they need what failed", ""));
    }
    let not_rescued = not_rescued(trace);
    for data in &not_rescued {
        let what = format!("{} {}", data.dataset, data.what());
        all.push((when, what, &data.why, ""));
    }
    let lost = lost_nodes(trace);
    for loss in &lost {
        let what = format!("{} is lost", loss.node);
        all.push((loss.at_ns, what, &loss.why, ""));
    }
    for (data, failure) in &trace.history.source_failures {
        all.push((
            0,
            format!("listing {}", names.data(*data)),
            &failure.message,
            "",
        ));
    }
    if all.is_empty() {
        return;
    }
    all.sort_by_key(|f| f.0);
    let hidden = all.len().saturating_sub(MAX_FAILURES);
    let _ = writeln!(page, "<section id=\"failures\"><h2>{title}</h2>");
    if hidden > 0 {
        let _ = writeln!(
            page,
            "<p class=\"fine\">The last {MAX_FAILURES} of {}.</p>",
            all.len()
        );
    }
    for (when, what, message, tail) in all.iter().skip(hidden) {
        let _ = write!(
            page,
            "<article class=\"failure\"><h3>{} <small>at {}</small></h3><p>{}</p>",
            escape(what),
            Elapsed(*when),
            escape(message)
        );
        if !tail.is_empty() {
            let _ = write!(
                page,
                "<details open><summary>last lines of its log</summary><pre>{}</pre></details>",
                escape(tail)
            );
        }
        page.push_str("</article>\n");
    }
    page.push_str("</section>\n");
}

pub(super) fn steps(page: &mut String, s: &Summary) {
    page.push_str(
        "<section><h2>Steps</h2>\n<div class=\"scroll\"><table class=\"sortable\" id=\"steps\"><thead><tr>\
         <th>step</th><th class=\"n\">run</th><th class=\"n\">reused</th><th class=\"n\">failed</th>\
         <th class=\"n\">staging</th><th class=\"n\">waiting</th><th class=\"n\">run time</th>\
         <th class=\"n\">longest</th><th class=\"n\">commit</th><th class=\"n\">CPU user</th>\
         <th class=\"n\">CPU system</th><th class=\"n\">read</th><th class=\"n\">written</th>\
         <th class=\"n\">inputs</th><th class=\"n\">in place</th><th class=\"n\">energy</th>\
         <th class=\"n\">estimate: I/O · compute</th></tr></thead>\n<tbody>\n",
    );
    let mut rows: Vec<&StepSummary> = s.steps.iter().collect();
    if rows.len() > MAX_STEP_ROWS {
        rows.sort_by_key(|r| std::cmp::Reverse(r.run_ns));
        rows.truncate(MAX_STEP_ROWS);
    }
    for r in rows {
        step_row(page, r);
    }
    page.push_str("</tbody></table></div>\n");
    if s.steps.len() > MAX_STEP_ROWS {
        let _ = writeln!(
            page,
            "<p class=\"fine\">The {MAX_STEP_ROWS} steps of {} that ran longest.</p>",
            s.steps.len()
        );
    }
    let _ = writeln!(
        page,
        "<p class=\"fine\">Sums over all attempts of all instances. CPU and bytes read and written are those of the \
         step's processes. Last column: {}.</p></section>",
        escape(EQUATION_5)
    );
}

fn step_row(page: &mut String, r: &StepSummary) {
    let _ = write!(page, "<tr><td>{}</td>", escape(&r.name));
    for n in [r.instances.run, r.instances.reused, r.instances.failed] {
        let shown = if n == 0 {
            "·".to_string()
        } else {
            n.to_string()
        };
        let _ = write!(page, "<td class=\"n\" data-v=\"{n}\">{shown}</td>");
    }
    for t in [
        r.staging_ns,
        r.waiting_ns,
        r.run_ns,
        r.longest_ns,
        r.commit_ns,
        r.user_ns,
        r.system_ns,
    ] {
        let shown = if t == 0 {
            "·".to_string()
        } else {
            Elapsed(t).to_string()
        };
        let _ = write!(page, "<td class=\"n\" data-v=\"{t}\">{shown}</td>");
    }
    for b in [r.read, r.written, r.input] {
        let shown = if b == 0 {
            "·".to_string()
        } else {
            Bytes(b).to_string()
        };
        let _ = write!(page, "<td class=\"n\" data-v=\"{b}\">{shown}</td>");
    }
    let kept = percent(r.retained.into(), r.input.into());
    let shown = if r.input == 0 {
        "·".to_string()
    } else {
        format!("{kept:.0} %")
    };
    let _ = write!(page, "<td class=\"n\" data-v=\"{kept}\">{shown}</td>");
    let energy = r.energy.measured;
    let mj = energy.map_or(0, |e| e.millijoules);
    let shown = energy.map_or("·".to_string(), |e| e.to_string());
    let _ = write!(
        page,
        "<td class=\"n\" data-v=\"{mj}\" title=\"{}\">{shown}</td>",
        r.energy
    );
    let e = &r.estimate;
    let whole = u128::from(e.io_ns) + u128::from(e.compute_ns);
    if whole == 0 {
        page.push_str("<td class=\"n\" data-v=\"0\">·</td></tr>\n");
        return;
    }
    let _ = writeln!(
        page,
        "<td class=\"n\" data-v=\"{}\"><span class=\"split\" title=\"estimate: T_I/O {}, T_compute {}\">\
         <i style=\"width:{:.1}%\"></i></span>{} · {}</td></tr>",
        e.io_ns,
        Elapsed(e.io_ns),
        Elapsed(e.compute_ns),
        percent(e.io_ns.into(), whole),
        Elapsed(e.io_ns),
        Elapsed(e.compute_ns)
    );
}

/// Two tables that JavaScript fills: rows come as they are asked for.
pub(super) fn lists(page: &mut String, trace: &Trace) {
    let (attempts, transfers) = (trace.attempts().count(), trace.history.transfers.len());
    for (id, title, rows, what) in [
        ("attempts", "Every attempt", attempts, "attempts"),
        ("transfers", "Every transfer", transfers, "transfers"),
    ] {
        let _ = writeln!(
            page,
            "<section class=\"list\"><h2>{title} <small>{rows}</small></h2>\n<div class=\"tools\"><input type=\"search\" \
             id=\"{id}-find\" placeholder=\"filter\" aria-label=\"Filter {what}\"><span class=\"fine\">{}</span></div>\n\
             <div class=\"scroll\"><table id=\"{id}\"></table></div>\n<button class=\"more\" id=\"{id}-more\" hidden>\
             more</button></section>",
            too_many(rows, what)
        );
    }
}

pub(super) fn notes(page: &mut String, notes: &[Answer]) {
    if notes.is_empty() {
        return;
    }
    let hidden = notes.len().saturating_sub(MAX_NOTES);
    page.push_str("<section><h2>Why</h2>\n");
    let first = if hidden > 0 {
        format!(" The last {MAX_NOTES} of {}.", notes.len())
    } else {
        String::new()
    };
    let _ = writeln!(
        page,
        "<p class=\"fine\">Actions that waited, freed space, were tried again or given up, with the logged reason. \
         <code>tarn why NAME</code> answers for anything else.{first}</p>\n<ol class=\"notes\">"
    );
    for n in &notes[hidden..] {
        let again = if n.times > 1 {
            format!(" <small>{} times</small>", n.times)
        } else {
            String::new()
        };
        let _ = writeln!(
            page,
            "<li><time>{}</time><div><b>{}</b>{again}<span>{}</span></div></li>",
            Elapsed(n.when),
            escape(&n.what),
            escape(&n.why)
        );
    }
    page.push_str("</ol></section>\n");
}
