//! The parts of the page that list: images, attempts and transfers, notes.

use super::sections::too_many;
use super::text::escape;
use crate::summary::Summary;
use crate::trace::RunTrace;
use crate::why::LoggedReason;
use std::fmt::Write;
use tarn_types::units::Elapsed;

/// Notes that are listed, the last ones.
const MAX_NOTES: usize = 500;

/// The results of taking images of steps' processes.
pub(super) fn images(page: &mut String, summary: &Summary) {
    let with = || summary.steps.iter().filter(|s| s.images.any());
    if with().count() == 0 {
        return;
    }
    let _ = writeln!(page, "<section id=\"images\"><h2>Images of processes</h2>");
    for step in with().take(super::steps::MAX_STEP_ROWS) {
        let (name, images) = (escape(&step.name), escape(&step.images.to_string()));
        let _ = writeln!(page, "<p>{name}: {images}</p>");
    }
    let _ = writeln!(page, "</section>");
}

/// Two tables that JavaScript fills: rows come on demand.
pub(super) fn lists(page: &mut String, trace: &RunTrace) {
    let (attempts, transfers) = (trace.attempts().count(), trace.history.transfers.len());
    for (id, title, rows, what) in [
        ("attempts", "Every attempt", attempts, "attempts"),
        ("transfers", "Every transfer", transfers, "transfers"),
    ] {
        list(page, id, (title, rows), &too_many(rows, what));
    }
}

/// A section with a table that `page/lists.js` fills, and a filter for it.
pub(crate) fn list(page: &mut String, id: &str, (title, rows): (&str, usize), note: &str) {
    let _ = writeln!(
        page,
        "<section class=\"list\" id=\"{id}-list\"><h2>{title} <small>{rows}</small></h2>\n<div class=\"tools\"><input type=\"search\" \
         id=\"{id}-find\" placeholder=\"filter\" aria-label=\"Filter {id}\"><span class=\"fine\">{note}</span></div>\n\
         <table id=\"{id}\" class=\"stack\"></table>\n<button class=\"more\" id=\"{id}-more\" hidden>\
         more</button></section>"
    );
}

pub(super) fn notes(page: &mut String, notes: &[LoggedReason]) {
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
