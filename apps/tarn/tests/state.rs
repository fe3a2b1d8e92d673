//! The state that tarn keeps between runs: nobody's data is lost, and changed data is never taken for the old data.

mod common;
use common::workflows::makes;
use common::{Site, files, send, until};
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Folders of replicas below a tier.
fn replicas(tier: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let inside = |p: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(p).into_iter().flatten().flatten();
        entries.map(|e| e.path()).filter(|p| p.is_dir()).collect()
    };
    for node in inside(tier).iter().flat_map(|w| inside(w)) {
        all.extend(inside(&node.join("parts")));
    }
    all.sort();
    all
}

/// Whether a destination's staging folder, which is beside it, has grown.
fn staged(site: &Site) -> bool {
    let entries = fs::read_dir(site.dir.path()).expect("the site").flatten();
    let mut staging = entries.filter(|e| e.file_name().to_string_lossy().starts_with(".out.tarn-"));
    staging.any(|e| e.path().join("a").exists())
}

#[test]
fn what_appears_in_a_dest_while_it_was_being_written_is_never_replaced() {
    for how in [Signal::KILL, Signal::INT] {
        let text = makes(
            "w",
            "dest = \"out\"",
            "head -c 3000000 /dev/zero > $TARN_r/a",
        );
        let site = Site::new(&text).with(&["--external-rate", "1 MB/s"]);
        let mut run = site.command(&site.run_arguments()).spawn().expect("tarn");
        until("the delivery has begun", || staged(&site));
        send(how, &run);
        run.wait().expect("wait");
        site.write("out/thesis", "years of work");
        site.run().exits(3).prints("did not put there");
        let resumed = site.tarn(&["resume"]);
        assert_ne!(resumed.code, Some(0), "{}", resumed.err);
        assert_eq!(site.read("out/thesis"), "years of work");
        // The delivery is made as soon as it may be.
        fs::rename(site.path("out"), site.path("mine")).expect("rename");
        site.run().exits(0);
        assert_eq!(site.read("out/a").len(), 3_000_000);
    }
}

