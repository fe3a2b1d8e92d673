//! A page that compares by curves: small charts of one ratio each, side by side, over the same two axes.

use crate::figure::{self, figure};
use crate::html::sections::SCENE;
use crate::html::text::{escape, json_in_script};
use crate::html::{LAST, TOOLS, begin, end};
use serde_json::{Value, json};
use std::fmt::Write;

/// The script that reads the plots.
const DRAWN: &str = "const byId = (id) => document.getElementById(id);\n\
    const plots = JSON.parse(byId('tarn-plots').textContent);\n";
/// Ratios between two lines of the grid, and the least that the axis goes up to.
const GRID: f64 = 0.25;
const LEAST_TOP: f64 = 1.25;
/// Ratios above this are drawn at the upper edge: a single bad one must not flatten all the others.
const MOST_TOP: f64 = 3.0;

/// The content of the page.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// Its title.
    pub title: String,
    /// The line below the title.
    pub sub: String,
    /// The heading of the charts.
    pub heading: String,
    /// How they are read.
    pub note: String,
    /// The horizontal axis of all charts.
    pub across: String,
    /// The vertical one.
    pub upwards: String,
    /// The figures in large.
    pub cards: Vec<Card>,
    /// The charts.
    pub panels: Vec<Panel>,
    /// The figures.
    pub tables: Vec<TableOf>,
    /// The figures for programs.
    pub json: serde_json::Value,
}

/// A figure in large.
#[derive(Debug, Clone)]
pub struct Card {
    /// The label.
    pub label: String,
    /// The figure.
    pub value: String,
    /// The line below the figure.
    pub below: String,
}

/// A chart.
#[derive(Debug, Clone)]
pub struct Panel {
    /// Its name.
    pub name: String,
    /// The subject of its curves.
    pub note: String,
    /// Its curves; those of one name have one colour in all charts.
    pub curves: Vec<Curve>,
}

/// A curve of ratios over shares from 0 to 1.
#[derive(Debug, Clone)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// The line, in the order of shares.
    pub line: Vec<(f64, f64)>,
    /// Single values.
    pub dots: Vec<(f64, f64)>,
}

/// A table, the first row its head.
#[derive(Debug, Clone)]
pub struct TableOf {
    /// Its heading.
    pub name: String,
    /// Its rows.
    pub rows: Vec<Vec<String>>,
}

/// The page, one file that loads nothing.
pub fn comparison_page(comparison: &Comparison) -> String {
    let mut page = begin(&format!("{} – tarn bench", comparison.title), figure::STYLE);
    let _ = writeln!(
        page,
        "<header>{SCENE}<div class=\"wrap\"><p class=\"brand\"><svg viewBox=\"0 0 24 24\" aria-hidden=\"true\">\
         <path d=\"M2 15 9 5l4 6 3-3 6 7z\"/><path d=\"M4 18h16M7 21h10\"/></svg>tarn bench</p>\n\
         <h1>{}</h1>\n<p class=\"sub\">{}</p></div></header>\n<main>",
        escape(&comparison.title),
        escape(&comparison.sub)
    );
    page.push_str("<section class=\"cards\">\n");
    for card in &comparison.cards {
        let _ = writeln!(
            page,
            "<div class=\"card\"><p>{}</p><strong>{}</strong><small>{}</small></div>",
            escape(&card.label),
            escape(&card.value),
            escape(&card.below)
        );
    }
    page.push_str("</section>\n");
    charts(&mut page, comparison);
    for (number, table) in comparison.tables.iter().enumerate() {
        table_of(&mut page, number, table);
    }
    let _ = writeln!(
        page,
        "</main>\n<footer>Written by tarn {} from simulations; every figure is also in this page as JSON \
         (<code>#tarn-summary</code>).</footer>\n<script type=\"application/json\" id=\"tarn-summary\">{}</script>\n\
         <script type=\"application/json\" id=\"tarn-plots\">{}</script>",
        env!("CARGO_PKG_VERSION"),
        json_in_script(&comparison.json),
        json_in_script(&plots(comparison))
    );
    end(&mut page, &[DRAWN, TOOLS, figure::PLOTS, LAST].concat());
    page
}

