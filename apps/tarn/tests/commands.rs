//! The commands around `run`: their output, its readers, and their refusals. Real processes.

mod common;
use common::workflows::makes;
use common::{Ran, Site, files, send, until};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// One step makes `r`, which stays on the nodes.
fn kept() -> String {
    makes("kept", "keep = \"forever\"", "echo one > $TARN_r/a")
}

/// Two instances make `r`; the second fails until there is a file `go`.
const HALF: &str = r#"
name = "half"
[data.r]
keep = "forever"
[[step]]
name = "a"
foreach = ["1", "2"]
run = "echo begun; { test $TARN_ITEM = 1 || test -e $TARN_WORKFLOW_DIR/go; } && echo $TARN_ITEM > $TARN_r/$TARN_ITEM"
out = ["r"]
"#;

/// A pipe that nobody reads any more.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

fn full() -> Stdio {
    let full = OpenOptions::new().write(true).open("/dev/full");
    full.expect("/dev/full").into()
}

fn printing_to(mut command: Command, out: Stdio) -> Ran {
    command.stdout(out).stderr(Stdio::piped());
    Ran::of(command.output().expect("tarn starts"))
}

#[test]
fn a_reader_that_goes_away_ends_a_command_quietly() {
    let site = Site::new(&kept());
    site.run().exits(0);
    let tier = site.options[1].clone();
    let commands: [&[&str]; 9] = [
        &["data", "ls"],
        &["data", "ls", "--json"],
        &["data", "where", "r"],
        &["status"],
        &["why"],
        &["why", "--json"],
        &["nodes", "--tier", &tier],
        &["doctor", "--tier", &tier],
        &["plan", "workflow.toml", "--tier", &tier],
    ];
    for arguments in commands {
        let ran = printing_to(site.command(arguments), closed_pipe());
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{arguments:?}");
        let ran = printing_to(site.command(arguments), full()).exits(5);
        assert!(ran.err.contains("No space left"), "{}", ran.err);
        assert!(!ran.err.contains("panicked"), "{}", ran.err);
    }
}

#[test]
fn a_run_goes_on_when_nobody_reads() {
    let site = Site::new(&kept().replace("keep = \"forever\"", "dest = \"out\""));
    let mut arguments = site.run_arguments();
    arguments.push("--json");
    for (round, (out, code)) in [(closed_pipe(), 0), (full(), 5)].into_iter().enumerate() {
        site.write(
            "workflow.toml",
            &site
                .read("workflow.toml")
                .replace("echo ", &format!("echo {round}")),
        );
        let mut command = site.command(&arguments);
        let status = command.stdout(out).stderr(closed_pipe()).status();
        assert_eq!(status.expect("tarn starts").code(), Some(code));
        assert!(
            site.read("out/a")
                .starts_with(char::from(b'0' + round as u8))
        );
    }
}

/// Starts a run of a step that waits, and sends it SIGHUP once it runs.
fn hung_up(site: &Site, shell: &str) -> Child {
    // The process that runs the tests may ignore SIGHUP.
    let mut command = Command::new("env");
    command
        .args(["--default-signal=HUP", "/bin/sh", "-c", shell])
        .arg(env!("CARGO_BIN_EXE_tarn"))
        .args(site.run_arguments())
        .current_dir(site.dir.path())
        .env_remove("TARN_STATE")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let child = command.spawn().expect("tarn starts");
    until("the step begins", || site.path("runs").exists());
    send(rustix::process::Signal::HUP, &child);
    child
}

fn waits() -> String {
    let run = "touch $TARN_WORKFLOW_DIR/runs; while ! test -e $TARN_WORKFLOW_DIR/go; do sleep 0.02; done; echo 1 > $TARN_r/a";
    makes("waits", "dest = \"out\"", run)
}

#[test]
fn a_terminal_that_closes_stops_a_run_in_good_order() {
    let site = Site::new(&waits().replace("touch", "trap 'exit 9' TERM; touch"));
    let ended = hung_up(&site, "exec \"$0\" \"$@\"").wait();
    assert_eq!(ended.expect("it ends").code(), Some(143));
    assert!(!site.path("out").exists());
    site.write("go", "");
    site.tarn(&["resume"]).exits(0);
    assert_eq!(site.read("out/a"), "1\n");
}

