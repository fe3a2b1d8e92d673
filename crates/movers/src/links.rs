//! Symbolic links: copied as links, but never one that leads out of its tree.

use crate::error::{Result, show};
use tarn_base::event::FailureKind;
use tarn_base::manifest::Manifest;
use tarn_ports::MoverError;
use tarn_sys::beneath::split;

fn refused(path: &[u8], target: &[u8], why: &str) -> MoverError {
    MoverError::new(
        FailureKind::Escape,
        format!(
            "the symbolic link `{}` -> `{}` {why}; replace it by a relative link inside the dataset, or by the file itself",
            show(path),
            show(target)
        ),
    )
}

/// Checks a link's target as far as that can be told from its text. `true` when the answer depends on what the
/// folders in it are (a `..` after a name): then [`check_in`] decides once the tree is known.
pub(crate) fn check(path: &[u8], target: &[u8]) -> Result<bool> {
    if target.is_empty() || target[0] == b'/' {
        return Err(refused(path, target, "has an absolute target"));
    }
    let mut depth = path.iter().filter(|&&b| b == b'/').count();
    let mut named = false;
    let mut undecided = false;
    for component in target.split(|&b| b == b'/') {
        match component {
            b"" | b"." => {}
            b".." => {
                undecided |= named;
                depth = depth
                    .checked_sub(1)
                    .ok_or_else(|| refused(path, target, "leads out of the dataset's root"))?;
            }
            _ => {
                named = true;
                depth += 1;
            }
        }
    }
    Ok(undecided)
}

/// Checks that every name before a `..` in a link's target is a real folder of the tree, so that `..` means what
/// the text says.
pub(crate) fn check_in(tree: &Manifest, path: &[u8], target: &[u8]) -> Result<()> {
    let (above, _) = split(path);
    let mut at: Vec<&[u8]> = above
        .split(|&b| b == b'/')
        .filter(|c| !c.is_empty())
        .collect();
    for component in target.split(|&b| b == b'/') {
        match component {
            b"" | b"." => {}
            b".." => {
                let here = at.join(&b'/');
                let real = at.is_empty() || tree.find(&here).is_some_and(|e| e.is_folder());
                if !real || at.pop().is_none() {
                    return Err(refused(
                        path,
                        target,
                        "goes up from something that is not a folder of the dataset",
                    ));
                }
            }
            name => at.push(name),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_base::manifest::{Entry, EntryKind};

    #[test]
    fn targets() {
        for (path, target) in [
            ("l", "a"),
            ("d/l", "../a"),
            ("d/e/l", "../../a/b"),
            ("l", "."),
            ("d/l", "./.."),
        ] {
            assert!(
                !check(path.as_bytes(), target.as_bytes()).unwrap(),
                "{path} {target}"
            );
        }
        for (path, target) in [
            ("l", ".."),
            ("l", "/etc"),
            ("d/l", "../../x"),
            ("l", "a/../.."),
            ("l", ""),
        ] {
            let err = check(path.as_bytes(), target.as_bytes()).unwrap_err();
            assert_eq!(err.failure.kind, FailureKind::Escape);
        }
        assert!(check(b"d/l", b"../a/../b").unwrap());
    }

    #[test]
    fn up_from_a_link_is_refused() {
        let entry = |path: &str, kind| Entry {
            path: path.as_bytes().into(),
            kind,
            mode: 0o755,
            mtime: 0,
            xattrs: Box::default(),
        };
        let tree = Manifest {
            entries: vec![
                entry("a", EntryKind::Directory),
                entry("a/b", EntryKind::Directory),
                // `a/top` is the root; `a/top/..` would be outside though its text stays inside.
                entry("a/top", EntryKind::Symlink((*b"..").into())),
            ],
        };
        assert!(check_in(&tree, b"x", b"a/b/../b").is_ok());
        assert!(check_in(&tree, b"x", b"a/top/../b").is_err());
        assert!(check_in(&tree, b"x", b"gone/../b").is_err());
    }
}
