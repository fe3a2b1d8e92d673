//! Places that cannot be used, or that overlap through links, are refused before anything starts.

mod common;
use common::workflows::reads;
use common::{Ran, Site};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

/// `i` is read from `source` and copied to `dest`.
fn copies(source: &str, dest: &str) -> String {
    let text = reads("copy", "cp -r $TARN_i/. $TARN_o", "");
    text.replace("source = \"in\"", &format!("source = \"{source}\""))
        .replace("dest = \"out\"", &format!("dest = \"{dest}\""))
}

/// Refused, and no run was begun; its plan says the same before.
#[track_caller]
fn refused(site: &Site, ran: Ran, expected: &str) {
    ran.exits(3).prints(expected);
    assert!(!site.path(".tarn/runs").exists() && !site.path("state/runs").exists());
    if !expected.contains("mount point") {
        site.plan().exits(3).prints(expected);
    }
}

#[test]
fn a_plan_refuses_what_its_run_refuses() {
    // Files of somebody else.
    let site = Site::new(&copies("in", "out"));
    site.write("in/x", "1");
    site.write("out/mine", "mine");
    refused(&site, site.run(), "holds files that tarn did not put there");
    assert_eq!(site.read("out/mine"), "mine");
    // A folder that takes nothing.
    let site = Site::new(&copies("in", "/proc/out"));
    site.write("in/x", "1");
    refused(&site, site.run(), "no folder can be made beside it");
    // Files that are empty only as long as nobody reads them.
    let site = Site::new(&copies("/proc/meminfo", "out"));
    refused(&site, site.run(), "has size 0 but is not empty");
    let site = Site::new(&copies("in", "out"));
    fs::create_dir(site.path("in")).expect("mkdir");
    symlink("/proc/meminfo", site.path("in/info")).expect("symlink");
    for ran in [site.plan(), site.run()] {
        ran.exits(1).prints("has size 0 but is not empty");
    }
    // A workflow that can be run can be planned, and the plan leaves nothing behind.
    let site = Site::new(&copies("in", "out"));
    site.write("in/x", "1");
    site.write("in/empty", "");
    let names = || {
        let all = fs::read_dir(site.dir.path()).expect("the folder").flatten();
        let mut all: Vec<_> = all.map(|e| e.file_name()).collect();
        all.sort();
        all
    };
    let before = names();
    site.plan().exits(0);
    assert_eq!(names(), before);
    site.run().exits(0);
}

#[test]
fn a_source_that_is_missing_or_a_dangling_link_is_refused_and_nothing_is_replaced() {
    for dangling in [false, true] {
        let site = Site::new(&copies("in", "out"));
        if dangling {
            symlink("unmounted", site.path("in")).expect("symlink");
        }
        refused(&site, site.run(), "does not exist");
    }
    let site = Site::new(&copies("in", "out"));
    site.write("data/x", "1");
    symlink("data", site.path("in")).expect("symlink");
    site.run().exits(0);
    fs::rename(site.path("data"), site.path("unmounted")).expect("rename");
    site.run().exits(3).prints("leads nowhere");
    assert_eq!(site.read("out/x"), "1", "yesterday's result");
}

#[test]
fn places_in_each_others_way_are_seen_through_links() {
    for (source, dest, expected) in [
        ("src", "here/src/x", "is inside the source"),
        ("here/out", "out", "is the dest"),
        ("src", ".tarn/foo", "is inside the state folder"),
        ("src", "here/.tarn", "is the dest"),
        ("src", "tier", "on the tier"),
    ] {
        let site = Site::new(&copies(source, dest));
        symlink(".", site.path("here")).expect("symlink");
        site.write("src/a", "1");
        fs::create_dir(site.path("out")).expect("mkdir");
        refused(&site, site.run(), expected);
    }
}

#[test]
fn what_tarn_writes_is_never_part_of_what_it_reads() {
    let elsewhere = tempfile::tempdir().expect("a folder");
    let dest = elsewhere.path().join("out");
    let site = Site::new(&copies(".", dest.to_str().expect("UTF-8")));
    refused(&site, site.run(), "--state DIR");
    let outside = elsewhere.path().join("state");
    let state = ["--state", outside.to_str().expect("UTF-8")];
    let site = site.with(&state);
    refused(&site, site.run(), "--tier");
    let tier = format!("fast={}:64MiB", elsewhere.path().join("tier").display());
    let arguments = ["run", "workflow.toml", "--tier", &tier, state[0], state[1]];
    site.tarn(&arguments).exits(0);
    assert!(dest.join("workflow.toml").exists());
}

