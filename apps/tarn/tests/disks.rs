//! Disks on bad days: tiers, sources, external stores and state folders that fill, change, vanish or refuse.

mod common;
use common::workflows::{makes, reads};
use common::{Ran, Site, until};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

fn site(workflow: &str) -> Site {
    let mut site = Site::new(workflow);
    site.options = vec![
        "--tier".into(),
        format!("fast={}:6MiB", site.path("tier").display()),
    ];
    site
}

/// `tarn` in a mount namespace of its own, with a tmpfs of this size at `folder`; `None` where that is forbidden.
fn with_small_disk(site: &Site, folder: &str, size: &str, arguments: &[&str]) -> Option<Ran> {
    let mount = format!(
        "mount -t tmpfs -o size={size} none '{}' || exit 99; exec \"$@\"",
        site.path(folder).display()
    );
    let mut command = Command::new("unshare");
    command
        .args(["-Urm", "sh", "-c", &mount, "sh", env!("CARGO_BIN_EXE_tarn")])
        .args(arguments)
        .current_dir(site.dir.path())
        .env_remove("TARN_STATE")
        .env("NO_COLOR", "1");
    let output = command.output().ok().map(Ran::of);
    let allowed = output.filter(|o| o.code != Some(99) && !o.err.starts_with("unshare:"));
    if allowed.is_none() {
        eprintln!("skipped: a tmpfs cannot be mounted in a namespace here");
    }
    allowed
}

#[test]
fn a_step_that_fills_its_tier_says_so_and_goes_on_with_more_space() {
    // Its promised output fits; the disk below is smaller than it seemed.
    let site = site(&reads(
        "fill",
        "head -c 5000000 /dev/zero > $TARN_WORKFLOW_DIR/tier/stolen; head -c 5000000 /dev/zero > $TARN_o/f",
        "",
    ));
    site.write("in/x", "input\n");
    let arguments = site.run_arguments();
    let Some(ran) = with_small_disk(&site, "tier", "8m", &arguments) else {
        return;
    };
    let ran = ran.exits(1);
    for text in ["fill", "no space is left", "--tier", "tarn resume"] {
        assert!(ran.err.contains(text), "no {text:?} in {}", ran.err);
    }
    assert!(
        site.log()
            .iter()
            .any(|r| r["ended"]["failure"]["kind"] == "no-space")
    );
    site.tarn(&["why", "fill"])
        .exits(0)
        .prints("no space is left");
    assert_eq!(site.read("in/x"), "input\n");
    assert!(!site.path("out").exists());
    let resumed = with_small_disk(&site, "tier", "64m", &["resume"]).expect("as before");
    resumed.exits(0);
    assert_eq!(
        std::fs::metadata(site.path("out/f")).expect("there").len(),
        5_000_000
    );
}

#[test]
fn a_transfer_that_fills_its_tier_fails_whole_and_goes_on_with_more_space() {
    // The first step takes the tier's space behind tarn's back: no account can know of it.
    let site = site(&reads(
        "read",
        "cp $TARN_i/x $TARN_o/x",
        "after = [\"steal\"]\n[[step]]\nname = \"steal\"\nrun = \"head -c 7000000 /dev/zero > $TARN_WORKFLOW_DIR/tier/stolen || true\"",
    ));
    let content: Vec<u8> = (0..2 * MIB).map(|i| (i / 7) as u8).collect();
    std::fs::create_dir(site.path("in")).expect("mkdir");
    std::fs::write(site.path("in/x"), &content).expect("write");
    let Some(ran) = with_small_disk(&site, "tier", "8m", &site.run_arguments()) else {
        return;
    };
    let ran = ran.exits(1);
    for text in ["moving", "`i`", "is full", "tarn resume"] {
        assert!(ran.err.contains(text), "no {text:?} in {}", ran.err);
    }
    let log = site.log();
    let failed: Vec<_> = log
        .iter()
        .filter(|r| r["event"] == "transfer-failed")
        .collect();
    assert!(!failed.is_empty() && failed.iter().all(|r| r["failure"]["kind"] == "no-space"));
    assert!(std::fs::read(site.path("in/x")).expect("the source") == content);
    let resumed = with_small_disk(&site, "tier", "64m", &["resume"]).expect("as before");
    resumed.exits(0);
    assert!(std::fs::read(site.path("out/x")).expect("the result") == content);
}

