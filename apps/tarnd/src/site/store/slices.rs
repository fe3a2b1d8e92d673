//! The entries of a node's ranks, out of parts of this node, of others, and of sources.

use super::published::Published;
use super::sealed::JobFolderKind;
use super::{UserStore, copying, hidden};
use crate::work::{ConfinedPath, to_request_error};
use std::path::{Path, PathBuf};
use tarn_ports::{Control, CopyJob, CopySource, Mover};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{Origin, Part, Proof, Slice, SlurmJobId, WorkResult};
use tarn_types::hash::Hash;
use tarn_types::manifest::Manifest;

/// A part: where it is read if it is not here, and its content.
type SlicedPart = (Part, Option<Origin>, Option<Proof>);

/// The sources of a folder of some ranks.
#[derive(Default)]
struct SliceSources {
    /// Trees in the folder's own store: the job only reads them, and their files are linked.
    linked: Vec<(PathBuf, Manifest)>,
    /// Trees that are copied, and whether one is on another node.
    copied: Vec<CopySource>,
    is_between: bool,
    /// The source that something is read from.
    outside: Option<PathBuf>,
    /// The folders of parts here: they stay open.
    held: Vec<ConfinedPath>,
}

impl SliceSources {
    /// Whether something comes from elsewhere.
    fn is_far(&self) -> bool {
        self.is_between || self.outside.is_some()
    }
}

impl UserStore {
    /// Makes the folder of some ranks for a job.
    pub(super) fn gather_slice(
        &self,
        (job, dataset): (SlurmJobId, &str),
        (parts, slice): (&[SlicedPart], &Slice),
        (store, is_written): (&str, bool),
        control: &Control,
    ) -> Result<WorkResult, RequestError> {
        let root = self.root_of(store)?;
        let kind = match is_written {
            true => JobFolderKind::Written,
            false => JobFolderKind::Read,
        };
        let held = self.of_job(job, kind, dataset, (Some(root), true))?;
        if held.stat()?.is_some() {
            let stored = self.mover.stored(&held.path());
            let stored = stored.map_err(|e| to_request_error(&e, &[&held]))?;
            let (proof, moved) = (sum(stored, 0), 0);
            return Ok(WorkResult::Proven { proof, moved });
        }
        let linkable = Some(root).filter(|_| !is_written);
        let sources = self.sources_of(linkable, (parts, slice), control)?;
        let (bytes, entries) = self.make_slice(&held, &sources, is_written, control)?;
        let moved = match sources.is_far() {
            true => bytes,
            false => 0,
        };
        let proof = sum(bytes, entries);
        Ok(WorkResult::Proven { proof, moved })
    }

    fn sources_of(
        &self,
        linkable: Option<&Path>,
        (parts, slice): (&[SlicedPart], &Slice),
        control: &Control,
    ) -> Result<SliceSources, RequestError> {
        let mut all = SliceSources::default();
        for (part, from, proof) in parts {
            match from {
                None => self.add_own(&mut all, linkable, (part, proof.as_ref(), slice), control)?,
                Some(Origin::Peer(peer)) => {
                    let proof = proof.as_ref().ok_or_else(|| {
                        let text = "data from another node must be known before";
                        RequestError::new(Code::Invalid, text)
                    })?;
                    let source = self.remote(part, peer, proof, control)?;
                    all.copied.extend(cut_to(source, slice));
                    all.is_between = true;
                }
                Some(Origin::Outside(path)) => {
                    let found = self.source(path, part.owner, control)?;
                    if found.file.is_some() {
                        let text = format!(
                            "`{}` is a single file, which has no entries of ranks: use `broadcast`",
                            path.display()
                        );
                        return Err(RequestError::new(Code::Invalid, text));
                    }
                    let own = entries_of(&found.list, slice);
                    all.copied.push(CopySource {
                        only: Some(paths(&own)),
                        manifest: found.copied.manifest.is_some().then_some(own),
                        ..found.copied
                    });
                    all.outside = Some(path.clone());
                }
            }
        }
        Ok(all)
    }