#[test]
fn a_run_under_nohup_outlives_its_terminal() {
    let site = Site::new(&waits());
    let mut child = hung_up(&site, "trap '' HUP; exec \"$0\" \"$@\"");
    // Long enough for the signal to have done its work if it is not ignored.
    std::thread::sleep(Duration::from_millis(200));
    site.write("go", "");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert_eq!(site.read("out/a"), "1\n");
}

#[test]
fn tiers_that_do_not_lie_apart_are_refused() {
    let site = Site::new(&kept());
    symlink(site.path("tier"), site.path("link")).expect("symlink");
    let root = |name: &str| site.path(name).display().to_string();
    let tier = |name: &str, at: &str| format!("{name}={}:16MiB", root(at));
    for (one, two, why) in [
        (
            tier("a", "tier"),
            tier("a", "other"),
            "two tiers are called",
        ),
        (tier("a", "tier"), tier("b", "tier"), "are one folder"),
        (tier("a", "tier"), tier("b", "link"), "are one folder"),
        (tier("a", "tier/x"), tier("b", "tier"), "inside the other"),
        (tier("a", "new"), tier("b", "new/x"), "inside the other"),
    ] {
        let arguments = ["run", "workflow.toml", "--tier", &one, "--tier", &two];
        site.tarn(&arguments).exits(2).prints(why);
    }
    assert!(site.left_on_tier().is_empty() && !site.path("new").exists());
}

#[test]
fn an_incomplete_version_is_not_given_out_as_a_whole_one() {
    let site = Site::new(HALF);
    site.run().exits(1);
    let why = "1 of 2 instances of `a` has finished in";
    let drain = ["data", "drain", "r", "copy"];
    site.tarn(&drain)
        .exits(1)
        .prints(why)
        .prints("nothing was copied");
    assert!(!site.path("copy").exists());
    // The output of the other instances can be had, and is not taken for the whole.
    for _ in 0..2 {
        let had = site
            .tarn(&["data", "get", "r", "some"])
            .exits(1)
            .prints(why);
        assert!(had.err.contains("; its output was copied"), "{}", had.err);
        assert_eq!(fs::read_dir(site.path("some")).expect("there").count(), 1);
    }
    site.write("go", "");
    site.tarn(&["resume"]).exits(0);
    // A later run that has made half of it: the earlier one's is there on request.
    let text = site.read("workflow.toml");
    let newer = text.replace("TARN_ITEM > ", "TARN_ITEM new > ");
    fs::remove_file(site.path("go")).expect("remove");
    site.write("workflow.toml", &newer);
    site.run().exits(1);
    site.tarn(&["data", "get", "r", "copy"])
        .exits(1)
        .prints("--run half-1");
    assert!(!site.path("copy").exists());
    site.tarn(&["data", "get", "r", "none", "--run", "half-9"])
        .exits(7);
    site.tarn(&["data", "get", "r", "first", "--run", "half-1"])
        .exits(0);
    assert_eq!(site.read("first/1") + &site.read("first/2"), "1\n2\n");
    site.tarn(&["data", "rm", "r"]).exits(0);
    site.write("go", "");
    site.write("workflow.toml", &text);
    site.run().exits(0);
    site.tarn(&["data", "get", "r", "copy"]).exits(0);
    assert_eq!(site.read("copy/1") + &site.read("copy/2"), "1\n2\n");
    site.tarn(&["data", "drain", "r", "moved"]).exits(0);
    assert_eq!(site.read("moved/1") + &site.read("moved/2"), "1\n2\n");
    site.leaves_nothing_on_its_tier();
}

#[test]
fn a_step_copies_by_itself_whole_or_not_at_all() {
    let site = Site::new(&kept());
    site.write("raw/a/1", "one\n");
    site.write("raw/b", "two\n");
    symlink("b", site.path("raw/link")).expect("a link");
    site.write("grid/own", "");
    let copy = |arguments: &[&str]| site.tarn(&[&["data", "copy"], arguments].concat());
    // In a folder that is there: under its own name. No leftover beside it.
    copy(&["raw", "grid"]).exits(0).prints("8 B copied to");
    assert_eq!(site.read("grid/raw/a/1"), "one\n");
    let link = fs::read_link(site.path("grid/raw/link")).expect("the link");
    assert_eq!(link.to_str(), Some("b"));
    copy(&["raw/b", "grid/c"]).exits(0);
    copy(&["raw/b", "grid"]).exits(0);
    let mut names: Vec<_> = fs::read_dir(site.path("grid"))
        .expect("a folder")
        .map(|e| e.expect("an entry").file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["b", "c", "own", "raw"]);
    // An existing target is exchanged only on request, and a file never for a folder.
    site.write("raw/b", "three\n");
    for (from, to) in [("raw", "grid"), ("raw/b", "grid/c")] {
        copy(&[from, to]).exits(2).prints("--replace");
        copy(&[from, to, "--replace"]).exits(0);
    }
    assert_eq!(
        site.read("grid/raw/b") + &site.read("grid/c"),
        "three\nthree\n"
    );
    copy(&["raw", "grid/c", "--replace"])
        .exits(2)
        .prints("only one of");
    copy(&["raw", "raw/a/inside"])
        .exits(2)
        .prints("contains the other");
    copy(&["nothing", "grid"]).exits(2).prints("is not there");
    // A destination that has no space, or that cannot be written, is as it was.
    copy(&["raw", "/proc/tarn"]).exits(1);
    copy(&["raw/b", "/proc/tarn"]).exits(1);
}