#[test]
fn a_full_state_disk_stops_the_run_with_its_own_code_and_resume_goes_on() {
    // Records of instances with long elements soon need more than the log has allocated ahead.
    let items: Vec<String> = (0..100).map(|n| format!("\"{n:_>6000}\"")).collect();
    let site = site(
        &r#"
name = "w"
[data.o]
dest = "out"
[[step]]
name = "fill"
run = "head -c 9000000 /dev/zero > $TARN_WORKFLOW_DIR/state/junk || true"
[[step]]
name = "many"
after = ["fill"]
foreach = [LIST]
run = "true"
[[step]]
name = "make"
after = ["many"]
run = "echo 1 > $TARN_o/x"
out = ["o"]
"#
        .replace("LIST", &items.join(", ")),
    );
    std::fs::create_dir(site.path("state")).expect("mkdir");
    let script = r#"mount -t tmpfs -o size=4m none state || exit 99
        "$0" "$@"; code=$?
        rm -f state/junk; df -k --output=avail state | tail -1 | grep -qx ' *0' && exit 98
        "$0" resume --state state/s; again=$?
        echo $code $again"#;
    let mut command = Command::new("unshare");
    command
        .args(["-Urm", "sh", "-c", script, env!("CARGO_BIN_EXE_tarn")])
        .args(site.run_arguments())
        .args(["--state", "state/s"])
        .current_dir(site.dir.path())
        .env_remove("TARN_STATE");
    let ran = Ran::of(command.output().expect("unshare starts"));
    if ran.code == Some(99) || ran.err.starts_with("unshare:") {
        eprintln!("skipped: a tmpfs cannot be mounted in a namespace here");
        return;
    }
    let ran = ran.exits(0).prints("No space left").prints("tarn resume");
    assert!(ran.out.ends_with("5 0\n"), "{}\n{}", ran.out, ran.err);
    assert_eq!(site.read("out/x"), "1\n");
    site.leaves_nothing_on_its_tier();
}

/// Files of the source that `while_copying` copies, and their size.
const FILES: usize = 64;
const FILE: usize = 32 << 10;

/// A run over a slow link whose source is being copied.
fn while_copying() -> (Site, Child) {
    let site = site(&reads("read", "cat $TARN_i/* | wc -c > $TARN_o/n", ""));
    std::fs::create_dir(site.path("in")).expect("mkdir");
    for n in 0..FILES {
        std::fs::write(site.path(&format!("in/{n}")), vec![n as u8; FILE]).expect("write");
    }
    let child = site.begin(&["--external-rate", "1MB/s"]);
    let half_copied = || {
        let mut all = Vec::new();
        common::files(&site.path("tier"), &mut all);
        all.iter()
            .any(|p| p.to_string_lossy().contains("/incoming/"))
    };
    until("something is copied", half_copied);
    (site, child)
}

#[test]
fn a_source_that_changes_while_it_is_copied_fails_the_transfer_whole() {
    let (site, child) = while_copying();
    for n in 0..FILES {
        std::fs::write(site.path(&format!("in/{n}")), vec![9; FILE + 1000]).expect("write");
    }
    let ran = Ran::end(child).exits(1).prints("tarn resume");
    assert!(ran.err.contains("`i`"), "{}", ran.err);
    let log = site.log();
    assert!(
        log.iter().any(|r| r["failure"]["kind"] == "source-changed"),
        "{}",
        ran.err
    );
    assert!(!site.path("out").exists());
    // It is listed again, and its content now counts.
    site.run().exits(0);
    assert_eq!(
        site.read("out/n").trim(),
        (FILES * (FILE + 1000)).to_string()
    );
    site.leaves_nothing_on_its_tier();
}

#[test]
fn a_source_that_vanishes_while_it_is_copied_is_named_and_resume_goes_on_when_it_is_back() {
    let (site, child) = while_copying();
    let copied = Command::new("cp")
        .args(["-a", "in", "away"])
        .current_dir(site.dir.path())
        .status();
    assert!(copied.expect("cp").success());
    std::fs::remove_dir_all(site.path("in")).expect("rm");
    let ran = Ran::end(child).exits(1).prints("tarn resume");
    assert!(
        ran.err.contains("vanished") && ran.err.contains("`i`"),
        "{}",
        ran.err
    );
    assert!(!site.path("out").exists());
    std::fs::rename(site.path("away"), site.path("in")).expect("rename");
    site.tarn(&["resume"]).exits(0);
    assert_eq!(site.read("out/n").trim(), (FILES * FILE).to_string());
    site.leaves_nothing_on_its_tier();
}

