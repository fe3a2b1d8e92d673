//! Results as one page: the claims that fail, are undecided, and hold; then each experiment.

use super::numbers::{FigureCell, measured, short};
use super::{
    ChartKind, ClaimVerdict, EvidenceCell, EvidenceTable, Experiment, PaperClaim, Plot,
    PointPosition, Results,
};
use crate::figure::{self, figure};
use crate::html::sections::{SCENE, counted};
use crate::html::text::{escape, json_in_script};
use crate::html::{LAST, TOOLS, begin, end};
use std::fmt::Write;

const STYLE: &str = include_str!("../../page/evidence.css");
/// The script that collects the plots of all experiments that ran, in their order.
const DRAWN: &str = "const byId = (id) => document.getElementById(id);\n\
    const found = JSON.parse(byId('tarn-results').textContent).experiments;\n\
    const plots = found.filter((e) => !e.not_run).flatMap((e) => e.plots);\n";

/// The page; `data` is a link to the file with the results that it shows.
pub fn page(results: &Results, data: Option<&str>) -> String {
    let style = [figure::STYLE, STYLE].concat();
    let mut page = begin("tarn reproduce", &style);
    header(&mut page, results, data);
    page.push_str("<main>\n");
    if results.quick {
        page.push_str(
            "<p class=\"banner\">Measured with <code>--quick</code>: small sizes, few repetitions.</p>\n",
        );
    }
    cards(&mut page, results);
    page.push_str(figure::NO_SCRIPT);
    claims(&mut page, results, ClaimVerdict::Fails);
    not_run(&mut page, results);
    claims(&mut page, results, ClaimVerdict::Unclear);
    claims(&mut page, results, ClaimVerdict::Holds);
    contents(&mut page, results);
    let mut number = 0;
    for e in results.experiments.iter().filter(|e| e.not_run.is_none()) {
        experiment(&mut page, e, &mut number);
    }
    page.push_str("</main>\n");
    let _ = writeln!(
        page,
        "<footer>Written by tarn {}. A paper’s figures are of its machine and stand beside this machine’s, not against them; verdicts \
         compare ratios. All figures are in {} and in this page as JSON (<code>#tarn-results</code>).</footer>",
        env!("CARGO_PKG_VERSION"),
        kept(data)
    );
    let _ = writeln!(
        page,
        "<script type=\"application/json\" id=\"tarn-results\">{}</script>",
        json_in_script(results)
    );
    end(&mut page, &[DRAWN, TOOLS, figure::PLOTS, LAST].concat());
    page
}

/// The file of the results.
fn kept(data: Option<&str>) -> String {
    match data {
        Some(link) => format!("<a href=\"{0}\">{0}</a>", escape(link)),
        None => "the file of results".into(),
    }
}

fn header(page: &mut String, results: &Results, data: Option<&str>) {
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
         <h1>The papers’ experiments on this machine</h1>\n<p class=\"sub\">{} · tarn {} · {}</p>\n<p class=\"sub\">{}</p>\n\
         <p class=\"sub\">Data: {}</p></div></header>",
        tarn_types::text::minute(results.date),
        escape(&results.tarn),
        machine.join(" · "),
        escape(&results.took()),
        kept(data)
    );
}

/// A verdict's class, and the anchor of its section.
fn class(verdict: ClaimVerdict) -> (&'static str, &'static str) {
    match verdict {
        ClaimVerdict::Holds => ("good", "holds"),
        ClaimVerdict::Fails => ("bad", "does-not-hold"),
        ClaimVerdict::Unclear => ("warn", "undecided"),
    }
}

fn pill(verdict: ClaimVerdict) -> String {
    let (class, _) = class(verdict);
    format!(
        "<span class=\"pill flat {class}\">{}</span>",
        verdict.words()
    )
}

/// How figures came about, beside a text: only words that the text does not have; nothing if they were simply measured.
fn mark(how: Option<String>, beside: &str) -> String {
    let beside = beside.to_lowercase();
    let how = how.unwrap_or_default();
    let words: Vec<&str> = how
        .split(", ")
        .filter(|w| !w.is_empty() && !beside.contains(w))
        .collect();
    if words.is_empty() {
        String::new()
    } else {
        format!(" <span class=\"how\">{}</span>", escape(&words.join(", ")))
    }
}

