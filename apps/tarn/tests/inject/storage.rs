//! Partitions, and HDF5 files in them.

use crate::calls::{Hit, sweep};
use crate::common::{Ran, Site};
use crate::verbs::{of, tree, well};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tarn_partitions::Partition;

/// Size of the partition of that name, if it is there.
fn size(site: &Site, name: &str) -> Option<u64> {
    let all = Partition::list(&site.path("tier")).unwrap();
    let found = all.into_iter().find(|info| info.name == name)?;
    assert_eq!(found.damaged, None);
    Some(found.size)
}

fn tarn(site: &Site, arguments: &[&str]) -> Ran {
    site.tarn(arguments)
}

/// A partition with a file's content, and beside it the file.
fn stored() -> Site {
    let site = Site::new("");
    site.write("content", "");
    fs::write(site.path("content"), content(300_000)).unwrap();
    tarn(&site, &["h5", "import", "content", "./tier/field"]).exits(0);
    site
}

/// Content that begins as an HDF5 file does.
fn content(bytes: usize) -> Vec<u8> {
    let rest = (0..bytes).map(|i| (i * 7 + i / 251) as u8);
    b"\x89HDF\r\n\x1a\n".iter().copied().chain(rest).collect()
}

/// The file in these partitions, if there is one.
fn exported(site: &Site, partitions: &str) -> Option<Vec<u8>> {
    let _ = fs::remove_file(site.path("exported"));
    let ran = tarn(site, &["h5", "export", partitions, "exported"]);
    (ran.code == Some(0)).then(|| fs::read(site.path("exported")).unwrap())
}

fn is_kept(site: &Site, hit: &Hit) {
    let kept = exported(site, "./tier/field");
    let source = fs::read(site.path("content")).unwrap();
    assert!(
        kept.as_ref() == Some(&source),
        "{}: the other partition",
        hit.what
    );
}

pub(crate) fn partition_create() {
    let create = ["partition", "create", "./tier/new", "1 MiB"];
    let command = |site: &Site| of(site, &create);
    sweep("partition create", "tarn", stored, command, |site, hit| {
        is_kept(site, hit);
        match size(site, "new") {
            Some(size) => {
                let killed = hit.how == crate::calls::How::Kill;
                assert!(hit.done() || killed, "{}: it is there", hit.what);
                assert_eq!(size, 1 << 20, "{}", hit.what);
            }
            None => {
                assert!(!hit.done(), "{}: it is not there", hit.what);
                well(hit, "create", tarn(site, &create));
            }
        }
        assert_eq!(size(site, "new"), Some(1 << 20), "{}", hit.what);
        assert_eq!(site.left_on_tier().len(), 2, "{}", hit.what);
    });
}

pub(crate) fn partition_resize() {
    let path = "tier/field.partition";
    let blocks = |site: &Site| fs::metadata(site.path(path)).unwrap().blocks();
    for larger in [true, false] {
        let prepare = || {
            let site = stored();
            let first = if larger { "1 MiB" } else { "4 MiB" };
            tarn(&site, &["partition", "resize", "./tier/field", first]).exits(0);
            site
        };
        let (before, after) = if larger { (1, 4) } else { (4, 1) };
        let wanted = format!("{after} MiB");
        let resize = ["partition", "resize", "./tier/field", &wanted];
        let (before, after) = (before << 20, after << 20);
        let expected = {
            let site = prepare();
            tarn(&site, &resize).exits(0);
            (fs::metadata(site.path(path)).unwrap().len(), blocks(&site))
        };
        let command = |site: &Site| of(site, &resize);
        sweep("partition resize", "tarn", prepare, command, |site, hit| {
            let now = size(site, "field");
            let right = now == Some(after) || (now == Some(before) && !hit.done());
            assert!(right, "{}: {now:?}", hit.what);
            is_kept(site, hit);
            well(hit, "resize", tarn(site, &resize));
            assert_eq!(size(site, "field"), Some(after), "{}", hit.what);
            // An unfinished partition holds no space.
            let length = fs::metadata(site.path(path)).unwrap().len();
            assert_eq!((length, blocks(site)), expected, "{}", hit.what);
            is_kept(site, hit);
        });
    }
}

pub(crate) fn partition_rm() {
    let prepare = || {
        let site = stored();
        tarn(&site, &["partition", "create", "./tier/old", "1 MiB"]).exits(0);
        site
    };
    let rm = ["partition", "rm", "./tier/old"];
    let command = |site: &Site| of(site, &rm);
    sweep("partition rm", "tarn", prepare, command, |site, hit| {
        match size(site, "old") {
            Some(size) => {
                assert!(!hit.done(), "{}: it is still there", hit.what);
                assert_eq!(size, 1 << 20, "{}", hit.what);
                well(hit, "rm", tarn(site, &rm));
            }
            None => drop(tarn(site, &rm).exits(7)),
        }
        assert_eq!(size(site, "old"), None, "{}", hit.what);
        is_kept(site, hit);
    });
}

pub(crate) fn h5_import() {
    for to in ["./tier/new", "./tier/a,./tier/b,./tier/c"] {
        let prepare = || {
            let site = stored();
            fs::write(site.path("new.h5"), content(400_000)).unwrap();
            site
        };
        let import = ["h5", "import", "new.h5", to, "--block", "64 KiB"];
        let command = |site: &Site| of(site, &import);
        sweep("h5 import", "tarn", prepare, command, |site, hit| {
            let source = fs::read(site.path("new.h5")).unwrap();
            assert!(source == content(400_000), "{}", hit.what);
            match exported(site, to) {
                Some(new) => assert!(new == source, "{}: it is not the file", hit.what),
                None => {
                    assert!(!hit.done(), "{}: it is not there", hit.what);
                    well(hit, "import", tarn(site, &import));
                }
            }
            assert!(exported(site, to) == Some(source), "{}", hit.what);
            is_kept(site, hit);
            let count = 2 + to.matches(',').count();
            assert_eq!(site.left_on_tier().len(), count, "{}", hit.what);
        });
    }
}

pub(crate) fn h5_export() {
    let export = ["h5", "export", "./tier/field", "to/there.h5"];
    let prepare = || {
        let site = stored();
        fs::create_dir(site.path("to")).unwrap();
        site
    };
    let command = |site: &Site| of(site, &export);
    sweep("h5 export", "tarn", prepare, command, |site, hit| {
        let there = tree(&site.path("to")).remove(Path::new("there.h5"));
        let source = fs::read(site.path("content")).unwrap();
        match there {
            Some(there) => {
                assert!(there == source, "{}: it is not the file", hit.what);
                let killed = hit.how == crate::calls::How::Kill;
                assert!(hit.done() || killed, "{}: it is there", hit.what);
            }
            None => {
                assert!(!hit.done(), "{}: it is not there", hit.what);
                well(hit, "export", tarn(site, &export));
            }
        }
        let to = tree(&site.path("to"));
        assert_eq!(to.len(), 1, "{}: {:?}", hit.what, to.keys());
        assert!(
            to.get(Path::new("there.h5")) == Some(&source),
            "{}",
            hit.what
        );
        is_kept(site, hit);
    });
}
