//! Results of experiments: accepted and refused files, and the page.

use serde_json::{Value, json};
use tarn_report::evidence::{
    EvidenceError, Experiment, MAX_TEXT, Results, brief, markdown, page, text,
};

fn experiment() -> Value {
    json!({
        "schema": 1, "experiment": "weiland-table1", "title": "Files <of> all sizes", "source": "Weiland 2018, Table 1",
        "emulated": ["a store at 100 MB/s"], "differs": ["smaller"], "rounds": 5,
        "tables": [{
            "title": "Seconds", "columns": ["files", "tier", "store"],
            "rows": [["10 x 1 GB", {"value": 0.25, "low": 0.2, "high": 0.3, "paper": 4.97}, 12]],
        }],
        "plots": [
            {"title": "lines", "kind": "lines", "x": {"label": "size", "log": true}, "y": {"label": "MB/s", "log": true}, "series": [
                {"name": "tarn", "of": "here", "points": [[4096, 100.0, 90.0, 110.0], [8192, 150.0]]},
                {"name": "published", "of": "paper", "points": [[4096, 50], [8192, 60]]}]},
            {"title": "bars", "kind": "bars", "x": {"label": ""}, "y": {"label": "s"}, "series": [
                {"name": "cp", "of": "peer", "points": [["large", 2.0, 1.0, 3.0], ["small", 1.5]]}]},
            {"title": "gantt", "kind": "gantt", "x": {"label": "s"}, "y": {"label": "node"}, "series": [
                {"name": "Job 1", "of": "here", "points": [[0, 0.0, 10.0], [1, 0.0, 10.0]]}]},
            {"title": "nothing", "kind": "lines", "x": {"label": "s"}, "y": {"label": "node"}, "series": []},
        ],
        "claims": [{"claim": "58 times faster", "paper": "58", "here": "48", "verdict": "holds"}],
        "a key of later": true,
    })
}

fn results(experiment: Value) -> Value {
    json!({
        "schema": 1, "machine": {"cpu": "a <fast> one", "cores": 2}, "tarn": "0.1.0", "date": 1_700_000_000, "quick": true,
        "experiments": [experiment, {"schema": 1, "experiment": "other", "title": "Other", "source": "", "not_run": "needs <root>"}],
    })
}

fn parsed(value: &Value) -> Result<Results, EvidenceError> {
    Results::parse(value.to_string().as_bytes())
}

#[test]
fn the_page_has_all_of_it_and_nothing_from_outside() {
    let results = parsed(&results(experiment())).unwrap();
    let page = page(&results, None);
    assert_eq!(page.matches("<figure ").count(), 4);
    assert_eq!(page.matches(">data of this figure<").count(), 4);
    for has in [
        "Files &lt;of&gt; all sizes",
        "a &lt;fast&gt; one",
        "not run: needs &lt;root&gt;",
        "a store at 100 MB/s",
        ">paper 4.97<",
        ">holds<",
        "<a href=\"#holds\">1</a>",
        "<a href=\"#not-run\">1 not run</a>",
        ">published</td>",
        "<code>--quick</code>",
        "id=\"weiland-table1\"",
    ] {
        assert!(page.contains(has), "{has}");
    }
    assert!(!page.contains("NaN"));
    assert!(!page.contains("src=") && !page.contains("url(http"));
    // The page also carries the drawn results as JSON.
    let json = page.split("id=\"tarn-results\">").nth(1).unwrap();
    let json = json.split("</script>").next().unwrap();
    assert_eq!(Results::parse(json.as_bytes()).unwrap(), results);
    let text = text(&results);
    assert!(
        text.contains("0.250 (0.200 to 0.300) [paper 4.97]"),
        "{text}"
    );
    assert!(text.contains("not run: needs <root>"), "{text}");
}

#[test]
fn what_was_not_measured_says_so_wherever_its_figures_are() {
    let mut one = experiment();
    let claims = json!([
        {"claim": "c1", "paper": "p1", "here": "h1", "verdict": "holds"},
        {"claim": "c2", "paper": "p2", "here": "h2", "verdict": "holds", "how": ["emulated", "simulated", "emulated"]},
        {"claim": "c3", "paper": "p3", "here": "h3", "verdict": "fails", "how": []},
    ]);
    one["claims"] = claims;
    one["plots"][1]["how"] = json!(["simulated"]);
    let mark = |how: &str| format!(" <span class=\"how\">{how}</span>");
    let shown = |e: &Value| {
        let results = parsed(&results(e.clone())).unwrap();
        (page(&results, None), text(&results), markdown(&results))
    };
    let (page, terminal, document) = shown(&one);
    for (text, how) in [
        ("h1", mark("emulated") + "</td>"),
        ("h2", mark("simulated, emulated") + "</td>"),
        ("h3", "</td>".into()),
        ("<h3>Seconds", mark("emulated") + "</h3>"),
        ("<figcaption>lines", mark("emulated") + "</figcaption>"),
        ("<figcaption>bars", mark("simulated") + "</figcaption>"),
    ] {
        assert!(page.contains(&format!("{text}{how}")), "{text}: {page}");
    }
    for expected in [
        "  holds: c1 (paper: p1; here, emulated: h1)\n",
        "(paper: p2; here, simulated, emulated: h2)\n",
        "does not hold: c3 (paper: p3; here: h3)\n",
        "  Seconds (emulated)\n",
        "  emulated: a store at 100 MB/s\n",
        "  differs from the paper: smaller\n",
        "medians of 5 repetitions",
    ] {
        assert!(terminal.contains(expected), "{expected}: {terminal}");
    }
    assert_eq!(
        document,
        "| experiment | claim | paper | here | verdict |\n| --- | --- | --- | --- | --- |\n\
         | [weiland-table1](evidence/weiland-table1.md) | c1 | p1 | h1 (emulated) | holds |\n\
         |  | c2 | p2 | h2 (simulated, emulated) | holds |\n\
         |  | c3 | p3 | h3 | does not hold |\n\
         | [other](evidence/other.md) |  |  |  | not run: needs &lt;root> |\n"
    );
    // Of all of it, if all of it is such; nothing, if nothing is.
    one["how"] = json!(["modelled"]);
    let (page, terminal, _) = shown(&one);
    assert!(page.contains(&format!("<h3>Seconds{}", mark("modelled"))));
    assert!(
        terminal.contains("  modelled: a store at 100 MB/s\n"),
        "{terminal}"
    );
    one["how"] = Value::Null;
    one["emulated"] = json!([]);
    one["claims"] = json!([]);
    one["plots"] = json!([]);
    let (page, terminal, _) = shown(&one);
    assert!(!page.contains("class=\"how\"") && terminal.contains("  Seconds\n"));
}