fn cards(page: &mut String, results: &Results) {
    page.push_str("<section class=\"cards\">\n");
    let all = || results.experiments.iter().flat_map(|e| &e.claims);
    for verdict in ClaimVerdict::BY_WEIGHT {
        let count = all().filter(|c| c.verdict == verdict).count();
        let label = match verdict {
            ClaimVerdict::Fails => "Claims that do not hold here",
            ClaimVerdict::Unclear => "Undecided",
            ClaimVerdict::Holds => "Claims that hold here",
        };
        let why = match verdict {
            ClaimVerdict::Fails => "in no repetition",
            ClaimVerdict::Unclear => "repetitions differ, or it was put in",
            ClaimVerdict::Holds => "in every repetition",
        };
        let (_, anchor) = class(verdict);
        let shown = match count {
            0 => "0".to_owned(),
            n => format!("<a href=\"#{anchor}\">{n}</a>"),
        };
        let _ = writeln!(
            page,
            "<div class=\"card\"><p>{label}</p><strong>{shown}</strong><small>{why}</small></div>"
        );
    }
    let ran = results.experiments.iter().filter(|e| e.not_run.is_none());
    let (ran, of) = (ran.count(), results.experiments.len());
    let missing = match of - ran {
        0 => "all of them".to_owned(),
        n => format!("<a href=\"#not-run\">{n} not run</a>"),
    };
    let _ = writeln!(
        page,
        "<div class=\"card\"><p>Experiments run</p><strong>{ran}</strong><small>{missing}</small></div>\n</section>"
    );
}

/// The claims with one verdict, each with its experiment.
fn claims(page: &mut String, results: &Results, verdict: ClaimVerdict) {
    let mut rows = Vec::new();
    for e in &results.experiments {
        for c in e.claims.iter().filter(|c| c.verdict == verdict) {
            let mut row = claim(e, c);
            let _ = write!(
                row[0],
                "<small><a href=\"#{}\">{}</a> · {}</small>",
                escape(&e.experiment),
                escape(&e.title),
                escape(&e.source)
            );
            rows.push(row);
        }
    }
    if rows.is_empty() {
        return;
    }
    let (_, anchor) = class(verdict);
    let emphasis = if verdict == ClaimVerdict::Fails {
        " bad-first"
    } else {
        ""
    };
    let _ = writeln!(
        page,
        "<section class=\"claims{emphasis}\" id=\"{anchor}\"><h2>{} <small>{}</small></h2>",
        pill(verdict),
        counted(rows.len() as u64, "claim")
    );
    let head = ["The paper’s claim", "The paper’s figure", "Here"];
    figure::table(page, "plain", &head.map(|h| (h.to_owned(), false)), &rows);
    page.push_str("</section>\n");
}

/// The cells of a claim.
fn claim(e: &Experiment, c: &PaperClaim) -> Vec<String> {
    let beside = format!("{} {}", c.claim, c.here);
    vec![
        escape(&sentence(&c.claim)),
        escape(&c.paper),
        format!(
            "{}{}",
            escape(&c.here),
            mark(e.how(c.how.as_ref()), &beside)
        ),
    ]
}

/// A text that begins as sentences do.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|c| c.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

/// The experiments that were not run, and why.
fn not_run(page: &mut String, results: &Results) {
    let missing = || {
        let all = results.experiments.iter();
        all.filter_map(|e| Some((e, e.not_run.as_ref()?)))
    };
    if missing().next().is_none() {
        return;
    }
    page.push_str("<section class=\"claims\" id=\"not-run\"><h2>Not run</h2>\n");
    for (e, why) in missing() {
        let _ = writeln!(
            page,
            "<h3 id=\"{}\">{} <small>{}</small></h3><p>not run: {}</p>",
            escape(&e.experiment),
            escape(&e.title),
            escape(&e.source),
            escape(why)
        );
    }
    page.push_str("</section>\n");
}

/// The links to the experiments.
fn contents(page: &mut String, results: &Results) {
    page.push_str("<section id=\"experiments\"><h2>Experiments</h2>\n<ul class=\"contents\">\n");
    for e in &results.experiments {
        let _ = writeln!(
            page,
            "<li><a href=\"#{}\">{}</a></li>",
            escape(&e.experiment),
            escape(&e.title)
        );
    }
    page.push_str("</ul></section>\n");
}

