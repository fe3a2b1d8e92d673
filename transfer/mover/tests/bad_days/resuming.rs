//! Copies that are cancelled, killed or run out of space, and resume.

use crate::common::*;
use crate::{CHUNK, fails, meanwhile, refused, with_manifest, writable};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tarn_mover::Trees;
use tarn_ports::{Control, CopyJob, Mover};
use tarn_types::event::RunErrorKind;
use tarn_types::units::Bytes;

#[test]
fn cancelled_half_way_then_resumed() {
    let dir = Scratch::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    std::fs::create_dir_all(from.join("sub")).unwrap();
    std::fs::write(from.join("big"), bytes(40 * CHUNK + 7, 3)).unwrap();
    for i in 0..50 {
        std::fs::write(from.join(format!("sub/{i}")), bytes(i * 100, 1)).unwrap();
    }
    let job = job(vec![source(&from)], &to);
    let control = Control::default();
    let outcome = meanwhile(&job, &control, || {
        // Progress counts chunks; an interrupted copy resumes from runs of eight of them for each thread.
        while control.done.load(Ordering::Relaxed) < 28 << 20 {
            std::thread::sleep(Duration::from_millis(1));
        }
        control.cancel.store(true, Ordering::Relaxed);
    });
    fails(outcome, RunErrorKind::Cancelled, "cancelled");
    assert!(!to.exists() && job.staging.exists());
    let report = Trees::new().copy(&job, &quiet()).unwrap();
    assert!(report.resumed >= 8 << 20, "{}", report.resumed);
    assert_eq!(report.resumed + report.bytes, report.manifests[0].bytes());
    assert_eq!(model(&from), model(&to));
    assert!(clean(&job));
}

/// Half of a copy, as `kill -9` would leave it.
fn interrupted(job: &CopyJob) {
    let control = Control::default();
    let outcome = meanwhile(job, &control, || {
        while control.done.load(Ordering::Relaxed) < 20 << 20 {
            std::thread::sleep(Duration::from_millis(1));
        }
        control.cancel.store(true, Ordering::Relaxed);
    });
    assert!(outcome.is_err());
}

#[test]
fn leftovers_are_used_only_when_they_are_proven() {
    let dir = Scratch::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    std::fs::create_dir_all(from.join("gone")).unwrap();
    std::fs::write(from.join("big"), bytes(40 * CHUNK, 3)).unwrap();
    std::fs::write(from.join("gone/x"), "x").unwrap();
    let job = job(vec![source(&from)], &to);
    interrupted(&job);
    // A copied chunk is damaged, the source loses a folder, somebody leaves something in the staging folder.
    let big = job.staging.join("big");
    writable(&big).write_all_at(b"damaged", 1000).unwrap();
    std::fs::remove_dir_all(from.join("gone")).unwrap();
    std::fs::create_dir(from.join("new")).unwrap();
    std::fs::write(job.staging.join("new"), "in the way").unwrap();
    std::fs::write(job.staging.join("stray"), "not ours").unwrap();
    let report = Trees::new().copy(&job, &quiet()).unwrap();
    assert_eq!(model(&from), model(&to));
    assert!(
        report.resumed > 0 && report.resumed < 40 << 20,
        "{}",
        report.resumed
    );
    assert!(clean(&job));
}

#[test]
fn leftovers_of_another_content_are_not_used() {
    let (_dir, from, to) = Scratch::with_source();
    std::fs::write(from.join("big"), bytes(40 * CHUNK, 3)).unwrap();
    let job = job(vec![source(&from)], &to);
    interrupted(&job);
    std::fs::write(from.join("big"), bytes(40 * CHUNK, 4)).unwrap();
    let report = Trees::new().copy(&job, &quiet()).unwrap();
    assert_eq!(report.resumed, 0);
    assert_eq!(model(&from), model(&to));
}

/// The process that `killed_half_way_then_resumed` kills.
#[test]
#[ignore = "runs only as the child of another test"]
fn child_copies_slowly() {
    let Some(dir) = std::env::var_os("TARN_TEST_DIR") else {
        return;
    };
    let dir = Path::new(&dir);
    let mut job = job(vec![source(&dir.join("from"))], &dir.join("to"));
    job.rate = 40 << 20;
    Trees::new().copy(&job, &quiet()).unwrap();
}

