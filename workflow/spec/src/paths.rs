//! Paths that get in each other's way: a path that is written must not hold, or be in, one that is read or written otherwise.

use crate::data::RawDataset;
use crate::diag::{Finding, FindingCode, Findings};
use crate::section::Located;
use miette::SourceSpan;
use std::path::{Component, Path, PathBuf};

/// The purpose of a path. The order is that of entries with the same path: a later one is checked against an earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PathPurpose {
    Source,
    Dest,
    External,
    Folder,
}

struct PathEntry {
    path: PathBuf,
    purpose: PathPurpose,
    /// The dataset, for messages.
    name: String,
    span: Option<SourceSpan>,
}

/// Reports every path that is in, holds or is another one that it must not.
pub(crate) fn check(
    out: &mut Findings,
    data: &[RawDataset],
    external: Option<&Located<PathBuf>>,
    folder: &Path,
) {
    let mut entries = collect(data, external, folder);
    // Components compare one by one: the content of a folder follows it directly.
    entries.sort_by(|a, b| (&a.path, a.purpose).cmp(&(&b.path, b.purpose)));
    let mut open: Vec<EnclosingPath> = Vec::new();
    for (i, entry) in entries.iter().enumerate() {
        while open
            .last()
            .is_some_and(|o| !entry.path.starts_with(&entries[o.entry].path))
        {
            open.pop();
        }
        let (mut source, mut dest) = open.last().map_or((None, None), |o| (o.source, o.dest));
        let outer = match entry.purpose {
            PathPurpose::Source | PathPurpose::Folder => dest,
            PathPurpose::Dest | PathPurpose::External => dest.or(source),
        };
        if let Some(outer) = outer {
            out.add(conflict(&entries[outer], entry));
        }
        match entry.purpose {
            PathPurpose::Source => source = Some(i),
            PathPurpose::Dest => dest = Some(i),
            PathPurpose::External | PathPurpose::Folder => {}
        }
        open.push(EnclosingPath {
            entry: i,
            source,
            dest,
        });
    }
}

/// A folder around the current entries, with the innermost source and dest around it, itself included.
struct EnclosingPath {
    entry: usize,
    source: Option<usize>,
    dest: Option<usize>,
}

fn collect(
    data: &[RawDataset],
    external: Option<&Located<PathBuf>>,
    folder: &Path,
) -> Vec<PathEntry> {
    let mut entries = Vec::new();
    let mut push = |path: &Path, purpose, name: &str, span| {
        entries.push(PathEntry {
            path: normal(path),
            purpose,
            name: name.to_owned(),
            span,
        });
    };
    for d in data {
        for (path, purpose) in [
            (&d.source, PathPurpose::Source),
            (&d.dest, PathPurpose::Dest),
        ] {
            if let Some(path) = path {
                push(&path.value, purpose, &d.name.value, Some(path.span));
            }
        }
    }
    if let Some(external) = external {
        push(
            &external.value,
            PathPurpose::External,
            "",
            Some(external.span),
        );
    }
    push(folder, PathPurpose::Folder, "", None);
    entries
}

/// Without `.` and, as far as names alone show, without `..`.
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

fn conflict(outer: &PathEntry, inner: &PathEntry) -> Finding {
    let relation = if outer.path == inner.path {
        "is"
    } else {
        "is inside"
    };
    let (message, hint) = match inner.purpose {
        PathPurpose::Folder => (
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
    let mut problem = Finding::error(FindingCode::PathOverlap, message);
    for entry in [inner, outer] {
        if let Some(span) = entry.span {
            problem = problem.at(span, label(entry));
        }
    }
    problem.help(hint)
}

fn title(entry: &PathEntry) -> String {
    match entry.purpose {
        PathPurpose::Source => format!("the source of `{}`", entry.name),
        PathPurpose::Dest => format!("the dest of `{}`", entry.name),
        PathPurpose::External => "`external`".into(),
        PathPurpose::Folder => "the workflow file's folder".into(),
    }
}

fn label(entry: &PathEntry) -> &'static str {
    match entry.purpose {
        PathPurpose::Source => "is read",
        PathPurpose::Dest => "is replaced at the end",
        PathPurpose::External => "is written to",
        PathPurpose::Folder => "",
    }
}