#[test]
fn a_cell_of_the_documents_table_ends_where_it_ends() {
    let mut one = experiment();
    one["claims"][0]["claim"] = json!("a | b\nc");
    let table = markdown(&parsed(&results(one)).unwrap());
    assert!(table.contains(" | a \\| b c | "), "{table}");
}

#[test]
fn how_long_all_took_is_told_beside_what_is_meant() {
    let mut all = results(experiment());
    all["experiments"][0]["seconds"] = json!(90);
    all["experiments"][1]["seconds"] = json!(30.0);
    for (quick, meant) in [(true, "15"), (false, "90")] {
        all["quick"] = json!(quick);
        let results = parsed(&all).unwrap();
        let took = results.took();
        assert!(took.starts_with("2 experiments took 2.0 min"), "{took}");
        assert!(took.ends_with(&format!("at most {meant} min")), "{took}");
        assert!(text(&results).ends_with(&format!("{took}\n")));
        assert!(page(&results, None).contains(&took));
    }
}

#[test]
fn what_does_not_hold_stands_first() {
    let mut one = experiment();
    one["claims"] = json!([
        {"claim": "the good one", "paper": "p", "here": "h", "verdict": "holds"},
        {"claim": "the open one", "paper": "p", "here": "h", "verdict": "unclear"},
        {"claim": "the bad one", "paper": "p", "here": "h", "verdict": "fails"},
    ]);
    let results = parsed(&results(one)).unwrap();
    let page = page(&results, Some("kept.json"));
    let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text}: {page}"));
    let order = [
        "The bad one",
        "needs &lt;root&gt;",
        "The open one",
        "The good one",
        "<figure ",
    ];
    let places: Vec<usize> = order.iter().map(|text| at(text)).collect();
    assert!(places.is_sorted(), "{places:?}");
    assert!(page.contains("<a href=\"kept.json\">kept.json</a>"));
    // Beside a page the terminal shows only these lines.
    let counts = "3 claims: 1 do not hold, 1 undecided, 1 hold; 1 experiment not run";
    assert_eq!(
        brief(&results),
        format!(
            "weiland-table1: does not hold: the bad one (paper: p; here, emulated: h)\nother: not run: needs <root>\n{counts}\n{}\n",
            results.took()
        )
    );
    let text = text(&results);
    assert!(text.find("the bad one") < text.find("the good one") && text.contains(counts));
}

#[test]
fn how_figures_came_about_is_not_said_twice() {
    let mut one = experiment();
    one["how"] = json!(["simulated", "emulated"]);
    one["plots"][0]["title"] = json!("Simulated schedules");
    one["claims"][0]["claim"] = json!("in the simulator, simulated and emulated, it is faster");
    let page = page(&parsed(&results(one)).unwrap(), None);
    let caption =
        "<figcaption>Simulated schedules <span class=\"how\">emulated</span></figcaption>";
    assert!(page.contains(caption), "{page}");
    assert!(page.contains(">48</td>"), "{page}");
}

#[test]
fn what_breaks_a_rule_is_refused_with_its_place() {
    type Break = (&'static str, fn(&mut Value));
    let breaks: [Break; 10] = [
        ("a row of 1 cells", |e| {
            e["tables"][0]["rows"][0] = json!(["x"])
        }),
        ("cannot have the point", |e| {
            e["plots"][0]["series"][0]["points"][0] = json!([0, 1])
        }),
        ("cannot have the point", |e| {
            e["plots"][0]["series"][0]["points"][0] = json!([1, 0])
        }),
        ("cannot have the point", |e| {
            e["plots"][1]["series"][0]["points"][0] = json!([1, 1])
        }),
        ("cannot have the point", |e| {
            e["plots"][2]["series"][0]["points"][0] = json!([0, 1])
        }),
        ("a point is [x, y]", |e| {
            e["plots"][2]["series"][0]["points"][0] = json!([])
        }),
        ("unknown variant", |e| {
            e["claims"][0]["verdict"] = json!("perhaps")
        }),
        ("unknown variant", |e| {
            e["tables"][0]["how"] = json!(["guessed"])
        }),
        ("are the most", |e| {
            e["title"] = json!("x".repeat(MAX_TEXT + 1))
        }),
        ("format 2", |e| e["schema"] = json!(2)),
    ];
    for (expected, spoil) in breaks {
        let mut broken = experiment();
        spoil(&mut broken);
        let why = parsed(&results(broken.clone())).unwrap_err().to_string();
        assert!(why.contains(expected), "{expected}: {why}");
        assert!(Experiment::parse(broken.to_string().as_bytes()).is_err());
    }
    assert!(Results::parse(b"").is_err());
    let mut later = results(experiment());
    later["schema"] = json!(2);
    assert!(matches!(parsed(&later), Err(EvidenceError::Version(2))));
}
