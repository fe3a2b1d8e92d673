//! Figures of a page: `page/plots.js` draws them as wide as the window lets them be; their data are below them.

use crate::html::text::escape;
use std::fmt::Write;

/// The style of figures, for every page that has some.
pub(crate) const STYLE: &str = include_str!("../page/plots.css");
/// The script that draws `plots`, a list that the page's script has made before.
pub(crate) const PLOTS: &str = include_str!("../page/plots.js");
/// The notice for browsers without JavaScript.
pub(crate) const NO_SCRIPT: &str = "<noscript><p class=\"fine\">The drawings need JavaScript, which this page \
    carries itself; the data are below each.</p></noscript>\n";

/// A figure below its title; `number` is its place in `plots`, `data` the text below it.
pub(crate) fn figure(page: &mut String, number: usize, title: &str, data: &str) {
    let _ = writeln!(
        page,
        "<figure id=\"figure-{number}\"><figcaption>{title}</figcaption><div id=\"legend-{number}\" class=\"legend\"></div>\
         <div id=\"plot-{number}\" class=\"chart\"></div>{data}</figure>"
    );
}

/// A table that becomes a list of cards on a phone; the first row is its head. Cells are HTML, those of columns with
/// `true` are numbers.
pub(crate) fn table(page: &mut String, class: &str, head: &[(String, bool)], rows: &[Vec<String>]) {
    let _ = write!(page, "<table class=\"stack {class}\"><thead><tr>");
    let number = |is: bool| if is { " class=\"n\"" } else { "" };
    for (name, is_number) in head {
        let _ = write!(page, "<th{}>{}</th>", number(*is_number), escape(name));
    }
    page.push_str("</tr></thead><tbody>\n");
    for row in rows {
        page.push_str("<tr>");
        for (cell, (name, is_number)) in row.iter().zip(head) {
            let _ = write!(
                page,
                "<td{} data-label=\"{}\">{cell}</td>",
                number(*is_number),
                escape(name)
            );
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table>\n");
}
