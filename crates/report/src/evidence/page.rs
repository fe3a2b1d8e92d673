//! Results as one page: claims and verdicts first, then each experiment.

use super::plot::{short, svg};
use super::text::cell;
use super::{Cell, Experiment, Figure, Results, Table, Verdict};
use crate::html::sections::{SCENE, counted};
use crate::html::text::{escape, json_in_script};
use crate::html::{begin, end};
use std::fmt::Write;

const STYLE: &str = include_str!("../../page/evidence.css");

/// The page.
pub fn page(results: &Results) -> String {
    let mut page = begin("tarn reproduce", STYLE);
    header(&mut page, results);
    page.push_str("<main>\n");
    if results.quick {
        page.push_str(
            "<p class=\"banner\">Measured with <code>--quick</code>: small sizes, few repetitions.</p>\n",
        );
    }
    verdicts(&mut page, results);
    for e in &results.experiments {
        experiment(&mut page, e);
    }
    page.push_str("</main>\n");
    let _ = writeln!(
        page,
        "<footer>Written by tarn {}. A paper’s figures are of its machine and stand beside this machine’s, not against them; verdicts \
         compare ratios. All figures are in this page as JSON too (<code>#tarn-results</code>).</footer>",
        env!("CARGO_PKG_VERSION")
    );
    let _ = writeln!(
        page,
        "<script type=\"application/json\" id=\"tarn-results\">{}</script>",
        json_in_script(results)
    );
    end(&mut page, "");
    page
}

fn header(page: &mut String, results: &Results) {
    let field = |key: &str| results.machine.get(key);
    let mut machine = Vec::new();
    if let Some(cpu) = field("cpu").and_then(|v| v.as_str()) {
        machine.push(escape(cpu));
    }
    if let Some(cores) = field("cores").and_then(serde_json::Value::as_u64) {
        machine.push(counted(cores, "core"));
    }
    if let Some(bytes) = field("memory_bytes").and_then(serde_json::Value::as_u64) {
        machine.push(format!("{:.0} GiB", bytes as f64 / f64::from(1 << 30)));
    }
    if let Some(kernel) = field("kernel").and_then(|v| v.as_str()) {
        machine.push(format!("Linux {}", escape(kernel)));
    }
    let _ = writeln!(
        page,
        "<header>{SCENE}<div class=\"wrap\"><p class=\"brand\"><svg viewBox=\"0 0 24 24\" aria-hidden=\"true\">\
         <path d=\"M2 15 9 5l4 6 3-3 6 7z\"/><path d=\"M4 18h16M7 21h10\"/></svg>tarn reproduce</p>\n\
         <h1>The papers’ experiments on this machine</h1>\n<p class=\"sub\">{} · tarn {} · {}</p>\n<p class=\"sub\">{}</p></div></header>",
        tarn_base::text::minute(results.date),
        escape(&results.tarn),
        machine.join(" · "),
        escape(&results.took())
    );
}

fn pill(verdict: Verdict) -> String {
    let class = match verdict {
        Verdict::Holds => "good",
        Verdict::Fails => "bad",
        Verdict::Unclear => "warn",
    };
    format!("<span class=\"pill {class}\">{}</span>", verdict.words())
}

/// How figures came about, beside them; nothing if they were simply measured.
fn mark(how: Option<String>) -> String {
    how.map_or_else(String::new, |how| {
        format!(" <span class=\"how\">{}</span>", escape(&how))
    })
}

/// Every claim of every experiment, and what was not run.
fn verdicts(page: &mut String, results: &Results) {
    let all = || results.experiments.iter().flat_map(|e| &e.claims);
    let count = |verdict| all().filter(|c| c.verdict == verdict).count();
    let not_run: Vec<&Experiment> = results
        .experiments
        .iter()
        .filter(|e| e.not_run.is_some())
        .collect();
    page.push_str("<section id=\"claims\"><h2>What the papers claim");
    let _ = writeln!(
        page,
        " <small>{} hold, {} do not, {} undecided{}</small></h2>",
        count(Verdict::Holds),
        count(Verdict::Fails),
        count(Verdict::Unclear),
        match not_run.len() {
            0 => String::new(),
            n => format!("; {} not run", counted(n as u64, "experiment")),
        }
    );
    page.push_str(
        "<div class=\"scroll\"><table><thead><tr><th></th><th>claim</th><th>paper</th><th>here</th><th>experiment</th></tr></thead><tbody>\n",
    );
    for e in &results.experiments {
        let link = format!("<a href=\"#{0}\">{0}</a>", escape(&e.experiment));
        if let Some(why) = &e.not_run {
            let _ = writeln!(
                page,
                "<tr><td></td><td colspan=\"3\">not run: {}</td><td>{link}</td></tr>",
                escape(why)
            );
        }
        for c in &e.claims {
            let _ = writeln!(
                page,
                "<tr><td>{}</td><td>{}</td><td class=\"paper\">{}</td><td>{}{}</td><td>{link}</td></tr>",
                pill(c.verdict),
                escape(&c.claim),
                escape(&c.paper),
                escape(&c.here),
                mark(e.how(c.how.as_ref())),
            );
        }
    }
    page.push_str("</tbody></table></div></section>\n");
}

