//! The files of a recorded workflow: their writers and readers, and the files that are one item.

use crate::diag::{FindingCode, quoted};
use crate::site::draft::WorkflowDraft;
use crate::site::recorded::{Checks, MAX_BYTES, RecordedWorkflow};
use std::collections::{BTreeMap, HashMap};
use tarn_types::site::{Input, Item, ItemId, Spread, WorkItem};

/// A file and its users.
pub(crate) struct RecordedFile<'i> {
    name: &'i str,
    bytes: u64,
    writer: Option<usize>,
    /// In order, each once.
    readers: Vec<usize>,
}

/// The files with their writers and readers.
pub(crate) fn files<'i>(
    checks: &mut Checks<'_>,
    instance: &'i RecordedWorkflow,
    notes: &mut Vec<String>,
) -> Vec<RecordedFile<'i>> {
    let mut at: HashMap<&str, usize> = HashMap::with_capacity(instance.files.len());
    let mut files: Vec<RecordedFile<'i>> = Vec::new();
    let mut differ = 0u64;
    for (name, size) in &instance.files {
        let bytes = checks.number(*size, MAX_BYTES, "the size", name) as u64;
        let place = *at.entry(name).or_insert(files.len());
        match files.get_mut(place) {
            None => files.push(RecordedFile {
                name,
                bytes,
                writer: None,
                readers: Vec::new(),
            }),
            Some(file) if file.bytes == bytes => {}
            Some(file) if instance.sizes_may_differ => {
                differ += 1;
                file.bytes = file.bytes.max(bytes);
            }
            Some(_) => {
                let message = format!("file {} is listed with two sizes", quoted(name));
                checks.report(
                    FindingCode::DuplicateName,
                    message,
                    name,
                    "list it once in `specification.files`",
                );
            }
        }
    }
    if differ > 0 {
        notes.push(format!(
            "{differ} files have another size in another task; the largest is taken"
        ));
    }
    uses(checks, instance, &at, &mut files, notes);
    files
}

fn uses(
    checks: &mut Checks<'_>,
    instance: &RecordedWorkflow,
    at: &HashMap<&str, usize>,
    files: &mut [RecordedFile<'_>],
    notes: &mut Vec<String>,
) {
    for (task, record) in instance.tasks.iter().enumerate() {
        for name in &record.outputs {
            let Some(place) = known(checks, at, name, &record.id) else {
                continue;
            };
            match files[place].writer.replace(task) {
                Some(other) if other != task => {
                    let other = quoted(&instance.tasks[other].id);
                    let message = format!(
                        "file {} is written by {other} and by {}",
                        quoted(name),
                        quoted(&record.id)
                    );
                    checks.report(
                        FindingCode::TwoProducers,
                        message,
                        name,
                        "a file is written by one task",
                    );
                }
                _ => {}
            }
        }
    }
    let mut own = 0u64;
    for (task, record) in instance.tasks.iter().enumerate() {
        for name in &record.inputs {
            let Some(place) = known(checks, at, name, &record.id) else {
                continue;
            };
            let file = &mut files[place];
            if file.writer == Some(task) {
                own += 1;
            } else if file.readers.last() != Some(&task) {
                file.readers.push(task);
            }
        }
    }
    if own > 0 {
        notes.push(format!(
            "{own} files are read by the task that writes them; only the writing counts"
        ));
    }
}

fn known(
    checks: &mut Checks<'_>,
    at: &HashMap<&str, usize>,
    name: &str,
    task: &str,
) -> Option<usize> {
    let place = at.get(name).copied();
    if place.is_none() {
        let message = format!(
            "task {} uses file {}, whose size is not given",
            quoted(task),
            quoted(name)
        );
        checks.report(
            FindingCode::UnknownDataset,
            message,
            name,
            "list it in `specification.files` with `sizeInBytes`",
        );
    }
    place
}

/// Files with the same writer and the same readers become one item; unused files become none.
pub(crate) fn group(draft: &mut WorkflowDraft, files: Vec<RecordedFile<'_>>, scale: f64) {
    let mut groups: BTreeMap<(Option<usize>, Vec<usize>), usize> = BTreeMap::new();
    let mut members: Vec<(u64, u64, &str)> = Vec::new();
    for file in files {
        if file.writer.is_none() && file.readers.is_empty() {
            continue;
        }
        let at = *groups
            .entry((file.writer, file.readers))
            .or_insert(members.len());
        match members.get_mut(at) {
            Some((bytes, count, _)) => {
                (*bytes, *count) = (bytes.saturating_add(file.bytes), *count + 1)
            }
            None => members.push((file.bytes, 1, file.name)),
        }
    }
    draft.items = members
        .into_iter()
        .map(|(bytes, count, name)| WorkItem {
            item: Item {
                bytes: scaled(bytes, scale),
                outside: false,
                keep: false,
            },
            name: match count {
                1 => name.into(),
                _ => format!("{name} and {} more", count - 1).into(),
            },
            bytes: scaled(bytes, scale),
        })
        .collect();
    for ((writer, readers), at) in groups {
        let item = &mut draft.items[at].item;
        item.outside = writer.is_none();
        item.keep = readers.is_empty();
        let id = ItemId(at as u32);
        if let Some(writer) = writer {
            draft.jobs[writer].job.writes.push(id);
        }
        for reader in readers {
            draft.jobs[reader].job.reads.push(Input {
                item: id,
                spread: Spread::Share,
            });
        }
    }
    for job in &mut draft.jobs {
        job.job.writes.sort_unstable();
        job.job.reads.sort_unstable_by_key(|r| r.item);
    }
}

/// Bytes times a factor.
pub(crate) fn scaled(bytes: u64, scale: f64) -> u64 {
    if scale == 1.0 {
        bytes
    } else {
        (bytes as f64 * scale).round() as u64
    }
}
