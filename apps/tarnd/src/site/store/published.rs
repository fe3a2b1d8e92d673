//! Parts as the controller knows them: the content in its log is compared with the stored one before use.

use super::sealed::JobFolderKind;
use super::{MADE, UserStore, hidden};
use crate::work::{ConfinedPath, to_request_error};
use std::path::Path;
use tarn_ports::{Control, Mover};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{Part, Proof, Slice, SlurmJobId, WorkResult};
use tarn_types::hash::Hash;
use tarn_types::manifest::Manifest;

/// A part, and the hash of its manifest from the controller. An older controller sends none.
pub(super) struct Published {
    pub(super) part: Part,
    hash: Option<Hash>,
}

impl Published {
    pub(super) fn all(parts: Vec<Part>, hashes: Vec<Hash>) -> Result<Vec<Self>, RequestError> {
        if !hashes.is_empty() && hashes.len() != parts.len() {
            let text = format!("{} parts with {} hashes", parts.len(), hashes.len());
            return Err(RequestError::new(Code::Invalid, text));
        }
        let hashes = hashes.into_iter().map(Some).chain(std::iter::repeat(None));
        let all = parts.into_iter().zip(hashes);
        Ok(all.map(|(part, hash)| Self { part, hash }).collect())
    }
}

/// A part is whole, and not the one that it must be.
pub(super) fn not_it(held: &ConfinedPath) -> RequestError {
    let text = format!("`{}` is not what was published", held.place());
    RequestError::new(Code::Corrupt, text)
}

impl UserStore {
    /// Makes a part of a job's output; again, after any failure.
    pub(super) fn publish(
        &self,
        job: SlurmJobId,
        (part, store): (&Part, &str),
        slice: Option<&Slice>,
        sealed: bool,
        control: &Control,
    ) -> Result<WorkResult, RequestError> {
        let root = match store {
            // The store may have got its name since, and others beside it.
            "" => self.where_written(job, &part.dataset),
            store => self.root_of(store)?,
        };
        let held = self.part(root, part, true)?;
        if held.stat()?.is_some() {
            let found = self.manifest_in(&held, held.name());
            // It was made of a folder that is gone then. While that is there, it is something else: output of an earlier run of the
            // job, which nobody knew of, or an older part that was put here.
            let is_left = match sealed {
                true => self.is_in_memory(job, part)?,
                false => self.is_written(job, (part, root))?,
            };
            if !is_left {
                let (_, proof) = found?;
                return Ok(WorkResult::Proven { proof, moved: 0 });
            }
            self.discard(&held)?;
        }
        if sealed {
            let from = self.written_in_memory(job, part)?;
            if from.stat()?.is_none() {
                return Err(from.missing());
            }
            self.cut(&from, slice, control)?;
            let proof = self.publish_sealed(&from, (&held, part), control)?;
            return Ok(WorkResult::Proven { proof, moved: 0 });
        }
        let from = self.of_job(
            job,
            JobFolderKind::Written,
            &part.dataset,
            (Some(root), false),
        )?;
        let whole = hidden(held.name(), MADE);
        // A try before this one may have moved the tree already.
        let tree = [&whole[..], b"/tree"].concat();
        let is_moved = from.stat()?.is_none() && held.stat_of(&tree)?.is_some();
        if !is_moved {
            if from.stat()?.is_none() {
                return Err(from.missing());
            }
            self.begin(&held, &whole)?;
            self.cut(&from, slice, control)?;
            let to = held.path_of(&tree);
            std::fs::rename(from.path(), to).map_err(|e| {
                let errno = rustix::io::Errno::from_io_error(&e);
                held.failed("make", errno.unwrap_or(rustix::io::Errno::IO))
            })?;
        }
        self.share_made(&held, &held.path_of(&tree), part, control)?;
        let manifest = self.stored_manifest(&held, &held.path_of(&tree), control)?;
        let proof = self.label(&held, &whole, &manifest, (None, None))?;
        rustix::fs::syncfs(held.folder()).map_err(|e| held.failed("sync", e))?;
        self.publish_as(&held, &whole)?;
        Ok(WorkResult::Proven { proof, moved: 0 })
    }

    /// Whether a job's output in a store is still there.
    fn is_written(
        &self,
        job: SlurmJobId,
        (part, root): (&Part, &Path),
    ) -> Result<bool, RequestError> {
        match self.of_job(
            job,
            JobFolderKind::Written,
            &part.dataset,
            (Some(root), false),
        ) {
            Err(why) if why.code == Code::NotFound => Ok(false),
            held => Ok(held?.stat()?.is_some()),
        }
    }

    /// A part that must be the published one. An older one of the same name that was put back whole, with the key that it had, is as valid
    /// as that by itself.
    pub(super) fn published_at(
        &self,
        root: &Path,
        Published { part, hash }: &Published,
    ) -> Result<(ConfinedPath, Manifest, Proof), RequestError> {
        let (held, manifest, proof) = self.manifest_at(root, part)?;
        match hash {
            Some(hash) if *hash != proof.hash => Err(not_it(&held)),
            _ => Ok((held, manifest, proof)),
        }
    }

    /// Reads a part again, and returns its proof: an older one that was put back is whole, too.
    pub(super) fn check(
        &self,
        (part, root): (&Part, &Path),
        control: &Control,
    ) -> Result<WorkResult, RequestError> {
        let (held, manifest, proof) = self.manifest_at(root, part)?;
        let tree = held.path_of(&[held.name(), b"/tree"].concat());
        let same = self.mover.verify(&tree, &manifest, control);
        same.map_err(|e| to_request_error(&e, &[&held]))?;
        self.check_key(&held, (part, &proof))?;
        Ok(WorkResult::Proven { proof, moved: 0 })
    }
}
