//! Parts of encrypted datasets: sealed on the tier with their keys beside them, in clear in a job's memory. docs/internals/site.md, "Encryption
//! between jobs". A part's manifest is of its files as stored; its key is bound to that, so both are the published ones, or nothing.

use super::super::keys::WrappingKeys;
use super::{
    MADE, MAX_BESIDE, Published, UserStore, copying, hidden, read_small, to_request_error, write,
};
use crate::work::ConfinedPath;
use std::sync::{Arc, PoisonError, RwLockReadGuard};
use tarn_munge::SecretBytes;
use tarn_ports::{Control, CopyJob, CopySource, Mover};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{Owner, Part, Proof, SlurmJobId};
use tarn_seal::SealError;
use tarn_seal::wrap::{WRAPPED, WrappedKeyOwner as Whose, WrappingKey, wrapped_by};
use tarn_sys::private::wipe;
use tarn_types::hash::Hash;
use tarn_types::key::{DataKey, KeyId};
use tarn_types::manifest::Manifest;

/// Beside the tree of a sealed part: its key, wrapped.
pub(super) const KEY: &str = "key";

/// A folder of a job, in the store or in its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobFolderKind {
    /// The data that it writes.
    Written,
    /// The data that it reads.
    Read,
    /// Its partitions.
    Exported,
}

impl JobFolderKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Written => "w",
            Self::Read => "v",
            Self::Exported => "p",
        }
    }
}

/// The context that a wrapped key is bound to: a part, and the hash of its manifest.
struct Bound {
    /// The owner's number; the keys that wrap it tell users' from projects'.
    uid: u32,
    dataset: String,
    version: String,
}

impl Bound {
    fn to(part: &Part, manifest: Hash) -> Self {
        let (Owner::User(uid) | Owner::Project(uid)) = part.owner;
        Self {
            uid,
            dataset: format!("{}/{}", part.workflow, part.dataset),
            version: format!("{}.{} {manifest}", part.version, part.part),
        }
    }

    fn whose(&self) -> Whose<'_> {
        Whose {
            uid: self.uid,
            dataset: &self.dataset,
            version: &self.version,
        }
    }
}

fn random() -> Result<[u8; 32], RequestError> {
    let secret = SecretBytes::random().map_err(|e| {
        let text = format!("no random bytes for a key: {e}");
        RequestError::new(Code::Internal, text)
    })?;
    Ok(*secret.bytes())
}

fn first<const N: usize>(bytes: [u8; 32]) -> [u8; N] {
    let mut some = [0; N];
    some.copy_from_slice(&bytes[..N]);
    some
}

/// A key for a part that is being made.
pub(super) fn new_key() -> Result<Arc<DataKey>, RequestError> {
    let id = KeyId(first(random()?));
    Ok(Arc::new(DataKey::new(id, random()?.into())))
}

/// Writes a part's key beside its tree, wrapped.
pub(super) fn keep_key(
    (held, whole): (&ConfinedPath, &[u8]),
    (part, proof): (&Part, &Proof),
    (key, keys): (&DataKey, &WrappingKeys),
) -> Result<(), RequestError> {
    write(held, whole, KEY, &wrap((part, proof), (key, keys))?)
}

fn wrap(
    (part, proof): (&Part, &Proof),
    (key, keys): (&DataKey, &WrappingKeys),
) -> Result<[u8; WRAPPED], RequestError> {
    let bound = Bound::to(part, proof.hash);
    let Some(newest) = of(keys, part)?.first() else {
        let text = "the controller keeps no secrets for encrypted data: update it";
        return Err(RequestError::new(Code::Unsupported, text));
    };
    let wrapped = newest.wrap(key, bound.whose(), first(random()?));
    wrapped.map_err(|e| RequestError::new(Code::Internal, e.to_string()))
}

/// A part's key.
pub(super) fn unwrapped(
    keys: &WrappingKeys,
    (part, proof): (&Part, &Proof),
    wrapped: &[u8],
) -> Result<Arc<DataKey>, RequestError> {
    let bound = Bound::to(part, proof.hash);
    let keys = of(keys, part)?;
    let by = wrapped_by(wrapped).and_then(|id| {
        let found = keys.iter().find(|key| key.id() == id);
        found.ok_or(SealError::OtherKey)
    });
    let key = by.and_then(|by| by.unwrap(wrapped, bound.whose()));
    key.map(Arc::new).map_err(|e| {
        let text = match e {
            SealError::OtherKey => format!(
                "{part} cannot be opened: its key is wrapped with a secret that the site has forgotten"
            ),
            e => format!("{part} cannot be opened: {e}"),
        };
        RequestError::new(Code::Corrupt, text)
    })
}

