//! The same from and to an object store.

use super::{appear, copied, destination, read_metadata, usage};
use crate::data::delivered::{Delivered, deliver};
use crate::error::{CliResult, ExitWith};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tarn_ports::{CopySource, Over};
use tarn_types::codes::Exit;
use tarn_types::hash::Hash;
use tarn_types::object::{ObjectUrl, is_object, shown};
use tarn_types::part::Verify;

fn place(path: &Path) -> CliResult<Option<ObjectUrl>> {
    let refused = |why| {
        usage(format!(
            "{} is no place in an object store: {why}",
            shown(path)
        ))
    };
    ObjectUrl::of(path).transpose().map_err(refused)
}

pub(super) fn copy(from: &Path, to: &Path, replace: bool) -> CliResult {
    match (place(from)?, place(to)?) {
        (Some(from), None) => fetch(&from, &std::path::absolute(to).exit(Exit::Usage)?, replace),
        (source, Some(to)) => upload(from, source, to, replace),
        (None, None) => Err(usage("neither place is in an object store".into())),
    }
}

/// Out of a store: an object becomes a file, a tree a folder.
fn fetch(from: &ObjectUrl, to: &Path, replace: bool) -> CliResult {
    let to = destination(Path::new(from.title()), to, from.is_tree())?;
    appear(Path::new(&from.to_string()), from.is_tree(), &to, replace)
}

/// The owner of a copy's objects: only the same call of the same user on this machine continues an interrupted copy.
fn owner(root: &Path, inode: Option<(u64, u64)>) -> String {
    let user = rustix::process::getuid().as_raw();
    let host = tarn_node::machine::host_name();
    let call = format!("{user} {host} {inode:?} {}", root.display());
    format!("copy-{}", Hash::of(call.as_bytes()))
}

/// Into a store: a folder becomes the tree of that name, a file the object of that name, or of its own in that tree.
fn upload(from: &Path, source: Option<ObjectUrl>, to: ObjectUrl, replace: bool) -> CliResult {
    let (root, is_tree, name, inode) = match &source {
        Some(source) => (
            from.to_path_buf(),
            source.is_tree(),
            source.name().to_owned(),
            None,
        ),
        None => {
            let root = std::path::absolute(from).exit(Exit::Usage)?;
            let about = read_metadata(&root)?
                .ok_or_else(|| usage(format!("{} is not there", root.display())))?;
            if about.is_symlink() {
                let text = format!(
                    "{} is a link, which can be no object: name what it leads to",
                    root.display()
                );
                return Err(usage(text));
            }
            let name = root
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let inode = (about.dev(), about.ino());
            (root, about.is_dir(), name, Some(inode))
        }
    };
    let to = match (is_tree, to.is_tree()) {
        (false, true) => to
            .at(name.as_bytes())
            .map_err(|why| usage(format!("{name}: {why}")))?,
        (true, false) => {
            let text = format!(
                "{} is a tree: name the tree that it becomes with a `/` at its end, {to}/",
                root.display()
            );
            return Err(usage(text));
        }
        _ => to,
    };
    if let Some(source) = source.filter(|source| source.is_in_way_of(&to)) {
        return Err(usage(format!(
            "one of {source} and {to} contains the other"
        )));
    }
    let dest = PathBuf::from(to.to_string());
    let report = deliver(Delivered {
        owner: owner(&root, inode),
        sources: vec![CopySource {
            as_entry: (!is_tree && !is_object(&root)).then_some(name),
            ..CopySource::of(root)
        }],
        dest: to,
        single: !is_tree,
        over: if replace { Over::All } else { Over::Unfinished },
        verify: Verify::Readback,
    })
    .exit(Exit::WorkflowFailed)?;
    copied(&report, &dest);
    Ok(Exit::Success)
}
