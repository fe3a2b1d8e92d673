//! Somebody writes into a destination at the worst moments.

use super::*;
use std::fs;
use std::sync::Mutex;
use tarn_mover::Trees;
use tarn_ports::{CopyJob, CopyReport, MoverError, TreeCapabilities};

/// Does something else right after the listing of this number (from 1).
struct Meddler<'a> {
    trees: Trees,
    at: u32,
    listed: Mutex<u32>,
    meddle: &'a (dyn Fn() + Sync + Send),
}

type Result<T> = std::result::Result<T, MoverError>;

impl Mover for Meddler<'_> {
    fn capabilities(&self, folder: &Path) -> Result<TreeCapabilities> {
        self.trees.capabilities(folder)
    }
    fn list(&self, root: &Path, control: &Control) -> Result<Manifest> {
        let listed = self.trees.list(root, control);
        let mut count = self.listed.lock().expect("nobody panics");
        *count += 1;
        if *count == self.at {
            (self.meddle)();
        }
        listed
    }
    fn digest(&self, root: &Path, control: &Control) -> Result<Manifest> {
        self.trees.digest(root, control)
    }
    fn verify(&self, root: &Path, manifest: &Manifest, control: &Control) -> Result<()> {
        self.trees.verify(root, manifest, control)
    }
    fn copy(&self, job: &CopyJob, control: &Control) -> Result<CopyReport> {
        self.trees.copy(job, control)
    }
    fn link_view(&self, roots: &[(PathBuf, Manifest)], dest: &Path) -> Result<()> {
        self.trees.link_view(roots, dest)
    }
    fn clone_view(&self, r: &[(PathBuf, Manifest)], dest: &Path, c: &Control) -> Result<u64> {
        self.trees.clone_view(r, dest, c)
    }
    fn split(&self, root: &Path, parts: &[(&Manifest, PathBuf)]) -> Result<()> {
        self.trees.split(root, parts)
    }
    fn remove(&self, root: &Path) -> Result<()> {
        self.trees.remove(root)
    }
    fn stored(&self, root: &Path) -> Result<u64> {
        self.trees.stored(root)
    }
}

/// A destination that holds what tarn has put there, and the new tree that waits beside it.
fn declared(dir: &Path, old: bool) -> Intent {
    let path = |name: &str| dir.join(name);
    let intent = Intent {
        to: Destination {
            folder: path("out"),
            memory: DestRecord {
                known: path("x.manifest"),
                intended: path("x.intent"),
                is_beside: false,
            },
            tag: "w".into(),
            remedy: "go on",
        },
        staging: path(".out.tarn-w"),
        ready: path(".out.tarn-w.ready"),
        declared: Manifest::default(),
    };
    let trees = [
        (&intent.to.folder, &intent.to.memory.known, "old"),
        (&intent.ready, &intent.to.memory.intended, "new"),
    ];
    for (tree, memory, text) in trees.into_iter().skip(usize::from(!old)) {
        fs::create_dir(tree).unwrap();
        fs::write(tree.join("a"), text).unwrap();
        let listed = Trees::new().list(tree, &Control::default()).unwrap();
        write_manifests([(memory.as_path(), &listed)], true).unwrap();
    }
    intent
}

fn read(folder: &Path, name: &str) -> Option<String> {
    fs::read_to_string(folder.join(name)).ok()
}

/// Publishes while somebody writes `thesis` into `folder` after listing number `at`.
fn meddled(intent: &Intent, folder: &Path, at: u32) -> (RunError, Trees) {
    let meddle = || {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("thesis"), "years").unwrap();
    };
    let meddler = Meddler {
        trees: Trees::new(),
        at,
        listed: Mutex::new(0),
        meddle: &meddle,
    };
    let refused = intent.publish(&meddler).unwrap_err();
    assert_eq!(refused.kind, RunErrorKind::Conflict, "{refused:?}");
    assert!(refused.message.contains("thesis"), "{refused:?}");
    (refused, meddler.trees)
}

#[test]
fn nobody_meddles_and_the_old_tree_goes() {
    for old in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let intent = declared(dir.path(), old);
        intent.publish(&Trees::new()).unwrap();
        assert_eq!(read(&intent.to.folder, "a").as_deref(), Some("new"));
        assert!(!intent.ready.exists());
    }
}

#[test]
fn what_comes_between_the_last_look_and_the_exchange_is_put_back() {
    let dir = tempfile::tempdir().unwrap();
    let intent = declared(dir.path(), true);
    let (_, trees) = meddled(&intent, &intent.to.folder, 1);
    assert_eq!(read(&intent.to.folder, "thesis").as_deref(), Some("years"));
    assert_eq!(read(&intent.to.folder, "a").as_deref(), Some("old"));
    let (dest, ready) = (intent.to.folder.clone(), intent.ready.clone());
    intent.abandon(&trees);
    assert!(dest.exists() && !ready.exists());
}

#[test]
fn what_comes_into_the_tree_that_was_taken_out_stays_and_is_named_until_it_is_moved() {
    let dir = tempfile::tempdir().unwrap();
    let intent = declared(dir.path(), true);
    // The listing that decides what may be removed is the third.
    let (refused, trees) = meddled(&intent, &intent.ready, 3);
    let thesis = intent.ready.join("thesis");
    let named = |f: &RunError| f.message.contains(&thesis.display().to_string());
    assert!(named(&refused), "{refused:?}");
    assert_eq!(read(&intent.ready, "thesis").as_deref(), Some("years"));
    assert_eq!(read(&intent.to.folder, "a").as_deref(), Some("new"));
    let again = intent.tidy(&trees).unwrap_err();
    assert!(named(&again), "{again:?}");
    fs::remove_file(thesis).unwrap();
    intent.tidy(&trees).unwrap();
    assert!(!intent.ready.exists());
}

#[test]
fn a_destination_that_was_missing_and_is_made_meanwhile_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let intent = declared(dir.path(), false);
    fs::create_dir(&intent.to.folder).unwrap();
    fs::write(intent.to.folder.join("thesis"), "years").unwrap();
    let refused = intent.publish(&Trees::new()).unwrap_err();
    assert!(refused.message.contains("thesis"), "{refused:?}");
    let refused = rename_new(&intent.ready, &intent.to.folder, "").unwrap_err();
    assert_eq!(refused.kind, RunErrorKind::Conflict, "{refused:?}");
    assert_eq!(read(&intent.to.folder, "thesis").as_deref(), Some("years"));
    assert_eq!(read(&intent.ready, "a").as_deref(), Some("new"));
}
