//! Parts as the controller knows them: what its log says that each holds is compared with what lies here before it is used.

use super::Store;
use crate::work::{Held, told};
use std::path::Path;
use tarn_base::hash::Hash;
use tarn_base::manifest::Manifest;
use tarn_ports::{Control, Mover};
use tarn_proto::local::{Code, Refusal};
use tarn_proto::site::{Part, Proof, Worked};

/// A part, and what the controller says that it holds: the hash of its manifest. An older controller says nothing.
pub(super) struct Published {
    pub(super) part: Part,
    hash: Option<Hash>,
}

impl Published {
    pub(super) fn all(parts: Vec<Part>, hashes: Vec<Hash>) -> Result<Vec<Self>, Refusal> {
        if !hashes.is_empty() && hashes.len() != parts.len() {
            let text = format!("{} parts with {} hashes", parts.len(), hashes.len());
            return Err(Refusal::new(Code::Invalid, text));
        }
        let hashes = hashes.into_iter().map(Some).chain(std::iter::repeat(None));
        let all = parts.into_iter().zip(hashes);
        Ok(all.map(|(part, hash)| Self { part, hash }).collect())
    }
}

/// A part is whole, and not the one that it must be.
pub(super) fn not_it(held: &Held) -> Refusal {
    let text = format!("`{}` is not what was published", held.place());
    Refusal::new(Code::Corrupt, text)
}

impl Store {
    /// A part that is to be what was published. An older one of the same name that was put back whole, with the key that it had, is as valid
    /// as that by itself.
    pub(super) fn published_at(
        &self,
        root: &Path,
        Published { part, hash }: &Published,
    ) -> Result<(Held, Manifest, Proof), Refusal> {
        let (held, manifest, proof) = self.manifest_at(root, part)?;
        match hash {
            Some(hash) if *hash != proof.hash => Err(not_it(&held)),
            _ => Ok((held, manifest, proof)),
        }
    }

    /// Reads a part again. What it is goes back: an older one that was put back is whole, too.
    pub(super) fn check(
        &self,
        (part, root): (&Part, &Path),
        control: &Control,
    ) -> Result<Worked, Refusal> {
        let (held, manifest, proof) = self.manifest_at(root, part)?;
        let tree = held.path_of(&[held.name(), b"/tree"].concat());
        let same = self.mover.verify(&tree, &manifest, control);
        same.map_err(|e| told(&e, &[&held]))?;
        Ok(Worked::Proven { proof, moved: 0 })
    }
}
