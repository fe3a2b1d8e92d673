//! The data that a job's tasks may see: a file a job, which the SPANK plug-in reads. docs/internals/site.md, "What a job sees".

use super::stores::NodeStores;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{Mount, PartitionSpread, SlurmJobId, Uid};
use tarn_types::bounds::MAX_NAME_BYTES;
use tarn_types::workflow::{CheckpointMethod, StoragePartition};

/// Mounts that the plug-in takes of one job, and bytes of a path.
const MAX_MOUNTS: usize = 1024;
const MAX_PATH: usize = 1024;
/// Bytes of its whole file, of a node's name, and of a block.
const MAX_FILE: usize = 256 << 10;
const MAX_NODE: usize = 255;
const MAX_BLOCK: u64 = 1 << 30;
const PAGE: u64 = 4096;

/// The files of all jobs that are let in.
pub(super) struct JobAdmission {
    folder: PathBuf,
    stores: Arc<NodeStores>,
}

impl JobAdmission {
    pub(super) fn new(run: &Path, stores: Arc<NodeStores>) -> Self {
        Self {
            folder: run.join("jobs"),
            stores,
        }
    }

    /// Lets a job in: the file is there whole, or not at all.
    pub(super) fn admit(
        &self,
        (job, user): (SlurmJobId, Uid),
        memory: &Path,
        mounts: &[Mount],
    ) -> Result<(), RequestError> {
        let text = self.describe((job, user), memory, mounts)?;
        if text.len() > MAX_FILE {
            let text = format!(
                "the description of the data of job {job} is longer than {MAX_FILE} bytes: ask for fewer datasets, or spread fewer partitions over so many nodes"
            );
            return Err(RequestError::new(Code::Invalid, text));
        }
        self.write(job, &text).map_err(|e| {
            let text = format!(
                "cannot write the file of job {job} in {}: {e}",
                self.folder.display()
            );
            RequestError::new(Code::Io, text)
        })
    }

    /// The content of a job's file.
    fn describe(
        &self,
        (job, user): (SlurmJobId, Uid),
        memory: &Path,
        mounts: &[Mount],
    ) -> Result<String, RequestError> {
        let is_clear = mounts.iter().any(|mount| mount.in_memory);
        let roots = self.roots(mounts)?;
        let is_exported = mounts.iter().any(|mount| mount.partition);
        let is_spread = mounts.iter().any(|mount| mount.spread.is_some());
        let is_kept = mounts.iter().any(|mount| mount.checkpoints.is_some());
        let version = match (is_exported, roots.len(), is_clear) {
            _ if is_kept => 6,
            _ if is_spread => 5,
            (true, ..) => 4,
            (_, 2.., _) => 3,
            (_, _, true) => 2,
            _ => 1,
        };
        let mut text = format!("tarn-job {version}\nuser\t{user}\n");
        text.extend(
            roots
                .iter()
                .map(|root| format!("root\t{}\n", root.display())),
        );
        if is_clear {
            text += &format!("clear\t{}\n", memory.display());
        }
        if mounts.len() > MAX_MOUNTS {
            let text = format!(
                "job {job} has {} datasets: at most {MAX_MOUNTS}",
                mounts.len()
            );
            return Err(RequestError::new(Code::Invalid, text));
        }
        for mount in mounts {
            check(mount)?;
            text += &self.describe_mount(mount, &roots)?;
        }
        Ok(text)
    }

    /// The lines of one dataset, which is stored below one of the roots.
    fn describe_mount(&self, mount: &Mount, roots: &[&Path]) -> Result<String, RequestError> {
        let place = match mount.in_memory {
            true => "clear-".to_owned(),
            false => {
                let root = self.stores.root_of(&mount.store)?;
                let at = roots.iter().position(|known| *known == root);
                at.filter(|at| *at > 0)
                    .map_or_else(String::new, |at| format!("{at}-"))
            }
        };
        let how = match (mount.checkpoints, mount.partition, mount.writable) {
            (Some(CheckpointMethod::Phx), ..) => "phx",
            (Some(_), ..) => "files",
            (_, true, _) => "part",
            (_, _, true) => "rw",
            _ => "ro",
        };
        let (name, path) = (&mount.dataset, mount.path.display());
        let mut text = format!("mount\t{place}{how}\t{name}\t{}\t{path}\n", mount.owner);
        if let Some(spread) = &mount.spread {
            text += &format!("spread\t{}\t{}\n", spread.block, spread.nodes.join(","));
        }
        Ok(text)
    }

