//! A step's recorded identity is that of the files that have run: scripts and workflow files that change between runs, while one
//! runs, and before it is resumed.

mod common;
use common::{Ran, Site, until};
use std::fs;

/// `first` makes `a` once `go` is there; `second` is `script.sh`.
const WORKFLOW: &str = r#"
name = "w"
[data.a]
[data.r]
dest = "out"
[[step]]
name = "first"
run = "echo > $TARN_WORKFLOW_DIR/begun; until test -e $TARN_WORKFLOW_DIR/go; do sleep 0.02; done; echo 1 > $TARN_a/a"
out = ["a"]
[[step]]
name = "second"
run = "sh $TARN_WORKFLOW_DIR/script.sh > $TARN_r/out"
in = ["a"]
out = ["r"]
"#;

#[test]
fn a_script_that_was_edited_is_not_run_by_a_resume_and_never_taken_for_the_old_one() {
    let site = Site::new(WORKFLOW);
    site.write("go", "");
    site.write("script.sh", "echo v1; exit 1");
    site.run().exits(1);
    site.write("script.sh", "echo v2");
    let refused = site.tarn(&["resume"]).exits(2);
    assert!(
        refused.err.contains("script.sh") && refused.err.contains("tarn run"),
        "{}",
        refused.err
    );
    site.run().exits(0).prints("1 unchanged");
    assert_eq!(site.read("out/out"), "v2\n");
    // As it was when the first run began: the run can resume, or run again, and it is never v2.
    site.write("script.sh", "echo v1");
    site.run().exits(0);
    assert_eq!(site.read("out/out"), "v1\n");
}

#[test]
fn a_script_that_is_edited_while_an_earlier_step_runs_is_not_started() {
    let site = Site::new(WORKFLOW);
    site.write("script.sh", "echo v1");
    let run = site.begin(&[]);
    until("the first step runs", || site.path("begun").exists());
    site.write("script.sh", "echo v2");
    site.write("go", "");
    let ran = Ran::end(run).exits(1);
    assert!(ran.err.contains("script.sh"), "{}", ran.err);
    assert!(!site.path("out").exists());
    // The new one, by a new run; and the old one is not taken for it.
    site.run().exits(0);
    assert_eq!(site.read("out/out"), "v2\n");
    site.write("script.sh", "echo v1");
    site.run().exits(0);
    assert_eq!(site.read("out/out"), "v1\n");
}

#[test]
fn a_resume_says_that_the_workflow_file_is_another_by_now() {
    for gone in [false, true] {
        let text = WORKFLOW.replace("sh $TARN", "test -e $TARN_WORKFLOW_DIR/ok && sh $TARN");
        let site = Site::new(&text);
        site.write("go", "");
        site.write("script.sh", "echo v1");
        site.run().exits(1);
        match gone {
            true => fs::remove_file(site.path("workflow.toml")).expect("remove"),
            false => site.write("workflow.toml", "this is no workflow"),
        }
        site.write("ok", "");
        let ran = site.tarn(&["resume"]).exits(0);
        let expected = if gone {
            "cannot be read"
        } else {
            "has changed"
        };
        assert!(
            ran.err.contains(expected) && ran.err.contains("tarn run"),
            "{}",
            ran.err
        );
        assert_eq!(site.read("out/out"), "v1\n");
        assert!(
            !site.tarn(&["resume"]).err.contains("note:"),
            "it is complete"
        );
    }
}

/// `slow` makes what `use` reads beside a source; it is not kept, so whoever runs `use` again runs `slow` again.
const BESIDE: &str = r#"
name = "beside"
[data.s]
source = "s"
[data.m]
[data.o]
dest = "o"
[[step]]
name = "slow"
run = "echo 1 > $TARN_m/m; echo ran >> $TARN_WORKFLOW_DIR/slow"
out = ["m"]
[[step]]
name = "use"
run = "cat $TARN_s/* $TARN_m/m > $TARN_o/o; echo ran >> $TARN_WORKFLOW_DIR/use"
in = ["s", "m"]
out = ["o"]
"#;

#[test]
fn a_source_that_only_looks_other_is_read_before_anything_runs_again() {
    let site = Site::new(BESIDE);
    site.write("s/a", "content");
    site.write("s/b", "more");
    site.run().exits(0);
    let runs = || {
        (
            site.read("slow").lines().count(),
            site.read("use").lines().count(),
        )
    };
    assert_eq!(runs(), (1, 1));
    // It was written a moment before the first run: its time stamps say nothing.
    site.run().exits(0).prints("unchanged");
    assert_eq!(runs(), (1, 1));
    // Written again with the same content.
    site.write("s/a", "content");
    site.run().exits(0).prints("unchanged");
    assert_eq!(runs(), (1, 1));
    // Other content of the same length.
    site.write("s/a", "CONTENT");
    site.run().exits(0);
    assert_eq!(runs(), (2, 2));
    assert_eq!(site.read("o/o"), "CONTENTmore1\n");
}