#[test]
fn a_copy_that_was_killed_goes_on() {
    let site = Site::new(&kept());
    let piece = vec![7_u8; 1 << 20];
    for n in 0..64 {
        let name = format!("raw/{n}");
        site.write(&name, "");
        fs::write(site.path(&name), &piece).expect("a file");
    }
    let staging = site.path("copy.tarn-incoming");
    let mut cut = 0;
    for _ in 0..20 {
        let mut child = site
            .command(&["data", "copy", "raw", "copy"])
            .spawn()
            .expect("tarn starts");
        until("it copies", || {
            staging.exists() || site.path("copy").exists()
        });
        let _ = child.kill();
        let _ = child.wait();
        if staging.exists() {
            cut += 1;
            break;
        }
        fs::remove_dir_all(site.path("copy")).expect("it was faster");
    }
    assert_eq!(cut, 1, "it was never cut off");
    assert!(!site.path("copy").exists());
    site.tarn(&["data", "copy", "raw", "copy"])
        .exits(0)
        .prints("64.00 MiB copied");
    for n in 0..64 {
        assert!(fs::read(site.path(&format!("copy/{n}"))).expect("a file") == piece);
    }
    assert!(!staging.exists());
}

#[test]
fn a_damaged_replica_is_left_for_another() {
    let copies = kept().replace("keep =", "copies = 2\nkeep =");
    let site = Site::new(&copies).with(&["--nodes", "2"]);
    site.run().exits(0);
    let mut replicas = site.left_on_tier();
    replicas.retain(|p| p.ends_with("a"));
    assert_eq!(replicas.len(), 2, "{replicas:?}");
    replicas.sort();
    fs::write(&replicas[0], "ONE\n").expect("damage");
    site.tarn(&["data", "get", "r", "copy"])
        .exits(0)
        .prints("another is taken");
    assert_eq!(site.read("copy/a"), "one\n");
    fs::write(&replicas[1], "ONE\n").expect("damage");
    site.tarn(&["data", "get", "r", "second"]).exits(1);
    assert!(!site.path("second").exists() && !site.path("second.tarn-incoming").exists());
}

#[test]
fn a_new_put_takes_the_place_of_the_old() {
    let site = Site::new(&kept());
    site.write("s1/old", "old\n");
    site.write("s2/new", "new\n");
    for source in ["s1", "s2"] {
        let mut arguments = vec!["data", "put", source, "zz"];
        arguments.extend(site.options.iter().map(String::as_str));
        site.tarn(&arguments).exits(0);
    }
    let listed = site.tarn(&["data", "ls"]).exits(0);
    assert_eq!(listed.out.matches("zz ").count(), 2, "{}", listed.out);
    site.tarn(&["data", "get", "zz", "copy"]).exits(0);
    let mut found = Vec::new();
    files(&site.path("copy"), &mut found);
    assert_eq!(found, [site.path("copy/new")]);
    let mut kept = Vec::new();
    files(&site.path("tier"), &mut kept);
    kept.retain(|p| p.components().any(|c| c.as_os_str() == "parts"));
    assert!(
        matches!(&kept[..], [one] if one.ends_with("new")),
        "{kept:?}"
    );
}

