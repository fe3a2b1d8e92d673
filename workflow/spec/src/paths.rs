//! Paths that get in each other's way: what is written must not hold, or lie in, what is read or written otherwise.

use crate::data::RawData;
use crate::diag::{Code, Finding, Findings};
use crate::section::Located;
use miette::SourceSpan;
use std::path::{Component, Path, PathBuf};

/// What a path is for. The order is that of entries with the same path: a later one is checked against an earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Purpose {
    Source,
    Dest,
    External,
    Folder,
}

struct Entry {
    path: PathBuf,
    purpose: Purpose,
    /// The dataset, for messages.
    name: String,
    span: Option<SourceSpan>,
}

/// Reports every path that lies in, holds or is another one that it must not.
pub(crate) fn check(
    out: &mut Findings,
    data: &[RawData],
    external: Option<&Located<PathBuf>>,
    folder: &Path,
) {
    let mut entries = collect(data, external, folder);
    // Components compare one by one: what lies in a folder follows it directly.
    entries.sort_by(|a, b| (&a.path, a.purpose).cmp(&(&b.path, b.purpose)));
    let mut open: Vec<Open> = Vec::new();
    for (i, entry) in entries.iter().enumerate() {
        while open
            .last()
            .is_some_and(|o| !entry.path.starts_with(&entries[o.entry].path))
        {
            open.pop();
        }
        let (mut source, mut dest) = open.last().map_or((None, None), |o| (o.source, o.dest));
        let outer = match entry.purpose {
            Purpose::Source | Purpose::Folder => dest,
            Purpose::Dest | Purpose::External => dest.or(source),
        };
        if let Some(outer) = outer {
            out.add(conflict(&entries[outer], entry));
        }
        match entry.purpose {
            Purpose::Source => source = Some(i),
            Purpose::Dest => dest = Some(i),
            Purpose::External | Purpose::Folder => {}
        }
        open.push(Open {
            entry: i,
            source,
            dest,
        });
    }
}

/// A folder that the entries being looked at lie in, with the innermost source and dest around it, itself included.
struct Open {
    entry: usize,
    source: Option<usize>,
    dest: Option<usize>,
}

fn collect(data: &[RawData], external: Option<&Located<PathBuf>>, folder: &Path) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut push = |path: &Path, purpose, name: &str, span| {
        entries.push(Entry {
            path: normal(path),
            purpose,
            name: name.to_owned(),
            span,
        });
    };
    for d in data {
        for (path, purpose) in [(&d.source, Purpose::Source), (&d.dest, Purpose::Dest)] {
            if let Some(path) = path {
                push(&path.value, purpose, &d.name.value, Some(path.span));
            }
        }
    }
    if let Some(external) = external {
        push(&external.value, Purpose::External, "", Some(external.span));
    }
    push(folder, Purpose::Folder, "", None);
    entries
}

/// Without `.` and, as far as names alone tell, without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for c in path.components() {
        match c {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            _ => clean.push(c),
        }
    }
    clean
}

fn conflict(outer: &Entry, inner: &Entry) -> Finding {
    let relation = if outer.path == inner.path {
        "is"
    } else {
        "is inside"
    };
    let (message, hint) = match inner.purpose {
        Purpose::Folder => (
            format!(
                "{} would replace the folder of the workflow file",
                title(outer)
            ),
            "a dest is replaced as a whole: name a separate folder below, such as \"results\"",
        ),
        _ => (
            format!("{} {relation} {}", title(inner), title(outer)),
            "tarn's output must not overlap other paths that it reads or writes: choose another path",
        ),
    };
    let mut problem = Finding::error(Code::PathOverlap, message);
    for entry in [inner, outer] {
        if let Some(span) = entry.span {
            problem = problem.at(span, label(entry));
        }
    }
    problem.help(hint)
}

fn title(entry: &Entry) -> String {
    match entry.purpose {
        Purpose::Source => format!("the source of `{}`", entry.name),
        Purpose::Dest => format!("the dest of `{}`", entry.name),
        Purpose::External => "`external`".into(),
        Purpose::Folder => "the workflow file's folder".into(),
    }
}

fn label(entry: &Entry) -> &'static str {
    match entry.purpose {
        Purpose::Source => "is read",
        Purpose::Dest => "is replaced at the end",
        Purpose::External => "is written to",
        Purpose::Folder => "",
    }
}