/// Those that wrap the keys of a part.
fn of<'a>(keys: &'a WrappingKeys, part: &Part) -> Result<&'a [WrappingKey], RequestError> {
    let keys = keys.get(&part.owner).map(Vec::as_slice);
    keys.ok_or_else(|| {
        let text = format!("{part} is of {}, of whom this worker has no keys: its user became a member after it began; try again in a minute", part.owner);
        RequestError::new(Code::Denied, text)
    })
}

fn open_to_write(path: &std::path::Path) -> std::io::Result<std::fs::File> {
    use rustix::fs::OFlags;
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, rustix::fs::Mode::empty())?.into())
}

impl UserStore {
    /// The keys that wrap those of data are these from now on. Parts that are given their names now have them before.
    pub(crate) fn rekey(&self, keys: WrappingKeys) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    pub(super) fn keys(&self) -> RwLockReadGuard<'_, WrappingKeys> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key of a part that is here; `None` if it is stored in the clear.
    pub(super) fn key_of(
        &self,
        held: &ConfinedPath,
        about: (&Part, &Proof),
    ) -> Result<Option<Arc<DataKey>>, RequestError> {
        let wrapped = self.wrapped_of(held)?;
        let key = wrapped.map(|wrapped| unwrapped(&self.keys(), about, &wrapped));
        key.transpose()
    }