#[test]
fn an_input_that_was_mended_is_noticed_by_a_resume() {
    let site = Site::new(
        &BESIDE
            .replace("cat $TARN_s/*", "grep -q good $TARN_s/a; cat $TARN_s/*")
            .replace("[data.m]", "[data.m]\nkeep = \"workflow\""),
    );
    site.write("s/a", "bad\n");
    site.write("s/b", "more\n");
    site.run().exits(1);
    // Written again with the same content, it is the same.
    site.write("s/b", "more\n");
    site.tarn(&["resume"]).exits(1);
    site.write("s/a", "good\n");
    let expected = "the input a of `s` has changed since this run began, and step `use`, which reads it, is still to be run; `tarn run`";
    site.tarn(&["resume"]).exits(2).prints(expected);
    site.run().exits(0).prints("slow unchanged");
    assert_eq!(site.read("o/o"), "good\nmore\n1\n");
    assert_eq!(site.read("slow").lines().count(), 1);
    // A file of the same length, one that is new, and one that is gone.
    let mended: [fn(&Site); 4] = [
        |site| site.write("s/a", "good"),
        // One in its place that says to be as old.
        |site| {
            let time = |file: &str| fs::metadata(site.path(file)).and_then(|m| m.modified());
            let old = time("s/a").expect("there");
            site.write("new", "good");
            let new = fs::File::options().write(true).open(site.path("new"));
            new.and_then(|f| f.set_modified(old)).expect("set");
            fs::rename(site.path("new"), site.path("s/a")).expect("rename");
        },
        |site| site.write("s/c", "good\n"),
        |site| fs::remove_file(site.path("s/b")).expect("remove"),
    ];
    for mend in mended {
        let site =
            Site::new(&BESIDE.replace("cat $TARN_s/*", "grep -q good $TARN_s/*; cat $TARN_s/*"));
        site.write("s/a", "none");
        site.write("s/b", "none");
        site.run().exits(1);
        mend(&site);
        site.tarn(&["resume"])
            .exits(2)
            .prints("of `s`")
            .prints("tarn run");
    }
}

#[test]
fn a_resume_goes_on_with_what_was_made_of_an_input_that_has_changed_since() {
    let site = Site::new(
        &BESIDE
            .replace("name = \"slow\"", "name = \"slow\"\nin = [\"s\"]")
            .replace("echo 1 > $TARN_m/m", "cp $TARN_s/a $TARN_m/m")
            .replace("in = [\"s\", \"m\"]", "in = [\"m\"]")
            .replace(
                "cat $TARN_s/* $TARN_m/m",
                "test -e $TARN_WORKFLOW_DIR/ok; cat $TARN_m/m",
            ),
    );
    site.write("s/a", "old\n");
    site.run().exits(1);
    site.write("s/a", "new\n");
    site.write("ok", "");
    let expected = "note: the input a of `s` has changed since this run began. The run continues with the results it made from the old one";
    site.tarn(&["resume"]).exits(0).prints(expected);
    assert_eq!(site.read("o/o"), "old\n");
    site.run().exits(0);
    assert_eq!(site.read("o/o"), "new\n");
}

/// Removes the data that a failed run has left on its tier.
fn empty_tier(site: &Site) {
    fs::remove_dir_all(site.path("tier")).expect("removed");
    fs::create_dir(site.path("tier")).expect("mkdir");
}

#[test]
fn a_resume_refuses_when_what_was_made_of_a_changed_input_is_gone() {
    // `slow` reads the source, `use` what `slow` made, and `last` fails.
    let text = BESIDE
        .replace("name = \"slow\"", "name = \"slow\"\nin = [\"s\"]")
        .replace("echo 1 > $TARN_m/m", "cat $TARN_s/* > $TARN_m/m")
        .replace(
            "in = [\"s\", \"m\"]\nout = [\"o\"]",
            "in = [\"m\"]\nout = [\"p\"]",
        )
        .replace(
            "cat $TARN_s/* $TARN_m/m > $TARN_o/o",
            "cp $TARN_m/m $TARN_p/p",
        )
        .replace("[data.o]", "[data.p]\n[data.o]")
        + "[[step]]\nname = \"last\"\nin = [\"p\"]\nout = [\"o\"]\n\
           run = \"test -e $TARN_WORKFLOW_DIR/ok; cp $TARN_p/p $TARN_o/o\"\n";
    let site = Site::new(&text);
    let runs = || {
        (
            site.read("slow").lines().count(),
            site.read("use").lines().count(),
        )
    };
    site.write("s/a", "old\n");
    site.run().exits(1);
    site.write("ok", "");
    site.write("s/a", "new\n");
    empty_tier(&site);
    site.write("workflow.toml", &(text.clone() + "\n# changed\n"));
    let expected = "the input a of `s` has changed since this run began. Step `slow` must run again, because its output is needed and gone, \
                and `tarn resume` would mix old and new input. Nothing was started. Use `tarn run`";
    let refused = site.tarn(&["resume"]).exits(2).prints(expected);
    assert!(!refused.err.contains("note:"), "{}", refused.err);
    assert_eq!(runs(), (1, 1));
    site.run().exits(0);
    assert_eq!((runs(), site.read("o/o")), ((2, 2), "new\n".into()));
    // The same of a script that a step names.
    let site = Site::new(&text.replace("cat $TARN_s/*", "sh $TARN_WORKFLOW_DIR/make.sh"));
    site.write("s/a", "old\n");
    site.write("make.sh", "cat $TARN_s/a");
    site.run().exits(1);
    site.write("ok", "");
    site.write("make.sh", "cat $TARN_s/a $TARN_s/a");
    empty_tier(&site);
    site.tarn(&["resume"])
        .exits(2)
        .prints("make.sh, which step `slow` names, has changed since this run began. Step `slow` must run again, because");
    site.run().exits(0);
    assert_eq!(site.read("o/o"), "old\nold\n");
    // Data that nobody needs any more may be gone.
    let site = Site::new(&text);
    site.write("s/a", "old\n");
    site.run().exits(1);
    site.write("ok", "");
    site.write("s/a", "new\n");
    site.tarn(&["resume"]).exits(0).prints("The run continues");
    assert_eq!(site.read("o/o"), "old\n");
}
