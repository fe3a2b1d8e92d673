//! The names of partitions: a folder's path, or a name that their node's tarnd knows.

use crate::file::SUFFIX;
use crate::folder::sound;
use crate::{Code, RequestError};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tarn_client::Client;
use tarn_ports::{STEP_SOCKET, STEP_SPACE};
use tarn_proto::local::{TaskLocation, TaskOperation, TaskSpec};

/// How long tarnd may take to make a partition, or to give it another size: its turn has to come, and memory is cleared.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// The place of a partition, or of a folder of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PartitionName<'n> {
    /// In a folder, without any service: a path that begins with `/`, `./` or `../`.
    Path(&'n Path),
    /// In a dataspace of a tarnd: `SPACE/NAME`, `NODE:SPACE/NAME`.
    Space(InSpace<'n>),
}

/// Within a dataspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InSpace<'n> {
    /// Of another node.
    pub(crate) node: Option<&'n str>,
    pub(crate) space: &'n str,
    /// Below its root; empty for the root itself.
    pub(crate) path: &'n str,
}

impl<'n> PartitionName<'n> {
    /// That of a partition.
    pub(crate) fn of(path: &'n Path) -> Result<Self, RequestError> {
        let name = Self::of_folder(path)?;
        match name {
            Self::Space(InSpace { path: "", .. }) => {
                let text = format!(
                    "{} is not a name of a partition: write ./{} for one of this folder, or SPACE/NAME or NODE:SPACE/NAME for one of a dataspace of tarnd",
                    path.display(),
                    path.display()
                );
                Err(RequestError::new(Code::Invalid, text))
            }
            Self::Space(within) => {
                let last = within.path.rsplit('/').next().unwrap_or_default();
                sound(last).map(|_| name)
            }
            Self::Path(_) => Ok(name),
        }
    }

    /// That of a folder of partitions.
    pub(crate) fn of_folder(path: &'n Path) -> Result<Self, RequestError> {
        let first = path.components().next();
        use std::path::Component::{CurDir, ParentDir, RootDir};
        if matches!(first, Some(RootDir | CurDir | ParentDir)) {
            return Ok(Self::Path(path));
        }
        let text = path.to_str().filter(|text| !text.is_empty());
        let text = text.ok_or_else(|| {
            let text = format!("{:?} names no partition", path.display().to_string());
            RequestError::new(Code::Invalid, text)
        })?;
        let (place, path) = text.split_once('/').unwrap_or((text, ""));
        let (node, space) = match place.split_once(':') {
            Some((node, space)) => (Some(node), space),
            None => (None, place),
        };
        let path = path.trim_end_matches('/');
        Ok(Self::Space(InSpace { node, space, path }))
    }
}

impl<'n> InSpace<'n> {
    /// That of a partition that is in a dataspace.
    pub(crate) fn of(path: &'n Path) -> Result<Self, RequestError> {
        match PartitionName::of(path)? {
            PartitionName::Space(within) => Ok(within),
            PartitionName::Path(_) => {
                let text = format!("{} is in no dataspace", path.display());
                Err(RequestError::new(Code::Invalid, text))
            }
        }
    }
}

impl InSpace<'_> {
    /// The tarnd that `$TARN_SOCKET` names; for partitions of the step, that of its run.
    pub(crate) fn tarnd(&self) -> Result<Client, RequestError> {
        if self.space == STEP_SPACE {
            return step_tarnd();
        }
        Client::from_env().map_err(|why| {
            let text = format!(
                "{}/{} is to be in a dataspace of tarnd (a path begins with / or ./): {}",
                self.space, self.path, why.text
            );
            RequestError::new(why.code, text)
        })
    }

    /// The partition's file, below the root.
    pub(crate) fn file(&self) -> String {
        format!("{}{SUFFIX}", self.path)
    }

    /// Its place, as tasks name it.
    fn place(&self) -> TaskLocation {
        let path = self.file().as_str().into();
        match self.node {
            None => TaskLocation::Space {
                name: self.space.into(),
                path,
            },
            Some(node) => TaskLocation::Node {
                node: node.into(),
                space: self.space.into(),
                path,
            },
        }
    }

    /// Has tarnd do something to it.
    pub(crate) fn done(
        &self,
        kind: impl FnOnce(TaskLocation) -> TaskOperation,
    ) -> Result<(), RequestError> {
        let task = TaskSpec::new(kind(self.place()));
        self.tarnd()?.carry_out(task, TIMEOUT).map(drop)
    }
}