fn experiment(page: &mut String, e: &Experiment) {
    let _ = writeln!(
        page,
        "<section class=\"experiment\" id=\"{}\"><h2>{} <small>{} · {}</small></h2>",
        escape(&e.experiment),
        escape(&e.title),
        escape(&e.source),
        escape(&e.experiment)
    );
    if let Some(why) = &e.not_run {
        let _ = writeln!(page, "<p>Not run: {}</p></section>", escape(why));
        return;
    }
    for emulated in &e.emulated {
        let _ = writeln!(
            page,
            "<p class=\"emulated\">{} {}</p>",
            mark(e.how(None)),
            escape(emulated)
        );
    }
    if !e.plots.is_empty() {
        page.push_str("<div class=\"plots\">\n");
        for plot in &e.plots {
            let drawn = svg(plot).unwrap_or_else(|why| {
                format!("<p>This plot could not be drawn: {}</p>", escape(&why))
            });
            let _ = writeln!(
                page,
                "<figure>{drawn}<figcaption>{}{}</figcaption></figure>",
                escape(&plot.title),
                mark(e.how(plot.how.as_ref()))
            );
        }
        page.push_str("</div>\n");
    }
    for t in &e.tables {
        table(page, t, e.how(t.how.as_ref()));
    }
    let repeated = e.repeated().map(|r| r + "; ").unwrap_or_default();
    let _ = writeln!(
        page,
        "<p class=\"fine\">{repeated}took {} s</p>",
        short(e.seconds.round())
    );
    if !e.differs.is_empty() {
        page.push_str("<h3>Otherwise than in the paper</h3><ul class=\"fine\">\n");
        for what in &e.differs {
            let _ = writeln!(page, "<li>{}</li>", escape(what));
        }
        page.push_str("</ul>\n");
    }
    page.push_str("</section>\n");
}

fn table(page: &mut String, table: &Table, how: Option<String>) {
    let _ = write!(
        page,
        "<h3>{}{}</h3><div class=\"scroll\"><table><thead><tr>",
        escape(&table.title),
        mark(how)
    );
    let mut classes = Vec::new();
    for (index, column) in table.columns.iter().enumerate() {
        let is_text = |row: &Vec<Cell>| matches!(row.get(index), Some(Cell::Text(_)));
        let class = match index == 0 || table.rows.iter().all(is_text) {
            true => "",
            false => " class=\"n\"",
        };
        classes.push(class);
        let _ = write!(page, "<th{class}>{}</th>", escape(column));
    }
    page.push_str("</tr></thead><tbody>\n");
    for row in &table.rows {
        page.push_str("<tr>");
        for (c, class) in row.iter().zip(&classes) {
            let _ = match c {
                Cell::Text(text) => write!(page, "<td{class}>{}</td>", escape(text)),
                Cell::Number(_) => write!(page, "<td class=\"n\">{}</td>", cell(c)),
                Cell::Figure(figure) => write!(page, "<td class=\"n\">{}</td>", marked(figure)),
            };
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
}

/// A figure, its spread and the paper's, told apart by style.
fn marked(figure: &Figure) -> String {
    let mut out = format!("<b>{}</b>", short(figure.value));
    if let (Some(low), Some(high)) = (figure.low, figure.high) {
        let _ = write!(out, " <small>{} to {}</small>", short(low), short(high));
    }
    if let Some(paper) = figure.paper {
        let _ = write!(out, " <span class=\"paper\">paper {}</span>", short(paper));
    }
    out
}