#[test]
fn a_dest_that_cannot_be_replaced_is_refused_before_anything_is_computed() {
    // Nobody can make a folder there, root neither.
    let site = Site::new(&copies("in", "/proc/tarn-test-out"));
    site.write("in/x", "1");
    refused(&site, site.run(), "cannot be replaced as a whole");
    let site = Site::new(&copies("in", "mounted"));
    site.write("in/x", "1");
    fs::create_dir(site.path("mounted")).expect("mkdir");
    let mut command = Command::new("unshare");
    command
        .args([
            "-Urm",
            "sh",
            "-c",
            "mount -t tmpfs none mounted || exit 99; exec \"$@\"",
            "sh",
        ])
        .arg(env!("CARGO_BIN_EXE_tarn"))
        .args(site.run_arguments())
        .current_dir(site.dir.path())
        .env("NO_COLOR", "1");
    let ran = Ran::of(command.output().expect("unshare starts"));
    if ran.code == Some(99) || ran.err.starts_with("unshare:") {
        eprintln!("SKIPPED: a tmpfs cannot be mounted in a namespace here");
        return;
    }
    refused(&site, ran, "mount point");
}

#[test]
fn attack_data_on_a_tier_is_nobody_elses_to_read() {
    let run = "stat -c %a $TARN_WORKFLOW_DIR/tier/w-* > $TARN_o/mode; cp $TARN_i/x $TARN_o/x";
    let site = Site::new(&reads("look", run, ""));
    site.write("in/x", "secret");
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(site.path("tier"), open).expect("chmod");
    site.run().exits(0);
    assert_eq!(site.read("out/mode").trim(), "700");
    // A folder that is there already under its name is not believed.
    let workspace = fs::read_dir(site.path(".tarn/manifests")).expect("manifests");
    let name = workspace.flatten().next().expect("a workspace").file_name();
    let planted = site.path("tier").join(name);
    let target = site.path("theirs");
    fs::create_dir(&target).expect("mkdir");
    symlink(&target, &planted).expect("symlink");
    site.write("in/x", "another secret");
    site.run().exits(5).prints("no folder");
    assert_eq!(fs::read_dir(&target).expect("theirs").count(), 0);
}

#[test]
fn a_sparse_file_takes_what_it_holds_and_not_what_it_seems() {
    let site = Site::new(&reads("look", "stat -c %s $TARN_i/huge > $TARN_o/size", ""));
    site.write("in/small", "1");
    let huge = fs::File::create(site.path("in/huge")).expect("create");
    huge.set_len(1 << 30).expect("truncate");
    if huge.metadata().expect("stat").blocks() > 1024 {
        eprintln!("SKIPPED: this file system has no sparse files");
        return;
    }
    site.run().exits(0);
    assert_eq!(site.read("out/size").trim(), (1 << 30).to_string());
}

/// A tier whose file system is not mounted would fill the root disk.
#[test]
fn a_tier_that_is_not_there_is_not_made_on_the_root_disk() {
    let mut site = Site::new(&copies("in", "out"));
    site.write("in/x", "1");
    let lost = format!("tarn-no-such-{}", std::process::id());
    for root in [
        format!("/{lost}"),
        format!("/{lost}/tarn"),
        format!("/tmp/../{lost}/tarn"),
    ] {
        site.options = vec!["--tier".into(), format!("nv={root}:64MiB")];
        let tier: Vec<&str> = site.options.iter().map(String::as_str).collect();
        for words in [
            &["run", "workflow.toml"][..],
            &["plan", "workflow.toml"],
            &["data", "put", "in", "x"],
            &["doctor"],
        ] {
            let ran = site.tarn(&[words, &tier].concat());
            ran.exits(5)
                .prints("tier `nv`")
                .prints("would be made on the node's root disk");
            assert!(!Path::new("/").join(&lost).exists(), "{root}: {words:?}");
        }
        let mut exec = site.command(&["h5", "exec", "--folder", &root, "--", "true"]);
        let ran = Ran::of(exec.output().expect("it runs"));
        ran.exits(2).prints("would be made on the node's root disk");
        assert!(!Path::new("/").join(&lost).exists(), "{root}");
    }
}

#[test]
fn a_plan_makes_no_tier_and_a_run_does() {
    let mut site = Site::new(&copies("in", "out"));
    site.write("in/x", "1");
    let new = site.path("new");
    let tier = format!("nv={}:64MiB", new.join("tier").display());
    site.options = vec!["--tier".into(), tier];
    let tier: Vec<&str> = site.options.iter().map(String::as_str).collect();
    for words in [&["plan", "workflow.toml"][..], &["nodes"], &["doctor"]] {
        site.tarn(&[words, &tier].concat()).exits(0);
        assert!(!new.exists(), "{words:?}");
    }
    site.run().exits(0);
    assert_eq!(site.read("out/x"), "1");
    assert!(new.join("tier").is_dir());
}