/// The charts: their axes are the same, and points beyond the upper edge are marked there.
fn charts(page: &mut String, comparison: &Comparison) {
    let _ = write!(
        page,
        "<section class=\"charts\"><h2>{}</h2>\n{}<div class=\"plots panels\">\n",
        escape(&comparison.heading),
        figure::NO_SCRIPT
    );
    for (number, panel) in comparison.panels.iter().enumerate() {
        let title = format!(
            "{} <small>{}</small>",
            escape(&panel.name),
            escape(&panel.note)
        );
        figure(
            page,
            number,
            &title,
            "<a class=\"data\" href=\"#table-0\">data</a>",
        );
    }
    let _ = writeln!(
        page,
        "</div>\n<p class=\"fine\">{} An arrowhead at the upper edge is above {MOST_TOP}.</p></section>",
        escape(&comparison.note)
    );
}

/// The charts as `page/plots.js` draws them: ratios over shares.
fn plots(comparison: &Comparison) -> Vec<Value> {
    let mut names: Vec<&str> = Vec::new();
    for curve in comparison.panels.iter().flat_map(|p| &p.curves) {
        if !names.contains(&curve.name.as_str()) {
            names.push(&curve.name);
        }
    }
    let most = top(&comparison.panels);
    let plot = |panel: &Panel| {
        let series = panel
            .curves
            .iter()
            .map(|c| json!({"name": c.name, "of": "here", "points": c.line, "dots": c.dots}));
        json!({
            "title": panel.name, "kind": "lines", "x": {"label": comparison.across}, "y": {"label": comparison.upwards},
            "names": names, "most": most, "even": 1, "percent": true, "series": series.collect::<Vec<_>>(),
        })
    };
    comparison.panels.iter().map(plot).collect()
}

/// The upper end of all charts.
fn top(panels: &[Panel]) -> f64 {
    let curves = panels.iter().flat_map(|p| &p.curves);
    let values = curves.flat_map(|c| c.line.iter().chain(&c.dots));
    let most = values.map(|(_, ratio)| *ratio).fold(LEAST_TOP, f64::max);
    ((most / GRID).ceil() * GRID).min(MOST_TOP)
}

/// A table with its heading; the number makes its anchor.
fn table_of(page: &mut String, number: usize, table: &TableOf) {
    let Some((head, rows)) = table.rows.split_first() else {
        return;
    };
    let _ = writeln!(
        page,
        "<section id=\"table-{number}\"><h2>{}</h2>",
        escape(&table.name)
    );
    let head: Vec<(String, bool)> = head.iter().cloned().zip((0..).map(|n| n > 0)).collect();
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.iter().map(|cell| escape(cell)).collect())
        .collect();
    figure::table(page, "plain", &head, &rows);
    page.push_str("</section>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn top_of(ratios: &[f64]) -> f64 {
        let dots = ratios.iter().map(|r| (0.5, *r)).collect();
        let curve = Curve {
            name: "a".into(),
            line: vec![(0.5, 1.0)],
            dots,
        };
        top(&[Panel {
            name: "p".into(),
            note: String::new(),
            curves: vec![curve],
        }])
    }

    #[test]
    fn axes_hold_all_but_outliers() {
        assert_eq!(top_of(&[0.3]), 1.25);
        assert_eq!(top_of(&[1.3]), 1.5);
        assert_eq!(top_of(&[50.0]), MOST_TOP);
    }

    #[test]
    fn text_stays_text() {
        let nasty = "</script><script>alert(1)</script>";
        let page = comparison_page(&Comparison {
            title: nasty.into(),
            sub: nasty.into(),
            heading: nasty.into(),
            note: nasty.into(),
            across: nasty.into(),
            upwards: nasty.into(),
            cards: vec![Card {
                label: nasty.into(),
                value: nasty.into(),
                below: nasty.into(),
            }],
            panels: vec![Panel {
                name: nasty.into(),
                note: nasty.into(),
                curves: vec![Curve {
                    name: nasty.into(),
                    line: vec![(0.5, 1.0)],
                    dots: vec![(0.5, 1.0)],
                }],
            }],
            tables: vec![TableOf {
                name: nasty.into(),
                rows: vec![vec![nasty.into()], vec![nasty.into()]],
            }],
            json: serde_json::json!([nasty]),
        });
        assert!(!page.contains("<script>alert"));
        assert_eq!(page.matches("</script>").count(), 3);
    }
}