#[test]
fn what_is_put_beside_old_results_while_new_ones_are_copied_is_never_removed() {
    let text = |fill: &str| {
        let run = format!("head -c 2000000 {fill} > $TARN_r/a");
        makes("w", "dest = \"out\"", &run)
    };
    let mut site = Site::new(&text("/dev/zero"));
    site.run().exits(0);
    site.write("workflow.toml", &text("/dev/urandom"));
    site.options
        .extend(["--external-rate".into(), "1 MB/s".into()]);
    let mut command = site.command(&site.run_arguments());
    let run = command.stderr(std::process::Stdio::piped()).spawn();
    let run = run.expect("tarn");
    until("the delivery has begun", || staged(&site));
    site.write("out/thesis", "years of work");
    let refused = common::Ran::of(run.wait_with_output().expect("wait")).exits(1);
    refused.prints("did not put there").prints("thesis");
    assert_eq!(site.read("out/thesis"), "years of work");
    let old = fs::read(site.path("out/a")).expect("the old result");
    assert!(old.len() == 2_000_000 && old.iter().all(|b| *b == 0));
    fs::rename(site.path("out/thesis"), site.path("thesis")).expect("rename");
    site.tarn(&["resume"]).exits(0);
    let new = fs::read(site.path("out/a")).expect("the new result");
    assert!(new.len() == 2_000_000 && new.iter().any(|b| *b != 0));
    let beside = fs::read_dir(site.dir.path()).expect("the site").flatten();
    let hidden = |n: &std::ffi::OsString| n.to_string_lossy().starts_with(".out");
    let left: Vec<_> = beside.map(|e| e.file_name()).filter(hidden).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_dest_may_be_a_link_and_one_that_leads_nowhere_is_refused() {
    let site = Site::new(&makes("w", "dest = \"out\"", "echo 1 > $TARN_r/a"));
    fs::create_dir(site.path("real")).expect("mkdir");
    std::os::unix::fs::symlink("real", site.path("out")).expect("symlink");
    site.run().exits(0);
    assert!(site.path("out").is_symlink());
    assert_eq!(site.read("real/a"), "1\n");
    site.run().exits(0).prints("unchanged");
    site.write(
        "workflow.toml",
        &makes("w", "dest = \"out\"", "echo 2 > $TARN_r/a"),
    );
    site.run().exits(0);
    assert_eq!(site.read("real/a"), "2\n");
    assert!(site.path("out").is_symlink());
    fs::rename(site.path("real"), site.path("gone")).expect("rename");
    site.run().exits(3).prints("leads nowhere");
}

#[test]
fn a_dest_is_remembered_by_its_folder() {
    let text = |dest: &str, n: u32| {
        makes(
            "w",
            &format!("dest = \"{dest}\""),
            &format!("echo {n} > $TARN_r/a"),
        )
    };
    let site = Site::new(&text("r1", 1));
    for (n, dest) in [(1, "r1"), (2, "r2"), (3, "r1")] {
        site.write("workflow.toml", &text(dest, n));
        site.run().exits(0);
        assert_eq!(site.read(&format!("{dest}/a")), format!("{n}\n"));
    }
    // A workflow does not replace data that another one has put there.
    site.write("workflow.toml", &text("r2", 4).replace("\"w\"", "\"v\""));
    site.run().exits(3).prints("did not put there");
    assert_eq!(site.read("r2/a"), "2\n");
}

#[test]
fn a_rescue_is_not_what_a_dest_holds() {
    let text = |n: u32, fails: &str| {
        format!(
            "name = \"w\"\nexternal = \"ext\"\n[data.r]\ndest = \"out\"\non_failure = \"drain\"\n[[step]]\nname = \"a\"\nrun = \"echo {n} > $TARN_r/a\"\nout = [\"r\"]\n[[step]]\nname = \"b\"\nrun = \"{fails}\"\ninout = [\"r\"]\n"
        )
    };
    let site = Site::new(&text(1, "echo b > $TARN_r/b"));
    site.run().exits(0);
    site.write("workflow.toml", &text(2, "exit 1"));
    site.run().exits(1);
    assert_eq!(site.read("out/a"), "1\n");
    site.write("workflow.toml", &text(3, "echo b > $TARN_r/b"));
    site.run().exits(0);
    assert_eq!(site.read("out/a"), "3\n");
}

#[test]
fn workflows_in_one_folder_leave_each_other_alone() {
    let site = Site::new(&makes("one", "keep = \"forever\"", "echo 1 > $TARN_r/a"));
    site.run().exits(0);
    let before = replicas(&site.path("tier"));
    assert_eq!(before.len(), 1, "{before:?}");
    let first = site.read("workflow.toml");
    site.write("workflow.toml", &makes("two", "", "echo 2 > $TARN_r/a"));
    site.run().exits(0);
    site.write("workflow.toml", &first);
    site.run().exits(0).prints("unchanged");
    assert_eq!(replicas(&site.path("tier")), before);
    site.tarn(&["data", "get", "r", "copy"]).exits(0);
    assert_eq!(site.read("copy/a"), "1\n");
}

#[test]
fn a_lost_manifest_is_made_again() {
    let site = Site::new(&makes("w", "keep = \"forever\"", "echo 1 > $TARN_r/a"));
    site.run().exits(0);
    let before = replicas(&site.path("tier"));
    fs::remove_dir_all(site.path(".tarn/manifests")).expect("rm");
    site.run().exits(0).prints("unchanged");
    assert_eq!(replicas(&site.path("tier")), before);
    site.tarn(&["data", "get", "r", "copy"]).exits(0);
    assert_eq!(site.read("copy/a"), "1\n");
}

#[test]
fn what_is_to_be_kept_stays_whatever_the_nodes() {
    let text = "name = \"w\"\n[data.r]\nkeep = \"forever\"\n[[step]]\nname = \"a\"\nforeach = [\"x\", \"y\"]\nrun = \"sleep 0.3; echo $TARN_ITEM > $TARN_r/$TARN_ITEM\"\nout = [\"r\"]\n";
    let mut site = Site::new(text).with(&["--nodes", "2"]);
    site.run().exits(0);
    let before = replicas(&site.path("tier"));
    assert!(
        before.iter().any(|p| p.to_string_lossy().contains("node1")),
        "{before:?}"
    );
    site.options.truncate(2);
    site.run().exits(0);
    for folder in &before {
        assert!(folder.is_dir(), "{} is gone", folder.display());
    }
    // An edit makes new data; this run does not remove data that is to be kept either.
    site.write("workflow.toml", &text.replace("sleep 0.3", "sleep 0.1"));
    site.run().exits(0);
    site.write("workflow.toml", text);
    site.options.extend(["--nodes".into(), "2".into()]);
    let again = site.run().exits(0).prints("unchanged");
    assert!(!again.err.contains("done in"), "{}", again.err);
    for folder in &before {
        assert!(folder.is_dir(), "{} is gone", folder.display());
    }
    for name in ["x", "y"] {
        let holds = |p: &&PathBuf| p.join(name).exists();
        assert!(before.iter().any(|p| holds(&p)), "{name}: {before:?}");
    }
}

#[test]
fn what_was_to_be_kept_and_is_gone_is_made_again_and_listed_once() {
    let site = Site::new(&makes("w", "keep = \"forever\"", "echo 1 > $TARN_r/a"));
    site.run().exits(0);
    for entry in fs::read_dir(site.path("tier")).expect("tier").flatten() {
        if entry.path().is_dir() {
            fs::remove_dir_all(entry.path()).expect("rm");
        }
    }
    let again = site.run().exits(0).prints("is gone");
    assert!(again.err.contains("a done"), "{}", again.err);
    assert_eq!(replicas(&site.path("tier")).len(), 1);
    let listed = site.tarn(&["data", "where", "r"]).exits(0);
    assert_eq!(listed.out.lines().count(), 1, "{}", listed.out);
    site.tarn(&["data", "get", "r", "copy"]).exits(0);
    site.run().exits(0).prints("unchanged");
}

#[test]
fn what_was_to_be_kept_and_was_changed_stays_and_is_made_again() {
    let site = Site::new(&makes("w", "keep = \"forever\"", "echo 1 > $TARN_r/a"));
    site.run().exits(0);
    let changed = replicas(&site.path("tier"))[0].join("a");
    fs::write(&changed, "edited by hand").expect("write");
    let again = site.run().exits(0).prints("was changed or damaged");
    assert!(again.err.contains("kept data"), "{}", again.err);
    assert_eq!(
        fs::read_to_string(&changed).expect("it stays"),
        "edited by hand"
    );
    site.tarn(&["data", "get", "r", "copy"]).exits(0);
    assert_eq!(site.read("copy/a"), "1\n");
    site.tarn(&["data", "rm", "r"]).exits(0);
    site.leaves_nothing_on_its_tier();
}

#[test]
fn what_a_failed_run_left_is_listed_until_the_next_run_removes_it() {
    let text = |status: u32| {
        format!(
            "name = \"w\"\n[data.src]\nsource = \"src\"\n[data.r]\n[[step]]\nname = \"a\"\nrun = \"cat $TARN_src/f > $TARN_r/a; exit {status}\"\nin = [\"src\"]\nout = [\"r\"]\n"
        )
    };
    let site = Site::new(&text(1));
    site.write("src/f", "1");
    site.run().exits(1);
    let listed = site.tarn(&["data", "ls"]).exits(0).prints("src");
    assert!(!listed.out.contains("forever"), "{}", listed.out);
    site.write("workflow.toml", &text(0));
    site.run().exits(0);
    let listed = site.tarn(&["data", "ls"]).exits(0);
    assert!(!listed.out.contains("src"), "{}", listed.out);
    site.leaves_nothing_on_its_tier();
}

#[test]
fn what_failed_runs_made_goes_with_the_next_success() {
    let text = |n: u32, status: u32| {
        format!(
            "name = \"w\"\n[data.m]\n[data.r]\ndest = \"out\"\n[[step]]\nname = \"a\"\nrun = \"echo {n} > $TARN_m/a\"\nout = [\"m\"]\n[[step]]\nname = \"b\"\nrun = \"cat $TARN_m/a > $TARN_r/a; exit {status}\"\nin = [\"m\"]\nout = [\"r\"]\n"
        )
    };
    let site = Site::new(&text(1, 1));
    site.run().exits(1);
    assert_eq!(replicas(&site.path("tier")).len(), 1);
    site.write("workflow.toml", &text(2, 0));
    site.run().exits(0);
    assert_eq!(site.read("out/a"), "2\n");
    site.leaves_nothing_on_its_tier();
    let listed = site.tarn(&["data", "ls"]).exits(0);
    assert!(!listed.out.contains("node0"), "{}", listed.out);
}

#[test]
fn a_pinned_dataset_outlives_an_edit() {
    let site = Site::new(&makes("w", "keep = \"7d\"", "echo 1 > $TARN_r/a"));
    site.run().exits(0);
    let before = replicas(&site.path("tier"));
    site.tarn(&["data", "pin", "r"]).exits(0);
    // The dataset is no longer part of the workflow.
    site.write(
        "workflow.toml",
        &makes("w", "", "echo 2 > $TARN_r/b")
            .replace("r\"]", "s\"]")
            .replace("data.r", "data.s")
            .replace("TARN_r", "TARN_s"),
    );
    site.run().exits(0);
    assert_eq!(replicas(&site.path("tier")), before);
    site.tarn(&["data", "get", "r", "copy"]).exits(0);
    assert_eq!(site.read("copy/a"), "1\n");
}

/// Makes a file old, without changing what is in it.
fn age(path: &Path) {
    let old = std::time::SystemTime::now() - Duration::from_secs(3600);
    let times = fs::FileTimes::new().set_modified(old);
    let file = fs::File::options().write(true).open(path).expect("open");
    file.set_times(times).expect("touch");
}

#[test]
fn a_source_is_what_it_is_now() {
    let text = |name: &str, source: &str| {
        format!(
            "name = \"{name}\"\n[data.src]\nsource = \"{source}\"\n[data.r]\ndest = \"{name}_r\"\n[[step]]\nname = \"a\"\nrun = \"cat $TARN_src/f > $TARN_r/a\"\nin = [\"src\"]\nout = [\"r\"]\n"
        )
    };
    let site = Site::new(&text("w", "s1"));
    let stamp = std::time::SystemTime::now() - Duration::from_secs(3600);
    for (name, content) in [("s1", "one"), ("s2", "two")] {
        site.write(&format!("{name}/f"), content);
        let file = fs::File::options()
            .write(true)
            .open(site.path(name).join("f"));
        let times = fs::FileTimes::new().set_modified(stamp);
        file.expect("open").set_times(times).expect("touch");
    }
    // Old enough to be remembered.
    std::thread::sleep(Duration::from_millis(2100));
    site.run().exits(0);
    site.run().exits(0).prints("unchanged");
    site.write("workflow.toml", &text("w", "s2"));
    site.run().exits(0);
    assert_eq!(site.read("w_r/a"), "two");
    // Another workflow that calls its source the same.
    site.write("workflow.toml", &text("v", "s1"));
    site.run().exits(0);
    assert_eq!(site.read("v_r/a"), "one");
    // Other content of the same size and time.
    site.write("s1/f", "new");
    let file = fs::File::options().write(true).open(site.path("s1/f"));
    let times = fs::FileTimes::new().set_modified(stamp);
    file.expect("open").set_times(times).expect("touch");
    site.run().exits(0);
    assert_eq!(site.read("v_r/a"), "new");
    age(&site.path("s1/f"));
    site.run().exits(0).prints("unchanged");
}

#[test]
fn any_name_will_do_for_a_workflow() {
    let site = Site::new(&makes("catalogue", "dest = \"out\"", "echo 1 > $TARN_r/a"));
    let mut run = site.command(&site.run_arguments()).spawn().expect("tarn");
    until("it ends", || run.try_wait().expect("wait").is_some());
    assert_eq!(site.read("out/a"), "1\n");
}

#[test]
fn a_step_that_writes_more_than_its_tier_holds_fails_and_says_so() {
    let mut site = Site::new(&makes(
        "w",
        "dest = \"out\"",
        "head -c 9000000 /dev/zero > $TARN_r/a",
    ));
    site.options[1] = site.options[1].replace("64MiB", "6MiB");
    site.run()
        .exits(1)
        .prints("cannot hold them")
        .prints("--tier");
    let failed = |r: &serde_json::Value| r["ended"]["failure"]["kind"] == "no-space";
    assert!(site.log().iter().any(failed));
    let mut left = Vec::new();
    files(&site.path("tier"), &mut left);
    let big = |p: &&PathBuf| fs::metadata(p).is_ok_and(|m| m.len() > 1_000_000);
    assert_eq!(left.iter().find(big), None);
    // With a retry and a slower tier that has the space, it continues there.
    let retried = site.read("workflow.toml") + "retries = 1\n";
    site.write("workflow.toml", &retried);
    fs::create_dir(site.path("slow")).expect("mkdir");
    let slow = format!("slow={}:64MiB", site.path("slow").display());
    site.options.extend(["--tier".into(), slow]);
    site.run().exits(0);
    assert_eq!(site.read("out/a").len(), 9_000_000);
}

#[test]
fn a_log_that_has_lost_its_end_is_gone_on_with_though_what_was_kept_is_there() {
    let text = r#"
name = "w"
[data.a]
keep = "forever"
[data.b]
keep = "forever"
[[step]]
name = "one"
run = "echo 1 > $TARN_a/a"
out = ["a"]
[[step]]
name = "two"
run = "mkdir $TARN_b/d; cp $TARN_a/a $TARN_b/d/b; cp $TARN_a/a $TARN_b/b"
in = ["a"]
out = ["b"]
"#;
    let whole = Site::new(text);
    whole.run().exits(0);
    let records = whole.log().len();
    for kept in 1..records {
        let site = Site::new(text);
        site.run().exits(0);
        let log = site.path(".tarn/runs/w-1/events.log");
        let lines = fs::read_to_string(&log).expect("the log");
        let first: String = lines.split_inclusive('\n').take(1 + kept).collect();
        fs::write(&log, first).expect("write");
        site.tarn(&["resume"]).exits(0);
        site.tarn(&["data", "get", "b", "back"]).exits(0);
        assert_eq!(site.read("back/d/b"), "1\n", "{kept} of {records}");
    }
}

#[test]
fn who_looks_into_anothers_state_folder_opens_nothing_outside_it_through_links() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: giving files to another user is root's; run the tests as root");
        return;
    }
    const USER: &str = "30001:30001";
    let outside = tempfile::tempdir().expect("a folder");
    let precious = outside.path().join("precious");
    let seen = || {
        let list = fs::read_dir(outside.path()).expect("the folder").flatten();
        let names: Vec<_> = list.map(|e| e.file_name()).collect();
        (names, fs::read_to_string(&precious).expect("precious"))
    };
    fs::write(&precious, "precious").expect("write");
    let before = seen();
    let links = [
        "catalogue.lock",
        "catalogue.sqlite",
        "locks/w.lock",
        "machine.json",
    ];
    for link in links {
        let text = makes("w", "dest = \"out\"", "echo x > $TARN_r/a");
        let site = Site::new(&text);
        site.run().exits(0);
        let place = site.path(".tarn").join(link);
        // To a file that is there, and to one that would be made.
        for to in ["precious", "new"] {
            let _ = fs::remove_file(&place);
            std::os::unix::fs::symlink(outside.path().join(to), &place).expect("link");
            let given = std::process::Command::new("chown")
                .args(["-hR", USER])
                .arg(site.dir.path())
                .status();
            assert!(given.expect("chown").success());
            for words in [
                &["status"][..],
                &["why"],
                &["data", "ls"],
                &["plan"],
                &["resume"],
            ] {
                site.tarn(words);
                assert_eq!(seen(), before, "{words:?} through {link}");
            }
        }
    }
}

