//! The cases that are refused: conflicts, names that lead out, special and unreadable files, destinations that exist.

use crate::common::*;
use crate::{fails, refused};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use tarn_mover::Trees;
use tarn_ports::Mover;
use tarn_types::event::RunErrorKind;

#[test]
fn gathered_files_that_differ_conflict() {
    let dir = Scratch::new();
    let (a, b, to) = (dir.at("a"), dir.at("b"), dir.at("to"));
    for (root, same, other) in [(&a, "same", "one"), (&b, "same", "two")] {
        std::fs::create_dir_all(root.join("sub")).unwrap();
        std::fs::write(root.join("sub/same"), same).unwrap();
        std::fs::write(root.join(format!("sub/only-{other}")), other).unwrap();
    }
    let job = job(vec![source(&a), source(&b)], &to);
    let report = Trees::new().copy(&job, &quiet()).unwrap();
    assert_eq!(report.manifests.len(), 2);
    let all: Vec<_> = model(&to)
        .into_keys()
        .map(|k| String::from_utf8(k).unwrap())
        .collect();
    assert_eq!(all, ["sub", "sub/only-one", "sub/only-two", "sub/same"]);
    Trees::new().remove(&to).unwrap();

    std::fs::write(b.join("sub/same"), "different").unwrap();
    let message = refused(&job, RunErrorKind::Conflict, "sub/same");
    assert!(
        message.contains("/a") && message.contains("/b"),
        "{message}"
    );
    assert!(!to.exists() && clean(&job));

    std::fs::remove_file(b.join("sub/same")).unwrap();
    std::fs::create_dir(b.join("sub/same")).unwrap();
    refused(&job, RunErrorKind::Conflict, "sub/same");
    assert!(!to.exists() && clean(&job));

    let manifests = [&a, &b].map(|r| (r.clone(), Trees::new().digest(r, &quiet()).unwrap()));
    let failure = Trees::new()
        .link_view(&manifests, &dir.at("view"))
        .unwrap_err()
        .failure;
    assert_eq!(failure.kind, RunErrorKind::Conflict);
    assert!(!dir.at("view").exists());
}

#[test]
fn links_and_names_that_lead_out_are_refused() {
    let dir = Scratch::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    std::fs::create_dir_all(from.join("sub")).unwrap();
    std::fs::write(dir.at("secret"), "secret").unwrap();
    let job = job(vec![source(&from)], &to);
    for target in ["../../secret", "/etc/passwd", "../sub/../../secret"] {
        symlink(target, from.join("sub/link")).unwrap();
        refused(&job, RunErrorKind::Escape, "sub/link");
        assert!(
            Trees::new().digest(&from, &quiet()).is_err()
                && Trees::new().list(&from, &quiet()).is_err()
        );
        assert!(!to.exists() && clean(&job));
        std::fs::remove_file(from.join("sub/link")).unwrap();
    }
    // The text stays inside, but the way through another link does not.
    symlink("..", from.join("sub/up")).unwrap();
    symlink("sub/up/../secret", from.join("out")).unwrap();
    refused(&job, RunErrorKind::Escape, "out");
    for name in ["../x", "a/b", "..", "", "/x"] {
        let mut job = job.clone();
        job.sources[0].as_entry = Some(name.into());
        refused(&job, RunErrorKind::Escape, "refused");
    }
}

#[test]
fn special_files_are_refused() {
    let (_dir, from, to) = Scratch::with_source();
    let _socket = std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap();
    fails(copy(&from, &to), RunErrorKind::Io, "is a socket");
    std::fs::remove_file(from.join("socket")).unwrap();
    let made = Command::new("mkfifo")
        .arg(from.join("fifo"))
        .status()
        .unwrap();
    assert!(made.success());
    fails(copy(&from, &to), RunErrorKind::Io, "is a FIFO");
}

#[test]
fn an_unreadable_file_fails_the_copy_and_names_it() {
    let (dir, from, to) = Scratch::with_source();
    std::fs::write(from.join("locked"), "x").unwrap();
    std::fs::set_permissions(from.join("locked"), std::fs::Permissions::from_mode(0o000)).unwrap();
    if unprivileged() {
        fails(copy(&from, &to), RunErrorKind::Io, "locked");
        assert!(!to.exists());
        return;
    }
    // As root: the same test as nobody, in a folder that nobody can use.
    std::fs::set_permissions(&dir.0, std::fs::Permissions::from_mode(0o777)).unwrap();
    let exe = dir.at("exe");
    std::fs::copy(std::env::current_exe().unwrap(), &exe).unwrap();
    std::fs::set_permissions(&exe, std::fs::Permissions::from_mode(0o755)).unwrap();
    let tmp = dir.at("tmp");
    std::fs::create_dir(&tmp).unwrap();
    std::fs::set_permissions(&tmp, std::fs::Permissions::from_mode(0o1777)).unwrap();
    use std::os::unix::process::CommandExt;
    let status = Command::new(&exe)
        .args([
            "--exact",
            "refusals::an_unreadable_file_fails_the_copy_and_names_it",
            "dividing::read_only_folders_can_be_copied_divided_and_removed",
        ])
        .env("TMPDIR", &tmp)
        .current_dir(&tmp)
        .uid(65534)
        .gid(65534)
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn an_existing_destination_is_kept_or_replaced_whole() {
    let (_dir, from, to) = Scratch::with_source();
    std::fs::write(from.join("f"), "new").unwrap();
    std::fs::create_dir(&to).unwrap();
    std::fs::write(to.join("old"), "old").unwrap();
    let mut job = job(vec![source(&from)], &to);
    refused(&job, RunErrorKind::Io, "exists already");
    assert_eq!(std::fs::read_to_string(to.join("old")).unwrap(), "old");
    job.replace = true;
    job.sync = true;
    Trees::new().copy(&job, &quiet()).unwrap();
    assert_eq!(model(&from), model(&to));
    assert!(clean(&job));
}
