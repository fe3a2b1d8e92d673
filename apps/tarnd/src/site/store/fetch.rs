//! Parts that come from outside or from another node.

use super::{UserStore, copying, hidden, sealed};
use crate::work::{ConfinedPath, to_request_error};
use tarn_ports::{Control, CopyJob, CopySource, Mover};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{Origin, Owner, Part, Proof, WorkResult};

use tarn_types::hash::Hash;
use tarn_types::key::DataKey;

/// The data that is fetched, and its origin.
struct FetchSource {
    copied: CopySource,
    /// The name of a single file.
    file: Option<String>,
    /// The fingerprint of the source outside when it was read.
    origin: Option<Hash>,
    /// Its key, as another node has it.
    wrapped: Option<Vec<u8>>,
}

impl UserStore {
    pub(super) fn fetch(
        &self,
        (part, store): (&Part, &str),
        from: &Origin,
        (proof, seal): (Option<&Proof>, bool),
        control: &Control,
    ) -> Result<WorkResult, RequestError> {
        let root = match store {
            "" => self.where_is(part),
            store => self.root_of(store)?,
        };
        let held = self.part(root, part, true)?;
        if held.stat()?.is_some() {
            if let Some(there) = self.reusable(&held, (proof, seal)) {
                if let Origin::Outside(path) = from {
                    self.check_source((path, part.owner), &there, control)?;
                }
                return Ok(WorkResult::Proven {
                    proof: there,
                    moved: 0,
                });
            }
            self.discard(&held)?;
        }
        // A project's other members have half-done parts of their own.
        let whole = match part.owner {
            Owner::User(_) => hidden(held.name(), "whole"),
            Owner::Project(_) => hidden(held.name(), &format!("{}.whole", self.user)),
        };
        self.begin(&held, &whole)?;
        let source = self.fetch_source(part, from, proof, control)?;
        let (file, origin) = (source.file, source.origin);
        let key = match from {
            Origin::Outside(_) if seal => Some(sealed::new_key()?),
            _ => None,
        };
        let dest = held.path_of(&[&whole, &b"/tree"[..]].concat());
        let staging = held.path_of(&[&whole, &b"/staging"[..]].concat());
        let job = CopyJob {
            seal: key.clone(),
            ..copying(vec![source.copied], dest, staging)
        };
        let report = match from {
            Origin::Outside(path) => {
                let (mover, limiter) = (self.outside_mover(path)?, self.outside.clone());
                mover.copy_limited(&job, control, limiter)
            }
            Origin::Peer(_) => self.mover.copy_limited(&job, control, self.between.clone()),
        };
        let mut report = report.map_err(|e| to_request_error(&e, &[&held]))?;
        let mut manifest = report.manifests.pop().unwrap_or_default();
        if let (Owner::Project(gid), Origin::Outside(_)) = (part.owner, from) {
            self.share(&held, &job.dest, gid, &mut manifest)?;
        }
        if key.is_some() {
            manifest = self.stored_manifest(&held, &job.dest, control)?;
        }
        let label = self.label(&held, &whole, &manifest, (file, origin))?;
        let key = (key.as_deref(), source.wrapped.as_deref());
        let there = self.finish_fetch((&held, &whole), (part, label, proof), key)?;
        Ok(WorkResult::Proven {
            proof: there,
            moved: report.bytes,
        })
    }

    /// The proof of a part that is there already, if it is the one to be fetched.
    fn reusable(
        &self,
        held: &ConfinedPath,
        (proof, seal): (Option<&Proof>, bool),
    ) -> Option<Proof> {
        let (_, there) = self.manifest_in(held, held.name()).ok()?;
        let is_same = proof.is_none_or(|proof| *proof == there);
        // A part that an earlier order left in clear, which nobody knew of, is not the one to be sealed. Nor is a sealed part taken
        // for the source as long as nobody knows of it: its key is of the part, not of the data outside, and may be an older one's.
        let fits = !seal || there.sealed && proof.is_some();
        (is_same && fits).then_some(there)
    }

    fn fetch_source(
        &self,
        part: &Part,
        from: &Origin,
        proof: Option<&Proof>,
        control: &Control,
    ) -> Result<FetchSource, RequestError> {
        match from {
            Origin::Outside(path) => {
                let found = self.source(path, part.owner, control)?;
                Ok(FetchSource {
                    copied: found.copied,
                    file: found.file,
                    // As it was before it was read: a change meanwhile makes another content the next time.
                    origin: Some(found.print),
                    wrapped: None,
                })
            }
            Origin::Peer(peer) => {
                let Some(proof) = proof else {
                    let text = "data from another node must be known before";
                    return Err(RequestError::new(Code::Invalid, text));
                };
                let wrapped = match proof.sealed {
                    true => Some(self.key_from(part, peer, control)?),
                    false => None,
                };
                Ok(FetchSource {
                    copied: self.remote(part, peer, proof, control)?,
                    file: proof.file.clone(),
                    origin: proof.origin,
                    wrapped,
                })
            }
        }
    }

    /// Keeps the key of the fetched part, checks it, and gives it its name.
    fn finish_fetch(
        &self,
        (held, whole): (&ConfinedPath, &[u8]),
        (part, mut there, proof): (&Part, Proof, Option<&Proof>),
        (own, wrapped): (Option<&DataKey>, Option<&[u8]>),
    ) -> Result<Proof, RequestError> {
        // Until it has its name: a work that wraps all keys again comes before, or finds it.
        let keys = self.keys();
        let unwrapped = wrapped
            .map(|wrapped| sealed::unwrapped(&keys, (part, &there), wrapped))
            .transpose()?;
        let key = unwrapped.as_deref().or(own);
        if let Some(key) = key {
            sealed::keep_key((held, whole), (part, &there), (key, &keys))?;
        }
        there.sealed = key.is_some();
        if let Some(proof) = proof
            && *proof != there
        {
            self.mover
                .remove(&held.path_of(whole))
                .map_err(|e| to_request_error(&e, &[held]))?;
            let text = format!("the received data of {part} differs from the published data");
            return Err(RequestError::new(Code::Corrupt, text));
        }
        self.publish_as(held, whole)?;
        Ok(there)
    }
}
