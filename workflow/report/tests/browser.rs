//! The page in a real browser: it shows the log's content, and its scripts run to their end.

#[path = "common/chromium.rs"]
mod chromium;
mod common;
#[path = "common/looked.rs"]
mod looked;

use chromium::{browser, opened, shows};
use common::mosaic::{mosaic, mosaic_named};
use looked::is_readable;
use tarn_ports::Record;
use tarn_report::{PageLinks, Summary, html};

/// The document that a browser makes of the report.
fn dom(browser: &str, records: &[Record]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("report.html");
    std::fs::write(
        &page,
        html(records, &PageLinks::default()).expect("it was started"),
    )
    .expect("it can be written");
    opened(browser, &page)
}

#[test]
fn totals_in_the_browser_are_those_of_the_log() {
    let Some(browser) = browser() else { return };
    let records = mosaic(11, 30, 4, 2);
    let dom = dom(browser, &records);
    let s = Summary::of(&records).expect("it was started");
    for (id, bytes) in [
        ("bytes-external-in", s.bytes.external_in),
        ("bytes-external-out", s.bytes.external_out),
        ("bytes-peer", s.bytes.peer),
        ("bytes-promote", s.bytes.promote),
        ("bytes-demote", s.bytes.demote),
        ("bytes-retained", s.bytes.retained),
        ("stage-through-in", s.stage_through.external_in),
        ("stage-through-out", s.stage_through.external_out),
    ] {
        shows(&dom, id, bytes);
    }
    // Every attempt has a bar: on this scale, none is thinner than a pixel.
    let bars = dom.matches("class=\"bar-of\" style=\"--c:var(--s").count()
        + dom.matches("class=\"bar-of failed\"").count();
    assert_eq!(bars as u64, s.instances.attempts);
}

#[test]
fn ten_thousand_attempts_and_hostile_names_are_drawn() {
    let Some(browser) = browser() else { return };
    let records = mosaic_named(2, 3400, 8, 4, "<script>document.title='broken'</script>");
    let dom = dom(browser, &records);
    assert!(dom.contains("<title>mosaic-3 – tarn report</title>"));
    let drawn = dom.matches("<rect ").count();
    assert!((1000..60_000).contains(&drawn), "{drawn} rectangles");
}

#[test]
fn nothing_is_cut_or_unreadable_on_any_screen_or_on_paper() {
    let Some(browser) = browser() else { return };
    let long = "a-step-whose-name-is-as-long-as-names-of-steps-are-in-practice-and-longer";
    let page =
        html(&mosaic_named(11, 30, 4, 2, long), &PageLinks::default()).expect("it was started");
    is_readable(browser, &page);
}
