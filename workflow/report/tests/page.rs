//! The page holds the log's content, and nothing of it can break out.

mod common;

use common::mosaic::{mosaic, mosaic_named};
use std::path::Path;
use tarn_ports::Record;
use tarn_report::{OutcomeName, PageLinks, Summary, html};
use tarn_types::action::{Action, Do, Outcome};
use tarn_types::event::{AttemptOutcome, Event, RunError, RunErrorKind};
use tarn_types::reason::Reason;

/// The text between `<script ... id="ID">` and `</script>`.
fn script<'a>(page: &'a str, id: &str) -> &'a str {
    let (_, rest) = page
        .split_once(&format!("id=\"{id}\">"))
        .expect("the script is there");
    rest.split_once("</script>").expect("it ends").0
}

#[test]
fn the_summary_in_the_page_is_the_summary() {
    let records = mosaic(3, 20, 4, 2);
    let page = html(&records, &PageLinks::default()).expect("it was started");
    let read: Summary = serde_json::from_str(script(&page, "tarn-summary")).expect("it is JSON");
    assert_eq!(read, Summary::of(&records).expect("it was started"));
    assert_eq!(read.schema, 1);
    for (id, bytes) in [
        ("bytes-external-in", read.bytes.external_in),
        ("bytes-external-out", read.bytes.external_out),
        ("bytes-peer", read.bytes.peer),
        ("bytes-demote", read.bytes.demote),
        ("bytes-retained", read.bytes.retained),
        ("stage-through-in", read.stage_through.external_in),
    ] {
        assert!(
            bytes > 0 && page.contains(&format!("id=\"{id}\" data-bytes=\"{bytes}\"")),
            "{id} {bytes}"
        );
    }
    assert!(page.contains("external store emulated at 200 MB/s, 2 ms a file"));
    let drawing: serde_json::Value =
        serde_json::from_str(script(&page, "tarn-run")).expect("it is JSON");
    assert_eq!(drawing["attempts"].as_array().map(Vec::len), Some(64));
}

#[test]
fn hostile_names_stay_names() {
    let hostile =
        "x</script><script>document.title='broken'</script><img src=x onerror=alert(1)>\"'&\u{0}";
    let page =
        html(&mosaic_named(3, 9, 2, 1, hostile), &PageLinks::default()).expect("it was started");
    let plain = html(&mosaic(3, 9, 2, 1), &PageLinks::default()).expect("it was started");
    for tag in ["<script", "</script", "<img", "<svg"] {
        assert_eq!(
            page.matches(tag).count(),
            plain.matches(tag).count(),
            "{tag}"
        );
    }
    let read: Summary = serde_json::from_str(script(&page, "tarn-summary")).expect("it is JSON");
    assert_eq!(read.steps[0].name, hostile);
    assert!(page.contains("&lt;img src=x onerror=alert(1)&gt;"));
}

#[test]
fn nothing_comes_from_outside_and_nothing_is_no_number() {
    let page = html(&mosaic(5, 9, 2, 1), &PageLinks::default()).expect("it was started");
    let outside = page.replace("http://www.w3.org/2000/svg", "");
    for word in [
        "http://", "https://", "<link", "src=", "@import", "url(h", "NaN\"", ">NaN", "inf%",
    ] {
        assert!(!outside.contains(word), "{word}");
    }
    assert!(page.contains("Content-Security-Policy\" content=\"default-src 'none'"));
}

#[test]
fn an_empty_run_has_a_page_too() {
    let records = &mosaic(1, 2, 2, 1)[..1];
    let page = html(records, &PageLinks::default()).expect("it was started");
    assert!(page.contains("unfinished") && page.contains("id=\"bytes-retained\" data-bytes=\"0\""));
    assert!(html(&[], &PageLinks::default()).is_err());
}

#[test]
fn the_workflow_its_commands_results_and_logs_are_there() {
    let records = mosaic(3, 20, 4, 2);
    let page = html(&records, &PageLinks::default()).expect("it was started");
    for there in [
        "<svg class=\"dag",
        "<title>raw: source",
        "<title>picture: result",
        "<pre>add.sh</pre>",
        "for each raw/*.fits",
        "<a href=\"/results/mosaic\">/results/mosaic</a>",
        "<a href=\"steps/project-7.1.log\">whole log</a>",
        "<dt>hosts</dt><dd>host (8 cores, 16.00 GiB of memory)</dd>",
        "<dt>tarn</dt>",
    ] {
        assert!(page.contains(there), "{there} is missing");
    }
    let drawing: serde_json::Value =
        serde_json::from_str(script(&page, "tarn-run")).expect("it is JSON");
    assert_eq!(drawing["started"], 1_795_255_380_u64);
    // Seen from another folder, links lead to the same files.
    let moved = PageLinks::new(
        Path::new("/home/ada"),
        Path::new("/home/ada/mosaic/.tarn/runs/mosaic-3"),
    );
    let page = html(&records, &moved).expect("it was started");
    assert!(page.contains("href=\"mosaic/.tarn/runs/mosaic-3/steps/project-7.1.log\""));
}

/// The mosaic, stopped while it runs: running attempts end with it.
fn cancelled() -> Vec<Record> {
    let mut records = mosaic(3, 9, 2, 1);
    let is_end = |r: &Record| matches!(&r.event, Event::Ended { .. });
    let at = records.iter().rposition(is_end).expect("something ended");
    records.truncate(at + 1);
    let last = records.last_mut().expect("it is there");
    if let Event::Ended { ended, .. } = &mut last.event {
        *ended = AttemptOutcome::Failed {
            failure: RunError {
                kind: RunErrorKind::Cancelled,
                message: "it was stopped because the run ends".into(),
            },
            log_tail: String::new(),
            newest: None,
        };
    }
    last.actions = vec![Action {
        what: Do::Finish {
            outcome: Outcome::Interrupted(15),
        },
        why: Reason::Interrupted { signal: 15 },
    }];
    records
}

#[test]
fn what_a_cancelled_run_stopped_has_not_failed() {
    let records = cancelled();
    let summary = Summary::of(&records).expect("it was started");
    assert_eq!(summary.outcome, OutcomeName::Interrupted);
    assert_eq!(
        (summary.instances.failed, summary.instances.open > 0),
        (0, true)
    );
    let page = html(&records, &PageLinks::default()).expect("it was started");
    assert!(page.contains("1 stopped"), "the card says what was stopped");
    assert!(page.contains("id=\"stopped\""));
    assert!(!page.contains("1 failed"));
}
