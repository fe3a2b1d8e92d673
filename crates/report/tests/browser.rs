//! The page in a real browser: what it shows is what the log says, and its scripts run to their end.

mod common;

use common::mosaic::{mosaic, mosaic_named};
use std::process::{Command, Stdio};
use tarn_ports::Record;
use tarn_report::{Summary, html};

/// Seconds until a browser that hangs is killed: opening takes a few.
const PATIENCE: &str = "120";

/// A browser on this machine, or a loud reason to skip.
fn browser() -> Option<&'static str> {
    let known = ["chromium", "chromium-browser", "google-chrome", "chrome"];
    let found = known.into_iter().find(|name| {
        let mut version = Command::new(name);
        let version = version
            .arg("--version")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        version.status().is_ok_and(|s| s.success())
    });
    if found.is_none() {
        eprintln!(
            "SKIPPED: no browser ({}); the report was not opened in one",
            known.join(", ")
        );
    }
    found
}

/// The document after its scripts have run.
fn dom(browser: &str, records: &[Record]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("report.html");
    std::fs::write(&page, html(records).expect("it was started")).expect("it can be written");
    let output = Command::new("timeout")
        .args(["-k", "5", PATIENCE, browser])
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-sync",
        ])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-dev-shm-usage",
        ])
        .arg(format!(
            "--user-data-dir={}",
            folder.path().join("profile").display()
        ))
        .args(["--window-size=1300,1800", "--dump-dom"])
        .arg(format!("file://{}", page.display()))
        .env("HOME", folder.path())
        .stdin(Stdio::null())
        .output()
        .expect("the browser starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("the document is UTF-8")
}

fn shown(dom: &str, id: &str) -> (u64, String) {
    let (_, rest) = dom
        .split_once(&format!("id=\"{id}\" data-bytes=\""))
        .unwrap_or_else(|| panic!("{id} is missing"));
    let (bytes, rest) = rest.split_once('"').expect("an attribute ends");
    let (_, rest) = rest.split_once('>').expect("a tag ends");
    let text = rest.split_once('<').expect("an element ends").0;
    (bytes.parse().expect("a number"), text.into())
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
        assert_eq!(
            shown(&dom, id),
            (bytes, tarn_base::units::Bytes(bytes).to_string()),
            "{id}"
        );
    }
    assert!(
        dom.contains("data-ready=\"yes\""),
        "a script did not run to its end"
    );
    assert!(!dom.contains("NaN"), "something is no number");
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
    assert!(
        dom.contains("data-ready=\"yes\""),
        "a script did not run to its end"
    );
    assert!(dom.contains("<title>mosaic-3 – tarn report</title>"));
    let drawn = dom.matches("<rect ").count();
    assert!((1000..60_000).contains(&drawn), "{drawn} rectangles");
    assert!(!dom.contains("NaN"), "something is no number");
}