/// The tarnd of the run, which has the pieces of partitions over the nodes of the step open for its programs.
fn step_tarnd() -> Result<Client, RequestError> {
    let path = std::env::var_os(STEP_SOCKET).ok_or_else(|| {
        let text = format!(
            "{STEP_SOCKET} is not set: only programs of a step over several machines, with a partition that is spread, have pieces of it"
        );
        RequestError::new(Code::NotFound, text)
    })?;
    Client::connect(path.as_ref(), None)
}

/// The pieces of a step's partition, in their order, and the bytes of a block if it is spread.
type OfStep = (Vec<PathBuf>, Option<u64>);

/// A partition of the step that this process belongs to, as its environment says. None for other names than `@step/NAME`.
pub(crate) fn of_step(path: &Path) -> Option<Result<OfStep, RequestError>> {
    let name = path.to_str()?.strip_prefix(STEP_SPACE)?.strip_prefix('/')?;
    Some(sound(name).and_then(pieces))
}

fn pieces(name: &str) -> Result<OfStep, RequestError> {
    let refused = |code, why: &str| {
        let text = format!(
            "{STEP_SPACE}/{name} is no partition of a step that this program belongs to: {why}"
        );
        Err(RequestError::new(code, text))
    };
    let names = format!("TARN_PARTITION_{name}");
    let Some(all) = std::env::var_os(&names) else {
        return refused(Code::NotFound, &format!("{names} is not set"));
    };
    let block = format!("TARN_BLOCK_{name}");
    let Some(bytes) = std::env::var_os(&block) else {
        return Ok((vec![all.into()], None));
    };
    let Some(bytes) = bytes.to_str().and_then(|bytes| bytes.parse().ok()) else {
        return refused(Code::Invalid, &format!("{block} is no number of bytes"));
    };
    let pieces = all.as_bytes().split(|b| *b == b',');
    let pieces = pieces.map(|piece| PathBuf::from(OsStr::from_bytes(piece)));
    Ok((pieces.collect(), Some(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_says_so_by_its_beginning_and_all_else_is_tarnds() {
        let name = |text: &'static str| PartitionName::of(Path::new(text));
        for path in ["/dev/shm/me/field", "./field", "../me/field", "/field"] {
            assert_eq!(name(path).unwrap(), PartitionName::Path(Path::new(path)));
        }
        let space = |node, space, path| PartitionName::Space(InSpace { node, space, path });
        assert_eq!(name("fast/field").unwrap(), space(None, "fast", "field"));
        assert_eq!(name("fast/a/b").unwrap(), space(None, "fast", "a/b"));
        assert_eq!(name("n1:fast/b").unwrap(), space(Some("n1"), "fast", "b"));
        for bad in ["", "field", "fast/", "fast/.hidden", "fast/a\nb", "n1:fast"] {
            let why = name(bad).unwrap_err();
            assert_eq!(why.code, Code::Invalid, "{bad:?}: {why}");
        }
        let step = space(Some("n2"), "@step", "field");
        assert_eq!(name("n2:@step/field").unwrap(), step);
        assert!(of_step(Path::new("n2:@step/field")).is_none());
        let folder = PartitionName::of_folder(Path::new("fast/a/")).unwrap();
        assert_eq!(folder, space(None, "fast", "a"));
    }

    #[test]
    fn what_is_no_partition_of_a_step_is_named_as_such() {
        // No step's program runs this.
        for (path, code) in [
            ("@step/none", Code::NotFound),
            ("@step/", Code::Invalid),
            ("@step/a/b", Code::Invalid),
        ] {
            let why = of_step(Path::new(path)).unwrap().unwrap_err();
            assert_eq!(why.code, code, "{why}");
        }
    }
}
