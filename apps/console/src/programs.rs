//! The other programs of tarn.

use std::env;
use std::path::PathBuf;

/// Where a program of tarn is: beside this one, or else in `$PATH`.
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
    places.find(|file| file.is_file()).ok_or_else(|| {
        anyhow::anyhow!(
            "there is no {name} beside this program ({}) or in $PATH: `make build` and `make install` put all of tarn's programs into one folder",
            own.display()
        )
    })
}
