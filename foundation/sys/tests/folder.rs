//! Places where folders of tiers are made, and places where not.

use std::os::unix::fs::symlink;
use std::path::Path;
use tarn_sys::folder::{make, may_make};

#[test]
fn nothing_is_made_on_the_root_disk_by_whatever_path() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let at = |name: &str| dir.path().join(name);
    let lost = format!("tarn-no-such-{}", std::process::id());
    symlink("/", at("root")).unwrap();
    symlink(format!("/{lost}"), at("dangles")).unwrap();
    std::fs::write(at("file"), "").unwrap();
    for path in [
        format!("/{lost}"),
        format!("/{lost}/tier"),
        format!("/tmp/../{lost}/tier"),
        format!("/./{lost}/./tier"),
        format!("/dev/shm/{lost}/../../../{lost}/tier"),
        format!("{}/{lost}/tier", at("root").display()),
        format!("{}/tier", at("dangles").display()),
        format!("{}/tier", at("file").display()),
        format!("{}/../../../{lost}", dir.path().display()),
        lost.clone(),
    ] {
        assert!(may_make(Path::new(&path)).is_err(), "{path}");
        assert!(make(Path::new(&path)).is_err(), "{path}");
    }
    for folder in [Path::new("/"), Path::new("/dev/shm"), Path::new(".")] {
        assert!(!folder.join(&lost).exists());
    }
}

#[test]
fn folders_are_made_where_a_file_system_is() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let new = dir.path().join("a/b");
    assert_eq!(may_make(&new).unwrap(), dir.path());
    assert!(!dir.path().join("a").exists());
    make(&new).unwrap();
    assert_eq!(may_make(&new).unwrap(), new);
    let lost = format!("/tmp/tarn-no-such-{}/x", std::process::id());
    assert_eq!(may_make(Path::new(&lost)).unwrap(), Path::new("/tmp"));
    let lost = format!("/dev/shm/tarn-no-such-{}", std::process::id());
    assert_eq!(may_make(Path::new(&lost)).unwrap(), Path::new("/dev/shm"));
}
