//! Variables that the text of a script reads, found as a shell would find them, near enough: no shell is imitated. The limits of
//! the search: docs/reference/workflow-file.md, "Variables that nobody sets".

use crate::calls::{calls, is_program, set_by_calls};
use crate::variable_read::{VariableRead, is_of_name, without_comment};
use std::collections::{BTreeSet, HashMap};

/// Programs that read `$NAME` as a shell does.
const SHELLS: &[&str] = &[
    "sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "fish", "csh", "tcsh", "busybox",
];
/// How names of shell scripts end without a first line that names their shell.
const ENDINGS: &[&str] = &[
    "sh", "bash", "dash", "ksh", "zsh", "env", "sbatch", "slurm", "job",
];

/// Every read in a text, in its order; comments are left out.
pub(crate) fn reads(text: &str) -> Vec<VariableRead<'_>> {
    let mut found = calls(text);
    each_line(text, |start, line, is_literal| {
        for (dollar, _) in line.match_indices('$') {
            let Some((name, braced, behind)) = variable(&line[dollar..]) else {
                continue;
            };
            let before = &line[..dollar];
            let leading = before.trim_end_matches('"').trim_end();
            let before_test = leading.strip_suffix("-n").or(leading.strip_suffix("-z"));
            found.push(VariableRead {
                name,
                at: start + dollar,
                has_default: braced && has_default(behind),
                is_test: before_test.is_some_and(|b| b.ends_with(|c: char| c.is_whitespace())),
                is_literal: is_literal || before.ends_with('\\'),
                is_call: false,
            });
        }
    });
    found.sort_by_key(|read| read.at);
    found
}

/// Names that a text of this name gives a value.
pub(crate) fn set_in<'s>(name: &str, text: &'s str) -> BTreeSet<&'s str> {
    let mut found = set_by_calls(text);
    // A variable of a program is none of its environment.
    if !is_program(name, text) {
        found.extend(set_by(text));
    }
    found
}

/// Names that are in a text by themselves, not behind a `$`: `NAME=value`, `read NAME`, `for NAME in`. The script sets them.
fn set_by(text: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    each_line(text, |_, line, _| {
        let mut rest = line;
        while let Some(begin) = rest.find(is_of_name) {
            let before = rest[..begin].chars().next_back();
            let word = &rest[begin..];
            let end = word.find(|c| !is_of_name(c)).unwrap_or(word.len());
            let (name, behind) = word.split_at(end);
            let is_first = before.is_none_or(|c| c.is_whitespace() || ";&|(`'\"".contains(c));
            let is_last = behind.is_empty()
                || behind.starts_with(|c: char| c.is_whitespace() || "=+;&|)[".contains(c));
            // `${NAME:=value}` and `${NAME:?message}` settle it for all that follows.
            let settled = behind.strip_prefix(':').unwrap_or(behind);
            let is_settled = rest[..begin].ends_with("${") && settled.starts_with(['=', '?']);
            if (is_first && is_last) || is_settled {
                found.insert(name);
            }
            rest = behind;
        }
    });
    found
}

/// Whether a text is read by a shell: by its first line, or else by its name.
pub(crate) fn is_shell(name: &str, text: &str) -> bool {
    if let Some(line) = text.strip_prefix("#!") {
        let words = line.lines().next().unwrap_or_default().split_whitespace();
        return words.into_iter().any(|word| {
            let program = word.rsplit('/').next().unwrap_or_default();
            SHELLS.contains(&program)
        });
    }
    let file = name.rsplit('/').next().unwrap_or_default();
    match file.rsplit_once('.') {
        Some((_, ending)) => ENDINGS.contains(&ending),
        None => true,
    }
}

/// The name behind a `$`, whether it is in braces, and the text behind it.
fn variable(text: &str) -> Option<(&str, bool, &str)> {
    let rest = text.strip_prefix('$')?;
    let braced = rest.strip_prefix('{');
    let rest = braced.unwrap_or(rest);
    let end = rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
    let (name, behind) = rest.split_at(end);
    let is_name = name.starts_with(|c: char| !c.is_ascii_digit());
    is_name.then_some((name, braced.is_some(), behind))
}

/// Whether `${NAME` continues with something for the case that it is not set; `${NAME:2}` is a part of it.
fn has_default(behind: &str) -> bool {
    let behind = behind.strip_prefix(':').unwrap_or(behind);
    behind.starts_with(['-', '+', '=', '?'])
}

/// The lines of a text without comments: where each begins, and whether it is of a here-document with a quoted delimiter.
fn each_line<'s>(text: &'s str, mut see: impl FnMut(usize, &'s str, bool)) {
    let mut start = 0;
    let mut document: Option<HereDocument<'s>> = None;
    // Made for the first `<<` only: most texts have none.
    let mut ends: Option<HereDocumentIndex<'s>> = None;
    for line in text.split_inclusive('\n') {
        let at = start;
        start += line.len();
        match &document {
            Some(within) if within.is_ended_by(line) => document = None,
            Some(within) => see(at, line, within.is_quoted),
            None => {
                let code = without_comment(line);
                see(at, code, false);
                document = HereDocument::begun_by(code).filter(|begun| {
                    ends.get_or_insert_with(|| HereDocumentIndex::of(text))
                        .has(begun, start)
                });
            }
        }
    }
}

/// A here-document.
struct HereDocument<'s> {
    delimiter: &'s str,
    is_quoted: bool,
    /// `<<-`: tabs before the delimiter do not count.
    is_indented: bool,
}