fn experiment(page: &mut String, e: &Experiment, number: &mut usize) {
    let _ = writeln!(
        page,
        "<section class=\"experiment\" id=\"{}\"><h2>{} <small>{} · {}</small></h2>",
        escape(&e.experiment),
        escape(&e.title),
        escape(&e.source),
        escape(&e.experiment)
    );
    let mut rows = Vec::new();
    for c in e.claims_by_verdict() {
        let mut row = claim(e, c);
        row.insert(0, pill(c.verdict));
        rows.push(row);
    }
    if !rows.is_empty() {
        let head = ["Verdict", "Claim", "Paper", "Here"];
        figure::table(
            page,
            "plain of-claims",
            &head.map(|h| (h.to_owned(), false)),
            &rows,
        );
    }
    if !e.plots.is_empty() {
        page.push_str("<div class=\"plots\">\n");
        for plot in &e.plots {
            let how = mark(e.how(plot.how.as_ref()), &plot.title);
            let title = format!("{}{how}", escape(&plot.title));
            figure(page, *number, &title, &data(plot));
            *number += 1;
        }
        page.push_str("</div>\n");
    }
    for t in &e.tables {
        table(page, t, e.how(t.how.as_ref()));
    }
    list(
        page,
        &sentence(&e.how(None).unwrap_or_default()),
        &e.emulated,
    );
    list(page, "Otherwise than in the paper", &e.differs);
    let repeated = e
        .repeated()
        .map(|r| sentence(&r) + "; it ")
        .unwrap_or_else(|| "It ".into());
    let _ = writeln!(
        page,
        "<p class=\"fine\">{repeated}took {} s.</p></section>",
        short(e.seconds.round())
    );
}

/// Sentences below a heading; nothing of none.
fn list(page: &mut String, heading: &str, sentences: &[String]) {
    if sentences.is_empty() {
        return;
    }
    let _ = writeln!(page, "<h4>{}</h4><ul class=\"fine\">", escape(heading));
    for sentence in sentences {
        let _ = writeln!(page, "<li>{}</li>", escape(sentence));
    }
    page.push_str("</ul>\n");
}

/// The data of a plot.
fn data(plot: &Plot) -> String {
    let name = |label: &str, otherwise: &str| match label {
        "" => otherwise.to_owned(),
        label => label.to_owned(),
    };
    let is_gantt = plot.kind == ChartKind::Gantt;
    let head = if is_gantt {
        ["job", "node", "from", "to", ""].map(str::to_owned)
    } else {
        [
            "series".into(),
            name(&plot.x.label, "of"),
            name(&plot.y.label, "value"),
            "least".into(),
            "greatest".into(),
        ]
    };
    let mut rows = Vec::new();
    for series in &plot.series {
        for point in &series.points {
            let at = match &point.at {
                PointPosition::Number(x) => short(*x),
                PointPosition::Name(name) => escape(name),
            };
            let mut row = vec![escape(&series.name), at];
            let number = |n: &f64| if is_gantt { short(*n) } else { measured(*n) };
            row.extend(point.numbers.iter().map(number));
            rows.push(row);
        }
    }
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let head: Vec<(String, bool)> = head
        .into_iter()
        .take(columns)
        .enumerate()
        .map(|(at, name)| (name, at > 1))
        .collect();
    let mut out = String::from("<details class=\"data\"><summary>data of this figure</summary>");
    figure::table(&mut out, "", &head, &rows);
    out.push_str("</details>");
    out
}

fn table(page: &mut String, table: &EvidenceTable, how: Option<String>) {
    let _ = writeln!(
        page,
        "<h3>{}{}</h3>",
        escape(&table.title),
        mark(how, &table.title)
    );
    let is_text = |at: usize| {
        let is = |row: &Vec<EvidenceCell>| matches!(row.get(at), Some(EvidenceCell::Text(_)));
        at == 0 || table.rows.iter().all(is)
    };
    let columns = table.columns.iter().enumerate();
    let head: Vec<(String, bool)> = columns.map(|(at, c)| (c.clone(), !is_text(at))).collect();
    let rows: Vec<Vec<String>> = table
        .rows
        .iter()
        .map(|row| {
            row.iter()
                .enumerate()
                .map(|(at, c)| cell(c, table.is_whole(at)))
                .collect()
        })
        .collect();
    figure::table(page, "plain", &head, &rows);
}

/// A figure, its spread and the paper's, distinguished by style.
fn cell(cell: &EvidenceCell, is_whole: bool) -> String {
    let shown = FigureCell::of(cell, is_whole);
    let mut out = match cell {
        EvidenceCell::Text(_) | EvidenceCell::Number(_) => escape(&shown.value),
        EvidenceCell::Figure(_) => format!("<b>{}</b>", shown.value),
    };
    if let Some((low, high)) = shown.spread {
        let _ = write!(out, " <small>{low} to {high}</small>");
    }
    if let Some(paper) = shown.paper {
        let _ = write!(out, " <span class=\"from-paper\">paper {paper}</span>");
    }
    out
}
