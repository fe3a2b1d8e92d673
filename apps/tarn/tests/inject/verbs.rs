//! The verbs of `tarn`.

use crate::calls::{Hit, sweep};
use crate::common::{Ran, Site};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const FLOW: &str = r#"
name = "w"
[data.i]
source = "in"
[data.m]
[data.o]
dest = "out"
[[step]]
name = "first"
run = "cat $TARN_i/a $TARN_i/sub/b > $TARN_m/both && cp $TARN_i/a $TARN_m/a"
in = ["i"]
out = ["m"]
[[step]]
name = "second"
run = "mkdir $TARN_o/sub && cp $TARN_m/both $TARN_o/both && wc -l < $TARN_m/a > $TARN_o/sub/lines"
in = ["m"]
out = ["o"]
"#;

/// The files of a tree; empty if there is none.
pub(crate) fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = Vec::new();
    crate::common::files(folder, &mut all);
    let named = all.into_iter().map(|path| {
        let bytes = fs::read(&path).unwrap();
        (path.strip_prefix(folder).unwrap().to_owned(), bytes)
    });
    named.collect()
}

/// A site with a source of two files.
pub(crate) fn site() -> Site {
    let site = Site::new(FLOW);
    fill(&site, "one");
    site
}

/// Runs it up to some moment in the middle, as if it was killed there.
pub(crate) fn crashed(site: &Site) {
    let mut run = site.command(&site.run_arguments());
    let ran = run.env("TARN_CRASH_AT", "30").output().unwrap();
    assert_eq!(ran.status.code(), None, "it has not come so far");
}

fn fill(site: &Site, word: &str) {
    site.write("in/a", &format!("{word}\n{word}\n"));
    site.write("in/sub/b", &format!("{word} below\n"));
}

/// The result of the workflow with [`fill`].
fn made(word: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let both = format!("{word}\n{word}\n{word} below\n").into_bytes();
    [("both".into(), both), ("sub/lines".into(), b"2\n".to_vec())].into()
}

pub(crate) fn of(site: &Site, arguments: &[&str]) -> (PathBuf, Command) {
    let mut command = site.command(arguments);
    // Keys, too, are in its folder.
    command.env("HOME", site.dir.path());
    (site.dir.path().to_owned(), command)
}

