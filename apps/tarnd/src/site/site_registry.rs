//! The data that a worker serves to the same user's workers on other nodes.

use crate::pieces::ExportedPieces;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use tarn_data_plane::{Called, Key, Registry, RegistryError, RunId, Served, Tree};
use tarn_munge::{KEY_BYTES, SecretBytes};
use tarn_ports::Control;
use tarn_proto::site::Owner;
use tarn_sys::beneath::Root;

/// A user's parts, served to those who know the user's key.
pub(super) struct SiteRegistry {
    /// Of the node's stores, fast to slow.
    roots: Vec<PathBuf>,
    run: RunId,
    key: Key,
    user: u32,
    /// Pieces of partitions that are spread over the nodes of jobs.
    exported: ExportedPieces,
}

/// The name and key of a user's data plane.
pub(super) fn credentials(key: &[u8; KEY_BYTES], user: u32) -> (RunId, Key) {
    let name = SecretBytes::new(*key).derive(format!("name {user}").as_bytes());
    let mut run = RunId::default();
    let length = run.len();
    run.copy_from_slice(&name.bytes()[..length]);
    (run, Key(*key))
}

/// The key of a user's data plane, which all nodes derive.
pub(super) fn user_key(secret: &SecretBytes, user: u32) -> [u8; KEY_BYTES] {
    *secret
        .derive(format!("worker of {user}").as_bytes())
        .bytes()
}

impl SiteRegistry {
    pub(super) fn new(roots: Vec<PathBuf>, key: [u8; KEY_BYTES], exported: ExportedPieces) -> Self {
        let user = rustix::process::geteuid().as_raw();
        let (run, key) = credentials(&key, user);
        Self {
            roots,
            run,
            key,
            user,
            exported,
        }
    }
}

impl Registry for SiteRegistry {
    fn key(&self, run: &RunId) -> Option<Key> {
        (*run == self.run).then(|| self.key.clone())
    }

    fn tree(&self, _: &RunId, tree: &Tree) -> Result<Served, RegistryError> {
        let Tree::Replica(name) = tree else {
            return Err(RegistryError(
                "only parts of datasets are served here".into(),
            ));
        };
        // The user's own parts, published ones alone; a project's are its members' to read.
        let own = format!("{}/d/", Owner::User(self.user));
        let is_project = name.first() == Some(&b'p');
        let hidden = |part: &[u8]| part.starts_with(b".");
        if !(name.starts_with(own.as_bytes()) || is_project)
            || name.split(|b| *b == b'/').any(hidden)
        {
            return Err(RegistryError("that is no part of this user's".into()));
        }
        let name = name.strip_suffix(b"/").unwrap_or(name);
        let at = name.iter().position(|b| *b == b'/').unwrap_or(name.len());
        let owner = OsStr::from_bytes(&name[..at]);
        let rest = name.get(at + 1..).unwrap_or_default();
        for root in &self.roots {
            let top = Root::open(&root.join(owner));
            match top.and_then(|top| top.beneath(rest)) {
                Ok(part) => return Ok(Served::Whole(Arc::new(part))),
                Err(rustix::io::Errno::NOENT) => {}
                Err(e) => return Err(RegistryError(format!("the part cannot be opened: {e}"))),
            }
        }
        Ok(Served::Gone)
    }

    fn call(&self, _: &RunId, body: &[u8], _: &Control) -> Result<Called, RegistryError> {
        self.exported.called(body)
    }
}
