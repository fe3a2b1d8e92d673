//! Pages that commands draw: an older one is replaced as a whole.

use crate::calls::{Hit, sweep};
use crate::common::{Ran, Site};
use crate::verbs::{of, tree, well, with_tier};
use std::fs;
use std::path::Path;

const CLUSTER: &str = "name = \"c\"\n[external]\nread = \"1 GB/s\"\nwrite = \"1 GB/s\"\n\
                       [[island]]\nname = \"i\"\nnodes = 2\ncores = 8\nmemory = \"64 GiB\"\n\
                       link = { read = \"1 GB/s\", write = \"1 GB/s\" }\n";
const WORKLOAD: &str = "[[job]]\nname = \"j\"\nnodes = 1\ncompute = \"5s\"\n";
const RESULTS: &str =
    r#"{"schema": 1, "machine": {}, "tarn": "1", "date": 1, "quick": true, "experiments": []}"#;

/// The page is the older one, or a new one, whole.
fn is_page(site: &Site, hit: &Hit, again: impl Fn() -> Ran) {
    let whole = |text: &str| text.trim_end().ends_with("</html>");
    let now = site.read("pages/page.html");
    let new = whole(&now);
    let old = now == "older\n" && !hit.done();
    assert!(new || old, "{}: {} bytes", hit.what, now.len());
    well(hit, "again", again());
    assert!(whole(&site.read("pages/page.html")), "{}", hit.what);
    let all = tree(&site.path("pages"));
    assert_eq!(all.len(), 1, "{}: {:?}", hit.what, all.keys());
}

fn with_page(site: Site) -> Site {
    site.write("pages/page.html", "older\n");
    site
}

pub(crate) fn sim_report() {
    let words = "sim --cluster cluster.toml --workload workload.toml --report pages/page.html";
    let words: Vec<&str> = words.split(' ').collect();
    let prepare = || {
        let site = with_page(Site::new(""));
        site.write("cluster.toml", CLUSTER);
        site.write("workload.toml", WORKLOAD);
        site
    };
    let command = |site: &Site| of(site, &words);
    sweep("sim --report", "tarn", prepare, command, |site, hit| {
        is_page(site, hit, || site.tarn(&words));
    });
}

pub(crate) fn run_report() {
    let prepare = || {
        let site = with_page(Site::new(&crate::common::workflows::makes(
            "w",
            "dest = \"out\"",
            "echo 1 > $TARN_r/a",
        )));
        site.run().exits(0);
        site
    };
    let words = ["run", "workflow.toml", "--report", "pages/page.html"];
    let command = |site: &Site| of(site, &with_tier(site, &words));
    sweep("run --report", "tarn", prepare, command, |site, hit| {
        assert_eq!(site.read("out/a"), "1\n", "{}", hit.what);
        is_page(site, hit, || site.tarn(&with_tier(site, &words)));
    });
}

pub(crate) fn reproduce() {
    let prepare = || {
        let site = with_page(Site::new(""));
        site.write("results.json", RESULTS);
        site
    };
    let words = ["reproduce", "--render", "results.json"];
    let words = [&words[..], &["--report", "pages/page.html"]].concat();
    let command = |site: &Site| of(site, &words);
    sweep(
        "reproduce",
        "tarn,tarn-bench",
        prepare,
        command,
        |site, hit| {
            is_page(site, hit, || site.tarn(&words));
            let kept = fs::read_to_string(site.path("results.json")).unwrap();
            assert_eq!(kept, RESULTS, "{}", hit.what);
            assert!(!Path::new("results.html").exists());
        },
    );
}
