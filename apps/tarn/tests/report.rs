//! The report of a real run in a real browser: the totals it shows are those of the log.

#[path = "../../../workflow/report/tests/common/chromium.rs"]
mod chromium;
mod common;
use chromium::{browser, opened, shows};
use common::Site;
use std::collections::BTreeMap;

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

/// Bytes of the log's completed transfers by kind.
fn moved(site: &Site) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for ((kind, _), bytes) in site.moved() {
        *sums.entry(kind).or_default() += bytes;
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
    // The copies differ in where their links lead from; each link leads to a file.
    for page in ["page.html", ".tarn/runs/pairs-1/report.html"] {
        let text = site.read(page);
        let folder = site.path(page);
        let folder = folder.parent().expect("a folder");
        let run = text.split("id=\"tarn-run\">").nth(1).expect("its attempts");
        let logs = run.split('"').filter(|t| t.ends_with(".1.log"));
        let links = text
            .split("<a href=\"")
            .skip(1)
            .filter_map(|t| t.split('"').next());
        let all: Vec<&str> = logs.chain(links).collect();
        assert_eq!(all.len(), 6, "five logs, a result: {all:?}");
        for link in all {
            assert!(folder.join(link).exists(), "{page} leads to {link}");
        }
    }
    let Some(browser) = browser() else { return };
    let dom = opened(browser, &site.path("page.html"));
    for kind in ["external-in", "external-out", "peer", "promote", "demote"] {
        let bytes = moved.get(kind).copied().unwrap_or(0);
        shows(&dom, &format!("bytes-{kind}"), bytes);
    }
    for step in ["halve", "join"] {
        assert!(dom.contains(step), "{step} is missing");
    }
}