#[test]
fn killed_half_way_then_resumed() {
    let (dir, from, to) = Scratch::with_source();
    std::fs::write(from.join("big"), bytes(60 * CHUNK, 3)).unwrap();
    for i in 0..300 {
        std::fs::write(from.join(format!("small{i}")), bytes(30_000, i as u8)).unwrap();
    }
    let job = job(vec![source(&from)], &to);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "resuming::child_copies_slowly",
            "--quiet",
        ])
        .env("TARN_TEST_DIR", &dir.0)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut progress = job.staging.as_os_str().to_os_string();
    progress.push(".progress");
    let begun = || std::fs::metadata(&progress).is_ok_and(|m| m.len() > 20_000);
    while !begun() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!to.exists() && job.staging.exists());
    let report = Trees::new().copy(&job, &quiet()).unwrap();
    assert!(report.resumed > 0, "nothing was reused");
    assert_eq!(model(&from), model(&to));
    assert!(clean(&job));
}

#[test]
fn a_full_destination_fails_with_figures_and_can_be_resumed() {
    // A tmpfs of our own, in a namespace of our own: the test runs itself again inside.
    if let Some(dir) = std::env::var_os("TARN_TEST_FULL") {
        return full_destination(Path::new(&dir));
    }
    let dir = Scratch::new();
    let mount = format!(
        "mount -t tmpfs -o size=16m none {0} && exec {1} --exact resuming::a_full_destination_fails_with_figures_and_can_be_resumed",
        dir.0.display(),
        std::env::current_exe().unwrap().display()
    );
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", &mount])
        .env("TARN_TEST_FULL", &dir.0)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && (stderr.contains("unshare") || stderr.contains("mount:")) {
        eprintln!("SKIPPED: no namespaces here: {stderr}");
        return;
    }
    assert!(
        output.status.success(),
        "{}{stderr}",
        String::from_utf8_lossy(&output.stdout)
    );
}

fn full_destination(dir: &Path) {
    let home = Scratch::new();
    let from = home.at("from");
    std::fs::create_dir(&from).unwrap();
    for i in 0..12 {
        std::fs::write(from.join(format!("f{i:02}")), bytes(CHUNK, i)).unwrap();
    }
    let others = dir.join("others");
    std::fs::write(&others, bytes(7 * CHUNK, 99)).unwrap();
    let to = dir.join("to");
    let message = refused(
        &with_manifest(&from, &to),
        RunErrorKind::NoSpace,
        "are free in",
    );
    let whole = format!("the whole copy has {}", Bytes(12 * CHUNK as u64));
    assert!(
        message.contains(&whole) && message.contains(&dir.display().to_string()),
        "{message}"
    );
    let job = job(vec![source(&from)], &to);
    assert!(!job.dest.exists() && job.staging.exists());
    // Somebody frees space.
    std::fs::remove_file(others).unwrap();
    let report = Trees::new().copy(&job, &quiet()).unwrap();
    assert!(report.resumed > 0);
    assert_eq!(model(&from), model(&job.dest));
}

#[test]
fn what_the_source_no_longer_has_is_not_delivered_by_what_was_staged() {
    let dir = Scratch::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    std::fs::create_dir_all(from.join("stays")).unwrap();
    std::fs::create_dir_all(from.join("gone/below")).unwrap();
    std::fs::write(from.join("big"), bytes(40 * CHUNK, 3)).unwrap();
    std::fs::write(from.join("gone/small"), "x").unwrap();
    let again = job(vec![source(&from)], &to);
    interrupted(&again);
    std::fs::remove_dir_all(from.join("gone")).unwrap();
    let report = Trees::new().copy(&again, &quiet()).unwrap();
    assert!(report.resumed > 0);
    assert_eq!(model(&from), model(&to));
    // Nothing of this was proven: folders alone are no sign that a copy resumes.
    let to = dir.at("other");
    let anew = job(vec![source(&from)], &to);
    std::fs::create_dir_all(anew.staging.join("gone/below")).unwrap();
    Trees::new().copy(&anew, &quiet()).unwrap();
    assert_eq!(model(&from), model(&to));
}
