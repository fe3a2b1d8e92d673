//! Variables that programs in Python and R read by a call: `os.environ["NAME"]`, `os.getenv("NAME")`, `Sys.getenv("NAME")`. These spellings
//! are looked for in every text, because a shell script may hold such a program (`python3 - <<'END'`).

use crate::variable_read::{VariableRead, is_of_name, without_comment};
use std::collections::BTreeSet;

/// How the calls begin up to the quoted name, and the character that ends one without a default.
const READS: &[(&str, char)] = &[("environ[", ']'), ("environ.get(", ')'), ("getenv(", ')')];
/// Calls that give a variable its value, up to the quoted name; `environ[` does with a `=` behind it.
const SETS: &[&str] = &["environ.setdefault(", "putenv("];
/// The words before a call that only checks whether the variable is there.
const TESTS: &[&str] = &["if", "elif", "while", "not", "and", "nzchar(", "bool("];
/// The text behind such a call, or text that gives another value.
const CASES: &[&str] = &[
    "or ",
    "is None",
    "is not None",
    "is NULL",
    "!= \"\"",
    "== \"\"",
];

/// How names of files with such programs end.
const ENDINGS: &[&str] = &["py", "R", "r"];
/// Programs that run them.
const PROGRAMS: &[&str] = &["python", "Rscript"];

/// Whether a text is a program in Python or R: by its first line, or else by its name.
pub(crate) fn is_program(name: &str, text: &str) -> bool {
    if let Some(line) = text.strip_prefix("#!") {
        let mut words = line.lines().next().unwrap_or_default().split_whitespace();
        return words.any(|word| {
            let program = word.rsplit('/').next().unwrap_or_default();
            PROGRAMS.iter().any(|p| program.starts_with(p))
        });
    }
    let ending = name.rsplit_once('.').map(|(_, ending)| ending);
    ending.is_some_and(|ending| ENDINGS.contains(&ending))
}

/// Every such read in a text, in its order; each is where its quoted name is.
pub(crate) fn calls(text: &str) -> Vec<VariableRead<'_>> {
    let mut found = Vec::new();
    for &(call, end) in READS {
        for (at, name, behind) in quoted(text, call) {
            let rest = behind.trim_start();
            // In brackets it is set by a `=`, which is no comparison.
            let closed = rest.strip_prefix(end).map(str::trim_start);
            let is_set =
                end == ']' && closed.is_some_and(|r| r.starts_with('=') && !r.starts_with("=="));
            if is_set {
                continue;
            }
            let before = text[..at].trim_end_matches(|c: char| is_of_name(c) || c == '.');
            let before = before.trim_end();
            found.push(VariableRead {
                name,
                // Its quote.
                at: text.len() - behind.len() - name.len() - 2,
                has_default: closed.is_none_or(|r| r.starts_with("or ")),
                is_test: end == ')'
                    && (TESTS.iter().any(|test| before.ends_with(test))
                        || closed.is_some_and(|r| CASES.iter().any(|c| r.starts_with(c)))),
                is_literal: false,
                is_call: true,
            });
        }
    }
    found.sort_by_key(|read| read.at);
    found
}

/// Names that a program in Python or R gives a value.
pub(crate) fn set_by_calls(text: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for call in SETS {
        found.extend(quoted(text, call).map(|(_, name, _)| name));
    }
    for (_, name, behind) in quoted(text, "environ[") {
        let rest = behind.trim_start().strip_prefix(']');
        let rest = rest.map(str::trim_start);
        if rest.is_some_and(|r| r.starts_with('=') && !r.starts_with("==")) {
            found.insert(name);
        }
    }
    // `Sys.setenv(NAME = value, ...)`: of several the first.
    for (at, call) in text.match_indices("Sys.setenv(") {
        let rest = text[at + call.len()..].trim_start();
        let end = rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
        found.insert(&rest[..end]);
    }
    found
}

