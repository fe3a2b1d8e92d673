//! A page that compares by curves: small charts of one ratio each, side by side, over the same two axes.

use crate::html::sections::SCENE;
use crate::html::text::{escape, json_in_script};
use crate::html::{begin, end};
use std::fmt::Write;

const STYLE: &str = include_str!("../../page/curves.css");
/// Tests wait for this.
const READY: &str = "document.documentElement.dataset.ready = 'yes';\n";
/// Tones that the style has for curves; more curves than this share tones.
const TONES: usize = 10;
/// A chart, in units of its drawing: the plot is what the margins leave.
const WIDTH: f64 = 380.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 36.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 24.0;
/// Ratios between two lines of the grid, and the least that the axis goes up to.
const GRID: f64 = 0.25;
const LEAST_TOP: f64 = 1.25;
/// Ratios above this are drawn at the upper edge: a single bad one must not flatten all the others.
const MOST_TOP: f64 = 3.0;

/// What the page shows.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// Its title.
    pub title: String,
    /// What stands below it.
    pub sub: String,
    /// The heading of the charts.
    pub heading: String,
    /// How they are read.
    pub note: String,
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
    /// What it is.
    pub label: String,
    /// The figure.
    pub value: String,
    /// What else there is to say.
    pub below: String,
}

/// A chart.
#[derive(Debug, Clone)]
pub struct Panel {
    /// Its name.
    pub name: String,
    /// What it is of.
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
    let mut page = begin(&format!("{} – tarn bench", comparison.title), STYLE);
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
    for table in &comparison.tables {
        table_of(&mut page, table);
    }
    let _ = writeln!(
        page,
        "</main>\n<footer>Written by tarn {} from simulations; every figure is also in this page as JSON \
         (<code>#tarn-summary</code>).</footer>\n<script type=\"application/json\" id=\"tarn-summary\">{}</script>",
        env!("CARGO_PKG_VERSION"),
        json_in_script(&comparison.json)
    );
    end(&mut page, READY);
    page
}

fn charts(page: &mut String, comparison: &Comparison) {
    let mut names: Vec<&str> = Vec::new();
    for curve in comparison.panels.iter().flat_map(|p| &p.curves) {
        if !names.contains(&curve.name.as_str()) {
            names.push(&curve.name);
        }
    }
    let _ = write!(
        page,
        "<section class=\"charts\"><h2>{}</h2>\n<div class=\"legend\">",
        escape(&comparison.heading)
    );
    for (n, name) in names.iter().enumerate() {
        let tone = n % TONES;
        let _ = write!(
            page,
            "<span class=\"c{tone}\"><i></i>{}</span>",
            escape(name)
        );
    }
    page.push_str("</div>\n<div class=\"panels\">\n");
    let axes = Axes::of(&comparison.panels);
    for panel in &comparison.panels {
        let _ = write!(
            page,
            "<figure class=\"chart\"><h3>{} <small>{}</small></h3><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-label=\"{0}\">",
            escape(&panel.name),
            escape(&panel.note)
        );
        axes.draw(page);
        for curve in &panel.curves {
            let tone = names.iter().position(|n| *n == curve.name).unwrap_or(0) % TONES;
            axes.curve(page, curve, tone);
        }
        page.push_str("</svg></figure>\n");
    }
    let _ = writeln!(
        page,
        "</div>\n<p class=\"fine\">{}</p></section>",
        escape(&comparison.note)
    );
}

/// The axes that all charts share: shares across, ratios upwards.
struct Axes {
    top: f64,
    shares: Vec<f64>,
}

impl Axes {
    fn of(panels: &[Panel]) -> Self {
        let curves = || panels.iter().flat_map(|p| &p.curves);
        let values = curves().flat_map(|c| c.line.iter().chain(&c.dots));
        let most = values.map(|(_, ratio)| *ratio).fold(LEAST_TOP, f64::max);
        let mut shares: Vec<f64> = curves()
            .flat_map(|c| c.line.iter().map(|(s, _)| *s))
            .collect();
        shares.sort_by(f64::total_cmp);
        shares.dedup();
        Self {
            top: ((most / GRID).ceil() * GRID).min(MOST_TOP),
            shares,
        }
    }

