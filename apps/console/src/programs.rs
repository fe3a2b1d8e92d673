//! The other programs of tarn.

use rustix::fs::{Access, access};
use std::env;
use std::path::{Path, PathBuf};

/// The path of a program of tarn: beside this one, or else in `$PATH`.
///
/// # Errors
/// When it is in neither.
///
/// # Examples
/// ```
/// assert!(tarn_console::programs::find("no-such-program").is_err());
/// ```
pub fn find(name: &str) -> anyhow::Result<PathBuf> {
    let own = env::current_exe()?;
    let beside = own.with_file_name(name);
    let path = env::var_os("PATH").unwrap_or_default();
    let others = env::split_paths(&path).map(|folder| folder.join(name));
    let mut places = std::iter::once(beside.clone()).chain(others);
    places.find(|file| is_program(file)).ok_or_else(|| {
        anyhow::anyhow!(
            "there is no {name} that can be executed beside this program ({}) or in $PATH: `make build` and `make install` put all of tarn's programs into one folder",
            own.display()
        )
    })
}

/// A file that this process may execute.
fn is_program(file: &Path) -> bool {
    file.is_file() && access(file, Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_what_can_be_executed_is_a_program() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("program");
        assert!(!is_program(&file) && !is_program(folder.path()));
        fs::write(&file, "#!/bin/sh\n").unwrap();
        for (mode, is_one) in [(0o644, false), (0o755, true)] {
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            assert_eq!(is_program(&file), is_one, "{mode:o}");
        }
    }
}