/// The possible file names in such a program: its quoted texts, the words in them, and its imports.
pub(crate) fn file_names(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in text.lines() {
        let code = without_comment(line);
        let mut words = code.split_whitespace();
        if let (Some("import" | "from"), Some(module)) = (words.next(), words.next()) {
            let path = module.trim_end_matches(',').replace('.', "/");
            found.push(format!("{path}.py"));
        }
        let mut rest = code;
        while let Some((_, behind)) = rest.split_once(['"', '\'']) {
            let quote = rest.as_bytes()[rest.len() - behind.len() - 1];
            let Some((inner, behind)) = behind.split_once(char::from(quote)) else {
                break;
            };
            found.push(inner.to_owned());
            found.extend(inner.split_whitespace().map(str::to_owned));
            rest = behind;
        }
    }
    found
}

/// The calls that begin so and have a quoted name, outside of comments: where each begins, the name, what is behind its quote.
fn quoted<'s>(text: &'s str, call: &'s str) -> impl Iterator<Item = (usize, &'s str, &'s str)> {
    // The end of the line's code, and of the line: a line may be long and have many calls.
    let (mut code_end, mut line_end) = (0, 0);
    text.match_indices(call).filter_map(move |(at, _)| {
        if at >= line_end {
            let start = text[line_end..at]
                .rfind('\n')
                .map_or(line_end, |n| line_end + n + 1);
            let line = text[start..].split_inclusive('\n').next();
            let line = line.unwrap_or_default();
            line_end = start + line.len();
            code_end = start + without_comment(line).len();
        }
        if at >= code_end {
            return None;
        }
        let rest = text[at + call.len()..].trim_start();
        let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let (name, behind) = rest[1..].split_once(quote)?;
        let is_name = !name.is_empty() && name.chars().all(is_of_name);
        is_name.then_some((at, name, behind))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(text: &str) -> Vec<&str> {
        let all = calls(text).into_iter();
        let all = all.filter(|r| !r.has_default && !r.is_test);
        all.map(|r| r.name).collect()
    }

    #[test]
    fn calls_without_a_default_are_reads() {
        let text = "a = os.environ[\"A\"]\nb = os.getenv('B')\nc = os.environ.get( \"C\" )\nfrom os import environ; environ['D']\n\
                    e <- file.path(\"x\", Sys.getenv(\"E\"))\nf = os.environ.get(\n    \"F\",\n)\n";
        assert_eq!(open(text), ["A", "B", "C", "D", "E"]);
        for not in [
            "os.environ.get(\"A\", \"1\")",
            "os.getenv('A', None)",
            "os.environ[\"A\"] = \"1\"",
            "# os.environ[\"A\"]",
            "x = 1  # os.getenv(\"A\")",
            "if os.environ.get(\"A\"): pass",
            "x = os.environ.get('A') or 1",
            "os.getenv('A') is None",
            "os.environ[name]",
            "Sys.getenv(\"A\", unset = NA)",
            "if (nzchar(Sys.getenv(\"A\"))) 1",
            "if not os.getenv('A'): pass",
        ] {
            assert!(open(not).is_empty(), "{not}");
        }
        assert_eq!(open("os.environ['A'] == '1'"), ["A"]);
        let text = "é os.getenv('A')";
        let read = calls(text)[0];
        assert_eq!(&text[read.at..][..read.len(text)], "'A");
    }

    #[test]
    fn programs_are_known_by_the_first_line_or_the_name() {
        assert!(is_program("a.py", "") && is_program("x/a.R", "") && !is_program("a.sh", ""));
        assert!(is_program("a", "#!/usr/bin/env python3.11\n"));
        assert!(!is_program("a.py", "#!/bin/sh\npython3 x\n"));
    }

    #[test]
    fn names_of_files_are_what_is_quoted_or_imported() {
        let text = "import lib.a\nsubprocess.run(['bash', \"b.sh x\"]) # 'c'\nsource('d.R'); 'open";
        let found = file_names(text);
        for name in ["lib/a.py", "bash", "b.sh", "d.R"] {
            assert!(found.iter().any(|f| f == name), "{name}: {found:?}");
        }
        assert!(!found.iter().any(|f| f == "c"), "{found:?}");
    }

    #[test]
    fn what_a_program_sets_is_known() {
        let set = set_by_calls(
            "os.environ[\"A\"] = '1'\nos.environ.setdefault('B', '1')\nSys.setenv(C = 1)\nos.environ['D'] == '1'\nE = 1\n",
        );
        assert_eq!(set.into_iter().collect::<Vec<_>>(), ["A", "B", "C"]);
    }
}
