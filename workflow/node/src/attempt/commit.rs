//! After the command: outputs become parts, and what was left undeclared is counted.

use crate::attempt::member::Member;
use crate::attempt::node_task::{
    MAX_UNDECLARED_NAMES, PublishedPart, StepNodeTask, StepNodeTaskResult,
};
use crate::attempt::step_needs::Need;
use crate::attempt::team::Team;
use crate::staging::sources::part_info;
use crate::storage::run_facts::RunFacts;
use crate::storage::store::{failure, write_manifests};
use std::path::PathBuf;
use std::sync::Arc;
use tarn_types::action::{AttemptSpec, NodeReplica};
use tarn_types::event::{Output, RunError, RunErrorKind, Undeclared};
use tarn_types::manifest::Manifest;
use tarn_types::merge::{self, Conflict};
use tarn_types::part::{PartClass, PartInfo, PartRef, StoreKey};
use tarn_types::workflow::{Distribution, Role};

/// Content, and the nodes of the step (by position) whose trees hold it.
type ContentGroups = Vec<(Vec<usize>, Manifest)>;

/// An output that is not published yet.
struct UnpublishedOutput<'n, 'd> {
    need: &'n Need<'d>,
    version: u32,
    groups: ContentGroups,
}

/// Hashes and publishes every output of a step that has succeeded, in the space that was reserved on each node. If this fails,
/// the caller removes the manifests of `begun`, once no node has a replica of them any more.
pub(crate) fn commit(
    team: &mut Team<'_>,
    run: &AttemptSpec,
    needs: &[Need<'_>],
    begun: &mut Vec<StoreKey>,
) -> Result<Vec<Output>, RunError> {
    let shared = team.shared;
    let mut made = Vec::new();
    // Everything is hashed and found in order before the first part is published.
    for need in needs {
        let Some(version) = need.makes else { continue };
        let trees = team.run_and_collect(
            |_| StepNodeTask::Digest(need.data),
            |done| match done {
                StepNodeTaskResult::Tree { tree } => Some(Some(tree)),
                StepNodeTaskResult::Nothing => Some(None),
                _ => None,
            },
        )?;
        // Of a dataset that only the first node has, the others have none.
        let trees: Vec<Arc<Manifest>> = trees.into_iter().flatten().collect();
        let groups = gather(shared, need, &team.members, &trees)?;
        // Of many elements some may yield nothing; that none does is for the engine to see.
        let may_be_empty = run.item.is_some();
        if !may_be_empty && groups.iter().all(|(_, m)| m.entries.is_empty()) {
            return Err(failure(
                RunErrorKind::NoOutput,
                format!(
                    "it succeeded but wrote nothing to its output `{}` ($TARN_{}); nothing was kept",
                    need.name, need.name
                ),
            ));
        }
        made.push(UnpublishedOutput {
            need,
            version,
            groups,
        });
    }
    team.run_task(&StepNodeTask::Fits)?;
    let mut outputs = Vec::new();
    let mut key_number = 0u32;
    for UnpublishedOutput {
        need,
        version,
        groups,
    } in made
    {
        let parts = name_parts(shared, run, need, groups, &mut key_number)?;
        begun.extend(parts.iter().map(|p| p.key.clone()));
        let stored = publish(team, need, &parts)?;
        outputs.push(record(team, run, need, version, parts, &stored));
    }
    Ok(outputs)
}

/// Manifests first, then the replicas by renames: a replica without a manifest is never taken for one. Neither is
/// synced: after a crash of the machine both are read again and compared with the log before they are believed.
/// Of each node, the space that its parts take, in their order.
fn publish(
    team: &mut Team<'_>,
    need: &Need<'_>,
    parts: &[NewPart],
) -> Result<Vec<Vec<u64>>, RunError> {
    let shared = team.shared;
    let paths: Vec<PathBuf> = parts.iter().map(|p| shared.manifest_file(&p.key)).collect();
    let manifests = parts.iter().map(|p| &*p.manifest);
    write_manifests(paths.iter().map(PathBuf::as_path).zip(manifests), false)?;
    let own = |at: usize| parts.iter().filter(move |p| p.holders.contains(&at));
    let pieces = |at: usize| StepNodeTask::Publish {
        data: need.data,
        parts: own(at)
            .map(|p| PublishedPart {
                key: p.key.clone(),
                manifest: Arc::clone(&p.manifest),
            })
            .collect(),
    };
    let stored = team.run_and_collect(pieces, |done| match done {
        StepNodeTaskResult::Stored(all) => Some(all),
        _ => None,
    })?;
    for (at, (member, stored)) in team.members.iter().zip(&stored).enumerate() {
        if stored.len() != own(at).count() {
            let name = member.name();
            return Err(failure(
                RunErrorKind::Io,
                format!("node `{name}` has not published all that it was to; nothing was kept"),
            ));
        }
    }
    Ok(stored)
}

fn conflict(need: &Need<'_>, nodes: &[Box<dyn Member + '_>], c: &Conflict) -> RunError {
    let name = |at: usize| {
        nodes
            .get(at)
            .map_or_else(|| format!("number {at}"), |n| format!("`{}`", n.name()))
    };
    failure(
        RunErrorKind::Conflict,
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
    shared: &RunFacts,
    need: &Need<'_>,
    nodes: &[Box<dyn Member + '_>],
    trees: &[Arc<Manifest>],
) -> Result<ContentGroups, RunError> {
    if let [only] = trees {
        return Ok(vec![(vec![0], Manifest::clone(only))]);
    }
    let given = match need.role {
        // The file system has moved what the first node was given as it liked.
        Role::Inout if need.distribution != Distribution::Shared => need
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
        return Ok(vec![((0..trees.len()).collect(), Manifest::clone(first))]);
    }
    merge::merge_nodes(&base, &given, trees).map_err(|c| conflict(need, nodes, &c))
}

fn merged(shared: &RunFacts, need: &Need<'_>, held: &[&NodeReplica]) -> Result<Manifest, RunError> {
    let manifests = held
        .iter()
        .map(|h| shared.manifest(&h.key))
        .collect::<Result<Vec<_>, _>>()?;
    merge::merge(&manifests.iter().collect::<Vec<_>>()).map_err(|c| {
        failure(
            RunErrorKind::Conflict,
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
    manifest: Arc<Manifest>,
}

fn name_parts(
    shared: &RunFacts,
    run: &AttemptSpec,
    need: &Need<'_>,
    groups: ContentGroups,
    key_number: &mut u32,
) -> Result<Vec<NewPart>, RunError> {
    let dataset = shared.dataset(need.data)?;
    let mut parts = Vec::new();
    for (holders, manifest) in groups {
        let divided = merge::partition(&manifest, dataset.partition, dataset.scatter.as_ref())
            .map_err(|e| {
                failure(
                    RunErrorKind::Io,
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
                manifest: Arc::new(manifest),
            });
            *key_number += 1;
        }
    }
    if parts.len() > tarn_types::bounds::MAX_PARTS {
        return Err(failure(
            RunErrorKind::Io,
            format!(
                "its output `{}` has more than {} parts",
                need.name,
                tarn_types::bounds::MAX_PARTS
            ),
        ));
    }
    Ok(parts)
}

fn record(
    team: &Team<'_>,
    run: &AttemptSpec,
    need: &Need<'_>,
    version: u32,
    parts: Vec<NewPart>,
    stored: &[Vec<u64>],
) -> Output {
    let mut stored: Vec<_> = stored.iter().map(|all| all.iter()).collect();
    let mut recorded: Vec<(PartInfo, Vec<_>)> = Vec::with_capacity(parts.len());
    for part in parts {
        let mut most = 0;
        let mut tier_refs = Vec::new();
        for at in part.holders {
            let (Some(member), Some(own)) = (team.members.get(at), stored.get_mut(at)) else {
                continue;
            };
            most = most.max(own.next().copied().unwrap_or(0));
            tier_refs.push(member.tier_ref());
        }
        let id = PartRef {
            data: need.data,
            version,
            origin: run.instance.index,
            seq: part.seq,
        };
        team.shared.know(id, part.class.clone(), part.key.clone());
        let info = part_info(part.seq, part.class, &part.manifest, most, part.key);
        recorded.push((info, tier_refs));
    }
    Output {
        data: need.data,
        version,
        parts: recorded,
    }
}

/// Counts what a step left in its scratch folders.
pub(crate) fn undeclared(team: &mut Team<'_>) -> Result<Undeclared, RunError> {
    let all = team.run_and_collect(
        |_| StepNodeTask::Undeclared,
        |done| match done {
            StepNodeTaskResult::Undeclared(left) => Some(left),
            _ => None,
        },
    )?;
    let mut sum = Undeclared::default();
    for left in all {
        sum.files = sum.files.saturating_add(left.files);
        sum.bytes = sum.bytes.saturating_add(left.bytes);
        sum.names.extend(left.names);
    }
    sum.names.truncate(MAX_UNDECLARED_NAMES);
    sum.names.sort();
    Ok(sum)
}
