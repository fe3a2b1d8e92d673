//! The parts of the page that Rust writes: they are there without JavaScript, and a test reads them.

use super::MAX_DRAWN;
use super::text::{date, escape, percent};
use crate::names::Names;
use crate::summary::{EQUATION_5, OutcomeName, StepSummary, Summary};
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

/// The pattern of what waits: defined once, used by the drawings.
const HATCH: &str = r#"<svg width="0" height="0" aria-hidden="true"><pattern id="hatch" width="4" height="4"
 patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path d="M0 0V4"/></pattern></svg>"#;

/// A tarn: water below peaks.
const SCENE: &str = r##"<svg class="scene" viewBox="0 0 420 120" preserveAspectRatio="xMaxYMax slice" aria-hidden="true">
<path class="far" d="M40 84 96 40l22 18 34-36 40 44 24-20 46 46 30-26 40 34 36-20 52 24v36H40z"/>
<path class="near" d="M0 92 70 58l26 14 44-30 36 32 28-14 60 34 52-26 44 22 60-18v48H0z"/>
<path class="lake" d="M150 96c40-5 150-5 196 0 30 4 60 10 74 24H92c8-12 30-20 58-24z"/>
<path class="wave" d="M190 104h70m18 0h44M150 112h46m24 0h96m20 0h34"/></svg>"##;

pub(super) fn header(page: &mut String, s: &Summary) {
    let (word, class) = match s.outcome {
        OutcomeName::Done => ("done".to_string(), "good"),
        OutcomeName::Failed => ("failed".into(), "bad"),
        OutcomeName::Interrupted => (format!("interrupted by signal {}", s.signal.unwrap_or(0)), "warn"),
        OutcomeName::Unfinished => ("unfinished".into(), "warn"),
    };
    let cores: u64 = s.nodes.iter().map(|n| u64::from(n.cores)).sum();
    let resumed = match s.resumed {
        0 => String::new(),
        1 => " · resumed once".into(),
        n => format!(" · resumed {n} times"),
    };
    let _ = write!(
        page,
        "<header>{SCENE}<div class=\"wrap\"><p class=\"brand\"><svg viewBox=\"0 0 24 24\" aria-hidden=\"true\">\
         <path d=\"M2 15 9 5l4 6 3-3 6 7z\"/><path d=\"M4 18h16M7 21h10\"/></svg>tarn</p>\n\
         <h1>{} <span class=\"pill {class}\" id=\"outcome\">{word}</span></h1>\n\
         <p class=\"sub\">run <b>{}</b> · {} · {} with {} · policy {}{resumed}</p></div></header>\n",
        escape(&s.workflow),
        escape(&s.run),
        date(s.started),
        counted(s.nodes.len() as u64, "node"),
        counted(cores, "core"),
        escape(&s.policy),
    );
    if let Some(e) = &s.emulated {
        let _ = writeln!(
            page,
            "<p class=\"banner\" id=\"emulated\"><b>Emulated.</b> {}: tarn's own movement was slowed to this; what \
             programs read and write themselves was not.</p>",
            escape(&e.to_string())
        );
    }
}