    fn write(&self, job: SlurmJobId, text: &str) -> std::io::Result<()> {
        let fresh = self.folder.join(format!(".{job}"));
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options.open(&fresh)?.write_all(text.as_bytes())?;
        std::fs::rename(&fresh, self.folder.join(job.to_string()))
    }

    /// The roots of the stores of mounts, in the order of these; of mounts that are in none, the first store's.
    fn roots(&self, mounts: &[Mount]) -> Result<Vec<&Path>, RequestError> {
        let mut roots = Vec::new();
        for mount in mounts.iter().filter(|mount| !mount.in_memory) {
            let root = self.stores.root_of(&mount.store)?;
            if !roots.contains(&root) {
                roots.push(root);
            }
        }
        if roots.is_empty() {
            roots.push(self.stores.root_of("")?);
        }
        Ok(roots)
    }

    /// A job is over.
    pub(super) fn dismiss(&self, job: SlurmJobId) -> Result<(), RequestError> {
        match std::fs::remove_file(self.folder.join(job.to_string())) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                let text = format!("cannot remove the file of job {job}: {e}");
                Err(RequestError::new(Code::Io, text))
            }
            _ => Ok(()),
        }
    }

    /// The jobs that are let in.
    pub(super) fn jobs(&self) -> Vec<SlurmJobId> {
        let entries = std::fs::read_dir(&self.folder);
        let names = entries.into_iter().flatten().flatten();
        let numbers = names.filter_map(|e| e.file_name().to_str()?.parse().ok());
        numbers.collect()
    }
}

fn check(mount: &Mount) -> Result<(), RequestError> {
    let plain = mount
        .path
        .components()
        .all(|c| matches!(c, Component::Normal(_)));
    let text = mount.path.to_str().unwrap_or("\n");
    let is_owners = mount.path.starts_with(mount.owner.to_string());
    // The plug-in takes such names: each names a variable.
    let name = mount.dataset.as_bytes();
    let is_variable = name.len() <= MAX_NAME_BYTES
        && name
            .first()
            .is_some_and(|b| b.is_ascii_lowercase() || *b == b'_')
        && name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_');
    let is_plain = plain && text.len() <= MAX_PATH && !text.chars().any(char::is_control);
    let is_dealt = match &mount.spread {
        None => true,
        Some(spread) => mount.partition && is_sound(spread),
    };
    if is_variable && is_owners && is_plain && is_dealt {
        return check_names(mount);
    }
    let text = format!(
        "`{}` cannot be mounted as `{}`",
        text.escape_debug(),
        mount.dataset.escape_debug()
    );
    Err(RequestError::new(Code::Invalid, text))
}

/// Whether a description of how a partition is spread over nodes can be true.
fn is_sound(spread: &PartitionSpread) -> bool {
    let is_host = |node: &String| {
        let mut bytes = node.bytes();
        (1..=MAX_NODE).contains(&node.len())
            && bytes.all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    (PAGE..=MAX_BLOCK).contains(&spread.block)
        && spread.block.is_multiple_of(PAGE)
        && !spread.nodes.is_empty()
        && spread.nodes.iter().all(is_host)
}

/// Tasks have the names of a partition's pieces in one variable.
fn check_names(mount: &Mount) -> Result<(), RequestError> {
    let nodes = mount.spread.iter().flat_map(|spread| &spread.nodes);
    let (name, most) = (&mount.dataset, StoragePartition::MOST_NAMES);
    let bytes = StoragePartition::names(name, nodes.map(String::as_str));
    if bytes <= most {
        return Ok(());
    }
    let text = format!(
        "the names of the pieces of partition `{name}` have {bytes} bytes, and at most {most} fit into $TARN_PARTITION_{name}: ask for fewer nodes, give it a shorter name, or leave `spread` out"
    );
    Err(RequestError::new(Code::Invalid, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_proto::site::Owner;

    #[test]
    fn names_of_pieces_that_fit_into_no_variable_are_refused_as_such() {
        let over = |nodes: usize| Mount {
            store: String::new(),
            in_memory: false,
            checkpoints: None,
            partition: true,
            spread: Some(PartitionSpread {
                block: PAGE,
                nodes: vec!["n".repeat(107); nodes],
            }),
            dataset: "field".into(),
            owner: Owner::User(1),
            path: "u1/j/7/p/field".into(),
            writable: true,
        };
        // 120 bytes each.
        check(&over(1000)).unwrap();
        let why = check(&over(1001)).unwrap_err().text;
        assert!(
            why.contains("120000 fit into $TARN_PARTITION_field"),
            "{why}"
        );
    }
}
