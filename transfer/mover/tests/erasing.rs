//! Files removed below a mark are overwritten first, and no others.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use tarn_mover::Trees;
use tarn_ports::Mover;
use tarn_types::layout::ERASE;

struct Bed {
    dir: tempfile::TempDir,
    tree: PathBuf,
}

/// Files as steps leave them, deep below where a mark may be.
fn bed() -> Bed {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tier/w/n/parts/key");
    fs::create_dir_all(tree.join("locked/deep")).unwrap();
    fs::write(tree.join("large"), vec![7; (3 << 20) + 5]).unwrap();
    fs::write(tree.join("empty"), b"").unwrap();
    fs::write(tree.join("locked/deep/read-only"), b"secret").unwrap();
    fs::write(tree.join("one"), b"linked").unwrap();
    fs::hard_link(tree.join("one"), tree.join("two")).unwrap();
    fs::write(dir.path().join("outside"), b"outside").unwrap();
    symlink("../../../../../outside", tree.join("link")).unwrap();
    fs::hard_link(dir.path().join("outside"), tree.join("another-name")).unwrap();
    let sparse = File::create(tree.join("sparse")).unwrap();
    sparse.write_all_at(&[9; 4096], 64 << 20).unwrap();
    sparse.set_len(128 << 20).unwrap();
    for (path, mode) in [
        ("locked/deep/read-only", 0o000),
        ("locked/deep", 0o500),
        ("locked", 0o500),
    ] {
        fs::set_permissions(tree.join(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    Bed { dir, tree }
}

impl Bed {
    fn mark(&self, folder: &str) {
        fs::write(self.dir.path().join(folder).join(ERASE), b"").unwrap();
    }

    /// Those that have no other name, held open.
    fn held(&self) -> Vec<File> {
        let names = ["large", "locked/deep/read-only", "one", "sparse"];
        let open = |name| {
            let path = self.tree.join(name);
            let mode = fs::metadata(&path).unwrap().permissions();
            if mode.mode() & 0o400 == 0 {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
            }
            File::open(path).unwrap()
        };
        names.map(open).into()
    }
}

fn is_zero(file: &File) -> bool {
    let mut bytes = Vec::new();
    file.take(70 << 20).read_to_end(&mut bytes).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert!(!bytes.is_empty());
    bytes.iter().all(|byte| *byte == 0)
}

#[test]
fn what_lies_below_a_mark_is_overwritten_and_nothing_else() {
    for (mark, erased) in [
        (Some("tier"), true),
        (Some("tier/w"), true),
        (Some("tier/w/n/parts/key"), true),
        (None, false),
    ] {
        let bed = bed();
        mark.into_iter().for_each(|folder| bed.mark(folder));
        let held = bed.held();
        Trees::new().remove(&bed.tree).unwrap();
        assert!(!bed.tree.exists());
        for file in &held {
            assert_eq!(is_zero(file), erased, "{mark:?}");
        }
        // Its holes have not taken space for that.
        assert!(held[3].metadata().unwrap().blocks() < 1000);
        let outside = fs::read(bed.dir.path().join("outside")).unwrap();
        assert_eq!(outside, b"outside");
    }
}

/// A file that cannot be overwritten is removed all the same: its space is needed.
#[test]
fn a_program_that_runs_is_removed() {
    let bed = bed();
    bed.mark("tier");
    let program = bed.tree.join("program");
    fs::copy("/bin/sleep", &program).unwrap();
    let mut running = std::process::Command::new(&program)
        .arg("60")
        .spawn()
        .unwrap();
    let removed = Trees::new().remove(&bed.tree);
    running.kill().unwrap();
    running.wait().unwrap();
    removed.unwrap();
    assert!(!bed.tree.exists());
}

#[test]
fn a_mark_is_found_whatever_the_name_of_the_folder() {
    let bed = bed();
    bed.mark("tier");
    let parts = File::open(bed.tree.parent().unwrap()).unwrap();
    let by_descriptor = format!("/proc/self/fd/{}/key", parts.as_raw_fd());
    let held = bed.held();
    Trees::new().remove(Path::new(&by_descriptor)).unwrap();
    assert!(held.iter().all(is_zero));
    // A file alone, too; a folder of the mark's name is none.
    let file = bed.dir.path().join("tier/w/alone");
    fs::write(&file, b"alone").unwrap();
    let alone = File::open(&file).unwrap();
    Trees::new().remove(&file).unwrap();
    assert!(is_zero(&alone));
    let other = bed.dir.path().join("other");
    fs::create_dir_all(other.join(ERASE)).unwrap();
    fs::write(other.join("file"), b"file").unwrap();
    let file = File::open(other.join("file")).unwrap();
    Trees::new().remove(&other.join("file")).unwrap();
    assert!(!is_zero(&file));
}
