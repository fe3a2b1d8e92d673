//! What a job's tasks may see: a file a job, which the SPANK plug-in reads. docs/site.md, "What a job sees".

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use tarn_base::bounds::MAX_NAME_BYTES;
use tarn_proto::local::{Code, Refusal};
use tarn_proto::site::{Job, Mount, Uid};

/// What the plug-in takes of one job, and bytes of a path.
const MAX_MOUNTS: usize = 1024;
const MAX_PATH: usize = 1024;

/// The files of all jobs that are let in.
pub(super) struct Door {
    folder: PathBuf,
    root: PathBuf,
}

impl Door {
    pub(super) fn new(run: &Path, root: &Path) -> Self {
        Self {
            folder: run.join("jobs"),
            root: root.to_owned(),
        }
    }

    /// Lets a job in: the file is there whole, or not at all.
    pub(super) fn admit(
        &self,
        (job, user): (Job, Uid),
        memory: &Path,
        mounts: &[Mount],
    ) -> Result<(), Refusal> {
        let is_clear = mounts.iter().any(|mount| mount.in_memory);
        let version = if is_clear { 2 } else { 1 };
        let root = self.root.display();
        let mut text = format!("tarn-job {version}\nuser\t{user}\nroot\t{root}\n");
        if is_clear {
            text += &format!("clear\t{}\n", memory.display());
        }
        if mounts.len() > MAX_MOUNTS {
            let text = format!(
                "job {job} has {} datasets: at most {MAX_MOUNTS}",
                mounts.len()
            );
            return Err(Refusal::new(Code::Invalid, text));
        }
        for mount in mounts {
            check(mount)?;
            let place = if mount.in_memory { "clear-" } else { "" };
            let how = if mount.writable { "rw" } else { "ro" };
            let (name, path) = (&mount.dataset, mount.path.display());
            text += &format!("mount\t{place}{how}\t{name}\t{}\t{path}\n", mount.owner);
        }
        let failed = |e: std::io::Error| {
            let text = format!(
                "cannot write the file of job {job} in {}: {e}",
                self.folder.display()
            );
            Refusal::new(Code::Io, text)
        };
        let fresh = self.folder.join(format!(".{job}"));
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&fresh).map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)?;
        std::fs::rename(&fresh, self.folder.join(job.to_string())).map_err(failed)
    }

    /// A job is over.
    pub(super) fn dismiss(&self, job: Job) -> Result<(), Refusal> {
        match std::fs::remove_file(self.folder.join(job.to_string())) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                let text = format!("cannot remove the file of job {job}: {e}");
                Err(Refusal::new(Code::Io, text))
            }
            _ => Ok(()),
        }
    }

    /// The jobs that are let in.
    pub(super) fn jobs(&self) -> Vec<Job> {
        let entries = std::fs::read_dir(&self.folder);
        let names = entries.into_iter().flatten().flatten();
        let numbers = names.filter_map(|e| e.file_name().to_str()?.parse().ok());
        numbers.collect()
    }
}

fn check(mount: &Mount) -> Result<(), Refusal> {
    let plain = mount
        .path
        .components()
        .all(|c| matches!(c, Component::Normal(_)));
    let text = mount.path.to_str().unwrap_or("\n");
    let is_owners = mount.path.starts_with(mount.owner.to_string());
    // What the plug-in takes: it names a variable.
    let name = mount.dataset.as_bytes();
    let is_variable = name.len() <= MAX_NAME_BYTES
        && name
            .first()
            .is_some_and(|b| b.is_ascii_lowercase() || *b == b'_')
        && name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_');
    let is_plain = plain && text.len() <= MAX_PATH && !text.chars().any(char::is_control);
    if is_variable && is_owners && is_plain {
        return Ok(());
    }
    let text = format!(
        "`{}` cannot be mounted as `{}`",
        text.escape_debug(),
        mount.dataset.escape_debug()
    );
    Err(Refusal::new(Code::Invalid, text))
}
