//! `tarn h5 exec`: configures HDF5 for the plug-in, after a check that it can use it. HDF5 itself crashes if a driver is not found, and
//! an HDF5 that is too old writes ordinary files and prints nothing.

use crate::error::{CliError, CliResult, ExitWith};
use anyhow::Context;
use clap::Args;
use rustix::fs::{Access, access};
use std::env;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind::{AlreadyExists, NotFound};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};
use tarn_console::hdf5::{configure_driver, plugin_folder};
use tarn_sys::folder::may_make;
use tarn_types::codes::Exit;

/// The first HDF5 that loads drivers.
const LEAST: (u32, u32) = (1, 14);
/// Says which HDF5 a Python would use.
const ASK: &str = "
import importlib
for name, key in ('h5py', 'version.hdf5_version'), ('netCDF4', '__hdf5libversion__'), ('tables', 'hdf5_version'):
    try:
        found = importlib.import_module(name)
    except ImportError:
        continue
    for part in key.split('.'):
        found = getattr(found, part)
    print(name, found)
    break
";

#[derive(Debug, Clone, Args)]
pub(crate) struct H5ExecArgs {
    /// A folder of a tier, or of a dataspace of tarnd, that takes the place of the current folder: each HDF5 file that the program
    /// names there is the partition of that name. It is made if it is not there
    #[arg(long, value_name = "DIR", required_unless_present = "partitions")]
    folder: Option<PathBuf>,
    /// The partition that holds the only file which the program uses, under any name; given several times, they hold it block by
    /// block
    #[arg(
        long = "partition",
        value_name = "PARTITION",
        conflicts_with = "folder"
    )]
    partitions: Vec<PathBuf>,
    /// More of the driver's configuration, such as level=persistent or wait=newer (docs/guide/hdf5.md)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    more: Vec<String>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true)]
    command: Vec<OsString>,
}

/// Becomes the program.
///
/// # Errors
/// When the plug-in, its requirements, or the program is not there.
pub(super) fn exec(args: &H5ExecArgs) -> CliResult {
    let config = configuration(args)?;
    let plugin = plugin_folder()?;
    let Some((program, arguments)) = args.command.split_first() else {
        return Err(CliError::new(Exit::Usage, "no program"));
    };
    check_python(program)?;
    let mut becomes = Command::new(program);
    configure_driver(&mut becomes, &plugin, &config)?;
    let failed = becomes.args(arguments).exec();
    Err(failed)
        .with_context(|| format!("cannot run {}", program.display()))
        .exit(Exit::NotFound)
}

/// The driver's configuration.
fn configuration(args: &H5ExecArgs) -> CliResult<String> {
    let mut items = Vec::new();
    match &args.partitions[..] {
        [] => {
            let folder = meant(args.folder.as_deref().unwrap_or(Path::new(".")));
            if is_path(&folder) {
                let whole = std::path::absolute(&folder).exit(Exit::Usage)?;
                may_make(&whole).exit(Exit::Usage)?;
                match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
                    // The code below handles a folder that exists already or that cannot exist.
                    Err(e) if !matches!(e.kind(), AlreadyExists | NotFound) => {
                        let text = format!("cannot make {}: {e}", folder.display());
                        return Err(CliError::new(Exit::State, text));
                    }
                    _ => {}
                }
            }
            items.push(format!("folder={}", place(&folder)?));
            // If the option cannot hold it, the plug-in finds it itself, unless the program changes its folder before.
            let here = env::current_dir().ok().and_then(|here| plain(&here).ok());
            let given = args.more.iter().any(|item| item.starts_with("base="));
            items.extend(here.filter(|_| !given).map(|here| format!("base={here}")));
        }
        several => {
            let names: CliResult<Vec<_>> =
                several.iter().map(|name| partition(&meant(name))).collect();
            items.push(format!("partitions={}", names?.join(",")));
        }
    }
    for item in &args.more {
        if !item.contains('=') || item.contains(';') {
            let text = format!("--set {item}: give KEY=VALUE");
            return Err(CliError::new(Exit::Usage, text));
        }
        items.push(item.clone());
    }
    Ok(items.join(";"))
}

/// The meaning of a name: where no tarnd serves there is no dataspace, and `out/x` is `./out/x`.
pub(super) fn meant(name: &Path) -> PathBuf {
    let first = name.components().next();
    let of_node = first.is_some_and(|first| first.as_os_str().as_encoded_bytes().contains(&b':'));
    if is_path(name) || of_node || env::var_os(tarn_client::SOCKET).is_some() {
        name.to_owned()
    } else {
        Path::new(".").join(name)
    }
}

/// Whether it is a path; else it is in a dataspace of tarnd.
pub(super) fn is_path(name: &Path) -> bool {
    let first = name.components().next();
    matches!(
        first,
        Some(Component::RootDir | Component::CurDir | Component::ParentDir)
    )
}

/// The name as text, if the driver's configuration can contain it.
fn plain(name: &Path) -> CliResult<String> {
    let text = name.to_str().filter(|text| !text.contains([';', ',']));
    text.map(str::to_owned).ok_or_else(|| {
        let text = format!(
            "{} has a semicolon, a comma or other characters than UTF-8, which the driver's configuration cannot hold",
            name.display()
        );
        CliError::new(Exit::Usage, text)
    })
}

/// A folder, by its full path, as the program may change its own: it can be written to.
fn place(folder: &Path) -> CliResult<String> {
    if !is_path(folder) {
        return plain(folder);
    }
    let whole = folder
        .canonicalize()
        .with_context(|| format!("{} is no folder: make it first", folder.display()))
        .exit(Exit::NotFound)?;
    access(&whole, Access::WRITE_OK | Access::EXEC_OK)
        .with_context(|| format!("no partition can be made in {}", whole.display()))
        .exit(Exit::State)?;
    plain(&whole)
}

/// A partition, which need not be there yet.
fn partition(path: &Path) -> CliResult<String> {
    match (is_path(path), path.parent(), path.file_name()) {
        (true, Some(folder), Some(name)) => plain(&Path::new(&place(folder)?).join(name)),
        _ => plain(path),
    }
}

/// Refuses a Python whose HDF5 would not load the driver, as far as that can be known.
fn check_python(program: &OsStr) -> CliResult<()> {
    let name = Path::new(program).file_name().unwrap_or(program);
    if !name.as_encoded_bytes().starts_with(b"python") {
        return Ok(());
    }
    // Without the driver: nothing is to be loaded for this.
    let output = Command::new(program)
        .args(["-c", ASK])
        .env_remove("HDF5_DRIVER")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let text = text.unwrap_or_default();
    let Some((module, hdf5)) = text.trim().split_once(' ') else {
        return Ok(());
    };
    let mut numbers = hdf5.split('.').map_while(|number| number.parse().ok());
    match numbers.next().zip(numbers.next()) {
        Some(version) if version < LEAST => {
            let text = format!(
                "{module} of {} has HDF5 {hdf5}, which would silently write ordinary files: 1.14 is the first that loads drivers (h5py has it from 3.10 on)",
                program.display()
            );
            Err(CliError::new(Exit::State, text))
        }
        _ => Ok(()),
    }
}
