//! A part goes from one store of a node to another: by a rename where both are of one file system, else by a copy that was read back. It
//! goes from where it was only then, so that it is whole somewhere whenever this is interrupted. docs/internals/site.md, "Moves between stores".

use super::{UserStore, copying, hidden, not_it, sealed, to_request_error};
use crate::work::ConfinedPath;
use tarn_ports::{Control, CopyJob, CopySource, Mover};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{Part, Proof, WorkResult};
use tarn_types::manifest::Manifest;
use tarn_types::part::Verify;

impl UserStore {
    pub(super) fn bring(
        &self,
        part: &Part,
        (from, to): (&str, &str),
        (proof, keep): (&Proof, bool),
        control: &Control,
    ) -> Result<WorkResult, RequestError> {
        let (from, to) = (self.root_of(from)?, self.root_of(to)?);
        if from == to {
            let text = "it goes from a store to the same one";
            return Err(RequestError::new(Code::Invalid, text));
        }
        let source = match self.part(from, part, false) {
            Err(why) if why.code == Code::NotFound => None,
            held => Some(held?),
        };
        let is_there = |held: &ConfinedPath| held.stat().map(|about| about.is_some());
        let source = match source {
            Some(held) if is_there(&held)? => Some(held),
            _ => None,
        };
        let dest = self.part(to, part, true)?;
        let mut moved = 0;
        let is_done = is_there(&dest)? && self.is_whole(&dest, proof, source.is_some(), control)?;
        match &source {
            // The process that has given it its name may have been killed before that was durable.
            _ if is_done => dest.sync()?,
            Some(source) => moved = self.carry((source, &dest), (part, proof), keep, control)?,
            None => {
                let missing = dest.missing();
                self.prune(to, part);
                return Err(missing);
            }
        }
        if let Some(source) = source.filter(|_| !keep) {
            // It is whole where it is now. After a rename there is nothing here any more.
            if is_there(&source)?
                && let Err(why) = self.discard(&source)
            {
                tracing::warn!("{part} stays in {} too: {why}", from.display());
            }
            self.prune(from, part);
        }
        let proof = proof.clone();
        Ok(WorkResult::Proven { proof, moved })
    }

    /// Whether a part is there, as an interrupted move has left it. A wrong one whose source is there is removed.
    fn is_whole(
        &self,
        held: &ConfinedPath,
        proof: &Proof,
        has_source: bool,
        control: &Control,
    ) -> Result<bool, RequestError> {
        let found = self.manifest_in(held, held.name());
        let same = match found {
            Ok((manifest, there)) if there == *proof => {
                let tree = held.path_of(&[held.name(), b"/tree"].concat());
                let same = self.mover.verify(&tree, &manifest, control);
                same.map_err(|e| to_request_error(&e, &[held]))
            }
            Ok(_) => Err(not_it(held)),
            Err(why) => Err(why),
        };
        match same {
            Ok(()) => Ok(true),
            Err(why) if why.code == Code::Cancelled || !has_source => Err(why),
            Err(_) => self.discard(held).map(|()| false),
        }
    }

    /// Brings a whole part to where there is none. How many bytes were copied for it.
    fn carry(
        &self,
        (source, dest): (&ConfinedPath, &ConfinedPath),
        about: (&Part, &Proof),
        keep: bool,
        control: &Control,
    ) -> Result<u64, RequestError> {
        let (manifest, there) = self.manifest_in(source, source.name())?;
        if there != *about.1 {
            return Err(not_it(source));
        }
        if !keep && source.rename(source.name(), dest, false)? {
            dest.sync()?;
            source.sync()?;
            return Ok(0);
        }
        let whole = hidden(dest.name(), &format!("{}.moved", self.user));
        let copied = self.copy_over((source, dest), &whole, about, &manifest, control);
        if copied.is_err() {
            // A failed copy must not take space from others.
            let _ = self.clear(dest, &whole);
        }
        copied
    }

    fn copy_over(
        &self,
        (source, dest): (&ConfinedPath, &ConfinedPath),
        whole: &[u8],
        (part, proof): (&Part, &Proof),
        manifest: &Manifest,
        control: &Control,
    ) -> Result<u64, RequestError> {
        self.begin(dest, whole)?;
        let inside = |name: &str| dest.path_of(&[whole, b"/", name.as_bytes()].concat());
        let tree = source.path_of(&[source.name(), b"/tree"].concat());
        // Sealed data is copied as it is stored.
        let tree = CopySource {
            manifest: Some(manifest.clone()),
            ..CopySource::of(tree)
        };
        let job = CopyJob {
            verify: Verify::Readback,
            ..copying(vec![tree], inside("tree"), inside("staging"))
        };
        let report = self.mover.copy_limited(&job, control, self.within.clone());
        let report = report.map_err(|e| to_request_error(&e, &[source, dest]))?;
        let beside = (proof.file.clone(), proof.origin);
        let mut there = self.label(dest, whole, manifest, beside)?;
        // As long as it has no name here, a work that wraps all keys again does not find it.
        let keys = self.keys();
        if let Some(wrapped) = self.wrapped_of(source)? {
            let key = sealed::unwrapped(&keys, (part, &there), &wrapped)?;
            sealed::keep_key((dest, whole), (part, &there), (&key, &keys))?;
            there.sealed = true;
        }
        if there != *proof {
            return Err(not_it(source));
        }
        self.publish_as(dest, whole)?;
        Ok(report.bytes)
    }
}
