//! A simulated site's figures, its table and its page, of the two schedules that Weiland et al. draw.

#[path = "common/chromium.rs"]
mod chromium;
#[path = "common/looked.rs"]
mod looked;

use chromium::{browser, opened};
use looked::is_readable;
use serde_json::json;
use std::sync::Arc;
use tarn_report::site::{Chart, PlanBar, PlanChart, SiteRun, SiteSummary, page, plan_page, table};
use tarn_types::site::result::MAX_SPANS;
use tarn_types::site::{
    BytesByWay, Fate, Flow, FlowId, Island, Job, JobId, JobResult, Machine, Mode, MoveDirection,
    NodeKind, NodePowerModel, Rates, SiteResult, Skipped, Span, SpanOf, Store, Submit,
    UnrunnableJob, WorkJob, Workload,
};
use tarn_types::site::{ItemId, MoveId};
use tarn_types::units::SECOND;

fn machine(nodes: u32) -> Machine {
    let kind = NodeKind {
        sockets: 2,
        cores: 48,
        memory: 192 << 30,
        gpus: 0,
        tiers: Vec::new(),
        link: Rates::default(),
        mode: Mode::OneLevel,
        mode_change: None,
        power: NodePowerModel::default(),
        temperature: 20.0,
    };
    Machine {
        name: "twenty <nodes>".into(),
        islands: vec![Island {
            name: "n".into(),
            nodes,
            kind,
        }],
        store: Store {
            rates: Rates::default(),
            client: Rates::default(),
            saturates: 1,
        },
    }
}

fn work(name: &str, nodes: u32, flow: bool) -> WorkJob {
    WorkJob {
        job: Arc::new(Job {
            flow: flow.then_some(FlowId(0)),
            nodes,
            cores: 0,
            memory: 0,
            gpus: 0,
            mode: None,
            limit: 0,
            expect: 0,
            after: Vec::new(),
            continues: None,
            submitted: None,
            place: None,
            on: None,
            not_before: 0,
            reads: Vec::new(),
            writes: Vec::new(),
        }),
        name: name.into(),
        submit: Submit::At(0),
        compute: 0,
    }
}

