//! Movers, which copy, hash, check and remove file trees.

use crate::operation::{Control, MoverError};
use crate::peer::{Arrivals, PeerTree};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tarn_types::event::RunErrorKind;
use tarn_types::key::DataKey;
use tarn_types::manifest::Manifest;
use tarn_types::part::Verify;

/// A tree to be copied: a folder, or (as a source's single entry) one file.
#[derive(Debug, Clone)]
pub struct CopySource {
    /// The folder whose content is copied, or one file or link. Of a peer's tree: nothing.
    pub root: PathBuf,
    /// The tree is stored on another node. Then `manifest` is needed: it lists the tree's content.
    pub peer: Option<Arc<dyn PeerTree>>,
    /// When set, `root` is one entry and appears under this name at the destination.
    pub as_entry: Option<String>,
    /// The expected content: paths, sizes and hashes are compared while copying. `None` when it is not known yet.
    pub manifest: Option<Manifest>,
    /// Only paths (as they appear at the destination) that are listed here; `None` for all.
    pub only: Option<Vec<Box<[u8]>>>,
    /// Its files are sealed with this key: their content is copied, hashed and compared.
    pub sealed: Option<Arc<DataKey>>,
    /// The treatment of links that lead out of it.
    pub follow: Follow,
}

/// The treatment of links that lead out of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Follow {
    /// They are refused.
    #[default]
    None,
    /// They are refused, and the tree is opened by its path without following a link.
    Within,
    /// The target of a link of this user's, or of root's, is a part of the tree; other links are refused. Opened as with `Within`.
    Of(u32),
    /// A user names the tree as a source of their own run: the targets of links are a part of it.
    All,
}

impl CopySource {
    /// All of a folder of this node, or one file or link, of which nothing more is known.
    pub fn of(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            peer: None,
            as_entry: None,
            manifest: None,
            only: None,
            sealed: None,
            follow: Follow::None,
        }
    }
}

/// Copy trees into one folder that appears whole or not at all.
#[derive(Debug, Clone)]
pub struct CopyJob {
    /// The trees to copy. Several trees are merged: folders unite; two different files of one name are a conflict.
    pub sources: Vec<CopySource>,
    /// The place of the result, which appears there by a rename; must not exist, unless `replace`.
    pub dest: PathBuf,
    /// The place where it grows, on the same file system. Files of an earlier, interrupted attempt here are reused if they are
    /// proven intact.
    pub staging: PathBuf,
    /// An existing `dest` is replaced at once (exchange, then removal), never mixed.
    pub replace: bool,
    /// How it is verified.
    pub verify: Verify,
    /// Whether files and folders are synced before publication (external stores and disks).
    pub sync: bool,
    /// Bytes a second, 0 for no limit; emulation of a slow store.
    pub rate: u64,
    /// Nanoseconds that every file costs in addition; emulation of a slow store.
    pub latency: u64,
    /// The receiver of notifications about arrived bytes, when others want to read the tree before it is whole.
    pub arrivals: Option<Arc<dyn Arrivals>>,
    /// The destination's files are sealed with this key; hashes stay those of their content.
    pub seal: Option<Arc<DataKey>>,
}

/// The report of a copy.
#[derive(Debug, Clone, Default)]
pub struct CopyReport {
    /// The content of each source, with hashes, in the order of the sources.
    pub manifests: Vec<Manifest>,
    /// Bytes of content that were moved.
    pub bytes: u64,
    /// Bytes that were already there from an earlier attempt.
    pub resumed: u64,
    /// Properties that the destination could not hold, such as extended attributes: one sentence each.
    pub lost: Vec<String>,
}

/// The content of its destination that a delivery may replace and remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// Objects that its owner has put there; all else is a conflict.
    Own,
    /// The same, unless it is whole: the rest of an interrupted delivery.
    Unfinished,
    /// All.
    All,
}

/// Put trees into an object store. Every object is whole or absent; the tree is not replaced at once, as a store has no renames.
#[derive(Debug, Clone)]
pub struct DeliveryJob {
    /// The trees to put, merged. Without a manifest, the tree is read for it.
    pub sources: Vec<CopySource>,
    /// The tree in the store, as `s3://BUCKET/PREFIX/`.
    pub dest: PathBuf,
    /// The sources are a single file, and `dest` is the object that it becomes, as `s3://BUCKET/KEY`.
    pub single: bool,
    /// The owner of the tree: objects carry this name.
    pub owner: String,
    /// The existing objects that the delivery may replace.
    pub over: Over,
    /// How it is verified: with `Readback` every object is read again and compared.
    pub verify: Verify,
    /// Bytes a second, 0 for no limit; emulation of a slow store.
    pub rate: u64,
    /// Nanoseconds that every file costs in addition; emulation of a slow store.
    pub latency: u64,
}

/// The abilities of a folder's file system; probed, never guessed from its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeCapabilities {
    /// Files can share blocks (`FICLONE`).
    pub reflink: bool,
    /// `user.*` extended attributes can be stored.
    pub xattrs: bool,
    /// `O_TMPFILE`, `RENAME_EXCHANGE`.
    pub exchange: bool,
    /// Holes are kept (`SEEK_HOLE`).
    pub sparse: bool,
}

/// Works on file trees. Every call blocks; callers run it on their own threads. A mover never follows a
/// symbolic link out of a tree it was given, but for a source's ([`CopySource::follow`]), and refuses names that lead out of it.
pub trait Mover: Send + Sync {
    /// The abilities of an existing folder's file system.
    ///
    /// # Errors
    /// When the folder cannot be written.
    fn capabilities(&self, folder: &Path) -> Result<TreeCapabilities, MoverError>;

