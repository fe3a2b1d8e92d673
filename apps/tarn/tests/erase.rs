//! Workflows with `erase`, by the real binary: every process of tarn that removes data from a tier overwrites it.

mod common;
use common::{Ran, Site};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tarn_types::layout::ERASE;

const FLOW: &str = r#"
name = "flow"
erase = true
[data.middle]
[data.kept]
keep = "forever"
[[step]]
name = "make"
run = "echo secret-scratch > scratch; echo secret-middle > $TARN_middle/m; echo secret-kept > $TARN_kept/k; until test -e GO1; do sleep 0.02; done"
out = ["middle", "kept"]
[[step]]
name = "use"
run = "cat $TARN_middle/m; until test -e GO2; do sleep 0.02; done"
in = ["middle"]
"#;

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files(&entry.path(), found),
            Ok(kind) if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
}

/// A file on the tier that has a word, held open once it is there.
fn held(site: &Site, word: &str) -> File {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let mut all = Vec::new();
        files(&site.path("tier"), &mut all);
        let has = |path: &PathBuf| fs::read_to_string(path).is_ok_and(|text| text.contains(word));
        if let Some(path) = all.into_iter().find(has) {
            return File::open(path).unwrap();
        }
        assert!(Instant::now() < until, "{word} is nowhere");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether it has no name any more, and its content now.
fn now(mut file: &File) -> (bool, String) {
    let mut text = String::new();
    std::io::Seek::rewind(&mut file).unwrap();
    file.read_to_string(&mut text).unwrap();
    (file.metadata().unwrap().nlink() == 0, text)
}

#[test]
fn what_is_removed_from_a_tier_is_overwritten() {
    for erase in [true, false] {
        let site = Site::new("");
        let go = |n: u32| site.path(&format!("go{n}"));
        let text = FLOW
            .replace("GO1", &go(1).display().to_string())
            .replace("GO2", &go(2).display().to_string())
            .replace("erase = true", &format!("erase = {erase}"));
        site.write("workflow.toml", &text);
        let run = site.begin(&[]);
        let scratch = held(&site, "secret-scratch");
        fs::write(go(1), b"").unwrap();
        let middle = held(&site, "secret-middle");
        let kept = held(&site, "secret-kept");
        fs::write(go(2), b"").unwrap();
        Ran::of(run.wait_with_output().unwrap()).exits(0);
        let gone = |word: &str| match erase {
            true => (true, "\0".repeat(word.len() + 1)),
            false => (true, format!("{word}\n")),
        };
        assert_eq!(now(&scratch), gone("secret-scratch"));
        assert_eq!(now(&middle), gone("secret-middle"));
        assert_eq!(now(&kept), (false, "secret-kept\n".into()));
        site.tarn(&["data", "rm", "kept"]).exits(0);
        assert_eq!(now(&kept), gone("secret-kept"));
        // Nothing is left of it, the mark neither.
        let mut left = Vec::new();
        files(&site.path("tier"), &mut left);
        assert_eq!(left, [site.path("tier/ledger.lock")]);
    }
}

/// A run that was killed leaves a mark too: the clean-up after it overwrites as its workflow requires.
#[test]
fn what_a_dead_run_has_left_is_overwritten_by_who_removes_it() {
    let site = Site::new("");
    let text = FLOW.replace("GO1", "never").replace("GO2", "never");
    site.write("workflow.toml", &text);
    let mut run = site.begin(&[]);
    let scratch = held(&site, "secret-scratch");
    run.kill().unwrap();
    run.wait().unwrap();
    let marks = |site: &Site| {
        let mut all = Vec::new();
        files(&site.path("tier"), &mut all);
        all.iter().filter(|p| p.ends_with(ERASE)).count()
    };
    assert_eq!(marks(&site), 1);
    // Its steps die with it, soon; a later run without `erase` finds its things.
    site.write(
        "workflow.toml",
        "name = \"flow\"\n[[step]]\nname = \"other\"\nrun = \"true\"\n",
    );
    site.run().exits(0);
    let (gone, text) = now(&scratch);
    assert!(gone && text.bytes().all(|b| b == 0), "{text:?}");
    assert_eq!(marks(&site), 0);
}