/// Jobs of a schedule: name, whether it is of the workflow, first node, nodes, begin, seconds of reading, of computing,
/// of writing.
type Row = (&'static str, bool, u32, u32, u64, u64, u64, u64);

/// Figure 8 of the paper, as far as it can be read: without knowing data.
const FIGURE_8: [Row; 10] = [
    ("Job 1", true, 0, 4, 0, 10, 50, 30),
    ("Job 2", false, 4, 1, 0, 10, 180, 0),
    ("Job 3", false, 5, 15, 0, 10, 30, 0),
    ("Job 4", false, 5, 1, 40, 20, 400, 10),
    ("Job 5", false, 6, 7, 40, 10, 70, 10),
    ("Job 6", false, 0, 15, 470, 10, 20, 10),
    ("Job 7", true, 0, 4, 90, 30, 180, 120),
    ("Job 8", false, 7, 8, 130, 0, 250, 60),
    ("Job 9", true, 16, 4, 440, 10, 10, 30),
    ("Job 10", false, 15, 2, 90, 20, 150, 30),
];
/// Figure 9: the workflow keeps its nodes and its data.
const FIGURE_9: [Row; 10] = [
    ("Job 1", true, 0, 4, 0, 10, 50, 0),
    ("Job 2", false, 4, 1, 0, 10, 180, 0),
    ("Job 3", false, 5, 15, 0, 10, 30, 0),
    ("Job 4", false, 5, 1, 40, 20, 400, 10),
    ("Job 5", false, 6, 7, 40, 10, 70, 10),
    ("Job 6", false, 5, 15, 470, 10, 20, 10),
    ("Job 7", true, 0, 4, 60, 0, 180, 0),
    ("Job 8", false, 7, 8, 130, 0, 250, 60),
    ("Job 9", true, 0, 4, 240, 0, 10, 30),
    ("Job 10", false, 15, 2, 90, 20, 150, 30),
];

fn result(rows: &[Row]) -> SiteResult {
    let mut result = SiteResult {
        delivered: vec![None],
        ..SiteResult::default()
    };
    for (number, row) in (0u32..).zip(rows) {
        let (_, of_flow, first, nodes, begin, reads, computes, writes) = *row;
        let end = begin + reads + computes + writes;
        let held = (end - begin) * SECOND;
        let before = rows[..number as usize].iter().filter(|r| of_flow && r.1);
        let ready = before.map(|r| r.4 + r.5 + r.6 + r.7).max().unwrap_or(0);
        result.jobs.push(JobResult {
            submitted: 0,
            ready: ready * SECOND,
            begun: begin * SECOND,
            released: end * SECOND,
            held,
            io: (reads + writes) * SECOND,
            node_time: u64::from(nodes) * held,
            attempts: 1,
            fate: Fate::Done,
        });
        result.end = result.end.max(end * SECOND);
        let mut span = |what, from: u64, to: u64| {
            result.spans.push(Span {
                what,
                nodes: vec![(first, first + nodes)],
                begin: from * SECOND,
                end: to * SECOND,
            });
        };
        let job = JobId(number);
        span(SpanOf::StageIn(job), begin, begin + reads);
        span(SpanOf::StageOut(job), end - writes, end);
        span(SpanOf::Held(job), begin, end);
        if of_flow {
            result.delivered[0] = Some(end * SECOND);
        }
    }
    let moving = SpanOf::Moving {
        id: MoveId(0),
        item: ItemId(0),
        way: MoveDirection::Peer,
    };
    result.spans.push(Span {
        what: moving,
        nodes: vec![(18, 20)],
        begin: 50 * SECOND,
        end: 80 * SECOND,
    });
    result.bytes = BytesByWay {
        external_in: 3 << 30,
        external_out: 2 << 30,
        peer: 1 << 30,
        retained: 5,
    };
    result.energy = 12_345_678.0;
    result.events = 77;
    result
}

fn workload(rows: &[Row]) -> Workload {
    Workload {
        jobs: rows.iter().map(|r| work(r.0, r.3, r.1)).collect(),
        flows: vec![Flow {
            name: "w".into(),
            arrives: 0,
        }],
        skipped: vec![Skipped {
            file: "trace.swf".into(),
            why: "run time is negative".into(),
            count: 3,
            first_line: 17,
        }],
        ..Workload::default()
    }
}

fn run<'a>(
    policy: &'a str,
    machine: &'a Machine,
    workload: &'a Workload,
    result: &'a SiteResult,
) -> SiteRun<'a> {
    SiteRun {
        policy,
        machine,
        workload,
        result,
        lower_bound: 400 * SECOND,
        flow_bounds: &[280 * SECOND],
        wall_s: 0.5,
    }
}

#[test]
fn the_figures_are_those_of_the_paper() {
    let (machine, workload) = (machine(20), workload(&FIGURE_8));
    let unaware = result(&FIGURE_8);
    let summary = SiteSummary::of(&run("greedy", &machine, &workload, &unaware));
    let flow = &summary.workflows["w"];
    assert_eq!(
        (flow.time_s, flow.run_s, flow.queue_s),
        (490.0, 470.0, 20.0)
    );
    assert_eq!((flow.io_s, flow.compute_s), (230.0, 240.0));
    assert_eq!(flow.node_s, 4.0 * 470.0);
    let aware = result(&FIGURE_9);
    let summary = SiteSummary::of(&run("data", &machine, &workload, &aware));
    assert_eq!(summary.workflows["w"].time_s, 280.0);
    assert_eq!(summary.makespan_s, 510.0);
    assert_eq!(summary.ordinary_jobs.done, 7);
    assert_eq!(summary.workflow_jobs.wait_s.max, 0.0);
}

