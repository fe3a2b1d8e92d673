//! `tarn data verify`: the nodes read their replicas of a dataset again. docs/guide/on-a-site.md, "Data that outlives
//! jobs".

use crate::MAX_VERIFIED;
use crate::event::Token;
use crate::model::catalog::VersionKey;
use crate::model::node::SiteNode;
use crate::model::orders::OrderPurpose;
use crate::model::requester::Requester;
use crate::model::verification::Verifying;
use crate::state::Site;
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{ControllerReply, Owner, Part, Proof, ReplicaInfo, ReplicaState, Work};

impl Site {
    /// Has all replicas of a dataset, or of one version, read again. The reply goes out when the last node has
    /// reported.
    pub(crate) fn verify(
        &mut self,
        token: Token,
        requester: &Requester<'_>,
        (owner, workflow, dataset): (Owner, &str, &str),
        version: Option<u32>,
    ) -> Result<(), RequestError> {
        requester.may_change(owner)?;
        let user = requester.user;
        let is_asking = self.verifying.values().any(|v| v.user == user);
        if is_asking || self.verifying.contains_key(&owner) {
            let whose = match is_asking {
                true => "for you".to_owned(),
                false => format!("of {owner}"),
            };
            let text = format!("data is being read again {whose}: ask again when that has ended");
            return Err(RequestError::new(Code::Busy, text));
        }
        let found = self.replicas((owner, workflow, dataset), version)?;
        let is_whole = |(_, (info, _)): &(usize, &(ReplicaInfo, ExpectedPart))| {
            // So far nothing else is known of it.
            info.state == ReplicaState::Whole
        };
        let wanted = found.iter().enumerate().filter(is_whole);
        let wanted: Vec<_> = wanted
            .map(|(at, (info, (part, proof)))| {
                let place = (info.node.clone(), info.store.clone());
                (at, place, part.clone(), proof.clone())
            })
            .collect();
        let found: Vec<ReplicaInfo> = found.into_iter().map(|(info, _)| info).collect();
        if wanted.is_empty() {
            self.answer_to(token, ControllerReply::Replicas(found));
            return Ok(());
        }
        let verifying = Verifying {
            token,
            user,
            left: wanted.len(),
            found,
        };
        self.verifying.insert(owner, verifying);
        for (at, (node, store), part, proof) in wanted {
            let rights = Self::worker_of(part.owner);
            let work = Self::check_in(&part, &store);
            let why = OrderPurpose::Verify(at, part, proof);
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

    /// The replicas of the parts of a dataset, or of one version, at most so many as are verified at once. Those that
    /// can be read again are reported as whole.
    fn replicas(
        &self,
        (owner, workflow, dataset): (Owner, &str, &str),
        version: Option<u32>,
    ) -> Result<Vec<(ReplicaInfo, ExpectedPart)>, RequestError> {
        let mut id = VersionKey {
            owner,
            workflow: workflow.to_owned(),
            dataset: dataset.to_owned(),
            version: 0,
        };
        let known = self.catalog.dataset(&id);
        let versions = known.into_iter().flat_map(|d| &d.versions);
        let versions = versions.filter(|(number, _)| version.is_none_or(|v| v == **number));
        let mut found = Vec::new();
        let mut is_there = false;
        for (number, version) in versions {
            is_there = true;
            id.version = *number;
            for (number, proof) in &version.parts {
                let part = id.part(*number);
                let before = found.len();
                for (name, node) in &self.nodes {
                    if node.parts.contains_key(&part) {
                        let all = node.replicas(name, &part, proof);
                        found.extend(all.map(|info| (info, (part.clone(), proof.clone()))));
                    }
                }
                // The earlier content of a source is of no use to anybody.
                let is_current = version.source.is_none() || version.content == *number;
                if found.len() == before && is_current {
                    let why = match &version.source {
                        None => "no node has it any more",
                        Some(_) => "no node has it: its source is read when a job needs it",
                    };
                    let state = (ReplicaState::Absent, why);
                    let info = info_of(("", ""), (&part, proof), state);
                    found.push((info, (part, proof.clone())));
                }
                if found.len() > MAX_VERIFIED {
                    let text = format!(
                        "`{dataset}` has more than {MAX_VERIFIED} replicas: name a version (`--number`)"
                    );
                    return Err(RequestError::new(Code::Invalid, text));
                }
            }
        }
        if is_there {
            return Ok(found);
        }
        let text = format!("nothing of `{dataset}` is known so (`tarn data ls --site`)");
        Err(RequestError::new(Code::NotFound, text))
    }

    /// A node has read a replica again, or could not.
    pub(crate) fn verified(
        &mut self,
        (node, store): (&str, &str),
        (at, part, known): (usize, &Part, &Proof),
        what: Result<Option<Proof>, &RequestError>,
    ) {
        let is_placed = self.is_placed((node, store), part);
        let Some(verifying) = self.verifying.get_mut(&part.owner) else {
            return;
        };
        let (state, why) = match what {
            // An older node reports that it is whole, without its hash.
            Ok(None) => (ReplicaState::Whole, String::new()),
            Ok(Some(found)) if found == *known => (ReplicaState::Whole, String::new()),
            Ok(Some(_)) => {
                let why = "it is whole, but not what was published: an older one was put back";
                (ReplicaState::Damaged, why.to_owned())
            }
            Err(_) if !is_placed => {
                let why = "it was moved or removed meanwhile, or its store is away";
                (ReplicaState::Unread, why.to_owned())
            }
            Err(why) if has_read(why.code) => (ReplicaState::Damaged, why.text.clone()),
            Err(why) => (ReplicaState::Unread, why.text.clone()),
        };
        if let Some(info) = verifying.found.get_mut(at) {
            (info.state, info.why) = (state, why);
        }
        assert!(
            verifying.left > 0,
            "a replica of {part} was read that nobody waits for"
        );
        verifying.left -= 1;
        if verifying.left == 0
            && let Some(Verifying { token, found, .. }) = self.verifying.remove(&part.owner)
        {
            self.answer_to(token, ControllerReply::Replicas(found));
        }
    }

    /// Whether a part is there, as far as is known, and stays there.
    fn is_placed(&self, (node, store): (&str, &str), part: &Part) -> bool {
        self.nodes.get(node).is_some_and(|node| {
            let places = node.places.get(part);
            let is_in = places.map_or(store.is_empty(), |p| p.contains(store));
            let is_there = node.parts.contains_key(part) && is_in;
            is_there && !node.moving.contains_key(part) && !node.is_away(store)
        })
    }
}

/// A part, and its required content.
type ExpectedPart = (Part, Proof);

impl SiteNode {
    /// Its replicas of a part that it has.
    fn replicas(
        &self,
        name: &str,
        part: &Part,
        proof: &Proof,
    ) -> impl Iterator<Item = ReplicaInfo> {
        let places = self.places.get(part);
        let places = places.map_or_else(|| vec![""], |p| p.iter().map(String::as_str).collect());
        places.into_iter().map(move |place| {
            let state = match () {
                () if !self.is_up => (ReplicaState::Unread, "the node does not answer"),
                () if self.is_away(place) => (ReplicaState::Unread, "its store is not mounted"),
                () => (ReplicaState::Whole, ""),
            };
            info_of((name, place), (part, proof), state)
        })
    }
}

fn info_of(
    (node, store): (&str, &str),
    (part, proof): (&Part, &Proof),
    (state, why): (ReplicaState, &str),
) -> ReplicaInfo {
    ReplicaInfo {
        node: node.to_owned(),
        store: store.to_owned(),
        version: part.version,
        part: part.part,
        bytes: proof.bytes,
        state,
        why: why.to_owned(),
    }
}

/// Whether an error is about the data, and not about a node, store or medium that could not read it, or about rights.
pub(crate) fn has_read(code: Code) -> bool {
    use Code::{Changed, Corrupt, Exists, NotFound};
    matches!(code, Changed | Corrupt | Exists | NotFound)
}