#[test]
fn a_delivered_version_is_copied_as_it_was_made() {
    let site = Site::new(&HALF.replace("keep = \"forever\"", "dest = \"out\""));
    site.write("go", "");
    site.run().exits(0);
    site.tarn(&["data", "get", "r", "copy"]).exits(0);
    assert_eq!(site.read("copy/1") + &site.read("copy/2"), "1\n2\n");
    site.write("out/2", "3\n");
    site.tarn(&["data", "get", "r", "second"]).exits(1);
    assert!(!site.path("second").exists());
    let removed = site.tarn(&["data", "rm", "r"]).exits(0);
    let expected = format!(
        "`r` is not on any tier; the copy in {} stays",
        site.path("out").display()
    );
    assert!(removed.err.contains(&expected), "{}", removed.err);
    assert_eq!(site.read("out/2"), "3\n");
}

#[test]
fn a_damaged_log_of_changes_is_found_before_anything_starts() {
    let site = Site::new(&kept().replace("echo one", "touch $TARN_WORKFLOW_DIR/runs; echo one"));
    site.run().exits(0);
    fs::remove_file(site.path("runs")).expect("it ran");
    for _ in 0..2 {
        site.tarn(&["data", "pin", "r"]).exits(0);
    }
    let text = site.read(".tarn/data.log");
    site.write(".tarn/data.log", &text.replacen("\"wall\"", "\"wail\"", 1));
    site.write(
        "workflow.toml",
        &site.read("workflow.toml").replace("echo one", "echo two"),
    );
    site.run()
        .exits(5)
        .prints("nothing was started")
        .prints("data.log")
        .prints("restore the file");
    assert!(!site.path("runs").exists());
    site.write(".tarn/data.log", &text);
    site.run().exits(0);
}

#[test]
fn lines_have_names_and_say_a_failure_once() {
    let text = HALF.replace("echo begun;", "printf '\\\\033[31mred\\\\n';");
    let site = Site::new(&text);
    let failed = site.run().exits(1);
    for ran in [&failed, &site.tarn(&["resume"]).exits(1)] {
        assert!(!ran.err.contains('\u{1b}'), "{:?}", ran.err);
        assert!(ran.err.contains("| \\u{1b}[31mred"), "{}", ran.err);
        assert!(ran.err.contains("a[2] failed"), "{}", ran.err);
        assert_eq!(ran.err.matches("status 1").count(), 1, "{}", ran.err);
        assert!(!ran.err.contains("Failed {"), "{}", ran.err);
    }
    let why = site.tarn(&["why", "a[2]"]).exits(0);
    assert!(why.out.contains("red") && !why.out.contains('\u{1b}'));
}

#[test]
fn what_is_unchanged_is_named_by_its_element() {
    let site = Site::new(
        r#"
name = "each"
[data.i]
source = "in"
[data.o]
dest = "out"
[[step]]
name = "each"
foreach = "i/*.txt"
run = "cp $TARN_i/$TARN_ITEM $TARN_o/"
in = ["i/{item}"]
out = ["o"]
"#,
    );
    site.write("in/b.txt", "b\n");
    site.write("in/a.txt", "a\n");
    site.write("in/other", "o\n");
    site.run().exits(0);
    let plan = site.tarn(&["plan", "workflow.toml", "--tier", &site.options[1]]);
    plan.exits(0).prints("each[a.txt]").prints("each[b.txt]");
    site.write("in/a.txt", "A\n");
    let again = site.run().exits(0).prints("each[b.txt] unchanged");
    assert!(again.err.contains("each[a.txt] done"), "{}", again.err);
    assert!(!again.err.contains("each[1]"), "{}", again.err);
}

#[test]
fn a_steps_log_has_a_bound() {
    let site = Site::new(&kept().replace(
        "echo one",
        "(yes noise || true) | head -c 80000000; echo; echo the cause; false",
    ));
    site.run().exits(1).prints("| the cause");
    let mut logs = Vec::new();
    files(&site.path(".tarn/runs/kept-1/steps"), &mut logs);
    let log = File::open(&logs[0])
        .and_then(|f| f.metadata())
        .expect("a log");
    assert!(
        log.len() > 64 << 20 && log.len() < (64 << 20) + 8192,
        "{}",
        log.len()
    );
    let text = fs::read_to_string(&logs[0]).expect("a log");
    assert!(text.contains("[tarn: this log was cut at"));
}

#[test]
fn looking_makes_no_state_folder() {
    let site = Site::new(&kept());
    let tier = site.options[1].clone();
    for arguments in [
        &["nodes", "--tier", &tier][..],
        &["doctor", "--tier", &tier],
        &["plan", "workflow.toml", "--tier", &tier],
    ] {
        site.tarn(arguments).exits(0);
        assert!(!site.path(".tarn").exists(), "{arguments:?}");
    }
}

