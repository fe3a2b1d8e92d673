//! The parts of the page that Rust writes: they are there without JavaScript, and a test reads them.

use super::MAX_DRAWN;
use super::text::{escape, percent};
use crate::summary::{OutcomeName, Summary};
use crate::trace::{RunTrace, is_stopped};
use std::fmt::Write;
use tarn_types::units::{Bytes, Elapsed};

/// The pattern for waiting: defined once, used by the drawings.
pub(crate) const HATCH: &str = r#"<svg width="0" height="0" aria-hidden="true"><pattern id="hatch" width="4" height="4"
 patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path d="M0 0V4"/></pattern></svg>"#;

/// A tarn: water below peaks.
pub(crate) const SCENE: &str = r##"<svg class="scene" viewBox="0 0 420 120" preserveAspectRatio="xMaxYMax slice" aria-hidden="true">
<path class="far" d="M40 84 96 40l22 18 34-36 40 44 24-20 46 46 30-26 40 34 36-20 52 24v36H40z"/>
<path class="near" d="M0 92 70 58l26 14 44-30 36 32 28-14 60 34 52-26 44 22 60-18v48H0z"/>
<path class="lake" d="M150 96c40-5 150-5 196 0 30 4 60 10 74 24H92c8-12 30-20 58-24z"/>
<path class="wave" d="M190 104h70m18 0h44M150 112h46m24 0h96m20 0h34"/></svg>"##;

pub(super) fn header(page: &mut String, s: &Summary) {
    let (word, class) = match s.outcome {
        OutcomeName::Done => ("done".to_string(), "good"),
        OutcomeName::Failed => ("failed".into(), "bad"),
        OutcomeName::Refused => ("refused".into(), "bad"),
        OutcomeName::Interrupted => (
            format!("interrupted by signal {}", s.signal.unwrap_or(0)),
            "warn",
        ),
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
        tarn_types::text::minute(s.started),
        counted(s.nodes.len() as u64, "node"),
        counted(cores, "core"),
        escape(&s.policy),
    );
    if let Some(e) = &s.emulated {
        let _ = writeln!(
            page,
            "<p class=\"banner\" id=\"emulated\"><b>In this run: {}.</b> tarn's own movement was slowed to this; what programs \
             read and write themselves was not.</p>",
            escape(&e.to_string())
        );
    }
}

