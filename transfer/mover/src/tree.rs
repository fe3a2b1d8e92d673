//! One source of an operation: a folder, or a single file or link.

use crate::error::{ErrorSide, Result, changed, failed, show_in, show_path};
use crate::meta::FileStatus;
use rustix::fs::{AtFlags, CWD, FileType, statat};
use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tarn_ports::{CopySource, Follow, MoverError, PeerTree};
use tarn_sys::beneath::{Root, join, split};
use tarn_types::event::RunErrorKind;
use tarn_types::key::DataKey;
use tarn_types::manifest::{Manifest, check_path, parent};

/// The source of a tree's entries.
#[derive(Debug)]
pub(crate) enum TreeOrigin<'a> {
    /// A folder's content.
    Folder(Root),
    /// One entry of a folder.
    Single {
        /// The folder.
        holder: Root,
        /// Its name there.
        name: Box<[u8]>,
    },
    /// A folder on another node; the tree's manifest lists its content.
    Peer(&'a dyn PeerTree),
}

/// One source.
#[derive(Debug)]
pub(crate) struct SourceTree<'a> {
    pub(crate) origin: TreeOrigin<'a>,
    /// The path that the root itself has in the result: empty, or the one entry's name.
    pub(crate) prefix: Box<[u8]>,
    /// Only these paths, and the folders above them.
    pub(crate) wanted: Option<HashSet<&'a [u8]>>,
    /// The manifest that it must match.
    pub(crate) expected: Option<&'a Manifest>,
    /// As it was named, for messages.
    pub(crate) path: PathBuf,
    /// Set once cloning a file has turned out to be impossible.
    pub(crate) no_reflink: AtomicBool,
    /// Its files are sealed with this key.
    pub(crate) sealed: Option<Arc<DataKey>>,
    /// The treatment of links that lead out of it.
    pub(crate) follow: Follow,
}

impl<'a> SourceTree<'a> {
    /// Opens a tree as it is named; a file or link gives one entry under its own name.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Self::following(path, Follow::None)
    }

    /// The same; this becomes of links that lead out of it.
    pub(crate) fn following(path: &Path, follow: Follow) -> Result<Self> {
        let status = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).map(FileStatus::from);
        let status = status.map_err(|e| failed(ErrorSide::Source, "open", &show_path(path), e))?;
        let (origin, prefix) = match status.kind {
            FileType::Directory => (TreeOrigin::Folder(open_root(path, follow)?), Box::default()),
            FileType::RegularFile | FileType::Symlink => single(path, follow)?,
            other => return Err(special(&show_path(path), other)),
        };
        Ok(Self {
            origin,
            prefix,
            wanted: None,
            expected: None,
            path: path.to_path_buf(),
            no_reflink: AtomicBool::new(false),
            sealed: None,
            follow,
        })
    }

    /// The same, of sealed files.
    pub(crate) fn sealed_with(mut self, key: Option<&Arc<DataKey>>) -> Self {
        self.sealed = key.map(Arc::clone);
        self
    }

    /// Opens a source of a copy.
    pub(crate) fn of(source: &'a CopySource) -> Result<Self> {
        let mut tree = match &source.peer {
            Some(peer) => Self::on_peer(&**peer, source)?,
            None => Self::following(&source.root, source.follow)?,
        };
        if let Some(name) = &source.as_entry {
            check_path(name.as_bytes())
                .map_err(|fault| fault.to_string())
                .and_then(|()| match name.contains('/') {
                    true => Err("it has a `/`".into()),
                    false => Ok(()),
                })
                .map_err(|why| {
                    let message = format!("the name `{}` is refused: {why}", name.escape_debug());
                    MoverError::new(RunErrorKind::Escape, message)
                })?;
            tree.prefix = name.as_bytes().into();
        }
        tree.wanted = source.only.as_ref().map(|paths| {
            let above = |path: &'a [u8]| std::iter::successors(Some(path), |p| parent(p));
            paths.iter().flat_map(|path| above(path)).collect()
        });
        tree.expected = source.manifest.as_ref();
        Ok(tree.sealed_with(source.sealed.as_ref()))
    }

    /// A tree on another node.
    fn on_peer(peer: &'a dyn PeerTree, source: &CopySource) -> Result<Self> {
        let refused = |why: &str| {
            let message = format!("`{}` cannot be copied: {why}", peer.name());
            MoverError::new(RunErrorKind::Io, message)
        };
        let Some(manifest) = &source.manifest else {
            return Err(refused("its manifest is not known; ask its node for it"));
        };
        if source.as_entry.is_some() {
            return Err(refused(
                "a tree of another node keeps its names; choose entries with `only`",
            ));
        }
        for entry in &manifest.entries {
            check_path(&entry.path).map_err(|fault| {
                let path = crate::error::show(&entry.path);
                let message = format!("`{}`: the name `{path}` is refused: {fault}", peer.name());
                MoverError::new(RunErrorKind::Escape, message)
            })?;
        }
        Ok(Self {
            origin: TreeOrigin::Peer(peer),
            prefix: Box::default(),
            wanted: None,
            expected: None,
            path: PathBuf::from(peer.name()),
            no_reflink: AtomicBool::new(false),
            sealed: None,
            follow: Follow::None,
        })
    }

    /// Whether a path of the result is to be copied.
    pub(crate) fn wants(&self, path: &[u8]) -> bool {
        self.wanted.as_ref().is_none_or(|w| w.contains(path))
    }

    /// A path of the result, as it is called in the source.
    pub(crate) fn relative<'p>(&self, path: &'p [u8]) -> &'p [u8] {
        match path.strip_prefix(&*self.prefix) {
            Some(rest) if !self.prefix.is_empty() => rest.strip_prefix(b"/").unwrap_or(rest),
            _ => path,
        }
    }

    /// A path of the result, for a message: where it is stored in the source.
    pub(crate) fn show(&self, path: &[u8]) -> String {
        match &self.origin {
            TreeOrigin::Folder(_) | TreeOrigin::Peer(_) => show_in(&self.path, self.relative(path)),
            TreeOrigin::Single { .. } => show_path(&self.path),
        }
    }
}

