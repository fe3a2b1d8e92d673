//! A plain mover for these tests: std only, one thread, no verification beyond hashes of what is known.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tarn_base::event::FailureKind;
use tarn_base::hash::Hash;
use tarn_base::manifest::{Entry, EntryKind, Manifest};
use tarn_ports::{Control, CopyJob, CopyReport, Mover, MoverError, TreeCapabilities};

/// Copies take at least this long for each file, so that a test can interrupt them.
pub(crate) struct Plain {
    pub(crate) delay: Duration,
}

fn fail(path: &Path, e: &io::Error) -> MoverError {
    let kind = match e.kind() {
        io::ErrorKind::StorageFull => FailureKind::NoSpace,
        _ => FailureKind::Io,
    };
    MoverError::new(kind, format!("{}: {e}", path.display()))
}

fn entry(path: &[u8], full: &Path, hash: bool) -> io::Result<Entry> {
    let meta = fs::symlink_metadata(full)?;
    let kind = if meta.is_dir() {
        EntryKind::Directory
    } else if meta.is_symlink() {
        EntryKind::Symlink(fs::read_link(full)?.as_os_str().as_bytes().into())
    } else {
        EntryKind::File {
            size: meta.len(),
            hash: hash
                .then(|| fs::read(full).map(|b| Hash::of(&b)))
                .transpose()?,
            link_group: 0,
            extents: Box::default(),
        }
    };
    Ok(Entry {
        path: path.into(),
        kind,
        mode: meta.mode() & 0o7777,
        mtime: meta.mtime() * 1_000_000_000 + meta.mtime_nsec(),
        xattrs: Box::default(),
    })
}

fn walk(root: &Path, hash: bool) -> io::Result<Manifest> {
    let mut entries = BTreeMap::new();
    if !fs::symlink_metadata(root)?.is_dir() {
        let name = root.file_name().unwrap_or_default().as_bytes();
        return Ok(Manifest {
            entries: vec![entry(name, root, hash)?],
        });
    }
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for found in fs::read_dir(&folder)? {
            let full = found?.path();
            let path = full
                .strip_prefix(root)
                .unwrap_or(&full)
                .as_os_str()
                .as_bytes()
                .to_vec();
            let e = entry(&path, &full, hash)?;
            if e.is_folder() {
                folders.push(full);
            }
            entries.insert(path, e);
        }
    }
    Ok(Manifest {
        entries: entries.into_values().collect(),
    })
}

fn place(
    root: &Path,
    manifest: &Manifest,
    dest: &Path,
    only: &dyn Fn(&[u8]) -> bool,
) -> io::Result<()> {
    fs::create_dir_all(dest)?;
    for e in manifest.entries.iter().filter(|e| only(&e.path)) {
        let (from, to) = (
            root.join(OsStr::from_bytes(&e.path)),
            dest.join(OsStr::from_bytes(&e.path)),
        );
        match &e.kind {
            EntryKind::Directory => fs::create_dir_all(&to)?,
            EntryKind::Symlink(target) => symlink(OsStr::from_bytes(target), &to)?,
            EntryKind::File { .. } => {
                fs::copy(&from, &to)?;
                let times = fs::FileTimes::new().set_modified(fs::metadata(&from)?.modified()?);
                fs::File::options()
                    .write(true)
                    .open(&to)?
                    .set_times(times)?;
            }
        }
    }
    Ok(())
}

impl Mover for Plain {
    fn capabilities(&self, _: &Path) -> Result<TreeCapabilities, MoverError> {
        Ok(TreeCapabilities {
            reflink: false,
            xattrs: false,
            exchange: false,
            sparse: false,
        })
    }

    fn list(&self, root: &Path, _: &Control) -> Result<Manifest, MoverError> {
        walk(root, false).map_err(|e| fail(root, &e))
    }

    fn digest(&self, root: &Path, _: &Control) -> Result<Manifest, MoverError> {
        walk(root, true).map_err(|e| fail(root, &e))
    }

    fn verify(&self, root: &Path, manifest: &Manifest, _: &Control) -> Result<(), MoverError> {
        match walk(root, true).map_err(|e| fail(root, &e))?.hash() == manifest.hash() {
            true => Ok(()),
            false => Err(MoverError::new(FailureKind::Corrupt, "differs")),
        }
    }

