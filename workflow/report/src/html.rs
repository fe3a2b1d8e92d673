//! The page that a run leaves behind: one file without any outside resource, for screen and paper.
//! Totals are written by Rust; JavaScript draws the parts that move with the zoom (`page/*.js`).

mod data;
mod failures;
mod graph;
mod layers;
mod links;
pub(crate) mod sections;
mod steps;
pub(crate) mod tables;
pub(crate) mod text;
mod workflow;

pub use links::{PageLinks, link};

use crate::ReportError;
use crate::names::RunNames;
use crate::summarize::summarize;
use crate::summary::OutcomeName;
use crate::trace::RunTrace;
use crate::why::notes;
use std::fmt::Write;
use tarn_ports::Record;
use text::{escape, json_in_script};

/// Attempts, and transfers, that are drawn and listed: a browser shows as many without effort. Of more, the
/// longest are taken, and the page says so; totals always count all.
pub const MAX_DRAWN: usize = 20_000;

const CSS: &str = include_str!("../page/page.css");
/// Styles of this page only.
const RUN_CSS: &str = include_str!("../page/run.css");
/// Functions for the scripts of every page.
pub(crate) const TOOLS: &str = include_str!("../page/tools.js");
/// Charts over time, once `run` is there.
pub(crate) const ZOOM: &str = include_str!("../page/zoom.js");
/// Lists of rows that JavaScript writes.
pub(crate) const LISTS: &str = include_str!("../page/lists.js");
/// The script after all others.
pub(crate) const LAST: &str = include_str!("../page/last.js");
const JS: [&str; 8] = [
    include_str!("../page/base.js"),
    TOOLS,
    ZOOM,
    include_str!("../page/timeline.js"),
    include_str!("../page/fill.js"),
    LISTS,
    include_str!("../page/tables.js"),
    LAST,
];

/// Nothing may be loaded, even if something slipped through the escaping.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

/// The report of a run as one HTML page.
///
/// # Errors
/// When the log has no beginning.
pub fn html(records: &[Record], links: &PageLinks) -> Result<String, ReportError> {
    let trace = RunTrace::of(records)?;
    let names = RunNames::new(&trace.start, &trace.history);
    let summary = summarize(&trace);
    let notes = notes(&trace, &names, records);
    let mut page = begin(&format!("{} – tarn report", summary.run), RUN_CSS);
    sections::header(&mut page, &summary);
    page.push_str("<main>\n");
    sections::figures(&mut page, &trace, &summary);
    // The failures of a run that did not succeed come first; failures that a successful run overcame come further below.
    let overcome = summary.outcome == OutcomeName::Done;
    if !overcome {
        failures::failures(&mut page, &trace, &names, links, "Failures");
    }
    workflow::results(&mut page, &trace, links);
    workflow::workflow(&mut page, &trace, &names, &summary);
    sections::traffic(&mut page, &summary);
    sections::charts(&mut page, &trace);
    steps::steps(&mut page, &trace, &summary);
    tables::images(&mut page, &summary);
    if overcome {
        failures::failures(&mut page, &trace, &names, links, "Failures on the way");
    }
    tables::notes(&mut page, &notes);
    tables::lists(&mut page, &trace);
    workflow::environment(&mut page, &trace, &summary);
    page.push_str("</main>\n");
    sections::footer(&mut page);
    let _ = writeln!(
        page,
        "<script type=\"application/json\" id=\"tarn-summary\">{}</script>",
        json_in_script(&summary)
    );
    let _ = writeln!(
        page,
        "<script type=\"application/json\" id=\"tarn-run\">{}</script>",
        json_in_script(&data::drawing(&trace, &names, links, &summary))
    );
    end(&mut page, &JS.concat());
    Ok(page)
}

/// The beginning of a page, with style of its own.
pub(crate) fn begin(title: &str, style: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{}</title>\n\
         <style>\n{CSS}{style}</style>\n</head>\n<body>\n",
        escape(title)
    )
}

/// The end of a page: its scripts.
pub(crate) fn end(page: &mut String, scripts: &str) {
    let _ = write!(
        page,
        "<script>\n(() => {{\n'use strict';\n{scripts}}})();\n</script>\n</body>\n</html>\n"
    );
}