#[test]
fn json_has_the_agreed_shape() {
    let (machine, workload) = (machine(20), workload(&FIGURE_8));
    let mut result = result(&FIGURE_8);
    result.jobs[9] = JobResult {
        fate: Fate::TakenOut,
        ..JobResult::default()
    };
    result.refused = vec![UnrunnableJob {
        job: JobId(9),
        lacks: Some("it needs 2 GPUs a node, and no node has any".into()),
    }];
    let summary = SiteSummary::of(&run("easy", &machine, &workload, &result));
    let value = serde_json::to_value(&summary).expect("JSON");
    for (key, expected) in [
        ("policy", json!("easy")),
        ("makespan_s", json!(510.0)),
        ("lower_bound_s", json!(400.0)),
        ("energy_j", json!(12_345_678.0)),
        ("events", json!(77)),
        ("wall_s", json!(0.5)),
        (
            "bytes",
            json!({"external_in": 3u64 << 30, "external_out": 2u64 << 30, "peer": 1 << 30, "retained": 5}),
        ),
        (
            "refused_jobs",
            json!([{"job": "Job 10", "why": "it needs 2 GPUs a node, and no node has any"}]),
        ),
        (
            "skipped",
            json!([{"file": "trace.swf", "why": "run time is negative", "count": 3, "first_line": 17}]),
        ),
    ] {
        assert_eq!(value[key], expected, "{key}");
    }
    let flow = &value["workflows"]["w"];
    assert_eq!(
        (&flow["time_s"], &flow["lower_bound_s"]),
        (&json!(490.0), &json!(280.0))
    );
    // Waits of the nine that are done: 40 + 40 + 470 + 0 + 130 + 20 + 0 + 0 + 0.
    let mean = value["mean_wait_s"].as_f64().expect("a number");
    assert!((mean - 700.0 / 9.0).abs() < 1e-9, "{mean}");
    assert_eq!(value["ordinary_jobs"]["not_done"], 1);
    assert!(value["mean_bounded_slowdown"].as_f64().expect("a number") > 1.0);
}

