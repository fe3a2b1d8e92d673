//! After the command: outputs become parts, and what was left undeclared is counted.

use crate::ledger::Reservation;
use crate::prepare::{Need, Ready};
use crate::shared::Shared;
use crate::sources::part_info;
use crate::store::{failure, io_failure, make_folder, stored_estimate, write_manifests};
use crate::transfer::take_back;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tarn_base::action::{Held, Run};
use tarn_base::event::{Failure, FailureKind, Output, Undeclared};
use tarn_base::id::Spot;
use tarn_base::manifest::Manifest;
use tarn_base::merge::{self, Conflict};
use tarn_base::part::{PartClass, PartInfo, PartRef, Place, StoreKey};
use tarn_base::units::Bytes;
use tarn_base::workflow::{Distribution, Role};
use tarn_ports::{Control, MoverError};

/// Names of undeclared files that a report shows.
const NAMES: usize = 8;

/// Content, and the nodes of the step (by position) whose trees hold it.
type Groups = Vec<(Vec<usize>, Manifest)>;

/// An output that is not published yet.
struct Made<'n, 'd> {
    need: &'n Need<'d>,
    version: u32,
    /// Its tree on every node that counts.
    trees: Vec<Manifest>,
    groups: Groups,
}

/// Hashes and publishes every output of a step that has succeeded, in the room that was `reserved` on each node.
pub(crate) fn commit(
    shared: &Shared,
    run: &Run,
    needs: &[Need<'_>],
    nodes: &[Ready],
    reserved: &mut [Reservation<'_>],
    control: &Control,
) -> Result<Vec<Output>, Failure> {
    let mut made = Vec::new();
    // Everything is hashed and found in order before the first part is published.
    for need in needs {
        let Some(version) = need.makes else { continue };
        let trees = digest(shared, need, nodes, control)?;
        let groups = gather(shared, need, nodes, &trees)?;
        if groups.iter().all(|(_, m)| m.entries.is_empty()) {
            return Err(failure(
                FailureKind::NoOutput,
                format!(
                    "it succeeded but wrote nothing to its output `{}` ($TARN_{}); nothing was kept",
                    need.name, need.name
                ),
            ));
        }
        made.push(Made {
            need,
            version,
            trees,
            groups,
        });
    }
    fits(shared, &made, needs, nodes)?;
    let mut begun = Vec::new();
    let outputs = publish_all(shared, run, nodes, reserved, made, &mut begun);
    if outputs.is_err() {
        for (spots, key) in begun {
            for spot in spots {
                take_back(shared, &Place::Node(spot), &key);
            }
            // What is left of it no replica has: the next clean-up removes it.
            let _ = std::fs::remove_file(shared.manifest_file(&key));
        }
    }
    outputs
}

/// Publishes one output after the other; what was `begun`, and where: all of it goes if one fails.
fn publish_all(
    shared: &Shared,
    run: &Run,
    nodes: &[Ready],
    reserved: &mut [Reservation<'_>],
    made: Vec<Made<'_, '_>>,
    begun: &mut Vec<(Vec<Spot>, StoreKey)>,
) -> Result<Vec<Output>, Failure> {
    let mut outputs = Vec::new();
    let mut key_number = 0u32;
    for Made {
        need,
        version,
        trees,
        groups,
    } in made
    {
        let parts = name_parts(shared, run, need, groups, &mut key_number)?;
        begun.extend(parts.iter().map(|part| {
            let holders = part.holders.iter().filter_map(|at| nodes.get(*at));
            (holders.map(|n| n.spot).collect(), part.key.clone())
        }));
        publish(shared, need, nodes, &trees, &parts)?;
        outputs.push(record(shared, run, need, version, nodes, reserved, parts)?);
    }
    Ok(outputs)
}

/// What a step wrote must fit onto its tier beside what it reads there: a tier without a quota takes more than
/// its size, and what is on it then is in the way of everything else.
fn fits(
    shared: &Shared,
    made: &[Made<'_, '_>],
    needs: &[Need<'_>],
    nodes: &[Ready],
) -> Result<(), Failure> {
    for (at, node) in nodes.iter().enumerate() {
        let tier = shared.cluster.nodes.get(node.spot.node.at());
        let Some(tier) = tier.and_then(|n| n.tiers.get(node.spot.tier.at())) else {
            continue;
        };
        let on_node = |trees: &'_ [Manifest]| trees.get(at).map_or(0, stored_estimate);
        let written: u64 = made.iter().map(|m| on_node(&m.trees)).sum();
        let held = needs.iter().filter_map(|n| n.held.get(at)).flatten();
        let mut read = BTreeSet::new();
        for held in held.filter(|h| h.spot == node.spot) {
            read.insert(&held.key);
        }
        let mut beside = 0u64;
        for key in read {
            beside = beside.saturating_add(stored_estimate(&shared.manifest(key)?));
        }
        let capacity = tier
            .capacity
            .saturating_sub(shared.ledgers.not_ours(node.spot));
        if written.saturating_add(beside) > capacity {
            return Err(failure(
                FailureKind::NoSpace,
                format!(
                    "it succeeded, but its outputs take {} on node `{}`, and its tier `{}` of {} cannot hold them beside \
                     the {} of its inputs; nothing was kept; give a larger tier (--tier NAME=PATH:SIZE)",
                    Bytes(written),
                    node.name,
                    tier.name,
                    Bytes(capacity),
                    Bytes(beside)
                ),
            ));
        }
    }
    Ok(())
}

/// The output's tree on every node that counts.
fn digest(
    shared: &Shared,
    need: &Need<'_>,
    nodes: &[Ready],
    control: &Control,
) -> Result<Vec<Manifest>, Failure> {
    let mut trees = Vec::new();
    for node in nodes {
        let Some(folder) = node.outs.get(&need.data) else {
            continue;
        };
        if !crate::store::is_folder(folder) {
            return Err(failure(
                FailureKind::NoOutput,
                format!(
                    "it removed the folder of its output `{}`; nothing was kept",
                    need.name
                ),
            ));
        }
        trees.push(
            shared
                .mover
                .digest(folder, control)
                .map_err(|MoverError(f)| Failure {
                    message: format!("its output `{}` cannot be kept: {}", need.name, f.message),
                    ..f
                })?,
        );
    }
    Ok(trees)
}

fn conflict(need: &Need<'_>, nodes: &[Ready], c: &Conflict) -> Failure {
    let name = |at: usize| {
        nodes
            .get(at)
            .map_or_else(|| format!("number {at}"), |n| format!("`{}`", n.name))
    };
    failure(
        FailureKind::Conflict,
        format!(
            "`{}` of output `{}` differs between node {} and node {}; files of one name must be equal where trees are gathered; nothing was kept",
            String::from_utf8_lossy(&c.path),
            need.name,
            name(c.first),
            name(c.second)
        ),
    )
}

fn gather(
    shared: &Shared,
    need: &Need<'_>,
    nodes: &[Ready],
    trees: &[Manifest],
) -> Result<Groups, Failure> {
    if let [only] = trees {
        return Ok(vec![(vec![0], only.clone())]);
    }
    let given = match need.role {
        Role::Inout => need
            .held
            .iter()
            .map(|held| merged(shared, need, held))
            .collect::<Result<_, _>>()?,
        _ => vec![Manifest::default(); trees.len()],
    };
    let base =
        merge::merge(&given.iter().collect::<Vec<_>>()).map_err(|c| conflict(need, nodes, &c))?;
    if need.distribution == Distribution::Broadcast {
        // Equality is judged by the same rule that finds conflicts, so that the differing path is named.
        let [first, others @ ..] = trees else {
            return Ok(Vec::new());
        };
        for (at, other) in (1..).zip(others) {
            if let Some(path) = first_unequal(first, other) {
                let c = Conflict {
                    path,
                    first: 0,
                    second: at,
                };
                return Err(conflict(need, nodes, &c));
            }
        }
        return Ok(vec![((0..trees.len()).collect(), first.clone())]);
    }
    merge::merge_nodes(&base, &given, trees).map_err(|c| conflict(need, nodes, &c))
}

fn merged(shared: &Shared, need: &Need<'_>, held: &[&Held]) -> Result<Manifest, Failure> {
    let manifests = held
        .iter()
        .map(|h| shared.manifest(&h.key))
        .collect::<Result<Vec<_>, _>>()?;
    merge::merge(&manifests.iter().collect::<Vec<_>>()).map_err(|c| {
        failure(
            FailureKind::Conflict,
            format!(
                "the parts of `{}` differ in `{}`",
                need.name,
                String::from_utf8_lossy(&c.path)
            ),
        )
    })
}

/// The first path in which two trees differ in content.
fn first_unequal(a: &Manifest, b: &Manifest) -> Option<Box<[u8]>> {
    let mut pairs = a.entries.iter().zip(&b.entries);
    if let Some((x, y)) = pairs.find(|(x, y)| x.path != y.path || !x.same_content(y)) {
        return Some(x.path.clone().min(y.path.clone()));
    }
    let longer = if a.entries.len() > b.entries.len() {
        a
    } else {
        b
    };
    let at = a.entries.len().min(b.entries.len());
    longer.entries.get(at).map(|e| e.path.clone())
}

/// A part that is about to be published.
struct NewPart {
    seq: u32,
    class: PartClass,
    key: StoreKey,
    holders: Vec<usize>,
    manifest: Manifest,
}

fn name_parts(
    shared: &Shared,
    run: &Run,
    need: &Need<'_>,
    groups: Groups,
    key_number: &mut u32,
) -> Result<Vec<NewPart>, Failure> {
    let dataset = shared.dataset(need.data)?;
    let mut parts = Vec::new();
    for (holders, manifest) in groups {
        let divided = merge::partition(&manifest, dataset.partition, dataset.scatter.as_ref())
            .map_err(|e| {
                failure(
                    FailureKind::Io,
                    format!(
                        "its output `{}` cannot be divided into parts: {e}",
                        need.name
                    ),
                )
            })?;
        for (class, manifest) in divided {
            // A tree without files still has its folders; an empty class is no part.
            if manifest.entries.is_empty() {
                continue;
            }
            parts.push(NewPart {
                seq: u32::try_from(parts.len()).unwrap_or(u32::MAX),
                class,
                key: StoreKey(format!("{}.{key_number}", run.store)),
                holders: holders.clone(),
                manifest,
            });
            *key_number += 1;
        }
    }
    if parts.len() > tarn_base::bounds::MAX_PARTS {
        return Err(failure(
            FailureKind::Io,
            format!(
                "its output `{}` has more than {} parts",
                need.name,
                tarn_base::bounds::MAX_PARTS
            ),
        ));
    }
    Ok(parts)
}

/// Manifests first, then the replicas by renames: a replica without a manifest is never taken for one. Neither is
/// synced: after a crash of the machine both are read again and compared with the log before they are believed.
fn publish(
    shared: &Shared,
    need: &Need<'_>,
    nodes: &[Ready],
    trees: &[Manifest],
    parts: &[NewPart],
) -> Result<(), Failure> {
    let paths: Vec<PathBuf> = parts.iter().map(|p| shared.manifest_file(&p.key)).collect();
    write_manifests(
        paths
            .iter()
            .map(PathBuf::as_path)
            .zip(parts.iter().map(|p| &p.manifest)),
        false,
    )?;
    let holding = nodes.iter().filter(|n| n.outs.contains_key(&need.data));
    for (at, (node, tree)) in holding.zip(trees).enumerate() {
        let Some(folder) = node.outs.get(&need.data) else {
            continue;
        };
        let dir = shared.tier_dir(node.spot)?;
        make_folder(&dir.parts())?;
        let own: Vec<&NewPart> = parts.iter().filter(|p| p.holders.contains(&at)).collect();
        remove_superseded(folder, tree, &own)?;
        let pieces: Vec<(&Manifest, PathBuf)> = own
            .iter()
            .map(|p| (&p.manifest, dir.part(&p.key)))
            .collect();
        for (_, path) in pieces.iter().filter(|(_, path)| path.exists()) {
            // An attempt commits once: only one whose record the log has lost since can have been here.
            shared.mover.remove(path).map_err(|MoverError(f)| f)?;
        }
        shared
            .mover
            .split(folder, &pieces)
            .map_err(|MoverError(f)| f)?;
    }
    Ok(())
}

/// Removes the files of a node's tree that are no part of the merged version: another node deleted them.
fn remove_superseded(folder: &Path, tree: &Manifest, parts: &[&NewPart]) -> Result<(), Failure> {
    let kept: BTreeSet<&[u8]> = parts
        .iter()
        .flat_map(|p| p.manifest.entries.iter().map(|e| &*e.path))
        .collect();
    for entry in tree
        .entries
        .iter()
        .rev()
        .filter(|e| !kept.contains(&*e.path))
    {
        let path = folder.join(OsStr::from_bytes(&entry.path));
        let removed = match entry.is_folder() {
            // A folder that another part needs is not empty; one that none needs is.
            true => std::fs::remove_dir(&path).or_else(|e| match e.kind() {
                std::io::ErrorKind::DirectoryNotEmpty => Ok(()),
                _ => Err(e),
            }),
            false => std::fs::remove_file(&path),
        };
        removed.map_err(|e| io_failure("remove", &path, &e))?;
    }
    Ok(())
}

fn record(
    shared: &Shared,
    run: &Run,
    need: &Need<'_>,
    version: u32,
    nodes: &[Ready],
    reserved: &mut [Reservation<'_>],
    parts: Vec<NewPart>,
) -> Result<Output, Failure> {
    let mut recorded: Vec<(PartInfo, Vec<_>)> = Vec::with_capacity(parts.len());
    for part in parts {
        let mut most = 0;
        let mut spots = Vec::new();
        for at in part.holders {
            let (Some(node), Some(reserved)) = (nodes.get(at), reserved.get_mut(at)) else {
                continue;
            };
            let path = shared.replica(node.spot, &part.key)?;
            let stored = shared.mover.stored(&path).map_err(|MoverError(f)| f)?;
            reserved.arrived(node.spot, &part.key, stored);
            most = most.max(stored);
            spots.push(node.spot);
        }
        let id = PartRef {
            data: need.data,
            version,
            origin: run.instance.index,
            seq: part.seq,
        };
        shared.know(id, part.class.clone(), part.key.clone());
        let info = part_info(part.seq, part.class, &part.manifest, most, part.key);
        recorded.push((info, spots));
    }
    Ok(Output {
        data: need.data,
        version,
        parts: recorded,
    })
}

/// What a step left in its scratch folders.
pub(crate) fn undeclared(nodes: &[Ready]) -> Undeclared {
    let mut left = Undeclared::default();
    for node in nodes {
        let mut folders = vec![node.scratch.clone()];
        while let Some(folder) = folders.pop() {
            // What cannot be read is removed all the same; only the count misses it.
            for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
                let Ok(meta) = entry.metadata() else { continue };
                if meta.is_dir() {
                    folders.push(entry.path());
                    continue;
                }
                left.files += 1;
                left.bytes = left.bytes.saturating_add(meta.len());
                if left.names.len() < NAMES {
                    let path = entry.path();
                    let name = path.strip_prefix(&node.scratch).unwrap_or(&path);
                    left.names.push(name.to_string_lossy().into_owned());
                }
            }
        }
    }
    left.names.sort();
    left
}