pub(crate) fn counted(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// A figure with its label above, and its parts below.
fn card(page: &mut String, label: &str, value: &str, below: &str, class: &str) {
    let _ = writeln!(
        page,
        "<div class=\"card {class}\"><p>{label}</p><strong>{value}</strong><small>{below}</small></div>"
    );
}

/// Attempts that were stopped because the run was.
fn stopped(trace: &RunTrace) -> usize {
    trace.attempts().filter(|(_, a)| is_stopped(a)).count()
}

/// Attempts after the first of each instance.
fn retries(trace: &RunTrace) -> usize {
    trace.attempts().filter(|((_, at), _)| *at > 0).count()
}

pub(super) fn figures(page: &mut String, trace: &RunTrace, s: &Summary) {
    page.push_str("<section class=\"cards\">\n");
    let makespan = Elapsed(s.makespan_ns).to_string();
    let below = format!("cores busy {:.0} % of it", busy_percent(s));
    card(page, "Makespan", &makespan, &below, "");
    let run = s.instances.run.to_string();
    card(page, "Instances run", &run, &other_instances(trace, s), "");
    external_cards(page, s);
    let (b, st) = (&s.bytes, &s.stage_through);
    let below = format!(
        "{:.0} % of all input bytes",
        percent(b.retained.into(), st.external_in.into())
    );
    let retained = Bytes(b.retained).to_string();
    card(page, "Read locally", &retained, &below, "keep");
    page.push_str("</section>\n");
}

/// The share of all cores' time in which steps had them.
fn busy_percent(s: &Summary) -> f64 {
    let all: u128 = s
        .nodes
        .iter()
        .map(|n| u128::from(n.cores) * u128::from(s.makespan_ns))
        .sum();
    let busy: u128 = s.nodes.iter().map(|n| u128::from(n.core_busy_ns)).sum();
    percent(busy, all)
}

/// The numbers of instances that were reused, failed, not run or stopped, and of retries.
fn other_instances(trace: &RunTrace, s: &Summary) -> String {
    let i = &s.instances;
    let open = match s.outcome {
        OutcomeName::Unfinished => "not finished",
        _ => "not run",
    };
    let retries = retries(trace);
    let retries_word = if retries == 1 { "retry" } else { "retries" };
    let counts = [
        (i.reused, "reused"),
        (i.failed, "failed"),
        (i.open, open),
        (stopped(trace) as u64, "stopped"),
        (retries as u64, retries_word),
    ];
    let some = counts.iter().filter(|(n, _)| *n > 0);
    let some: Vec<String> = some.map(|(n, what)| format!("{n} {what}")).collect();
    if some.is_empty() {
        return "none failed, none reused".into();
    }
    some.join(" · ")
}

/// The bytes that crossed the external store's link, and the bytes that stage-through would have moved.
fn external_cards(page: &mut String, s: &Summary) {
    let (b, st) = (&s.bytes, &s.stage_through);
    let outside = u128::from(b.external_in) + u128::from(b.external_out);
    let staged = u128::from(st.external_in) + u128::from(st.external_out);
    let in_and_out = |i: u64, o: u64| format!("{} in · {} out", Bytes(i), Bytes(o));
    let below = in_and_out(b.external_in, b.external_out);
    let label = "Crossed to or from the external store";
    card(page, label, &size(outside), &below, "");
    let below = if outside > 0 && staged > outside {
        format!("{:.1} times as much", staged as f64 / outside as f64)
    } else {
        in_and_out(st.external_in, st.external_out)
    };
    let label = "Stage-through would have moved";
    card(page, label, &size(staged), &below, "");
}

fn size(bytes: u128) -> String {
    Bytes(u64::try_from(bytes).unwrap_or(u64::MAX)).to_string()
}

/// A bar of several kinds, in percent of `scale`.
fn bar(page: &mut String, label: &str, parts: &[(&str, u64)], scale: u128) {
    let total: u128 = parts.iter().map(|p| u128::from(p.1)).sum();
    let _ = write!(
        page,
        "<div class=\"bar\"><span>{label}</span><div class=\"track\">"
    );
    for (class, bytes) in parts.iter().filter(|p| p.1 > 0) {
        let width = percent(u128::from(*bytes), scale).max(0.2);
        let _ = write!(
            page,
            "<i class=\"{class}\" style=\"width:{width:.1}%\"></i>"
        );
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
    bar(
        page,
        "this run",
        &[("ext-in", b.external_in), ("ext-out", b.external_out)],
        scale,
    );
    bar(
        page,
        "stage-through",
        &[
            ("ext-in ghost", st.external_in),
            ("ext-out ghost", st.external_out),
        ],
        scale,
    );
    page.push_str("<h3>Inside the cluster</h3>\n");
    bar(
        page,
        "moved",
        &[
            ("peer", b.peer),
            ("promote", b.promote),
            ("demote", b.demote),
        ],
        scale,
    );
    bar(page, "read locally", &[("retained", b.retained)], scale);
    page.push_str("</div>\n");
    byte_list(page, s);
    page.push_str(
        "<p class=\"fine\">Stage-through is what people have today: every instance reads all its inputs from \
         the external store and writes all its outputs to it. Its figures are computed from this run's log, for the \
         instances that committed.</p></section>\n",
    );
}

/// The exact figures that the bars draw.
fn byte_list(page: &mut String, s: &Summary) {
    page.push_str("<dl class=\"bytes\">\n");
    let (b, st) = (&s.bytes, &s.stage_through);
    for (id, class, label, bytes) in [
        ("bytes-external-in", "ext-in", "external in", b.external_in),
        (
            "bytes-external-out",
            "ext-out",
            "external out",
            b.external_out,
        ),
        ("bytes-peer", "peer", "between nodes", b.peer),
        ("bytes-promote", "promote", "to a faster tier", b.promote),
        ("bytes-demote", "demote", "to a slower tier", b.demote),
        ("bytes-retained", "retained", "read locally", b.retained),
        (
            "stage-through-in",
            "ext-in ghost",
            "stage-through, in",
            st.external_in,
        ),
        (
            "stage-through-out",
            "ext-out ghost",
            "stage-through, out",
            st.external_out,
        ),
    ] {
        let _ = writeln!(
            page,
            "<div><dt><i class=\"{class}\"></i>{label}</dt>\
             <dd id=\"{id}\" data-bytes=\"{bytes}\" title=\"{bytes} bytes\">{}</dd></div>",
            Bytes(bytes)
        );
    }
    page.push_str("</dl>\n");
}

pub(super) fn charts(page: &mut String, trace: &RunTrace) {
    let attempts = trace.attempts().count();
    let _ = write!(
        page,
        "<section class=\"charts\">{HATCH}<h2>Timeline</h2>\n\
         <div class=\"tools\"><div class=\"legends\"><div id=\"legend-steps\" class=\"legend\"></div>\
         <div id=\"legend-before\" class=\"legend\"></div><div id=\"legend-moves\" class=\"legend\"></div></div><div class=\"zoom\" role=\"group\" \
         aria-label=\"Zoom\"><button id=\"zoom-in\" title=\"Zoom in\">+</button><button id=\"zoom-out\" \
         title=\"Zoom out\">−</button><button id=\"zoom-all\">whole run</button></div></div>\n\
         <noscript><p class=\"fine\">The drawings need JavaScript, which this page carries itself.</p></noscript>\n\
         <div id=\"timeline\" class=\"chart\"></div>\n<p class=\"fine\" id=\"timeline-note\">Ctrl and wheel zoom, \
         dragging moves. Under each node: what waits before it runs, transfers to it, transfers from it. Clock times are UTC.{}</p>\n\
         <h2>What the tiers held</h2>\n<p class=\"fine\">Each tier has a scale of its own, written at its left. The small bar shows \
         the peak as a share of the tier's capacity.</p>\n<div id=\"fill\" class=\"chart\"></div>\n\
         <p class=\"fine\" id=\"fill-note\"></p></section>\n",
        too_many(attempts, "attempts")
    );
}

pub(super) fn too_many(n: usize, what: &str) -> String {
    if n <= MAX_DRAWN {
        return String::new();
    }
    format!(" Of {n} {what} the {MAX_DRAWN} longest are shown; totals count all.")
}

pub(super) fn footer(page: &mut String) {
    let _ = writeln!(
        page,
        "<footer>Written by tarn {} from the run's event log alone; every total is also in this page as JSON \
         (<code>#tarn-summary</code>).</footer>",
        env!("CARGO_PKG_VERSION")
    );
}