fn counted(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn card(page: &mut String, label: &str, value: &str, below: &str, class: &str) {
    let _ = writeln!(
        page,
        "<div class=\"card {class}\"><p>{label}</p><strong>{value}</strong><small>{below}</small></div>"
    );
}

pub(super) fn figures(page: &mut String, s: &Summary) {
    page.push_str("<section class=\"cards\">\n");
    let core_time: u128 = s.nodes.iter().map(|n| u128::from(n.cores) * u128::from(s.makespan_ns)).sum();
    let busy: u128 = s.nodes.iter().map(|n| u128::from(n.core_busy_ns)).sum();
    let below = format!("cores busy {:.0} % of it", percent(busy, core_time));
    card(page, "Makespan", &Elapsed(s.makespan_ns).to_string(), &below, "");
    let i = &s.instances;
    let mut below: Vec<String> = Vec::new();
    for (n, what) in [
        (i.reused, "reused"),
        (i.skipped, "not needed"),
        (i.failed, "failed"),
        (i.open, "not finished"),
        (i.attempts.saturating_sub(i.run + i.failed + i.open), "more attempts"),
    ] {
        if n > 0 {
            below.push(format!("{n} {what}"));
        }
    }
    if below.is_empty() {
        below.push("none failed, none reused".into());
    }
    card(page, "Instances run", &i.run.to_string(), &below.join(" · "), "");
    let (b, st) = (&s.bytes, &s.stage_through);
    let outside = u128::from(b.external_in) + u128::from(b.external_out);
    let staged = u128::from(st.external_in) + u128::from(st.external_out);
    let below = format!("{} in · {} out", Bytes(b.external_in), Bytes(b.external_out));
    card(page, "Crossed to or from the external store", &size(outside), &below, "");
    let below = if outside > 0 && staged > outside {
        format!("{:.1} times as much", staged as f64 / outside as f64)
    } else {
        format!("{} in · {} out", Bytes(st.external_in), Bytes(st.external_out))
    };
    card(page, "Stage-through would have moved", &size(staged), &below, "");
    let below = format!(
        "{:.0} % of all input bytes",
        percent(b.retained.into(), st.external_in.into())
    );
    card(page, "Read where it lay", &Bytes(b.retained).to_string(), &below, "keep");
    page.push_str("</section>\n");
}

fn size(bytes: u128) -> String {
    Bytes(u64::try_from(bytes).unwrap_or(u64::MAX)).to_string()
}

/// A bar of several kinds, in percent of `scale`.
fn bar(page: &mut String, label: &str, parts: &[(&str, u64)], scale: u128) {
    let total: u128 = parts.iter().map(|p| u128::from(p.1)).sum();
    let _ = write!(page, "<div class=\"bar\"><span>{label}</span><div class=\"track\">");
    for (class, bytes) in parts.iter().filter(|p| p.1 > 0) {
        let width = percent(u128::from(*bytes), scale).max(0.2);
        let _ = write!(page, "<i class=\"{class}\" style=\"width:{width:.1}%\"></i>");
    }
    let _ = writeln!(page, "</div><b>{}</b></div>", size(total));
}

pub(super) fn traffic(page: &mut String, s: &Summary) {
    let (b, st) = (&s.bytes, &s.stage_through);
    let sum = |parts: &[u64]| parts.iter().map(|p| u128::from(*p)).sum::<u128>();
    let scale = sum(&[b.external_in, b.external_out])
        .max(sum(&[st.external_in, st.external_out]))
        .max(sum(&[b.peer, b.promote, b.demote]))
        .max(b.retained.into());
    page.push_str("<section><h2>Where the bytes went</h2>\n<div class=\"bars\"><h3>Over the external store's link</h3>\n");
    bar(page, "this run", &[("ext-in", b.external_in), ("ext-out", b.external_out)], scale);
    bar(page, "stage-through", &[("ext-in ghost", st.external_in), ("ext-out ghost", st.external_out)], scale);
    page.push_str("<h3>Inside the cluster</h3>\n");
    bar(page, "moved", &[("peer", b.peer), ("promote", b.promote), ("demote", b.demote)], scale);
    bar(page, "read where it lay", &[("retained", b.retained)], scale);
    page.push_str("</div>\n<dl class=\"bytes\">\n");
    for (id, class, label, bytes) in [
        ("bytes-external-in", "ext-in", "external in", b.external_in),
        ("bytes-external-out", "ext-out", "external out", b.external_out),
        ("bytes-peer", "peer", "between nodes", b.peer),
        ("bytes-promote", "promote", "to a faster tier", b.promote),
        ("bytes-demote", "demote", "to a slower tier", b.demote),
        ("bytes-retained", "retained", "read where it lay", b.retained),
        ("stage-through-in", "ext-in ghost", "stage-through, in", st.external_in),
        ("stage-through-out", "ext-out ghost", "stage-through, out", st.external_out),
    ] {
        let _ = writeln!(
            page,
            "<div><dt><i class=\"{class}\"></i>{label}</dt>\
             <dd id=\"{id}\" data-bytes=\"{bytes}\" title=\"{bytes} bytes\">{}</dd></div>",
            Bytes(bytes)
        );
    }
    page.push_str(
        "</dl>\n<p class=\"fine\">Stage-through is what people have today: every instance reads all its inputs from \
         the external store and writes all its outputs to it. Its figures are computed from this run's log, for the \
         instances that committed.</p></section>\n",
    );
}

pub(super) fn charts(page: &mut String, trace: &Trace) {
    let attempts = trace.attempts().count();
    let _ = write!(
        page,
        "<section class=\"charts\">{HATCH}<h2>Timeline</h2>\n\
         <div class=\"tools\"><div id=\"legend\" class=\"legend\"></div><div class=\"zoom\" role=\"group\" \
         aria-label=\"Zoom\"><button id=\"zoom-in\" title=\"Zoom in\">+</button><button id=\"zoom-out\" \
         title=\"Zoom out\">−</button><button id=\"zoom-all\">whole run</button></div></div>\n\
         <noscript><p class=\"fine\">The drawings need JavaScript, which this page carries itself.</p></noscript>\n\
         <div id=\"timeline\" class=\"chart\"></div>\n<p class=\"fine\" id=\"timeline-note\">Ctrl and wheel zoom, \
         dragging moves.{}</p>\n\
         <h2>What the tiers held</h2>\n<div id=\"fill\" class=\"chart\"></div>\n\
         <p class=\"fine\" id=\"fill-note\"></p></section>\n",
        too_many(attempts, "attempts")
    );
}

fn too_many(n: usize, what: &str) -> String {
    if n <= MAX_DRAWN {
        return String::new();
    }
    format!(" Of {n} {what} the {MAX_DRAWN} longest are shown; totals count all.")
}

pub(super) fn failures(page: &mut String, trace: &Trace, names: &Names<'_>) {
    let mut all: Vec<(Time, String, &str, &str)> = Vec::new();
    for ((id, _), a) in trace.attempts() {
        if let Some((when, AttemptEnd::Failed { failure, log_tail })) = &a.ended {
            let what = format!("{}, attempt {}, on {}", names.instance(id), a.attempt, names.nodes(&a.nodes));
            all.push((*when, what, &failure.message, log_tail));
        }
    }
    for t in trace.history.transfers.values() {
        if let Some((when, TransferEnd::Failed(failure))) = &t.ended {
            let data = names.version(t.order.data, t.order.version);
            let what = format!("transfer {} of {data} to {}", t.order.id, names.place(&t.order.to));
            all.push((*when, what, &failure.message, ""));
        }
    }
    for (data, failure) in &trace.history.source_failures {
        all.push((0, format!("listing {}", names.data(*data)), &failure.message, ""));
    }
    if all.is_empty() {
        return;
    }
    all.sort_by_key(|f| f.0);
    let hidden = all.len().saturating_sub(MAX_FAILURES);
    page.push_str("<section id=\"failures\"><h2>What failed</h2>\n");
    if hidden > 0 {
        let _ = writeln!(page, "<p class=\"fine\">The last {MAX_FAILURES} of {}.</p>", all.len());
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
            let _ = write!(page, "<details open><summary>last lines of its log</summary><pre>{}</pre></details>", escape(tail));
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
         <th class=\"n\">inputs</th><th class=\"n\">of them in place</th>\
         <th class=\"n\">T<sub>I/O</sub> · T<sub>compute</sub></th></tr></thead>\n<tbody>\n",
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
        let shown = if n == 0 { "·".to_string() } else { n.to_string() };
        let _ = write!(page, "<td class=\"n\" data-v=\"{n}\">{shown}</td>");
    }
    for t in [r.staging_ns, r.waiting_ns, r.run_ns, r.longest_ns, r.commit_ns, r.user_ns, r.system_ns] {
        let shown = if t == 0 { "·".to_string() } else { Elapsed(t).to_string() };
        let _ = write!(page, "<td class=\"n\" data-v=\"{t}\">{shown}</td>");
    }
    for b in [r.read, r.written, r.input] {
        let shown = if b == 0 { "·".to_string() } else { Bytes(b).to_string() };
        let _ = write!(page, "<td class=\"n\" data-v=\"{b}\">{shown}</td>");
    }
    let kept = percent(r.retained.into(), r.input.into());
    let shown = if r.input == 0 { "·".to_string() } else { format!("{kept:.0} %") };
    let _ = write!(page, "<td class=\"n\" data-v=\"{kept}\">{shown}</td>");
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
    let first = if hidden > 0 { format!(" The last {MAX_NOTES} of {}.", notes.len()) } else { String::new() };
    let _ = writeln!(
        page,
        "<p class=\"fine\">What waited, made room, was tried again or given up, with the reason that was logged. \
         <code>tarn why NAME</code> answers for anything else.{first}</p>\n<ol class=\"notes\">"
    );
    for n in &notes[hidden..] {
        let again = if n.times > 1 { format!(" <small>{} times</small>", n.times) } else { String::new() };
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

pub(super) fn footer(page: &mut String) {
    let _ = writeln!(
        page,
        "<footer>Written by tarn {} from the run's event log alone; every total is also in this page as JSON \
         (<code>#tarn-summary</code>).</footer>",
        env!("CARGO_PKG_VERSION")
    );
}