#[test]
fn a_plan_refuses_a_state_folder_that_a_run_refuses_and_makes_none() {
    let site = Site::new(&makes("w", "dest = \"out\"", "echo 1 > $TARN_r/a"));
    site.plan().exits(0);
    assert!(!site.path(".tarn").exists(), "a plan makes nothing");
    site.write("file", "");
    std::os::unix::fs::symlink("nowhere", site.path("link")).expect("a link");
    for state in ["file", "file/state", "link"] {
        let site = Site::new(&site.read("workflow.toml")).with(&[]);
        site.write("file", "");
        std::os::unix::fs::symlink("nowhere", site.path("link")).expect("a link");
        for verb in ["plan", "run"] {
            let mut arguments = site.run_arguments();
            arguments[0] = verb;
            let ran = site.tarn(&[&["--state", state], &arguments[..]].concat());
            let expected = format!(
                "cannot create the state folder {}",
                site.path(state).display()
            );
            ran.exits(5).prints(&expected);
        }
    }
}

#[test]
fn a_plan_is_refused_while_its_workflow_runs() {
    let site = Site::new(&makes(
        "w",
        "dest = \"out\"",
        "touch $TARN_WORKFLOW_DIR/begun; until test -e $TARN_WORKFLOW_DIR/go; do sleep 0.05; done; echo 1 > $TARN_r/a",
    ));
    let mut run = site.begin(&[]);
    until("it runs", || site.path("begun").exists());
    for ran in [site.plan(), site.run()] {
        ran.exits(6)
            .prints("a run of workflow w is active")
            .prints("tarn cancel");
    }
    site.write("go", "");
    assert!(run.wait().expect("an end").success());
    site.plan().exits(0);
}
