//! Failures of steps and of their data, tarn's messages about them, and the state that tarn leaves.

mod common;
use common::workflows::reads;
use common::{Ran, Site, send, until};
use rustix::process::Signal;
use std::time::{Duration, Instant};

fn one(run: &str, rest: &str) -> Site {
    let site = Site::new(&reads("only", run, rest));
    site.write("in/x", "input\n");
    site
}

#[test]
fn a_failing_step_is_named_with_its_last_lines() {
    let site = one("echo first; echo the cause >&2; exit 3", "");
    let ran = site.run().exits(1);
    for text in ["only", "the cause", "3", "tarn resume"] {
        assert!(ran.err.contains(text), "no {text:?} in {}", ran.err);
    }
    assert!(!site.path("out").exists());
    site.tarn(&["status"]).exits(0).prints("the cause");
    site.tarn(&["why", "only"]).exits(0).prints("failed");
}

#[test]
fn a_hanging_step_is_stopped_at_its_time() {
    let site = one("echo begun; sleep 300 & sleep 300", "time = \"1s\"");
    let begun = Instant::now();
    site.run().exits(1).prints("only");
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_promised_output_that_is_missing_fails_the_step() {
    one("true", "").run().exits(1).prints("`o`");
}

#[test]
fn an_input_cannot_be_changed() {
    let changes = "echo changed >> $TARN_i/x && cp $TARN_i/x $TARN_o/x";
    for isolation in ["auto", "off"] {
        let site = one(changes, "").with(&["--isolation", isolation]);
        site.run().exits(1).prints("only");
        assert_eq!(site.read("in/x"), "input\n");
        site.write(
            "workflow.toml",
            &site
                .read("workflow.toml")
                .replace(changes, "cp $TARN_i/x $TARN_o/x"),
        );
        site.run().exits(0);
        assert_eq!(
            site.read("out/x"),
            "input\n",
            "the next run sees the intact input"
        );
    }
}

#[test]
fn a_step_that_dies_within_an_inout_leaves_the_version_before() {
    let site = Site::new(
        r#"
name = "w"
[data.d]
dest = "out"
[[step]]
name = "make"
run = "echo 1 > $TARN_d/x; echo keep > $TARN_d/y"
out = ["d"]
[[step]]
name = "change"
run = "echo half >> $TARN_d/x; rm $TARN_d/y; test -e $TARN_WORKFLOW_DIR/go || kill -9 $$; echo 2 > $TARN_d/x"
inout = ["d"]
"#,
    );
    site.run().exits(1).prints("change");
    site.write("go", "");
    site.tarn(&["resume"]).exits(0);
    assert_eq!(site.read("out/x"), "2\n");
    assert!(!site.path("out/y").exists());
    let makes = site
        .log()
        .iter()
        .flat_map(|r| r["actions"].as_array().cloned().unwrap_or_default())
        .filter(|a| a["do"] == "run" && a["instance"]["step"] == 0)
        .count();
    assert_eq!(makes, 1, "what was committed is not run again");
    site.leaves_nothing_on_its_tier();
}

#[test]
fn retries_start_from_intact_inputs() {
    let site = one(
        "n=$(cat $TARN_WORKFLOW_DIR/n 2>/dev/null || echo 0); echo $((n+1)) > $TARN_WORKFLOW_DIR/n; test $n -ge 2 && cp $TARN_i/x $TARN_o/x",
        "retries = 2",
    );
    site.run().exits(0).prints("attempt 3");
    assert_eq!(site.read("out/x"), "input\n");
}

#[test]
fn gathered_files_that_differ_are_refused_whole() {
    let site = Site::new(
        r#"
name = "w"
[data.d]
[data.o]
dest = "out"
[[step]]
name = "make"
foreach = ["a", "b"]
run = "echo $TARN_ITEM > $TARN_d/same"
out = ["d"]
[[step]]
name = "gather"
run = "cp $TARN_d/same $TARN_o/x"
in = ["d"]
out = ["o"]
"#,
    );
    site.run().exits(1).prints("same");
    site.tarn(&["why", "gather"]).exits(0).prints("same");
}

#[test]
fn a_link_out_of_the_dataset_is_refused() {
    let site = one("ln -s /etc/passwd $TARN_o/x; echo 1 > $TARN_o/y", "");
    site.run().exits(1).prints("x");
    assert!(!site.path("out").exists());
    let site = one("cp $TARN_i/x $TARN_o/x", "");
    std::os::unix::fs::symlink("../../etc/passwd", site.path("in/l")).expect("a link");
    site.run().exits(1).prints("l");
}

#[test]
fn somebody_elses_files_in_a_dest_are_not_touched() {
    let site = one("cp $TARN_i/x $TARN_o/x", "");
    site.write("out/mine", "mine");
    site.run().exits(3).prints("out");
    assert_eq!(site.read("out/mine"), "mine");
}

#[test]
fn a_missing_source_is_named() {
    let site = one("true", "");
    std::fs::remove_dir_all(site.path("in")).expect("rm");
    site.run()
        .exits(3)
        .prints("does not exist")
        .prints("[data.i]");
}

#[test]
fn what_cannot_fit_is_refused_before_anything_moves() {
    let site = one("true", "");
    std::fs::write(site.path("in/big"), vec![1u8; 80 << 20]).expect("write");
    site.run()
        .exits(4)
        .prints("no tier holds more")
        .prints("refused");
    site.leaves_nothing_on_its_tier();
}

#[test]
fn a_flipped_byte_is_found_and_the_data_made_again() {
    let site = Site::new(
        r#"
name = "w"
[data.d]
dest = "out"
[data.e]
dest = "e"
[[step]]
name = "make"
run = "head -c 100000 /dev/zero > $TARN_d/x"
out = ["d"]
[[step]]
name = "wait"
run = "test -e $TARN_WORKFLOW_DIR/go && echo 1 > $TARN_e/x"
out = ["e"]
"#,
    );
    // `out` cannot be written at first: `d` stays on its node.
    site.write("out.tarn", "");
    let ran = site.run();
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    let stored: Vec<_> = site
        .left_on_tier()
        .into_iter()
        .filter(|p| p.ends_with("x"))
        .collect();
    for path in &stored {
        let mut bytes = std::fs::read(path).expect("read");
        bytes[5000] ^= 1;
        std::fs::write(path, bytes).expect("write");
    }
    site.write("go", "");
    let resumed = site.tarn(&["resume"]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.err);
    assert!(
        std::fs::read(site.path("out/x"))
            .expect("there")
            .iter()
            .all(|b| *b == 0)
    );
}

fn signalled(signal: Signal, code: i32) {
    let site = one(
        "echo started > $TARN_WORKFLOW_DIR/started; test -e $TARN_WORKFLOW_DIR/go || sleep 100; cp $TARN_i/x $TARN_o/x",
        "",
    );
    let child = site.begin(&[]);
    let begun = Instant::now();
    until("the step starts", || site.path("started").exists());
    send(signal, &child);
    let ran = Ran::end(child).exits(code).prints("tarn resume");
    assert!(begun.elapsed() < Duration::from_secs(60), "{}", ran.err);
    site.write("go", "");
    site.tarn(&["resume"]).exits(0);
    assert_eq!(site.read("out/x"), "input\n");
    site.leaves_nothing_on_its_tier();
}

#[test]
fn ctrl_c_stops_in_good_order() {
    signalled(Signal::INT, 130);
}

#[test]
fn sigterm_stops_in_good_order() {
    signalled(Signal::TERM, 143);
}

#[test]
fn cancel_stops_a_run_and_a_second_run_is_refused() {
    let site = one("echo > $TARN_WORKFLOW_DIR/started; sleep 100", "");
    let child = site.begin(&[]);
    until("the step starts", || site.path("started").exists());
    site.run().exits(6).prints("tarn cancel");
    site.tarn(&["status"]).exits(0).prints("only");
    site.tarn(&["cancel"]).exits(0);
    Ran::end(child).exits(143);
}

#[test]
fn a_step_whose_input_somebody_removes_is_not_told_that_it_is_intact() {
    let site = Site::new(
        r#"
name = "w"
[data.mid]
[data.r]
dest = "out"
[[step]]
name = "one"
run = "echo 1 > $TARN_mid/a"
out = ["mid"]
[[step]]
name = "two"
run = "echo > $TARN_WORKFLOW_DIR/begun; until test -e $TARN_WORKFLOW_DIR/go; do sleep 0.02; done; cp $TARN_mid/a $TARN_r/a"
in = ["mid"]
out = ["r"]
"#,
    );
    let run = site.begin(&[]);
    until("the second step runs", || site.path("begun").exists());
    let mut replicas = Vec::new();
    common::files(&site.path("tier"), &mut replicas);
    replicas.retain(|p| p.ends_with("a") && p.to_string_lossy().contains("/parts/"));
    assert_eq!(replicas.len(), 1, "{replicas:?}");
    std::fs::remove_file(&replicas[0]).expect("rm");
    site.write("go", "");
    let ran = common::Ran::end(run);
    assert!(!ran.err.contains("intact"), "{}", ran.err);
    let expected = "somebody has removed or changed its input `mid`";
    // Without namespaces it cannot be distinguished from changes by the step itself.
    let is_reported = ran.err.contains(expected) || ran.err.contains("it changed `a` of its input");
    assert!(is_reported, "{}", ran.err);
    if ran.code != Some(0) {
        site.tarn(&["resume"]).exits(0);
    }
    assert_eq!(site.read("out/a"), "1\n");
}

#[test]
fn why_says_what_a_step_waits_for_and_that_the_run_was_stopped() {
    let site = Site::new(
        r#"
name = "w"
[data.mid]
[data.r]
dest = "out"
[[step]]
name = "one"
run = "echo > $TARN_WORKFLOW_DIR/begun; sleep 300; echo 1 > $TARN_mid/a"
out = ["mid"]
[[step]]
name = "two"
run = "cp $TARN_mid/a $TARN_r/a"
in = ["mid"]
out = ["r"]
"#,
    );
    let run = site.begin(&[]);
    until("the first step runs", || site.path("begun").exists());
    let expected = "w-1 has decided nothing about `two` yet: it needs `mid`, which `one` makes";
    site.tarn(&["why", "two"]).exits(0).prints(expected);
    send(Signal::INT, &run);
    Ran::end(run).exits(130);
    for step in ["one", "two"] {
        let expected = "the run was asked to stop (signal 2)";
        site.tarn(&["why", step]).exits(0).prints(expected);
    }
}

/// `caf\xe9.txt`, as in Latin-1.
fn latin(folder: &std::path::Path) -> std::path::PathBuf {
    use std::os::unix::ffi::OsStrExt;
    folder.join(std::ffi::OsStr::from_bytes(b"caf\xe9.txt"))
}

#[test]
fn a_step_that_stumbles_over_a_name_that_is_not_utf8_is_told_which() {
    let list = "import os\nfor n in os.listdir(os.environ['TARN_i']): print(n)\n";
    let run = "PYTHONIOENCODING=utf-8:strict python3 $TARN_WORKFLOW_DIR/list.py > $TARN_o/list";
    let site = one(run, "");
    site.write("list.py", list);
    std::fs::write(latin(&site.path("in")), "").expect("a file");
    for word in [
        "`caf\\xe9.txt` in its input `i`",
        "not UTF-8",
        "rename the file in the source",
    ] {
        site.run().exits(1).prints(word);
    }
    site.tarn(&["why", "only"]).exits(0).prints("caf\\xe9.txt");
    // Another failure is not put down to it.
    let other = one("echo no luck; exit 1", "");
    std::fs::write(latin(&other.path("in")), "").expect("a file");
    let ran = other.run().exits(1);
    assert!(!ran.err.contains("UTF-8"), "{}", ran.err);
}

#[test]
fn a_workflow_in_a_folder_whose_name_is_not_utf8_is_refused_with_the_remedy() {
    let site = one("cp $TARN_i/x $TARN_o/", "");
    let folder = latin(&site.path("sub"));
    std::fs::create_dir_all(&folder).expect("a folder");
    let text = site.read("workflow.toml");
    std::fs::write(folder.join("workflow.toml"), text).expect("a workflow");
    std::fs::write(folder.join("job.sh"), "#!/bin/bash\n#TARN [[step]]\ntrue\n").expect("a script");
    for (verb, file) in [
        ("plan", "workflow.toml"),
        ("run", "workflow.toml"),
        ("run", "job.sh"),
    ] {
        let mut arguments = site.run_arguments();
        (arguments[0], arguments[1]) = (verb, file);
        let ran = site.command(&arguments).current_dir(&folder).output();
        Ran::of(ran.expect("tarn"))
            .exits(3)
            .prints("caf\\xe9.txt` is not UTF-8")
            .prints("rename that file or folder");
        assert!(!folder.join(".tarn").exists());
    }
}