#[test]
fn the_table_has_a_column_for_each_policy() {
    let (machine, workload) = (machine(20), workload(&FIGURE_8));
    let (unaware, aware) = (result(&FIGURE_8), result(&FIGURE_9));
    let runs = [("greedy", &unaware), ("data", &aware)]
        .map(|(p, r)| SiteSummary::of(&run(p, &machine, &workload, r)));
    let text = table(&runs);
    let mut lines = text.lines();
    let words = |line: Option<&str>| -> Vec<String> {
        line.unwrap_or("")
            .split_whitespace()
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(words(lines.next()), ["greedy", "data"]);
    assert_eq!(
        words(lines.next()),
        ["makespan", "8m", "30s", "(1.27x)", "8m", "30s", "(1.27x)"]
    );
    assert!(text.contains("workflow w"), "{text}");
    assert!(text.contains("4m 40s (1.00x)"), "{text}");
    assert!(text.contains("12.35 MJ"), "{text}");
    // If no node's power is known, the table does not mention energy.
    let dark = SiteResult {
        energy: 0.0,
        ..aware.clone()
    };
    let text = table(&[SiteSummary::of(&run("data", &machine, &workload, &dark))]);
    assert!(
        !text.contains("energy") && !text.contains("0.00 J"),
        "{text}"
    );
}

/// A page with both schedules, opened.
fn page_of(machine: &Machine, workload: &Workload, results: [(&str, &SiteResult); 2]) -> String {
    let runs = results.map(|(policy, result)| {
        let run = run(policy, machine, workload, result);
        (SiteSummary::of(&run), Chart::of(&run))
    });
    page(machine, workload, &runs)
}

fn shown(browser: &str, text: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("sim.html");
    std::fs::write(&file, text).expect("it can be written");
    opened(browser, &file)
}

#[test]
fn both_schedules_are_drawn() {
    let Some(browser) = browser() else { return };
    let (machine, workload) = (machine(20), workload(&FIGURE_8));
    let (unaware, aware) = (result(&FIGURE_8), result(&FIGURE_9));
    let text = page_of(
        &machine,
        &workload,
        [("greedy", &unaware), ("data", &aware)],
    );
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("sim.html");
    std::fs::write(&file, text).expect("it can be written");
    let dom = opened(browser, &file);
    assert!(dom.contains("<title>twenty &lt;nodes&gt; – tarn sim</title>"));
    assert_eq!(dom.matches("class=\"job\"").count(), 20);
    assert_eq!(
        dom.matches("class=\"label\"").count(),
        20,
        "every box is wide enough"
    );
    // On each of its two nodes, under each policy, in the strip for transfers.
    assert_eq!(dom.matches("class=\"move peer\"").count(), 4);
    assert_eq!(dom.matches("class=\"strip\"").count(), 40);
    // The same as a list.
    assert!(dom.matches("data-label=\"holds its nodes for\"").count() == 20);
    assert!(dom.matches("class=\"reading\"").count() >= 16);
}

#[test]
fn nothing_is_cut_or_unreadable_on_any_screen_or_on_paper() {
    let Some(browser) = browser() else { return };
    let (machine, workload) = (machine(20), workload(&FIGURE_8));
    let (unaware, aware) = (result(&FIGURE_8), result(&FIGURE_9));
    let text = page_of(
        &machine,
        &workload,
        [("greedy", &unaware), ("data", &aware)],
    );
    assert!(text.contains("time to solution of workflow w (jobs Job 1, Job 7, Job 9)"));
    is_readable(browser, &text);
}

#[test]
fn of_too_many_boxes_only_the_use_of_nodes_is_drawn() {
    let Some(browser) = browser() else { return };
    let (machine, workload) = (machine(2000), workload(&FIGURE_8));
    let mut unaware = result(&FIGURE_8);
    unaware.spans_left_out = MAX_SPANS as u64;
    let text = page_of(
        &machine,
        &workload,
        [("greedy", &unaware), ("data", &unaware)],
    );
    assert!(text.contains("beyond, only the use of nodes is"));
    let dom = shown(browser, &text);
    assert_eq!(dom.matches("class=\"job\"").count(), 0);
    assert_eq!(dom.matches("<path class=\"ordinary\"").count(), 2);
}

#[test]
fn the_page_of_a_plan_names_its_jobs_and_draws_them() {
    let bar = |name: &str, workflow: Option<&str>, nodes: &[u32], begin: u64| PlanBar {
        name: name.to_owned(),
        workflow: workflow.map(str::to_owned),
        nodes: nodes.to_vec(),
        has_begun: begin == 0,
        begin: begin * SECOND,
        end: (begin + 600) * SECOND,
        why: "its data <is> there".to_owned(),
    };
    let mut plan = PlanChart {
        policy: "data".to_owned(),
        mode: "observe".to_owned(),
        made: "2026-11-30 16:05 UTC".to_owned(),
        length: 3600 * SECOND,
        nodes: ["alpha", "beta", "gamma"].map(str::to_owned).to_vec(),
        bars: vec![
            bar("17 of alice", Some("foam"), &[0, 2], 0),
            bar("18", None, &[1], 700),
        ],
        unplanned: vec![(19, "its user holds it".to_owned())],
        others_unplanned: 4,
    };
    let page = plan_page(&plan);
    for expected in [
        "17 of alice",
        "alpha, gamma",
        "in 11m 40s",
        "its data &lt;is&gt; there",
        "its user holds it",
        "and 4 more",
    ] {
        assert!(page.contains(expected), "{expected}");
    }
    assert!(
        !page.contains("<link") && !page.contains(" src="),
        "it loads nothing"
    );
    let (_, data) = page.split_once("id=\"tarn-run\">").expect("its data");
    let (data, _) = data.split_once("</script>").expect("its end");
    let data: serde_json::Value = serde_json::from_str(data).expect("JSON");
    assert_eq!(data["nodes"], serde_json::json!(["alpha", "beta", "gamma"]));
    let boxes = data["charts"][0]["boxes"].as_array().expect("boxes");
    assert_eq!(
        boxes.len(),
        3,
        "the nodes of the first are apart: {boxes:?}"
    );
    if let Some(browser) = browser() {
        is_readable(browser, &page);
    }
    // More nodes than are drawn one by one: only their use is.
    plan.nodes = (0..600).map(|n| format!("n{n}")).collect();
    let page = plan_page(&plan);
    assert!(page.contains("only the use of nodes is drawn") && page.contains("17 of alice"));
}