impl<'s> HereDocument<'s> {
    /// Of several in a line the first.
    fn begun_by(line: &'s str) -> Option<Self> {
        let mut marks = line.match_indices("<<");
        let (at, _) = marks.find(|(at, _)| {
            let around = (&line[..*at], &line[at + 2..]);
            !around.0.ends_with('<') && !around.1.starts_with('<')
        })?;
        let behind = &line[at + 2..];
        let indented = behind.strip_prefix('-');
        let word = indented.unwrap_or(behind).trim_start_matches([' ', '\t']);
        let unquoted = word.trim_start_matches(['\'', '"', '\\']);
        let end = unquoted.find(|c| !is_of_name(c)).unwrap_or(unquoted.len());
        let delimiter = &unquoted[..end];
        let is_name = delimiter.starts_with(|c: char| !c.is_ascii_digit());
        is_name.then_some(Self {
            delimiter,
            is_quoted: unquoted.len() < word.len(),
            is_indented: indented.is_some(),
        })
    }

    fn is_ended_by(&self, line: &str) -> bool {
        let line = line.trim_end_matches(['\r', '\n']);
        let line = match self.is_indented {
            true => line.trim_start_matches('\t'),
            false => line,
        };
        line == self.delimiter
    }
}

/// The last lines that may end here-documents. A `<<` is a shift in other languages: searching the rest of the text for the end
/// of each takes time with the square of its lines.
struct HereDocumentIndex<'s> {
    /// The last line of each word that is alone in one, in bytes from the begin.
    plain: HashMap<&'s str, usize>,
    /// The same with tabs before the word.
    indented: HashMap<&'s str, usize>,
}

impl<'s> HereDocumentIndex<'s> {
    fn of(text: &'s str) -> Self {
        let (mut plain, mut indented) = (HashMap::new(), HashMap::new());
        let mut start = 0;
        for line in text.split_inclusive('\n') {
            let whole = line.trim_end_matches(['\r', '\n']);
            let word = whole.trim_start_matches('\t');
            if !word.is_empty() && word.chars().all(is_of_name) {
                indented.insert(word, start);
                if word.len() == whole.len() {
                    plain.insert(word, start);
                }
            }
            start += line.len();
        }
        Self { plain, indented }
    }

    /// Whether a line from `start` on ends the document.
    fn has(&self, document: &HereDocument<'_>, start: usize) -> bool {
        let lines = match document.is_indented {
            true => &self.indented,
            false => &self.plain,
        };
        lines
            .get(document.delimiter)
            .is_some_and(|last| *last >= start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> Vec<&str> {
        let all = reads(text).into_iter();
        let all = all.filter(|r| !r.has_default && !r.is_literal);
        all.map(|r| r.name).collect()
    }

    #[test]
    fn reads_are_found_and_what_only_looks_like_one_is_not() {
        assert_eq!(
            plain("a $A \"${B}\"/x ${C:2} ${D%.x} '$E'"),
            ["A", "B", "C", "D", "E"]
        );
        assert!(plain("${A:-x} ${B-} ${C:+x} ${D+x} ${E:=x} ${F:?no} ${G?}").is_empty());
        assert!(
            plain("# $A\n  # $B\ntrue # $C\ntrue;# $D\n\\$E $1 $$ $(x) ${!F} ${#G}").is_empty()
        );
        assert_eq!(
            plain("echo \"a # $A\" 'b # '$B x#$C ${#D} $E"),
            ["A", "B", "C", "E"]
        );
        let text = "cat <<'END' > x\n$A\nEND\ncat <<-\"E\"\n\t$B\n\tE\ncat <<E\n# $C\nE\n$D <<< 'x'\n((1<<n))\n# $E\n";
        assert_eq!(plain(text), ["C", "D"]);
        // The beginning of a here-document without an end behind it is none.
        let text = "E\ncat <<E # x\n# $A\n$B <<-'F'\n\tF x\n# $C\n";
        assert_eq!(plain(text), ["B"]);
        let text = "cat <<E\n\tE\n# $A\nE\ncat <<-E\n# $B\n\tE\n# $C";
        assert_eq!(plain(text), ["A", "B"]);
        let text = "cat <<'END' > x\n$A\nEND\ncat <<-\"E\"\n\t$B\n\tE\n";
        let literal = reads(text).into_iter().filter(|r| r.is_literal);
        assert_eq!(literal.map(|r| r.name).collect::<Vec<_>>(), ["A", "B"]);
        let tests = reads("[ -n \"$A\" ] && [[ -z $B ]] && x-n $C");
        assert_eq!(
            tests.iter().map(|r| r.is_test).collect::<Vec<_>>(),
            [true, true, false]
        );
        let braced = reads("x ${AB}")[0];
        assert_eq!((braced.at, braced.len("x ${AB}")), (2, 4));
    }

    #[test]
    fn what_a_script_sets_is_known() {
        let set = set_by(
            "A=1; export B=$X\nread C D <<< x\nfor E in 1; do F+=x; done # G=1\nx/H=1 -I=2 'J=1' $K",
        );
        for name in ["A", "B", "C", "D", "E", "F", "J"] {
            assert!(set.contains(name), "{name}");
        }
        for name in ["G", "H", "I", "X", "K"] {
            assert!(!set.contains(name), "{name}");
        }
    }

    #[test]
    fn shells_are_known_by_the_first_line_or_the_name() {
        for (name, text) in [
            ("a.py", "#!/bin/bash\n"),
            ("a", "#!/usr/bin/env -S bash -e\n"),
            ("a.sh", "x"),
            ("bin/job", "x"),
        ] {
            assert!(is_shell(name, text), "{name}");
        }
        for (name, text) in [
            ("a.sh", "#!/usr/bin/env python3\n"),
            ("a.pl", "x"),
            ("v.1/a.txt", ""),
        ] {
            assert!(!is_shell(name, text), "{name}");
        }
    }
}