#[test]
fn a_cause_is_said_once() {
    let site = Site::new(&kept());
    let tier = format!("a={}:64", site.path("tier").display());
    let ran = site.tarn(&["nodes", "--tier", &tier]).exits(2);
    let (_, cause) = ran.err.trim().rsplit_once("is wrong: ").expect("a cause");
    assert_eq!(ran.err.matches(cause).count(), 1, "{}", ran.err);
}

#[test]
fn why_says_something_of_a_dataset_that_stays_where_it_was_made() {
    let site = Site::new(&common::workflows::makes(
        "w",
        "keep = \"forever\"",
        "echo 1 > $TARN_r/a",
    ));
    site.run().exits(0);
    let ran = site.tarn(&["why", "r"]).exits(0);
    assert!(ran.out.contains("`tarn why a`"), "{}", ran.out);
    let json = site.tarn(&["--json", "why", "r"]).exits(0).summary();
    assert_eq!(json["answers"], serde_json::json!([]));
}

#[test]
fn a_value_that_is_no_number_is_told_the_form_with_an_example() {
    let site = Site::new(&kept());
    let form = "write a whole number from 0 to 100, such as `--cache 25`";
    let some = "write a whole number, in digits and without a unit, such as `--margin 60`";
    let nodes = "write a whole number from 1 to 4096, such as `--nodes 4`";
    let large = "99999999999999999999999999";
    for (option, value, form) in [
        ("--cache", "abc", form),
        ("--cache", "25%", form),
        ("--cache", "101", form),
        ("--cache", "-1", form),
        ("--cache", large, form),
        ("--nodes", "x", nodes),
        ("--nodes", "", nodes),
        ("--nodes", "0", nodes),
        ("--margin", "1m", some),
        ("--margin", "-1", some),
        ("--margin", large, some),
    ] {
        let refused = site.tarn(&["run", "workflow.toml", &format!("{option}={value}")]);
        let refused = refused
            .exits(2)
            .prints(&format!("invalid value '{value}' for '{option} <"))
            .prints(form);
        for word in ["digit found", "too large", "0..", "tip"] {
            assert!(!refused.err.contains(word), "{}", refused.err);
        }
    }
    // As a word of its own it looks like an option.
    let refused = site.tarn(&["run", "workflow.toml", "--cache", "-5"]);
    let refused = refused.exits(2).prints("invalid value '-5' for '--cache <");
    assert!(!refused.err.contains("tip"), "{}", refused.prints(form).err);
    let mut command = site.command(&["run", "workflow.toml"]);
    command.env("TARN_CACHE", "much");
    Ran::of(command.output().expect("tarn starts"))
        .exits(2)
        .prints(form)
        .prints("environment variable TARN_CACHE");
}

#[test]
fn a_run_that_is_not_there_is_told_which_are() {
    let site = Site::new(&kept());
    site.run().exits(0);
    site.write("workflow.toml", &kept().replace("echo one", "echo two"));
    site.run().exits(0);
    let there = "; did you mean `kept-1`? Runs, newest first: kept-2, kept-1";
    for command in ["status", "resume", "cancel", "why"] {
        site.tarn(&[command, "--run", "kept-3"])
            .exits(7)
            .prints("there is no run kept-3")
            .prints(there);
    }
    site.tarn(&["status", "kept-1", "--run", "kept-1"])
        .exits(2)
        .prints("name the run once");
    let empty = Site::new(&kept());
    std::fs::create_dir(empty.path(".tarn")).expect("mkdir");
    empty
        .tarn(&["status"])
        .exits(7)
        .prints("no run has been started here yet: `tarn run` starts one");
    for words in [&["status", "--run", "kept-1"][..], &["status", "kept-1"]] {
        site.tarn(words).exits(0).prints("kept-1  done");
    }
}

#[test]
fn options_that_benchmarks_do_not_have_are_refused() {
    let site = Site::new("");
    for words in [
        ["--state", "x", "bench", "stage"],
        ["--log", "info", "reproduce", "--help"],
        ["--log-format", "json", "bench", "--help"],
    ] {
        let ran = site.tarn(&words).exits(2);
        let option = format!("have no option {}", words[0]);
        assert!(
            ran.out.is_empty() && ran.err.contains(&option),
            "{}",
            ran.err
        );
    }
}