fn open_root(path: &Path, follow: Follow) -> Result<Root> {
    let root = match follow {
        Follow::None | Follow::All => Root::open(path),
        Follow::Within | Follow::Of(_) => Root::real(path),
    };
    root.map_err(|e| failed(ErrorSide::Source, "open", &show_path(path), e))
}

fn single(path: &Path, follow: Follow) -> Result<(TreeOrigin<'static>, Box<[u8]>)> {
    let vanished = || changed(&show_path(path), "vanished");
    let name: Box<[u8]> = path.file_name().ok_or_else(vanished)?.as_bytes().into();
    let above = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    // The folder above may be named through a link: it is not part of the tree.
    let holder = match follow {
        Follow::None | Follow::All => {
            let real = std::fs::canonicalize(above).map_err(|_| vanished())?;
            open_root(&real, follow)?
        }
        Follow::Within | Follow::Of(_) => open_root(above, follow)?,
    };
    Ok((
        TreeOrigin::Single {
            holder,
            name: name.clone(),
        },
        name,
    ))
}

/// The error for an entry that is no file, folder or link.
pub(crate) fn special(path: &str, kind: FileType) -> MoverError {
    let what = match kind {
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        _ => "a special file",
    };
    MoverError::new(
        RunErrorKind::Io,
        format!(
            "`{path}` is {what}; a dataset holds files, folders and symbolic links only: remove it"
        ),
    )
}

/// The path of `name` in a folder, checked for length.
pub(crate) fn child(tree: &SourceTree<'_>, folder: &[u8], name: &[u8]) -> Result<Box<[u8]>> {
    let path = join(folder, name);
    if path.len() > tarn_types::bounds::MAX_PATH_BYTES {
        let (_, last) = split(&path);
        return Err(MoverError::new(
            RunErrorKind::Io,
            format!(
                "a path ending in `{}` in `{}` is longer than {} bytes; make the folders above it fewer or shorter",
                crate::error::show(last),
                show_path(&tree.path),
                tarn_types::bounds::MAX_PATH_BYTES
            ),
        ));
    }
    Ok(path)
}
