//! Random trees, and a plain model of a folder's content, read with nothing but the standard library.

#![allow(dead_code, missing_docs, unreachable_pub)]

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use tarn_mover::Trees;
use tarn_ports::{Control, CopyJob, CopyReport, CopySource, Mover, MoverError};
use tarn_types::manifest::Manifest;
use tarn_types::merge::{PartitionError, partition};
use tarn_types::part::Verify;
use tarn_types::pattern::ScatterRule;
use tarn_types::workflow::VersionPartitioning;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    Folder {
        mode: u32,
        mtime: (i64, i64),
    },
    File {
        mode: u32,
        mtime: (i64, i64),
        content: Vec<u8>,
    },
    Link {
        target: Vec<u8>,
    },
}

pub type Model = BTreeMap<Vec<u8>, Node>;

/// The content of a folder.
pub fn model(root: &Path) -> Model {
    let mut found = Model::new();
    walk(root, b"", &mut found);
    found
}

fn walk(at: &Path, prefix: &[u8], found: &mut Model) {
    for entry in std::fs::read_dir(at).unwrap() {
        let entry = entry.unwrap();
        let mut path = prefix.to_vec();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(entry.file_name().as_bytes());
        let meta = entry.path().symlink_metadata().unwrap();
        let (mode, mtime) = (meta.mode() & 0o7777, (meta.mtime(), meta.mtime_nsec()));
        let node = if meta.is_dir() {
            walk(&entry.path(), &path, found);
            Node::Folder { mode, mtime }
        } else if meta.is_symlink() {
            let target = std::fs::read_link(entry.path()).unwrap();
            Node::Link {
                target: target.as_os_str().as_bytes().to_vec(),
            }
        } else {
            let content = std::fs::read(entry.path()).unwrap();
            Node::File {
                mode,
                mtime,
                content,
            }
        };
        found.insert(path, node);
    }
}

/// Contents without modes and times.
pub fn contents(model: &Model) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
    model
        .iter()
        .map(|(path, node)| {
            let content = match node {
                Node::Folder { .. } => None,
                Node::File { content, .. } => Some(content.clone()),
                Node::Link { target } => Some(target.clone()),
            };
            (path.clone(), content)
        })
        .collect()
}

/// One entry of a random tree.
#[derive(Debug, Clone)]
pub struct Random {
    path: Vec<u8>,
    what: What,
    mode: u32,
    mtime: i64,
}

#[derive(Debug, Clone)]
enum What {
    Folder,
    File(usize, u8),
    Link(Vec<u8>),
    Hard,
}

pub fn trees() -> impl Strategy<Value = Vec<Random>> {
    let name = prop_oneof![
        6 => proptest::sample::select(vec!["a", "b", "c", "d", "a-b", "a b"]).prop_map(|n| n.as_bytes().to_vec()),
        1 => Just(b"new\nline".to_vec()),
        1 => Just(b"not\xff\xfeutf8".to_vec()),
        1 => Just(b"processor1".to_vec()),
        1 => Just(b"processor2".to_vec()),
    ];
    let path = proptest::collection::vec(name, 1..4).prop_map(|names| names.join(&b'/'));
    let what = prop_oneof![
        2 => Just(What::Folder),
        4 => (prop_oneof![
            2 => Just(0usize),
            6 => 1usize..5000,
            1 => (128usize << 10) - 1..(128 << 10) + 2,
            1 => Just((2usize << 20) + 5),
        ], any::<u8>()).prop_map(|(size, seed)| What::File(size, seed)),
        1 => proptest::sample::select(vec!["a", "b/c", "./c", "gone"]).prop_map(|t| What::Link(t.as_bytes().to_vec())),
        1 => Just(What::Hard),
    ];
    let entry =
        (path, what, 0u32..0o10000, 0i64..4_000_000_000).prop_map(|(path, what, mode, mtime)| {
            Random {
                path,
                what,
                // The owner must be able to read it, or an ordinary user's copy fails (a test of its own).
                mode: mode | 0o500,
                mtime,
            }
        });
    proptest::collection::vec(entry, 0..25)
}

/// Bytes with a period that no chunk size is a multiple of.
pub fn bytes(size: usize, seed: u8) -> Vec<u8> {
    let block: Vec<u8> = (0..65_521u32)
        .map(|i| i.wrapping_mul(2_654_435_761).rotate_left(7) as u8 ^ seed)
        .collect();
    let mut all = block.repeat(size.div_ceil(block.len()));
    all.truncate(size);
    all
}