/// The command, as an unprivileged user: root passes over permissions. Nobody's id, as every Debian has it.
fn unprivileged(site: &Site, arguments: &[&str]) -> Option<Ran> {
    let mut command = match rustix::process::geteuid().is_root() {
        false => Command::new(env!("CARGO_BIN_EXE_tarn")),
        true => {
            let chown = ["-R", "65534:65534"].map(Into::into);
            let paths = [site.dir.path().to_path_buf()];
            let all = chown.into_iter().chain(paths);
            Command::new("chown").args(all).status().expect("chown");
            let mut c = Command::new("setpriv");
            c.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
            c.arg(site.path("tarn"));
            std::fs::copy(env!("CARGO_BIN_EXE_tarn"), site.path("tarn")).expect("copy");
            c
        }
    };
    let output = command
        .args(arguments)
        .current_dir(site.dir.path())
        .env("HOME", site.dir.path())
        .env_remove("TARN_STATE")
        .output();
    let ran = Ran::of(output.ok()?);
    if ran.err.contains("setpriv:") {
        eprintln!("skipped: setpriv cannot change the user here");
        return None;
    }
    Some(ran)
}

#[test]
fn an_external_folder_that_cannot_be_written_is_named_and_nothing_is_lost() {
    let run = "chmod 555 $TARN_WORKFLOW_DIR/store; echo 1 > $TARN_r/x";
    let site = site(&makes("w", "dest = \"store/out\"", run));
    std::fs::create_dir(site.path("store")).expect("mkdir");
    let mode = |bits| {
        let permissions = std::fs::Permissions::from_mode(bits);
        std::fs::set_permissions(site.path("store"), permissions).expect("chmod");
    };
    mode(0o555);
    let Some(ran) = unprivileged(&site, &site.run_arguments()) else {
        return;
    };
    ran.exits(3).prints("Permission denied");
    assert!(!site.path(".tarn/runs").exists(), "nothing was computed");
    // Only when the result is there can it be found out that the folder was closed meanwhile.
    mode(0o755);
    let ran = unprivileged(&site, &site.run_arguments()).expect("as before");
    let ran = ran.exits(1).prints("tarn resume");
    assert!(
        ran.err.contains("store") && ran.err.contains("Permission denied"),
        "{}",
        ran.err
    );
    mode(0o755);
    let resumed = unprivileged(&site, &["resume"])
        .expect("as before")
        .exits(0);
    assert!(
        !resumed.err.contains("a done"),
        "what was made was lost: {}",
        resumed.err
    );
    assert_eq!(site.read("store/out/x"), "1\n");
}

#[test]
fn an_emulated_store_holds_transfers_back_and_every_result_says_so() {
    let site = site(&reads("read", "wc -c < $TARN_i/x > $TARN_o/n", ""));
    std::fs::create_dir(site.path("in")).expect("mkdir");
    std::fs::write(site.path("in/x"), vec![5; 1_000_000]).expect("write");
    let plain = site.run().exits(0);
    assert!(!plain.err.contains("emulated") && !plain.out.contains("emulated"));
    std::fs::remove_dir_all(site.path(".tarn")).expect("rm");
    std::fs::remove_dir_all(site.path("out")).expect("rm");
    let begun = Instant::now();
    let slow = ["--external-rate", "1MB/s", "--external-latency", "50ms"];
    let ran = Ran::end(site.begin(&[&slow[..], &["--json"]].concat())).exits(0);
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(950), "{took:?}");
    assert!(ran.err.contains("emulated at"), "{}", ran.err);
    let summary = ran.summary();
    assert!(summary.to_string().contains("emulated"), "{summary}");
    let report = site.read(".tarn/runs/w-1/report.html");
    assert!(report.contains("emulated at"), "the report does not say it");
    assert_eq!(site.read("out/n").trim(), "1000000");
    // A latency alone limits no rate.
    std::fs::remove_dir_all(site.path(".tarn")).expect("rm");
    std::fs::remove_dir_all(site.path("out")).expect("rm");
    let begun = Instant::now();
    let ran = Ran::end(site.begin(&["--external-latency", "50ms"])).exits(0);
    assert!(begun.elapsed() >= Duration::from_millis(100), "two files");
    ran.prints("emulated at full rate, 50 ms a file");
    let link = site.log()[0]["cluster"]["external"].clone();
    assert_eq!(
        (link["emulated"].as_bool(), link["latency"].as_u64()),
        (Some(false), Some(50_000_000))
    );
}
