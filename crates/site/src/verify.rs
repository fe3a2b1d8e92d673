//! `tarn data verify`: the nodes read what they have of a dataset again. docs/site.md, "Data that outlives jobs".

use crate::MAX_VERIFIED;
use crate::asked::Asker;
use crate::event::Token;
use crate::state::{Site, VersionId, Why};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use tarn_proto::local::{Code, Refusal};
use tarn_proto::site::{Owner, Part, Proof, ReplicaInfo, ReplicaState, Said, Uid, Work};

/// What a user waits for. One at a time of each, so that nobody fills the queues of nodes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Verifying {
    pub(crate) token: Token,
    /// Replicas that nothing was heard of yet.
    left: usize,
    found: Vec<ReplicaInfo>,
}

impl Site {
    /// Has all replicas of a dataset, or of one version, read again. Who asks is answered when the last node has reported.
    pub(crate) fn verify(
        &mut self,
        token: Token,
        asker: &Asker<'_>,
        (owner, workflow, dataset): (Owner, &str, &str),
        version: Option<u32>,
    ) -> Result<(), Refusal> {
        asker.may_change(owner)?;
        if self.verifying.contains_key(&asker.user) {
            let text = "data of yours is being read again already: ask again when that has ended";
            return Err(Refusal::new(Code::Busy, text));
        }
        let parts = self.known_parts(owner, workflow, dataset, version)?;
        let mut found = Vec::new();
        let mut wanted = Vec::new();
        for (node, place, part, proof) in self.replicas(&parts) {
            let is_up = self.is_up(node);
            let (state, why) = match is_up {
                true => (ReplicaState::Whole, String::new()),
                false => (ReplicaState::Unread, "the node does not answer".to_owned()),
            };
            if is_up {
                let place = (node.to_owned(), place.to_owned());
                wanted.push((found.len(), place, part.clone(), proof.clone()));
            }
            found.push(ReplicaInfo {
                node: node.to_owned(),
                store: place.to_owned(),
                version: part.version,
                part: part.part,
                bytes: proof.bytes,
                state,
                why,
            });
        }
        if found.len() > MAX_VERIFIED {
            let text = format!(
                "`{dataset}` has more than {MAX_VERIFIED} replicas: name a version (`--number`)"
            );
            return Err(Refusal::new(Code::Invalid, text));
        }
        if wanted.is_empty() {
            self.answer_to(token, Said::Replicas(found));
            return Ok(());
        }
        let verifying = Verifying {
            token,
            left: wanted.len(),
            found,
        };
        self.verifying.insert(asker.user, verifying);
        for (at, (node, store), part, proof) in wanted {
            let rights = Self::worker_of(part.owner);
            let work = Self::check_in(&part, &store);
            let why = Why::Verify(asker.user, at, proof);
            self.work_in((&node, &store), why, (rights, rights), work);
        }
        Ok(())
    }

    /// The work that reads a part again where it is stored.
    pub(crate) fn check_in(part: &Part, store: &str) -> Work {
        match store {
            "" => Work::Check(part.clone()),
            store => Work::CheckIn(part.clone(), store.to_owned()),
        }
    }

    /// The parts that are known of a dataset, or of one version.
    fn known_parts(
        &self,
        owner: Owner,
        workflow: &str,
        dataset: &str,
        version: Option<u32>,
    ) -> Result<Vec<(Part, Proof)>, Refusal> {
        let mut id = VersionId {
            owner,
            workflow: workflow.to_owned(),
            dataset: dataset.to_owned(),
            version: 0,
        };
        let found = self.dataset(&id);
        let versions = found.into_iter().flat_map(|d| &d.versions);
        let versions = versions.filter(|(number, _)| version.is_none_or(|v| v == **number));
        let mut parts = Vec::new();
        let mut is_there = false;
        for (number, version) in versions {
            is_there = true;
            id.version = *number;
            let all = version.parts.iter();
            parts.extend(all.map(|(part, proof)| (id.part(*part), proof.clone())));
        }
        match is_there {
            true => Ok(parts),
            false => {
                let text = format!("nothing of `{dataset}` is known so (`tarn data ls --site`)");
                Err(Refusal::new(Code::NotFound, text))
            }
        }
    }

    /// Where these parts are stored: node and store.
    fn replicas<'a>(
        &'a self,
        parts: &'a [(Part, Proof)],
    ) -> impl Iterator<Item = (&'a str, &'a str, &'a Part, &'a Proof)> {
        let lone = || BTreeSet::from([""]);
        parts.iter().flat_map(move |(part, proof)| {
            let nodes = self.nodes.iter();
            let have = nodes.filter(|(_, node)| node.parts.contains_key(part));
            have.flat_map(move |(name, node)| {
                let places = node.places.get(part);
                let places = places.map_or_else(lone, |p| p.iter().map(String::as_str).collect());
                let place = move |place| (name.as_str(), place, part, proof);
                places.into_iter().map(place)
            })
        })
    }

    /// A node has read a replica again, or could not.
    pub(crate) fn verified(
        &mut self,
        (user, at, known): (Uid, usize, &Proof),
        what: Result<Option<Proof>, &Refusal>,
    ) {
        let Some(verifying) = self.verifying.get_mut(&user) else {
            return;
        };
        let (state, why) = match what {
            // An older node says that it is whole, not what it is.
            Ok(None) => (ReplicaState::Whole, String::new()),
            Ok(Some(found)) if found == *known => (ReplicaState::Whole, String::new()),
            Ok(Some(_)) => {
                let why = "it is whole, but not what was published: an older one was put back";
                (ReplicaState::Damaged, why.to_owned())
            }
            // Published files can be read by whose they are, and have no links out.
            Err(why) if has_read(why.code) || why.code == Code::Denied => {
                (ReplicaState::Damaged, why.text.clone())
            }
            Err(why) => (ReplicaState::Unread, why.text.clone()),
        };
        if let Some(info) = verifying.found.get_mut(at) {
            (info.state, info.why) = (state, why);
        }
        verifying.left = verifying.left.saturating_sub(1);
        if verifying.left == 0
            && let Some(Verifying { token, found, .. }) = self.verifying.remove(&user)
        {
            self.answer_to(token, Said::Replicas(found));
        }
    }
}

/// Whether a refusal tells of the data, and not of a node or medium that did not say.
pub(crate) fn has_read(code: Code) -> bool {
    use Code::{Changed, Corrupt, Exists, Invalid, NotFound};
    matches!(code, Changed | Corrupt | Exists | Invalid | NotFound)
}
