//! `tarn data pin` and `release`.

use crate::calls::sweep;
use crate::common::Site;
use crate::verbs::{got, of, tree, well, with_tier};
use std::path::PathBuf;

/// A step's output that is kept for a week.
const KEPT: &str = r#"
name = "w"
[data.kept]
keep = "7d"
[[step]]
name = "make"
run = "echo one > $TARN_kept/a; mkdir $TARN_kept/sub; echo two > $TARN_kept/sub/b"
out = ["kept"]
"#;

fn kept() -> Site {
    let site = Site::new(KEPT);
    site.run().exits(0);
    site
}

fn is_pinned(site: &Site) -> bool {
    let listed = site.tarn(&["data", "ls"]).exits(0).out;
    listed.contains("forever")
}

fn whole() -> Option<std::collections::BTreeMap<PathBuf, Vec<u8>>> {
    let all = [("a", "one\n"), ("sub/b", "two\n")];
    let all = all.map(|(name, text)| (PathBuf::from(name), text.as_bytes().to_vec()));
    Some(all.into())
}

pub(crate) fn data_pin() {
    let pin = ["data", "pin", "kept"];
    let command = |site: &Site| of(site, &pin);
    sweep("data pin", "tarn", kept, command, |site, hit| {
        assert!(!hit.done() || is_pinned(site), "{}: it is not", hit.what);
        assert_eq!(got(site), whole(), "{}", hit.what);
        well(hit, "pin", site.tarn(&pin));
        assert!(is_pinned(site), "{}", hit.what);
        site.tarn(&["data", "verify", "kept"]).exits(0);
        // A run leaves it where it is.
        well(hit, "run", site.run()).prints("1 unchanged");
        assert!(is_pinned(site), "{}", hit.what);
        assert_eq!(got(site), whole(), "{}", hit.what);
    });
}

pub(crate) fn data_release() {
    let prepare = || {
        let site = kept();
        site.write("in/a", "a");
        site.tarn(&with_tier(&site, &["data", "put", "in", "other"]))
            .exits(0);
        site.tarn(&["data", "pin", "kept"]).exits(0);
        site
    };
    let release = ["data", "release", "kept"];
    let command = |site: &Site| of(site, &release);
    sweep("data release", "tarn", prepare, command, |site, hit| {
        match got(site) {
            Some(now) => {
                assert!(!hit.done(), "{}: it is still there", hit.what);
                assert_eq!(Some(now), whole(), "{}", hit.what);
                well(hit, "release", site.tarn(&release));
            }
            None => {
                let again = site.tarn(&release);
                let known = matches!(again.code, Some(0 | 7));
                assert!(known, "{}; release: {}", hit.what, again.err);
            }
        }
        assert_eq!(got(site), None, "{}", hit.what);
        // Nothing but the other dataset is on the tier.
        let other = site.tarn(&["data", "get", "other", "other"]);
        well(hit, "get", other);
        assert_eq!(tree(&site.path("other")), tree(&site.path("in")));
        site.tarn(&["data", "rm", "other"]).exits(0);
        // Of what is released nobody knows any more what a killed process has left.
        site.tarn(&["data", "rm", "--orphans"]).exits(0);
        assert_eq!(site.left_on_tier(), Vec::<PathBuf>::new(), "{}", hit.what);
        well(hit, "run", site.run());
    });
}
