//! `tarn partition` by the real binary.

mod common;

use common::Site;
use serde_json::json;

#[test]
fn partitions_are_made_listed_resized_and_taken_away() {
    let site = Site::new("");
    let tarn = |arguments: &[&str]| site.tarn(&[&["partition"], arguments].concat());
    tarn(&["ls", "./tier"]).exits(0).prints("no partitions");
    let own = "--unit=4KiB --grant=user:1234 --grant=group:root:rw";
    let own: Vec<_> = own.split(' ').collect();
    tarn(&[&["create", "./tier/field", "1 MiB"][..], &own].concat()).exits(0);
    let path = site.path("tier/field.partition");
    assert_eq!(path.metadata().unwrap().len(), 3 << 20);
    tarn(&["create", "./tier/field", "1 MiB"])
        .exits(1)
        .prints("delete it first");
    tarn(&["ls", "./tier"])
        .exits(0)
        .prints("user:1234 group:0:rw");
    let listed = site.tarn(&["--json", "partition", "ls", "./tier"]).exits(0);
    let owner = rustix::process::geteuid().as_raw();
    let grants = json!([
        { "who": { "user": 1234 }, "write": false },
        { "who": { "group": 0 }, "write": true },
    ]);
    assert_eq!(
        listed.summary(),
        json!({ "schema": 1, "name": "field", "bytes": 1 << 20, "unit": 4096, "owner": owner, "grants": grants, "damaged": null })
    );
    tarn(&["resize", "./tier/field", "2 MiB"]).exits(0);
    let open = tarn_partitions::Partition::open(&site.path("tier/field"), Default::default());
    let open = open.unwrap();
    assert_eq!(open.size().unwrap(), 2 << 20);
    tarn(&["rm", "./tier/field"]).exits(6).prints("close it");
    drop(open);
    tarn(&["rm", "./tier/field"]).exits(0);
    tarn(&["rm", "./tier/field"]).exits(7);
    tarn(&["create", "field", "1 MiB"])
        .exits(2)
        .prints("./field");
    tarn(&["create", "./field", "1 MiB", "--grant", "all"]).exits(2);
    tarn(&["create", "./nowhere/field", "1 MiB"]).exits(7);
    // By units of one's own choice, wherever it is.
    tarn(&["create", "./tier/flash", "20 KiB", "--unit", "8 KiB"]).exits(0);
    tarn(&["create", "./tier/mapped", "1 MiB", "--unit", "mapped"]).exits(0);
    let listed = tarn(&["ls", "./tier"]).exits(0);
    let lines: Vec<_> = listed.out.lines().collect();
    assert!(lines[0].contains("24.00 KiB  by 8.00 KiB"), "{lines:?}");
    assert!(lines[1].contains("1.00 MiB  mapped"), "{lines:?}");
    for bad in ["0 B", "3000 B", "32 KiB", "8 GiB", "some"] {
        tarn(&["create", "./tier/bad", "1 MiB", "--unit", bad]).exits(2);
    }
    // There is no tarnd here.
    tarn(&["create", "fast/field", "1 MiB"])
        .exits(7)
        .prints("TARN_SOCKET");
}

/// A partition of zeros may be somebody's data, whatever its size.
#[test]
fn an_import_leaves_partitions_alone_that_it_did_not_make() {
    use std::os::unix::fs::MetadataExt;
    let site = Site::new("");
    let mut content = b"\x89HDF\r\n\x1a\n".to_vec();
    content.resize(300_000, 1);
    std::fs::write(site.path("new.h5"), &content).unwrap();
    let state = |name: &str| {
        let path = site.path(&format!("tier/{name}.partition"));
        (path.metadata().unwrap().ino(), std::fs::read(path).unwrap())
    };
    let names = || std::fs::read_dir(site.path("tier")).unwrap().count();
    let import = |to: &str| site.tarn(&["h5", "import", "new.h5", to, "--block", "64 KiB"]);
    let single = content.len() as u64 + 4096;
    // Of three: as many blocks as there are of the file in each, and one for the header.
    let each = (1 + content.len().div_ceil(3 * 65_536)) * 65_536;
    for (size, name, to) in [
        (single, "p", "./tier/p"),
        (each as u64, "b", "./tier/a,./tier/b,./tier/c"),
    ] {
        let own = format!("./tier/{name}");
        site.tarn(&["partition", "create", &own, &format!("{size} B")])
            .exits(0);
        let (before, count) = (state(name), names());
        import(to).exits(1).prints("is there already");
        assert!(state(name) == before, "{to}");
        assert_eq!(names(), count, "{to}");
        site.tarn(&["partition", "rm", &own]).exits(0);
        import(to).exits(0);
        // Nor is a whole file replaced.
        let before = state(name);
        import(to).exits(1).prints("is there already");
        assert!(state(name) == before, "{to}");
    }
}