    fn x(share: f64) -> f64 {
        LEFT + share.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, ratio: f64) -> f64 {
        let part = ratio.clamp(0.0, self.top) / self.top;
        TOP + (1.0 - part) * (HEIGHT - TOP - BOTTOM)
    }

    fn draw(&self, page: &mut String) {
        let (left, right) = (Self::x(0.0), Self::x(1.0));
        for n in 0..=(self.top / GRID).round() as u32 {
            let ratio = f64::from(n) * GRID;
            let y = self.y(ratio);
            let class = if ratio == 1.0 { "even" } else { "grid" };
            let _ = write!(
                page,
                "<path class=\"{class}\" d=\"M{left:.1} {y:.1}H{right:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" \
                 text-anchor=\"end\">{ratio:.2}</text>",
                left - 6.0,
                y + 4.0
            );
        }
        for share in &self.shares {
            let _ = write!(
                page,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.0} %</text>",
                Self::x(*share),
                HEIGHT - 6.0,
                share * 100.0
            );
        }
    }

    fn curve(&self, page: &mut String, curve: &Curve, tone: usize) {
        let at = |(share, ratio): &(f64, f64)| (Self::x(*share), self.y(*ratio));
        let points: Vec<String> = curve
            .line
            .iter()
            .map(|p| format!("{:.1},{:.1}", at(p).0, at(p).1))
            .collect();
        let _ = write!(
            page,
            "<g class=\"c{tone}\"><polyline points=\"{}\"/>",
            points.join(" ")
        );
        for dot in &curve.dots {
            let (x, y) = at(dot);
            let _ = write!(
                page,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\"><title>{}: {:.3} at {:.0} %</title></circle>",
                escape(&curve.name),
                dot.1,
                dot.0 * 100.0
            );
        }
        page.push_str("</g>");
    }
}

fn table_of(page: &mut String, table: &TableOf) {
    let Some((head, rows)) = table.rows.split_first() else {
        return;
    };
    let row = |page: &mut String, cells: &[String], tag: &str| {
        page.push_str("<tr>");
        for (n, cell) in cells.iter().enumerate() {
            let class = if n > 0 { " class=\"n\"" } else { "" };
            let _ = write!(page, "<{tag}{class}>{}</{tag}>", escape(cell));
        }
        page.push_str("</tr>\n");
    };
    let _ = write!(
        page,
        "<section><h2>{}</h2>\n<div class=\"scroll\"><table class=\"plain\"><thead>",
        escape(&table.name)
    );
    row(page, head, "th");
    page.push_str("</thead><tbody>\n");
    for cells in rows {
        row(page, cells, "td");
    }
    page.push_str("</tbody></table></div></section>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes(ratios: &[f64]) -> Axes {
        let dots = ratios.iter().map(|r| (0.5, *r)).collect();
        let curve = Curve {
            name: "a".into(),
            line: vec![(0.5, 1.0)],
            dots,
        };
        Axes::of(&[Panel {
            name: "p".into(),
            note: String::new(),
            curves: vec![curve],
        }])
    }

    #[test]
    fn axes_hold_all_but_outliers() {
        assert_eq!(axes(&[0.3]).top, 1.25);
        assert_eq!(axes(&[1.3]).top, 1.5);
        let wide = axes(&[50.0]);
        assert_eq!((wide.top, wide.y(50.0)), (MOST_TOP, TOP));
        assert_eq!(
            (wide.y(0.0), Axes::x(1.0)),
            (HEIGHT - BOTTOM, WIDTH - RIGHT)
        );
    }

    #[test]
    fn text_stays_text() {
        let nasty = "</script><script>alert(1)</script>";
        let page = comparison_page(&Comparison {
            title: nasty.into(),
            sub: nasty.into(),
            heading: nasty.into(),
            note: nasty.into(),
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
        assert_eq!(page.matches("</script>").count(), 2);
    }
}
