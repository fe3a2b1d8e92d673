//! Partitions of steps: the functions by which `tarn` and `tarnd --node` make them.

use crate::{Code, PartitionFolder, RequestError};
use std::path::Path;
use tarn_types::event::{RunError, RunErrorKind};

/// Creates a partition for a step: `size` bytes in `unit`s, or mapped with 0, for this user alone. A
/// partition of this name that exists stays as it is.
///
/// # Errors
/// Of kind [`RunErrorKind::NoSpace`] where there is no space, [`RunErrorKind::Io`] or [`RunErrorKind::Launch`]
/// otherwise.
///
/// # Examples
/// ```
/// use tarn_partitions::{Partition, for_step};
///
/// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
/// for _ in 0..2 {
///     for_step(folder.path(), "field", 4096, 0).unwrap();
/// }
/// assert_eq!(Partition::list(folder.path())?[0].name, "field");
/// # Ok::<(), tarn_partitions::RequestError>(())
/// ```
pub fn for_step(folder: &Path, name: &str, size: u64, unit: u32) -> Result<(), RunError> {
    let owner = rustix::process::geteuid().as_raw();
    let made = PartitionFolder::open(folder)
        .and_then(|folder| folder.create(name, size, Some(unit), owner, Vec::new()));
    match made {
        Err(why) if why.code != Code::Exists => Err(failed(&why)),
        _ => Ok(()),
    }
}

fn failed(why: &RequestError) -> RunError {
    let kind = match why.code {
        Code::NoSpace | Code::Quota => RunErrorKind::NoSpace,
        Code::Io => RunErrorKind::Io,
        _ => RunErrorKind::Launch,
    };
    RunError {
        kind,
        message: why.text.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HEAD, MAX_PARTS, SUFFIX};
    use tarn_types::workflow::{KeepPartition, StoragePartition};

    #[test]
    fn what_a_workflow_reckons_with_is_what_a_partition_takes() {
        let about = |size, unit| StoragePartition {
            name: "field".into(),
            size,
            unit,
            tier: None,
            spread: None,
            keep: KeepPartition::Step,
            steps: Vec::new(),
        };
        assert_eq!(StoragePartition::HEAD, HEAD);
        assert_eq!(StoragePartition::MOST_PIECES as usize, MAX_PARTS);
        let folder = tempfile::tempdir().unwrap();
        for (size, unit) in [(1, None), (5000, Some(512)), (1 << 20, Some(16384))] {
            let about = about(size, unit);
            let file = folder.path().join(about.file());
            assert_eq!(about.file(), format!("field{SUFFIX}"));
            for _ in 0..2 {
                for_step(folder.path(), &about.name, size, unit.unwrap_or(0)).unwrap();
            }
            assert!(
                std::fs::metadata(&file).unwrap().len() <= about.takes(1),
                "{about:?}"
            );
            std::fs::remove_file(file).unwrap();
        }
    }

    #[test]
    fn one_that_does_not_fit_is_refused_as_what_it_is() {
        // Of memory, not more than is free is requested.
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let why = for_step(folder.path(), "field", 1 << 50, 0).unwrap_err();
        assert_eq!(why.kind, RunErrorKind::NoSpace, "{}", why.message);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
