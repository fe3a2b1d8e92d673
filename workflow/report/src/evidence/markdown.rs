//! The papers' claims as a table for documents: the table of research/results.md is made by it.

use super::Results;
use std::fmt::Write;

/// The folder of the experiments' pages, relative to research/results.md.
const PAGES: &str = "evidence";

/// Every claim of every experiment, and the experiments that were not run, as a table in Markdown.
pub fn markdown(results: &Results) -> String {
    let mut out = String::from(
        "| experiment | claim | paper | here | verdict |\n| --- | --- | --- | --- | --- |\n",
    );
    for e in &results.experiments {
        let name = plain(&e.experiment);
        let mut link = format!("[{name}]({PAGES}/{name}.md)");
        if let Some(why) = &e.not_run {
            let _ = writeln!(out, "| {link} |  |  |  | not run: {} |", plain(why));
        }
        for claim in &e.claims {
            let how = e.how(claim.how.as_ref()).map(|how| format!(" ({how})"));
            let _ = writeln!(
                out,
                "| {} | {} | {} | {}{} | {} |",
                // Only in the first row.
                std::mem::take(&mut link),
                plain(&claim.claim),
                plain(&claim.paper),
                plain(&claim.here),
                how.unwrap_or_default(),
                claim.verdict.words()
            );
        }
    }
    out
}

/// A text that cannot end its cell.
fn plain(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").replace('|', "\\|").replace('<', "&lt;")
}
