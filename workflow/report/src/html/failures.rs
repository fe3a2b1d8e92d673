//! Failures on the way or at the end, and the attempts that were stopped when the run was.

use super::links::PageLinks;
use super::text::escape;
use crate::names::RunNames;
use crate::summarize::{lost_nodes, not_rescued, not_run};
use crate::summary::MAX_NOT_RUN;
use crate::trace::{RunTrace, is_stopped};
use std::fmt::Write;
use tarn_types::event::RunErrorKind;
use tarn_types::history::{AttemptEnd, TransferEnd};
use tarn_types::units::{Elapsed, Time};

/// Failures that are shown, the last ones: each may carry some kilobytes of log.
const MAX_FAILURES: usize = 100;
/// Names of stopped attempts that are shown.
const MAX_STOPPED: usize = 20;

/// Attempts that ended with the run, in one sentence.
fn stopped(page: &mut String, trace: &RunTrace, names: &RunNames<'_>) {
    let stopped = || trace.attempts().filter(|(_, a)| is_stopped(a));
    let first: Vec<String> = stopped()
        .take(MAX_STOPPED)
        .map(|((id, _), _)| names.instance(id))
        .collect();
    let count = stopped().count();
    if count == 0 {
        return;
    }
    let more = match count - first.len() {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    let _ = writeln!(
        page,
        "<section id=\"stopped\"><h2>What was stopped <small>{count}</small></h2><p>These attempts were running \
         when the run was stopped. They did not fail: <b>{}</b>{more}.</p></section>",
        escape(&first.join(", "))
    );
}

/// A failure that the page shows.
struct FailureListEntry {
    when: Time,
    what: String,
    why: String,
    /// The end of its log, if it has one.
    log_tail: String,
    /// A link to its log.
    log: Option<String>,
}

impl FailureListEntry {
    /// One that has no log.
    fn new(when: Time, what: String, why: &str) -> Self {
        Self {
            when,
            what,
            why: why.to_owned(),
            log_tail: String::new(),
            log: None,
        }
    }

    fn write(&self, page: &mut String) {
        let _ = write!(
            page,
            "<article class=\"failure\"><h3>{} <small>at {}</small></h3><p>{}</p>",
            escape(&self.what),
            Elapsed(self.when),
            escape(&self.why)
        );
        if !self.log_tail.is_empty() {
            let _ = write!(
                page,
                "<details open><summary>last lines of its log</summary><div class=\"tail\"><pre>{}</pre></div></details>",
                escape(&self.log_tail)
            );
        }
        if let Some(log) = &self.log {
            let _ = write!(page, "<p><a href=\"{log}\">whole log</a></p>");
        }
        page.push_str("</article>\n");
    }
}

/// Failed attempts and transfers; those that were only stopped are none.
fn failed(trace: &RunTrace, names: &RunNames<'_>, links: &PageLinks) -> Vec<FailureListEntry> {
    let mut all = Vec::new();
    for ((id, _), a) in trace.attempts().filter(|(_, a)| !is_stopped(a)) {
        if let Some((when, AttemptEnd::Failed { failure, log_tail })) = &a.ended {
            let what = format!(
                "{}, attempt {}, on {}",
                names.instance(id),
                a.attempt,
                names.nodes(&a.nodes)
            );
            all.push(FailureListEntry {
                log_tail: log_tail.clone(),
                log: Some(links.log(&names.step(id.step), id, a.attempt)),
                ..FailureListEntry::new(*when, what, &failure.message)
            });
        }
    }
    for t in trace.history.transfers.values() {
        if let Some((when, TransferEnd::Failed(failure))) = &t.ended
            && failure.kind != RunErrorKind::Cancelled
        {
            let data = names.version(t.order.data, t.order.version);
            let what = format!(
                "transfer {} of {data} to {}",
                t.order.id,
                names.place(&t.order.to)
            );
            all.push(FailureListEntry::new(*when, what, &failure.message));
        }
    }
    all
}

/// The consequences of failures by the end of the run, lost nodes, and sources that could not be listed.
fn consequences(trace: &RunTrace, names: &RunNames<'_>) -> Vec<FailureListEntry> {
    let mut all = Vec::new();
    let not_run = not_run(trace);
    let end = trace.history.outcome.map_or(0, |(when, _)| when);
    for step in not_run.iter().take(MAX_NOT_RUN) {
        let what = format!("{} did not run", step.step);
        all.push(FailureListEntry::new(end, what, &step.why));
    }
    if let Some(more @ 1..) = not_run.len().checked_sub(MAX_NOT_RUN) {
        let what = format!("{more} more step(s) did not run");
        let why = "they need what failed";
        all.push(FailureListEntry::new(end, what, why));
    }
    for data in not_rescued(trace) {
        let what = format!("{} {}", data.dataset, data.what());
        all.push(FailureListEntry::new(end, what, &data.why));
    }
    for loss in lost_nodes(trace) {
        let what = format!("{} is lost", loss.node);
        all.push(FailureListEntry::new(loss.at_ns, what, &loss.why));
    }
    for (data, failure) in &trace.history.source_failures {
        let what = format!("listing {}", names.data(*data));
        all.push(FailureListEntry::new(0, what, &failure.message));
    }
    all
}

pub(super) fn failures(
    page: &mut String,
    trace: &RunTrace,
    names: &RunNames<'_>,
    links: &PageLinks,
    title: &str,
) {
    stopped(page, trace, names);
    let mut all = failed(trace, names, links);
    all.extend(consequences(trace, names));
    if all.is_empty() {
        return;
    }
    all.sort_by_key(|failure| failure.when);
    let hidden = all.len().saturating_sub(MAX_FAILURES);
    let _ = writeln!(page, "<section id=\"failures\"><h2>{title}</h2>");
    if hidden > 0 {
        let _ = writeln!(
            page,
            "<p class=\"fine\">The last {MAX_FAILURES} of {}.</p>",
            all.len()
        );
    }
    for failure in all.iter().skip(hidden) {
        failure.write(page);
    }
    page.push_str("</section>\n");
}