    /// Lists a tree without reading file contents (hashes are `None`), in parallel.
    /// A regular file or a link as `root` gives one entry under the file's own name.
    ///
    /// # Errors
    /// When the tree cannot be read.
    fn list(&self, root: &Path, control: &Control) -> Result<Manifest, MoverError>;

    /// As [`Mover::list`] of a user's source: a link that leads out of it counts as its target. A mover that
    /// knows no links lists it as any tree.
    ///
    /// # Errors
    /// As for [`Mover::list`]; a link that leads nowhere.
    fn list_source(&self, root: &Path, control: &Control) -> Result<Manifest, MoverError> {
        self.list(root, control)
    }

    /// Lists a tree and hashes every file.
    ///
    /// # Errors
    /// When the tree cannot be read, or changes while it is.
    fn digest(&self, root: &Path, control: &Control) -> Result<Manifest, MoverError>;

    /// As [`Mover::digest`] of a tree whose files are sealed with this key: sizes and hashes are those of their content.
    ///
    /// # Errors
    /// As for [`Mover::digest`]; `Corrupt` for a file that the key does not open. A mover that cannot open sealed files refuses.
    fn digest_sealed(
        &self,
        root: &Path,
        _key: &Arc<DataKey>,
        _control: &Control,
    ) -> Result<Manifest, MoverError> {
        let message = format!(
            "this mover cannot open the sealed files of {}",
            root.display()
        );
        Err(MoverError::new(RunErrorKind::Io, message))
    }

    /// Reads a tree again and compares it with its manifest.
    ///
    /// # Errors
    /// `Corrupt` with the first path that differs.
    fn verify(&self, root: &Path, manifest: &Manifest, control: &Control)
    -> Result<(), MoverError>;

    /// From now on jobs with a rate have `own / all` of it together: others have the rest, elsewhere. At first they have all.
    /// A mover that emulates no slow store need not hear it.
    fn pace(&self, _own: u32, _all: u32) {}

    /// Copies.
    ///
    /// # Errors
    /// Fails whole: `dest` is as it was, the sources are untouched.
    fn copy(&self, job: &CopyJob, control: &Control) -> Result<CopyReport, MoverError>;

    /// Whether there is something to be read at a place in an object store. It is not listed for that.
    ///
    /// # Errors
    /// That nothing is there, or why the store cannot be reached.
    fn may_fetch(&self, source: &Path, _control: &Control) -> Result<(), MoverError> {
        Err(no_store(source))
    }

    /// Whether a tree of an object store can be put there: nothing is there, or only objects with the owner's name, and this
    /// process may write.
    ///
    /// # Errors
    /// `Conflict` with the first object that is somebody else's; why the store cannot be used.
    fn may_deliver(&self, dest: &Path, _owner: &str, _control: &Control) -> Result<(), MoverError> {
        Err(no_store(dest))
    }

    /// Puts trees into an object store.
    ///
    /// # Errors
    /// Objects that were replaced stay so; the next delivery continues from there. No part of an object is ever left.
    fn deliver(&self, job: &DeliveryJob, _control: &Control) -> Result<CopyReport, MoverError> {
        Err(no_store(&job.dest))
    }

    /// Whether a tree of an object store, or a single object, is a delivery of this owner's that came to its end.
    ///
    /// # Errors
    /// When the store gives no answer.
    fn is_delivered(
        &self,
        dest: &Path,
        _owner: &str,
        _control: &Control,
    ) -> Result<bool, MoverError> {
        Err(no_store(dest))
    }

    /// Ends the uploads of an unfinished delivery of this owner in an object store, and removes the objects that it has put, if
    /// `objects`.
    ///
    /// # Errors
    /// When something may still be there.
    fn withdraw(
        &self,
        dest: &Path,
        _owner: &str,
        _objects: bool,
        _control: &Control,
    ) -> Result<(), MoverError> {
        Err(no_store(dest))
    }

    /// Makes `dest` a tree that shows the content of `roots` merged, without copying file contents where the
    /// file system allows it (hard links; symbolic links across file systems). For reading only.
    ///
    /// # Errors
    /// `Conflict` when two files of one name differ (compared by the manifests).
    fn link_view(&self, roots: &[(PathBuf, Manifest)], dest: &Path) -> Result<(), MoverError>;

    /// Makes `dest` a private, writable copy of `roots` merged: blocks shared where the file system can,
    /// copied where it cannot. Returns the bytes copied.
    ///
    /// # Errors
    /// As for [`Mover::copy`].
    fn clone_view(
        &self,
        roots: &[(PathBuf, Manifest)],
        dest: &Path,
        control: &Control,
    ) -> Result<u64, MoverError>;

    /// Divides a tree: moves the entries of each manifest into a new folder of its own, by renames only (of whole
    /// folders where one part covers them). The folders appear whole; afterwards `root` is gone. Together the
    /// manifests must cover every file of the tree; folders may stand in several.
    ///
    /// # Errors
    /// When a rename fails; calling it again finishes the rest.
    fn split(&self, root: &Path, parts: &[(&Manifest, PathBuf)]) -> Result<(), MoverError>;

    /// Removes a tree, with any permissions; a missing one is not an error.
    ///
    /// # Errors
    /// When something remains.
    fn remove(&self, root: &Path) -> Result<(), MoverError>;

    /// Bytes that a tree takes on its file system (blocks), hard links counted once.
    ///
    /// # Errors
    /// When it cannot be read.
    fn stored(&self, root: &Path) -> Result<u64, MoverError>;
}

/// The error of a mover that reaches no object store.
fn no_store(place: &Path) -> MoverError {
    let message = format!("this mover reaches no object store: {}", place.display());
    MoverError::new(RunErrorKind::Io, message)
}
