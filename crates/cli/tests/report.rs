//! The report of a real run in a real browser: the totals it shows are those of the log.

mod common;
use common::Site;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use tarn_base::units::Bytes;

const WORKFLOW: &str = r#"
name = "pairs"
[data.raw]
source = "raw"
[data.half]
[data.all]
dest = "all"
[[step]]
name = "halve"
foreach = "raw/*"
run = "head -c $(($(wc -c < $TARN_raw/$TARN_ITEM) / 2)) $TARN_raw/$TARN_ITEM > $TARN_half/$TARN_ITEM; sleep 0.2"
in = ["raw/{item}"]
out = ["half"]
[[step]]
name = "join"
run = "cat $TARN_half/* > $TARN_all/joined"
in = ["half"]
out = ["all"]
"#;

/// Seconds until a browser that hangs is killed.
const PATIENCE: &str = "120";

fn browser() -> Option<&'static str> {
    let known = ["chromium", "chromium-browser", "google-chrome", "chrome"];
    let found = known.into_iter().find(|name| {
        let mut version = Command::new(name);
        version.arg("--version").stdin(Stdio::null());
        version.output().is_ok_and(|o| o.status.success())
    });
    if found.is_none() {
        eprintln!("skipped: no browser ({}) is installed", known.join(", "));
    }
    found
}

/// The report after its scripts have run.
fn opened(browser: &str, site: &Site) -> String {
    let profile = site.path("profile");
    let output = Command::new("timeout")
        .args(["-k", "5", PATIENCE, browser, "--headless", "--no-sandbox"])
        .args(["--disable-gpu", "--no-first-run", "--disable-sync"])
        .args(["--disable-background-networking", "--disable-dev-shm-usage"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(["--window-size=1300,1800", "--dump-dom"])
        .arg(format!("file://{}", site.path("page.html").display()))
        .env("HOME", site.dir.path())
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

/// The exact value behind an element and the text that it shows.
fn shown(dom: &str, id: &str) -> (u64, String) {
    let (_, rest) = dom
        .split_once(&format!("id=\"{id}\" data-bytes=\""))
        .unwrap_or_else(|| panic!("{id} is missing"));
    let (bytes, rest) = rest.split_once('"').expect("an attribute ends");
    let (_, rest) = rest.split_once('>').expect("a tag ends");
    let text = rest.split_once('<').expect("an element ends").0;
    (bytes.parse().expect("a number"), text.into())
}

/// Bytes of the log's completed transfers by kind.
fn moved(site: &Site) -> BTreeMap<String, u64> {
    let log = site.log();
    let actions = log
        .iter()
        .flat_map(|r| r["actions"].as_array().into_iter().flatten());
    let orders: BTreeMap<u64, String> = actions
        .filter(|a| a["do"] == "transfer")
        .map(|a| {
            let kind = a["kind"].as_str().expect("a kind").to_owned();
            (a["id"].as_u64().expect("an id"), kind)
        })
        .collect();
    let mut sums = BTreeMap::new();
    for done in log.iter().filter(|r| r["event"] == "transfer-done") {
        let kind = &orders[&done["id"].as_u64().expect("an id")];
        *sums.entry(kind.clone()).or_default() += done["bytes"].as_u64().expect("bytes");
    }
    sums
}

#[test]
fn the_totals_that_a_browser_shows_are_those_of_the_log() {
    let site = Site::new(WORKFLOW).with(&["--nodes", "2", "--report", "page.html"]);
    std::fs::create_dir(site.path("raw")).expect("mkdir");
    for n in 0..4usize {
        let content = vec![n as u8; 100_000 + 2 * n];
        std::fs::write(site.path(&format!("raw/{n}")), content).expect("write");
    }
    site.run().exits(0);
    let moved = moved(&site);
    let (all, halves) = (400_012, 200_006);
    assert_eq!(moved.get("external-in"), Some(&all), "{moved:?}");
    assert_eq!(moved.get("external-out"), Some(&halves), "{moved:?}");
    assert!(moved.get("peer") > Some(&0), "both nodes work: {moved:?}");
    assert_eq!(
        site.read("page.html"),
        site.read(".tarn/runs/pairs-1/report.html")
    );
    let Some(browser) = browser() else { return };
    let dom = opened(browser, &site);
    assert!(
        dom.contains("data-ready=\"yes\""),
        "a script did not run to its end"
    );
    for kind in ["external-in", "external-out", "peer", "promote", "demote"] {
        let bytes = moved.get(kind).copied().unwrap_or(0);
        assert_eq!(
            shown(&dom, &format!("bytes-{kind}")),
            (bytes, Bytes(bytes).to_string()),
            "{kind}"
        );
    }
    for step in ["halve", "join"] {
        assert!(dom.contains(step), "{step} is missing");
    }
    assert!(!dom.contains("NaN"), "something is no number");
}