pub(crate) fn with_tier<'a>(site: &'a Site, verb: &[&'a str]) -> Vec<&'a str> {
    let options = site.options.iter().map(String::as_str);
    verb.iter().copied().chain(options).collect()
}

#[track_caller]
pub(crate) fn well(hit: &Hit, then: &str, ran: Ran) -> Ran {
    assert_eq!(ran.code, Some(0), "{}; then {then}: {}", hit.what, ran.err);
    ran
}

/// The result is whole, or what it was before; and a new run makes it.
fn goes_on(site: &Site, hit: &Hit, before: &BTreeMap<PathBuf, Vec<u8>>, word: &str) {
    let source = [
        ("a", format!("{word}\n{word}\n")),
        ("sub/b", format!("{word} below\n")),
    ];
    let source = source.map(|(name, text)| (PathBuf::from(name), text.into_bytes()));
    let now = tree(&site.path("out"));
    let new = now == made(word);
    assert!(
        new || (now == *before && !hit.done()),
        "{}: {now:?}: {}",
        hit.what,
        hit.ran.err
    );
    let resumed = site.tarn(&["resume"]);
    assert!(
        matches!(resumed.code, Some(0 | 7)),
        "{}; resume: {}",
        hit.what,
        resumed.err
    );
    well(hit, "run", site.run());
    assert_eq!(tree(&site.path("out")), made(word), "{}", hit.what);
    assert_eq!(tree(&site.path("in")), source.into(), "{}", hit.what);
    site.leaves_nothing_on_its_tier();
}

pub(crate) fn a_run() {
    let check = |site: &Site, hit: &Hit| goes_on(site, hit, &BTreeMap::new(), "one");
    sweep(
        "run",
        "tarn",
        site,
        |site| of(site, &site.run_arguments()),
        check,
    );
}

pub(crate) fn a_run_over_an_earlier_result() {
    let prepare = || {
        let site = site();
        site.run().exits(0);
        fill(&site, "two");
        site
    };
    let check = |site: &Site, hit: &Hit| goes_on(site, hit, &made("one"), "two");
    sweep(
        "run (over an earlier result)",
        "tarn",
        prepare,
        |site| of(site, &site.run_arguments()),
        check,
    );
}

pub(crate) fn a_run_that_is_resumed() {
    let prepare = || {
        let site = site();
        crashed(&site);
        site
    };
    let check = |site: &Site, hit: &Hit| goes_on(site, hit, &BTreeMap::new(), "one");
    sweep(
        "resume",
        "tarn",
        prepare,
        |site| of(site, &["resume"]),
        check,
    );
}

pub(crate) fn put() -> Site {
    let site = site();
    site.tarn(&with_tier(&site, &["data", "put", "in", "kept"]))
        .exits(0);
    site
}

/// The content that `data get` gives, if it gives it.
pub(crate) fn got(site: &Site) -> Option<BTreeMap<PathBuf, Vec<u8>>> {
    let to = site.path("got");
    let _ = fs::remove_dir_all(&to);
    let ran = site.tarn(&["data", "get", "kept", "got"]);
    assert!(matches!(ran.code, Some(0 | 7)), "{}", ran.err);
    (ran.code == Some(0)).then(|| tree(&to))
}

pub(crate) fn data_put() {
    let command = |site: &Site| of(site, &with_tier(site, &["data", "put", "in", "kept"]));
    sweep("data put", "tarn", site, command, |site, hit| {
        let source = tree(&site.path("in"));
        assert_eq!(source.len(), 2, "{}", hit.what);
        match got(site) {
            Some(kept) => assert_eq!(kept, source, "{}", hit.what),
            None => {
                assert!(!hit.done(), "{}: it is not there", hit.what);
                well(
                    hit,
                    "put",
                    site.tarn(&with_tier(site, &["data", "put", "in", "kept"])),
                );
                assert_eq!(got(site), Some(source), "{}", hit.what);
            }
        }
    });
}

pub(crate) fn data_get() {
    let command = |site: &Site| of(site, &["data", "get", "kept", "there"]);
    sweep("data get", "tarn", put, command, |site, hit| {
        let (there, source) = (tree(&site.path("there")), tree(&site.path("in")));
        let whole = there == source;
        assert!(
            whole || (there.is_empty() && !hit.done()),
            "{}: {there:?}",
            hit.what
        );
        assert_eq!(got(site), Some(source), "{}", hit.what);
    });
}

pub(crate) fn data_rm() {
    let command = |site: &Site| of(site, &["data", "rm", "kept"]);
    sweep("data rm", "tarn", put, command, |site, hit| {
        let source = tree(&site.path("in"));
        match got(site) {
            Some(kept) => {
                assert!(!hit.done(), "{}: it is still there", hit.what);
                assert_eq!(kept, source, "{}", hit.what);
                well(hit, "rm", site.tarn(&["data", "rm", "kept"]));
            }
            None => {
                let again = site.tarn(&["data", "rm", "kept"]);
                assert!(
                    matches!(again.code, Some(0 | 7)),
                    "{}; rm: {}",
                    hit.what,
                    again.err
                );
            }
        }
        assert_eq!(got(site), None, "{}", hit.what);
        assert_eq!(source.len(), 2, "{}", hit.what);
        well(hit, "orphans", site.tarn(&["data", "rm", "--orphans"]));
        site.leaves_nothing_on_its_tier();
    });
}

pub(crate) fn data_drain() {
    let command = |site: &Site| of(site, &["data", "drain", "kept", "there"]);
    sweep("data drain", "tarn", put, command, |site, hit| {
        let source = tree(&site.path("in"));
        let there = tree(&site.path("there"));
        // It is in one of both places, whole.
        assert!(
            there.is_empty() || there == source,
            "{}: {there:?}",
            hit.what
        );
        if there.is_empty() {
            assert!(!hit.done(), "{}", hit.what);
            assert_eq!(got(site), Some(source), "{}", hit.what);
        }
        let again = site.tarn(&["data", "drain", "kept", "there"]);
        assert!(
            matches!(again.code, Some(0 | 7)),
            "{}: {}",
            hit.what,
            again.err
        );
        assert_eq!(tree(&site.path("there")).len(), 2, "{}", hit.what);
        well(hit, "orphans", site.tarn(&["data", "rm", "--orphans"]));
        site.leaves_nothing_on_its_tier();
    });
}

pub(crate) fn data_copy() {
    let prepare = || {
        let site = site();
        site.write("there/old", "old\n");
        site
    };
    let all = ["data", "copy", "in", "there", "--replace"];
    sweep(
        "data copy",
        "tarn",
        prepare,
        |site| of(site, &["data", "copy", "in", "new"]),
        |site, hit| {
            let (new, source) = (tree(&site.path("new")), tree(&site.path("in")));
            assert!(
                new == source || (new.is_empty() && !hit.done()),
                "{}: {new:?}",
                hit.what
            );
            if new.is_empty() {
                well(hit, "copy", site.tarn(&["data", "copy", "in", "new"]));
            }
            assert_eq!(tree(&site.path("new")), source, "{}", hit.what);
        },
    );
    sweep(
        "data copy --replace",
        "tarn",
        prepare,
        |site| of(site, &all),
        |site, hit| {
            // In the folder that is there, under its own name.
            let (source, old) = (tree(&site.path("in")), site.read("there/old"));
            let new = tree(&site.path("there/in"));
            assert!(
                new == source || (new.is_empty() && !hit.done()),
                "{}: {new:?}",
                hit.what
            );
            assert_eq!(old, "old\n");
            well(hit, "copy", site.tarn(&all));
            assert_eq!(tree(&site.path("there/in")), source, "{}", hit.what);
        },
    );
}

const SEALED: &str = r#"
name = "s"
[data.kept]
encrypt = true
keep = "forever"
[[step]]
name = "make"
run = "echo secret > $TARN_kept/a"
out = ["kept"]
"#;

pub(crate) fn keys() {
    let new = |site: &Site| of(site, &["key", "new"]);
    sweep(
        "key new",
        "tarn",
        || Site::new(SEALED),
        new,
        |site, hit| {
            let again = site.tarn(&["key", "new"]);
            // Whole or not at all: one that is there is not made again.
            assert!(
                matches!(again.code, Some(0 | 2 | 5)),
                "{}; new: {}",
                hit.what,
                again.err
            );
            assert!(
                !hit.done() || again.code != Some(0),
                "{}: there was none",
                hit.what
            );
            well(hit, "run", site.run());
            assert_eq!(
                got(site),
                Some([("a".into(), b"secret\n".to_vec())].into()),
                "{}",
                hit.what
            );
        },
    );
    let prepare = || {
        let site = Site::new(SEALED);
        site.tarn(&["key", "new"]).exits(0);
        site.run().exits(0);
        site
    };
    let rotate = ["key", "rotate", "--drop"];
    sweep(
        "key rotate",
        "tarn",
        prepare,
        |site| of(site, &rotate),
        |site, hit| {
            let secret = Some([("a".into(), b"secret\n".to_vec())].into());
            assert_eq!(got(site), secret, "{}", hit.what);
            well(hit, "rotate", site.tarn(&rotate));
            assert_eq!(got(site), secret, "{}", hit.what);
        },
    );
}

/// Data that killed runs have left.
pub(crate) fn orphans() {
    let prepare = || {
        let site = put();
        // With what the newest has left it can be resumed.
        crashed(&site);
        crashed(&site);
        site
    };
    let rm = ["data", "rm", "--orphans"];
    sweep(
        "data rm --orphans",
        "tarn",
        prepare,
        |site| of(site, &rm),
        |site, hit| {
            assert_eq!(got(site), Some(tree(&site.path("in"))), "{}", hit.what);
            well(hit, "rm --orphans", site.tarn(&rm));
            assert_eq!(got(site), Some(tree(&site.path("in"))), "{}", hit.what);
        },
    );
}

/// A store of one object of one version, and the content for the next one.
fn store() -> Site {
    let site = Site::new("");
    fs::create_dir(site.path("store")).unwrap();
    site.write("a", "one\n");
    object(&site, &["data", "put", "a", "k", "--object"]).exits(0);
    site.write("a", "two\n");
    site
}

fn of_store(site: &Site, arguments: &[&str]) -> (PathBuf, Command) {
    let (folder, mut command) = of(site, arguments);
    command.env("TARN_OBJECTS", site.path("store"));
    (folder, command)
}

fn object(site: &Site, arguments: &[&str]) -> Ran {
    Ran::of(of_store(site, arguments).1.output().unwrap())
}

/// The content of an object's newest version, or of the version with a number.
fn held(site: &Site, more: &[&str]) -> Option<String> {
    let _ = fs::remove_file(site.path("held"));
    let get = ["data", "get", "k", "held", "--object"];
    let ran = object(site, &[&get[..], more].concat());
    assert!(matches!(ran.code, Some(0 | 7)), "{}", ran.err);
    (ran.code == Some(0)).then(|| site.read("held"))
}

pub(crate) fn objects() {
    let put = ["data", "put", "a", "k", "--object"];
    let command = |site: &Site| of_store(site, &put);
    sweep("data put --object", "tarn", store, command, |site, hit| {
        let newest = held(site, &[]).unwrap();
        assert!(
            newest == "two\n" || (newest == "one\n" && !hit.done()),
            "{}: {newest}",
            hit.what
        );
        assert_eq!(
            held(site, &["--number", "1"]).unwrap(),
            "one\n",
            "{}",
            hit.what
        );
        well(hit, "put", object(site, &put));
        assert_eq!(held(site, &[]).unwrap(), "two\n", "{}", hit.what);
    });
    let get = ["data", "get", "k", "there", "--object"];
    let command = |site: &Site| of_store(site, &get);
    sweep("data get --object", "tarn", store, command, |site, hit| {
        let there = fs::read_to_string(site.path("there")).ok();
        let whole = there.as_deref() == Some("one\n");
        assert!(
            whole || (there.is_none() && !hit.done()),
            "{}: {there:?}",
            hit.what
        );
        assert_eq!(held(site, &[]).unwrap(), "one\n", "{}", hit.what);
    });
    let rm = ["data", "rm", "k", "--object"];
    let command = |site: &Site| of_store(site, &rm);
    sweep("data rm --object", "tarn", store, command, |site, hit| {
        let left = held(site, &[]);
        assert!(
            left.is_none() || (left.as_deref() == Some("one\n") && !hit.done()),
            "{}",
            hit.what
        );
        let again = object(site, &rm);
        assert!(
            matches!(again.code, Some(0 | 7)),
            "{}; rm: {}",
            hit.what,
            again.err
        );
        assert_eq!(held(site, &[]), None, "{}", hit.what);
    });
}
