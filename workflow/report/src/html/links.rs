//! Links from the page to files of the run: relative wherever that is possible, so that they hold when a
//! project is moved together with its page.

use std::fmt::Write;
use std::path::{Component, Path, PathBuf};
use tarn_types::id::InstanceId;
use tarn_types::object::is_object;

/// The folder of a page, and the run that it shows. By default the page is in the run's folder.
#[derive(Debug, Clone, Default)]
pub struct PageLinks {
    /// The folder of the page; not known: links to results are absolute.
    page: Option<PathBuf>,
    /// The run's folder, seen from the page.
    run: PathBuf,
}

impl PageLinks {
    /// Links of a page in folder `page` about the run with folder `run`, both absolute.
    pub fn new(page: &Path, run: &Path) -> Self {
        Self {
            page: Some(page.to_path_buf()),
            run: relative(page, run),
        }
    }

    /// The log of an attempt of a step.
    pub(super) fn log(&self, step: &str, id: InstanceId, attempt: u32) -> String {
        let name = format!("{step}-{}.{attempt}.log", id.index);
        url(&self.run.join("steps").join(name))
    }

    /// A file or folder; none for a tree of an object store.
    pub(super) fn to(&self, path: &Path) -> Option<String> {
        if is_object(path) {
            return None;
        }
        let seen = self.page.as_ref().map(|page| relative(page, path));
        Some(url(&seen.unwrap_or_else(|| path.to_path_buf())))
    }
}

/// A link to a file from a page in folder `from`, both absolute.
pub fn link(from: &Path, to: &Path) -> String {
    url(&relative(from, to))
}

/// `to` as seen from the folder `from`; absolute if they have nothing in common but the root.
fn relative(from: &Path, to: &Path) -> PathBuf {
    let (from, to) = (parts(from), parts(to));
    let common = from.iter().zip(&to).take_while(|(a, b)| a == b);
    let shared: Vec<Component<'_>> = common.map(|(a, _)| *a).collect();
    if !shared.iter().any(|c| matches!(c, Component::Normal(_))) {
        return to.iter().collect();
    }
    let up = from.iter().skip(shared.len()).map(|_| Component::ParentDir);
    up.chain(to.into_iter().skip(shared.len())).collect()
}

/// The components of a path without `.` and `..`, by its text: links in a browser are followed so, too.
fn parts(path: &Path) -> Vec<Component<'_>> {
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                parts.pop();
            }
            other => parts.push(other),
        }
    }
    parts
}

/// A path as a URL: everything that could mean something else in one is escaped.
fn url(path: &Path) -> String {
    let mut out = String::new();
    let bytes = path.as_os_str().as_encoded_bytes();
    if bytes.is_empty() {
        out.push('.');
    }
    for byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' | b'~' => {
                out.push(char::from(*byte));
            }
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_types::id::StepId;

    #[test]
    fn links_are_relative_where_they_can_be() {
        let links = PageLinks::new(
            Path::new("/home/ada/p/../web"),
            Path::new("/home/ada/p/.tarn/runs/p-1"),
        );
        let to = |path: &str| links.to(Path::new(path)).expect("a link");
        assert_eq!(to("/home/ada/p/results"), "../p/results");
        assert_eq!(to("/home/ada/web"), ".");
        assert_eq!(to("/lustre/a b#?.html"), "/lustre/a%20b%23%3F.html");
        assert_eq!(links.to(Path::new("s3://bucket/results")), None);
        let id = InstanceId {
            step: StepId(0),
            index: 7,
        };
        assert_eq!(
            links.log("fit", id, 2),
            "../p/.tarn/runs/p-1/steps/fit-7.2.log"
        );
        assert_eq!(PageLinks::default().log("fit", id, 2), "steps/fit-7.2.log");
    }
}