    fn copy(&self, job: &CopyJob, control: &Control) -> Result<CopyReport, MoverError> {
        let mut report = CopyReport::default();
        self.remove(&job.staging)?;
        fs::create_dir_all(&job.staging).map_err(|e| fail(&job.staging, &e))?;
        for s in &job.sources {
            let into = match &s.as_entry {
                Some(name) => job.staging.join(name),
                None => job.staging.clone(),
            };
            let tree = walk(&s.root, true).map_err(|e| fail(&s.root, &e))?;
            for _ in &tree.entries {
                std::thread::sleep(self.delay);
                if control.cancelled() {
                    return Err(MoverError::new(FailureKind::Cancelled, "cancelled"));
                }
            }
            let wanted = |p: &[u8]| s.only.as_ref().is_none_or(|o| o.iter().any(|x| **x == *p));
            if s.root.is_dir() {
                place(&s.root, &tree, &into, &wanted).map_err(|e| fail(&into, &e))?;
            } else {
                let parent = s.root.parent().unwrap_or(&s.root);
                place(parent, &tree, &job.staging, &|_| true).map_err(|e| fail(&into, &e))?;
            }
            let all = walk(&job.staging, true).map_err(|e| fail(&job.staging, &e))?;
            let listed = s.manifest.clone().unwrap_or_else(|| all.clone());
            let own = all
                .entries
                .into_iter()
                .filter(|e| listed.find(&e.path).is_some())
                .collect();
            let manifest = Manifest { entries: own };
            if listed.hash().is_some() && listed.hash() != manifest.hash() {
                let why = format!("{} does not match its hash", s.root.display());
                return Err(MoverError::new(FailureKind::Corrupt, why));
            }
            report.bytes += manifest.bytes();
            report.manifests.push(manifest);
        }
        if job.replace {
            self.remove(&job.dest)?;
        }
        fs::rename(&job.staging, &job.dest).map_err(|e| fail(&job.dest, &e))?;
        Ok(report)
    }

    fn link_view(&self, roots: &[(PathBuf, Manifest)], dest: &Path) -> Result<(), MoverError> {
        for (root, manifest) in roots {
            fs::create_dir_all(dest).map_err(|e| fail(dest, &e))?;
            for e in &manifest.entries {
                let (from, to) = (
                    root.join(OsStr::from_bytes(&e.path)),
                    dest.join(OsStr::from_bytes(&e.path)),
                );
                let done = match e.is_folder() {
                    true => fs::create_dir_all(&to),
                    false => fs::hard_link(&from, &to),
                };
                done.map_err(|e| fail(&to, &e))?;
            }
        }
        Ok(())
    }

    fn clone_view(
        &self,
        roots: &[(PathBuf, Manifest)],
        dest: &Path,
        _: &Control,
    ) -> Result<u64, MoverError> {
        for (root, manifest) in roots {
            place(root, manifest, dest, &|_| true).map_err(|e| fail(dest, &e))?;
        }
        Ok(roots.iter().map(|(_, m)| m.bytes()).sum())
    }

    fn split(&self, root: &Path, parts: &[(&Manifest, PathBuf)]) -> Result<(), MoverError> {
        for (manifest, dest) in parts {
            fs::create_dir_all(dest).map_err(|e| fail(dest, &e))?;
            for e in &manifest.entries {
                let (from, to) = (
                    root.join(OsStr::from_bytes(&e.path)),
                    dest.join(OsStr::from_bytes(&e.path)),
                );
                let done = match e.is_folder() {
                    true => fs::create_dir_all(&to),
                    false => fs::rename(&from, &to),
                };
                done.map_err(|e| fail(&to, &e))?;
            }
        }
        let left = walk(root, false).map_err(|e| fail(root, &e))?;
        assert!(
            left.entries.iter().all(Entry::is_folder),
            "the manifests did not cover {left:?}"
        );
        self.remove(root)
    }

    fn remove(&self, root: &Path) -> Result<(), MoverError> {
        let meta = match fs::symlink_metadata(root) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(|e| fail(root, &e))?,
        };
        if !meta.is_dir() {
            return fs::remove_file(root).map_err(|e| fail(root, &e));
        }
        let _ = fs::set_permissions(root, fs::Permissions::from_mode(0o700));
        for found in fs::read_dir(root).map_err(|e| fail(root, &e))?.flatten() {
            self.remove(&found.path())?;
        }
        fs::remove_dir(root).map_err(|e| fail(root, &e))
    }

    fn stored(&self, root: &Path) -> Result<u64, MoverError> {
        let tree = walk(root, false).map_err(|e| fail(root, &e))?;
        Ok(tree.bytes().div_ceil(4096) * 4096)
    }
}
