//! Trees divided into parts.

use crate::common::*;
use std::os::unix::fs::PermissionsExt;
use tarn_mover::Trees;
use tarn_ports::Mover;
use tarn_types::workflow::VersionPartitioning;

#[test]
fn read_only_folders_can_be_copied_divided_and_removed() {
    let dir = Scratch::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    std::fs::create_dir_all(from.join("a/b")).unwrap();
    std::fs::create_dir_all(from.join("processor1")).unwrap();
    std::fs::write(from.join("a/b/f"), "x").unwrap();
    std::fs::write(from.join("processor1/f"), "y").unwrap();
    for (path, mode) in [
        ("a/b/f", 0o444),
        ("a/b", 0o555),
        ("a", 0o555),
        ("processor1", 0o2555),
    ] {
        std::fs::set_permissions(from.join(path), std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let mover = Trees::new();
    let manifest = copy(&from, &to).unwrap().manifests.remove(0);
    assert_eq!(model(&from), model(&to));
    let parts = dir.parts(&manifest, VersionPartitioning::Ranks).unwrap();
    split(&from, &parts).unwrap();
    mover.remove(&to).unwrap();
    assert!(!to.exists());
}

#[test]
fn an_interrupted_division_is_finished() {
    let dir = Scratch::new();
    let from = dir.at("from");
    std::fs::create_dir_all(from.join("processor1/x")).unwrap();
    std::fs::create_dir_all(from.join("shared")).unwrap();
    for path in ["processor1/x/f", "shared/g", "h"] {
        std::fs::write(from.join(path), path).unwrap();
    }
    let mover = Trees::new();
    let manifest = mover.digest(&from, &quiet()).unwrap();
    let parts = dir.parts(&manifest, VersionPartitioning::Ranks).unwrap();
    // The files that were moved before the interruption.
    std::fs::create_dir_all(dir.at("part1.splitting/shared")).unwrap();
    std::fs::rename(from.join("h"), dir.at("part1.splitting/h")).unwrap();
    split(&from, &parts).unwrap();
    assert!(!from.exists() && !dir.at("part1.splitting").exists());
    // Once more: nothing to do. With a part missing, it gives an error.
    split(&from, &parts).unwrap();
    mover.remove(&parts[0].1).unwrap();
    assert!(split(&from, &parts).is_err());
}

#[test]
fn a_file_of_no_part_is_not_removed() {
    let dir = Scratch::new();
    let from = dir.at("from");
    std::fs::create_dir_all(from.join("a")).unwrap();
    std::fs::write(from.join("a/f"), "f").unwrap();
    let manifest = Trees::new().digest(&from, &quiet()).unwrap();
    std::fs::write(from.join("late"), "late").unwrap();
    let failure = split(&from, &[(manifest, dir.at("part"))])
        .unwrap_err()
        .failure;
    assert!(failure.message.contains("late"), "{}", failure.message);
    assert!(from.join("late").exists());
}