    /// Adds a part of this node.
    fn add_own(
        &self,
        all: &mut SliceSources,
        linkable: Option<&Path>,
        (part, proof, slice): (&Part, Option<&Proof>, &Slice),
        control: &Control,
    ) -> Result<(), RequestError> {
        let root = self.where_is(part);
        let published = Published::all(
            vec![part.clone()],
            proof.map(|proof| proof.hash).into_iter().collect(),
        )?;
        for published in &published {
            let (held, manifest, there) = self.published_at(root, published)?;
            if there.sealed {
                let text = format!("{part} is encrypted: it is opened into a job's memory only");
                return Err(RequestError::new(Code::Denied, text));
            }
            self.check_if_changed(part, (&held, &manifest), control)?;
            let tree = held.path_of(&[held.name(), b"/tree"].concat());
            let own = entries_of(&manifest, slice);
            if linkable == Some(root) {
                all.linked.push((tree, own));
            } else if !own.entries.is_empty() {
                all.copied.push(CopySource {
                    only: Some(paths(&own)),
                    manifest: Some(own),
                    ..CopySource::of(tree)
                });
            }
            all.held.push(held);
        }
        Ok(())
    }

    /// Makes the folder of its sources. Returns the bytes and entries that were copied.
    fn make_slice(
        &self,
        held: &ConfinedPath,
        sources: &SliceSources,
        is_written: bool,
        control: &Control,
    ) -> Result<(u64, u64), RequestError> {
        let [whole, apart, staging] =
            ["whole", "ranks", "staging"].map(|what| hidden(held.name(), what));
        for leftover in [&whole, &apart, &staging] {
            self.clear(held, leftover)?;
        }
        let places: Vec<&ConfinedPath> = sources.held.iter().chain([held]).collect();
        let mut trees = sources.linked.clone();
        let mut copied = (0, 0);
        if is_written || !sources.copied.is_empty() {
            let to = held.path_of(if is_written { &whole } else { &apart });
            let job = CopyJob {
                // It goes with the job.
                sync: false,
                ..copying(sources.copied.clone(), to.clone(), held.path_of(&staging))
            };
            let report = match &sources.outside {
                Some(path) => {
                    let mover = self.outside_mover(path)?;
                    mover.copy_limited(&job, control, self.outside.clone())
                }
                None => {
                    let limiter = self.between.clone().filter(|_| sources.is_between);
                    self.mover.copy_limited(&job, control, limiter)
                }
            };
            let report = report.map_err(|e| to_request_error(&e, &places))?;
            let entries = report.manifests.iter().map(|m| m.entries.len() as u64);
            copied = (report.bytes, entries.sum());
            trees.extend(report.manifests.into_iter().map(|m| (to.clone(), m)));
        }
        if !is_written {
            let linked = self.mover.link_view(&trees, &held.path_of(&whole));
            linked.map_err(|e| to_request_error(&e, &places))?;
            self.clear(held, &apart)?;
        }
        held.rename(&whole, held, false)?;
        Ok(copied)
    }
}

/// The entries of some ranks. Folders above them are of no rank.
fn entries_of(tree: &Manifest, slice: &Slice) -> Manifest {
    let own = tree.entries.iter().filter(|entry| slice.has(&entry.path));
    let mut own = Manifest {
        entries: own.cloned().collect(),
    };
    own.renumber_links();
    own
}

fn paths(tree: &Manifest) -> Vec<Box<[u8]>> {
    tree.entries
        .iter()
        .map(|entry| entry.path.clone())
        .collect()
}

/// A tree whose content is known, cut to some ranks; none if it has nothing of them.
fn cut_to(source: CopySource, slice: &Slice) -> Option<CopySource> {
    let own = entries_of(source.manifest.as_ref()?, slice);
    (!own.entries.is_empty()).then(|| CopySource {
        manifest: Some(own),
        ..source
    })
}

/// Sums, as a proof.
fn sum(bytes: u64, entries: u64) -> Proof {
    Proof {
        hash: Hash::default(),
        bytes,
        entries,
        manifest: 0,
        file: None,
        origin: None,
        sealed: false,
    }
}