/// Builds a random tree; entries that do not fit what is there already are left out.
pub fn build(root: &Path, entries: &[Random]) {
    std::fs::create_dir_all(root).unwrap();
    let mut files: Vec<PathBuf> = Vec::new();
    let mut made: Vec<(PathBuf, u32, i64)> = Vec::new();
    for entry in entries {
        let path = root.join(OsStr::from_bytes(&entry.path));
        if std::fs::create_dir_all(path.parent().unwrap()).is_err()
            || path.symlink_metadata().is_ok()
        {
            continue;
        }
        match &entry.what {
            What::Folder => std::fs::create_dir(&path).unwrap(),
            What::File(size, seed) => {
                std::fs::write(&path, bytes(*size, *seed)).unwrap();
                files.push(path.clone());
            }
            What::Link(target) => {
                symlink(OsStr::from_bytes(target), &path).unwrap();
                continue;
            }
            What::Hard => match files.first() {
                Some(first) => {
                    std::fs::hard_link(first, &path).unwrap();
                    continue;
                }
                None => continue,
            },
        }
        made.push((path, entry.mode, entry.mtime));
    }
    made.sort();
    for (path, mode, mtime) in made.iter().rev() {
        let time =
            std::time::UNIX_EPOCH + std::time::Duration::from_nanos(*mtime as u64 * 1_000_000_001);
        std::fs::File::open(path)
            .unwrap()
            .set_modified(time)
            .unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(*mode)).unwrap();
    }
}

/// A folder that goes away with everything in it, with any modes.
pub struct Scratch(pub PathBuf, Option<tempfile::TempDir>);

impl Scratch {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self(dir.path().to_path_buf(), Some(dir))
    }
    /// With an empty folder to copy from, and where it is to be copied.
    pub fn with_source() -> (Self, PathBuf, PathBuf) {
        let dir = Self::new();
        let (from, to) = (dir.at("from"), dir.at("to"));
        std::fs::create_dir(&from).unwrap();
        (dir, from, to)
    }
    pub fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
    /// The parts of a tree, with a folder to come for each.
    pub fn parts(
        &self,
        tree: &Manifest,
        how: VersionPartitioning,
    ) -> Result<Parts, PartitionError> {
        let rule = ScatterRule::new("processor{rank}").unwrap();
        let parts = partition(tree, how, Some(&rule))?.into_iter().enumerate();
        Ok(parts
            .map(|(i, (_, m))| (m, self.at(&format!("part{i}"))))
            .collect())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for entry in std::fs::read_dir(&self.0).unwrap().flatten() {
            Trees::new().remove(&entry.path()).unwrap();
        }
        drop(self.1.take());
    }
}

pub fn source(root: &Path) -> CopySource {
    CopySource::of(root)
}

pub fn job(sources: Vec<CopySource>, dest: &Path) -> CopyJob {
    let mut staging = dest.as_os_str().to_os_string();
    staging.push(".staging");
    CopyJob {
        sources,
        dest: dest.to_path_buf(),
        staging: staging.into(),
        replace: false,
        verify: Verify::Copy,
        sync: false,
        rate: 0,
        latency: 0,
        arrivals: None,
        seal: None,
    }
}

pub fn copy(from: &Path, to: &Path) -> Result<CopyReport, MoverError> {
    Trees::new().copy(&job(vec![source(from)], to), &Control::default())
}

pub type Parts = Vec<(Manifest, PathBuf)>;

/// Divides a tree; each part must match its manifest.
pub fn split(from: &Path, parts: &[(Manifest, PathBuf)]) -> Result<(), MoverError> {
    let mover = Trees::new();
    let borrowed: Vec<_> = parts.iter().map(|(m, path)| (m, path.clone())).collect();
    mover.split(from, &borrowed)?;
    let mut verified = parts
        .iter()
        .map(|(m, path)| mover.verify(path, m, &quiet()));
    verified.try_for_each(|part| part)
}

pub fn quiet() -> Control {
    Control::default()
}

/// Nothing of a job is left but perhaps its destination.
pub fn clean(job: &CopyJob) -> bool {
    let mut progress = job.staging.as_os_str().to_os_string();
    progress.push(".progress");
    !job.staging.exists() && !Path::new(&progress).exists()
}

/// Runs a test again as an unprivileged user where this process is root; the test must cope with both.
pub fn unprivileged() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() != 0
}