    pub(super) fn wrapped_of(&self, held: &ConfinedPath) -> Result<Option<Vec<u8>>, RequestError> {
        let path = held.path_of(&[held.name(), b"/", KEY.as_bytes()].concat());
        match read_small(&path, MAX_BESIDE) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => {
                let text = format!("the key of `{}` cannot be read: {e}", held.place());
                Err(RequestError::new(Code::Corrupt, text))
            }
        }
    }

    /// Whether another secret than the newest wraps a part's key.
    pub(super) fn is_behind(&self, held: &ConfinedPath, part: &Part) -> Result<bool, RequestError> {
        let Some(wrapped) = self.wrapped_of(held)? else {
            return Ok(false);
        };
        let newest = of(&self.keys(), part)?.first().map(WrappingKey::id);
        Ok(wrapped_by(&wrapped).ok() != newest)
    }

    /// Refuses a sealed part whose key does not open, as damaged if the secret is known that wraps it.
    pub(super) fn check_key(
        &self,
        held: &ConfinedPath,
        about: (&Part, &Proof),
    ) -> Result<(), RequestError> {
        let Some(wrapped) = self.wrapped_of(held)? else {
            return Ok(());
        };
        let keys = self.keys();
        let Err(why) = unwrapped(&keys, about, &wrapped) else {
            return Ok(());
        };
        let by = wrapped_by(&wrapped).ok();
        let is_known = of(&keys, about.0)?.iter().any(|key| Some(key.id()) == by);
        match is_known {
            true => Err(why),
            false => Err(RequestError::new(Code::Io, why.text)),
        }
    }

    /// Wraps a part's key with the newest secret, if another one wraps it. An error: it cannot be opened.
    pub(super) fn wrap_anew(
        &self,
        held: &ConfinedPath,
        about: (&Part, &Proof),
    ) -> Result<(), RequestError> {
        let Some(wrapped) = self.wrapped_of(held)? else {
            return Ok(());
        };
        let keys = self.keys();
        let key = unwrapped(&keys, about, &wrapped)?;
        if !self.is_behind(held, about.0)? {
            return Ok(());
        }
        let name = |what: &str| [held.name(), b"/", what.as_bytes()].concat();
        let fresh = format!("{KEY}.new");
        write(held, held.name(), &fresh, &wrap(about, (&key, &keys))?)?;
        let folder = held.folder();
        let old = open_to_write(&held.path_of(&name(KEY)));
        let renamed = rustix::fs::renameat(folder, name(&fresh), folder, name(KEY));
        renamed.map_err(|e| held.failed("wrap the key of", e))?;
        // Before the old one is overwritten.
        held.sync_inside(held.name())?;
        if let Err(e) = old.and_then(wipe) {
            tracing::warn!("the old key of `{}` is not overwritten: {e}", held.place());
        }
        Ok(())
    }

    /// Overwrites a part's key, without which the rest of it is noise; and the key that was to take its place.
    pub(super) fn forget_key(&self, held: &ConfinedPath) {
        for name in [KEY.to_owned(), format!("{KEY}.new")] {
            let path = held.path_of(&[held.name(), b"/", name.as_bytes()].concat());
            match open_to_write(&path).and_then(wipe) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    tracing::warn!("the key of `{}` is not overwritten: {e}", held.place());
                }
                _ => {}
            }
        }
    }

    /// Parts that are here, as sources of a copy in clear. Those that are sealed are compared with their manifests before.
    pub(super) fn opened(
        &self,
        parts: &[Published],
        control: &Control,
    ) -> Result<(Vec<CopySource>, Vec<ConfinedPath>), RequestError> {
        let mut sources = Vec::new();
        let mut all = Vec::new();
        for published in parts {
            let part = &published.part;
            let (held, manifest, proof) = self.published_at(self.where_is(part), published)?;
            sources.push(self.open_one(&held, (part, &proof), manifest, control)?);
            all.push(held);
        }
        Ok((sources, all))
    }

    /// A part that is here, as the source of a copy.
    pub(super) fn open_one(
        &self,
        held: &ConfinedPath,
        about: (&Part, &Proof),
        manifest: Manifest,
        control: &Control,
    ) -> Result<CopySource, RequestError> {
        let root = held.path_of(&[held.name(), b"/tree"].concat());
        let sealed = self.key_of(held, about)?;
        if sealed.is_some() {
            let same = self.mover.verify(&root, &manifest, control);
            same.map_err(|e| to_request_error(&e, &[held]))?;
        }
        Ok(CopySource {
            // A sealed part's is of its files as stored.
            manifest: Some(manifest).filter(|_| sealed.is_none()),
            sealed,
            ..CopySource::of(root)
        })
    }

    /// Makes a folder in a job's memory, of these parts.
    pub(super) fn open_into(
        &self,
        held: &ConfinedPath,
        parts: &[Published],
        control: &Control,
    ) -> Result<(), RequestError> {
        let (sources, all) = self.opened(parts, control)?;
        // Data opened into memory was sealed: without its key nobody knows what it is.
        if let Some((_, one)) = sources.iter().zip(parts).find(|(s, _)| s.sealed.is_none()) {
            let text = format!("the key of {} is gone: it cannot be opened", one.part);
            return Err(RequestError::new(Code::Corrupt, text));
        }
        let staging = held.path_of(&hidden(held.name(), "staging"));
        let job = CopyJob {
            sync: false,
            ..copying(sources, held.path(), staging)
        };
        let mut known: Vec<&ConfinedPath> = all.iter().collect();
        known.push(held);
        let copied = self.mover.copy(&job, control);
        copied.map(drop).map_err(|e| to_request_error(&e, &known))
    }

    /// The folder that a job writes in its memory, of which a part is made.
    pub(super) fn written_in_memory(
        &self,
        job: SlurmJobId,
        part: &Part,
    ) -> Result<ConfinedPath, RequestError> {
        self.of_job(job, JobFolderKind::Written, &part.dataset, (None, false))
    }

    /// Whether that is still there.
    pub(super) fn is_in_memory(&self, job: SlurmJobId, part: &Part) -> Result<bool, RequestError> {
        match self.written_in_memory(job, part) {
            Err(why) if why.code == Code::NotFound => Ok(false),
            held => Ok(held?.stat()?.is_some()),
        }
    }

    /// Makes a part of a job's output in its memory. The folder is gone then.
    pub(super) fn publish_sealed(
        &self,
        from: &ConfinedPath,
        (held, part): (&ConfinedPath, &Part),
        control: &Control,
    ) -> Result<Proof, RequestError> {
        let whole = hidden(held.name(), MADE);
        self.begin(held, &whole)?;
        let key = new_key()?;
        let dest = held.path_of(&[&whole, &b"/tree"[..]].concat());
        let staging = held.path_of(&[&whole, &b"/staging"[..]].concat());
        let job = CopyJob {
            seal: Some(Arc::clone(&key)),
            ..copying(vec![CopySource::of(from.path())], dest, staging)
        };
        let copied = self.mover.copy(&job, control);
        copied.map_err(|e| to_request_error(&e, &[from, held]))?;
        self.share_made(held, &job.dest, part, control)?;
        let manifest = self.stored_manifest(held, &job.dest, control)?;
        let proof = self.label(held, &whole, &manifest, (None, None))?;
        let keys = self.keys();
        keep_key((held, &whole), (part, &proof), (&key, &keys))?;
        self.publish_as(held, &whole)?;
        drop(keys);
        self.mover
            .remove(&from.path())
            .map_err(|e| to_request_error(&e, &[from]))?;
        Ok(Proof {
            sealed: true,
            ..proof
        })
    }
}
