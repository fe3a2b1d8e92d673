//! The code part of a step's identity: the workflow file and its scripts decide it.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use tarn_types::hash::{Hash, Hasher};
use tarn_types::workflow::{
    DatasetUse, Distribution, Foreach, Role, Step, VersionPartitioning, Workflow,
};

/// Quotes in quotes that are looked into: `sh -c "ssh host 'a.sh'"` has two.
const MAX_NESTING: u32 = 4;

/// The workflow's folder before a path. A closing quote may be between the variable and the path: these come first.
const SPELLINGS: [&str; 4] = [
    "\"${TARN_WORKFLOW_DIR}\"/",
    "\"$TARN_WORKFLOW_DIR\"/",
    "${TARN_WORKFLOW_DIR}/",
    "$TARN_WORKFLOW_DIR/",
];

/// The hash of everything in a step, beside its inputs, that decides its result: `run`, `prelude`, a given `shell`, the
/// bytes of the files of the workflow's folder that their words name, `env`, `nodes`, `tasks`, the kind of its `foreach`,
/// and its uses with distribution, rule and division. `read_script` gives the bytes of a regular file or `None`.
pub fn code_hash(
    workflow: &Workflow,
    step: &Step,
    read_script: &dyn Fn(&Path) -> Option<Vec<u8>>,
) -> Hash {
    hash(workflow, step, &[], &mut |path| {
        read_script(path).map(|bytes| Hash::of(&bytes))
    })
}

/// The hashes of all steps; every script is read once.
pub(crate) fn all(
    workflow: &Workflow,
    files: &[&[PathBuf]],
    read_script: &dyn Fn(&Path) -> Option<Vec<u8>>,
) -> Vec<Hash> {
    let mut known: BTreeMap<PathBuf, Option<Hash>> = BTreeMap::new();
    let mut script = |path: &Path| match known.get(path) {
        Some(hash) => *hash,
        None => {
            let hash = read_script(path).map(|bytes| Hash::of(&bytes));
            known.insert(path.to_owned(), hash);
            hash
        }
    };
    workflow
        .steps
        .iter()
        .enumerate()
        .map(|(at, step)| {
            let files = files.get(at).copied().unwrap_or_default();
            hash(workflow, step, files, &mut script)
        })
        .collect()
}

fn hash(
    workflow: &Workflow,
    step: &Step,
    files: &[PathBuf],
    script: &mut dyn FnMut(&Path) -> Option<Hash>,
) -> Hash {
    let mut h = Hasher::new();
    // The second: commands end at their first failing line, so outputs by the first version are made again.
    h.field(b"tarn step code 2").field(step.run.as_bytes());
    h.field(if step.prelude.is_some() {
        b"prelude"
    } else {
        b"none"
    });
    h.field(step.prelude.as_deref().unwrap_or_default().as_bytes());
    if let Some(shell) = &step.shell {
        h.field(b"shell").field(shell.as_bytes());
    }
    h.number(step.env.len() as u64);
    for (name, value) in &step.env {
        h.field(name.as_bytes()).field(value.as_bytes());
    }
    h.number(u64::from(step.nodes))
        .number(u64::from(step.tasks));
    h.field(match &step.foreach {
        None => b"once",
        Some(Foreach::Values(_)) => b"values",
        Some(Foreach::Entries { .. }) => b"entries",
    });
    h.number(step.uses.len() as u64);
    for used in &step.uses {
        add_use(&mut h, workflow, used);
    }
    for word in words(step, &workflow.folder) {
        if let Some(hash) = script(&workflow.folder.join(&word)) {
            h.field(word.as_bytes()).field(&hash.0.to_le_bytes());
        }
    }
    for file in files {
        if let Some(hash) = script(file) {
            let name = file.strip_prefix(&workflow.folder).unwrap_or(file);
            h.field(b"file")
                .field(name.as_os_str().as_encoded_bytes())
                .field(&hash.0.to_le_bytes());
        }
    }
    h.finish()
}

fn add_use(h: &mut Hasher, workflow: &Workflow, used: &DatasetUse) {
    let data = workflow.dataset(used.data);
    h.field(data.name.as_bytes());
    h.field(match used.role {
        Role::In => b"in",
        Role::Out => b"out",
        Role::Inout => b"inout",
    });
    h.field(match used.distribution {
        Distribution::Single => b"single",
        Distribution::Scatter => b"scatter",
        Distribution::Broadcast => b"broadcast",
        Distribution::Shared => b"shared",
    });
    h.field(if used.entry.is_some() {
        b"entry"
    } else {
        b"whole"
    });
    h.field(used.entry.as_deref().unwrap_or_default().as_bytes());
    // Its output is stored by parts: divided otherwise, it is not the same output.
    let partition = used.makes.map(|_| data.partition);
    h.field(match partition {
        None => b"read",
        Some(VersionPartitioning::Whole) => b"whole",
        Some(VersionPartitioning::Entries) => b"entries",
        Some(VersionPartitioning::Ranks) => b"ranks",
    });
    // Replicas that are sealed are none of a dataset that is not, and the other way round.
    if data.encrypt {
        h.field(b"encrypt");
    }
    let by_rule =
        used.distribution == Distribution::Scatter || partition == Some(VersionPartitioning::Ranks);
    let rule = data.scatter.as_ref().filter(|_| by_rule);
    h.field(rule.map_or("", |r| r.as_str()).as_bytes());
}

/// The words of a shell script that may name a file of a folder; the folder may be written as `$TARN_WORKFLOW_DIR`.
pub(crate) fn file_names(script: &str) -> Vec<String> {
    let spelled = SPELLINGS.iter();
    let plain = spelled.fold(script.to_owned(), |text, s| text.replace(s, "./"));
    let mut found = Vec::new();
    split(&plain, 0, &mut found);
    found
}

/// The words of `run` and `prelude` that may name a file of the workflow's folder: in order, each once. The
/// folder may be written out or as `$TARN_WORKFLOW_DIR`.
fn words(step: &Step, folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut spellings = SPELLINGS.map(str::to_owned).to_vec();
    // The root folder would turn every absolute path into a relative one.
    spellings.extend(
        folder
            .to_str()
            .filter(|f| f.len() > 1)
            .map(|f| format!("{f}/")),
    );
    for text in step.prelude.iter().chain([&step.run]) {
        let plain = spellings
            .iter()
            .fold(text.clone(), |t, s| t.replace(s.as_str(), "./"));
        split(&plain, 0, &mut found);
    }
    let mut seen = std::collections::BTreeSet::new();
    found.retain(|word| is_inside(word) && seen.insert(word.clone()));
    found
}

/// A relative path without anything that a shell would expand.
pub(crate) fn is_inside(word: &str) -> bool {
    let expands = word.contains(['$', '`', '*', '?', '[', '\0']) || word.starts_with('~');
    let mut components = Path::new(word).components();
    !expands
        && components.any(|c| matches!(c, Component::Normal(_)))
        && !Path::new(word).is_absolute()
}

/// Splits as a shell does, near enough to find file names: quotes, escapes, comments, operators; the text of
/// `name=text` and quoted text are split again. The target of a redirection is written, not read. A word too many does no
/// harm: it names no file.
fn split(text: &str, depth: u32, found: &mut Vec<String>) {
    let mut word = String::new();
    // The next word is the target of a `>`.
    let mut written = false;
    let mut letters = text.chars().peekable();
    while let Some(c) = letters.next() {
        if written && !word.is_empty() && (c.is_whitespace() || is_operator(c)) {
            word.clear();
            written = false;
        }
        match c {
            '\\' => match letters.next() {
                Some('\n') | None => {}
                Some(escaped) => word.push(escaped),
            },
            '\'' | '"' => {
                let inner = quote(&mut letters, c);
                if depth < MAX_NESTING
                    && !written
                    && inner.contains(|c: char| c.is_whitespace() || is_operator(c))
                {
                    split(&inner, depth + 1, found);
                }
                word.push_str(&inner);
            }
            '#' if word.is_empty() => while letters.next_if(|c| *c != '\n').is_some() {},
            c if c.is_whitespace() || is_operator(c) => {
                finish(&mut word, found);
                written = c == '>' || (written && (c == '&' || c == '|' || c.is_whitespace()));
            }
            c => word.push(c),
        }
    }
    if !written {
        finish(&mut word, found);
    }
}

fn is_operator(c: char) -> bool {
    matches!(c, ';' | '|' | '&' | '(' | ')' | '<' | '>' | '`' | '{' | '}')
}

/// The text up to the closing quote, or to the end when it is missing.
fn quote(letters: &mut std::iter::Peekable<std::str::Chars<'_>>, close: char) -> String {
    let mut inner = String::new();
    while let Some(c) = letters.next() {
        match c {
            c if c == close => break,
            '\\' if close == '"' => match letters.next() {
                Some(escaped @ ('"' | '\\' | '$' | '`')) => inner.push(escaped),
                Some('\n') | None => {}
                Some(other) => inner.extend(['\\', other]),
            },
            c => inner.push(c),
        }
    }
    inner
}

fn finish(word: &mut String, found: &mut Vec<String>) {
    if let Some((_, value)) = word.split_once('=')
        && !value.is_empty()
    {
        found.push(value.to_owned());
    }
    if !word.is_empty() {
        found.push(std::mem::take(word));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_all(text: &str) -> Vec<String> {
        let mut found = Vec::new();
        split(text, 0, &mut found);
        found
    }

    #[test]
    fn splits_like_a_shell() {
        assert_eq!(
            split_all("./a.sh x|b.py  'c d.sh'>e"),
            ["./a.sh", "x", "b.py", "c", "d.sh", "c d.sh"]
        );
        assert_eq!(
            split_all("a.sh >> \"b c\" x <y.in 2>&1 z; w >| v; p >(q.sh r); t &> u\ns"),
            [
                "a.sh", "x", "y.in", "2", "z", "w", "p", "q.sh", "r", "t", "s"
            ]
        );
        assert_eq!(split_all("a\\ b.sh # comment c.sh\nd"), ["a b.sh", "d"]);
        assert_eq!(
            split_all("x --conf=y.cfg a#b"),
            ["x", "y.cfg", "--conf=y.cfg", "a#b"]
        );
        assert_eq!(
            split_all("sh -c \"cd \\\"$X\\\" && run.sh\"")[2..5],
            ["cd", "$X", "run.sh"]
        );
        assert_eq!(
            split_all("echo $(cat list.txt)"),
            ["echo", "$", "cat", "list.txt"]
        );
        assert_eq!(
            split_all("open 'never closed"),
            ["open", "never", "closed", "never closed"]
        );
    }

    #[test]
    fn scripts_are_found_however_the_folder_is_spelled() {
        let hash = |run: &str, script: &'static [u8]| {
            let text = format!("name = \"w\"\n[[step]]\nname = \"a\"\nrun = '''python3 {run}'''\n");
            let mut parsed =
                crate::parse("w.toml", &text, Path::new("/home/me/w")).expect("it is right");
            parsed.finish_codes(&|path| {
                let plain: PathBuf = path
                    .components()
                    .filter(|c| *c != Component::CurDir)
                    .collect();
                (plain == Path::new("/home/me/w/s.py")).then(|| script.to_vec())
            });
            parsed.workflow.steps[0].code
        };
        for run in [
            "s.py",
            "$TARN_WORKFLOW_DIR/s.py",
            "${TARN_WORKFLOW_DIR}/s.py",
            "\"$TARN_WORKFLOW_DIR\"/s.py",
            "\"$TARN_WORKFLOW_DIR/s.py\"",
            "/home/me/w/s.py",
        ] {
            assert_ne!(hash(run, b"1"), hash(run, b"2"), "{run}");
        }
        assert_eq!(hash("/elsewhere/s.py", b"1"), hash("/elsewhere/s.py", b"2"));
    }

    #[test]
    fn only_words_that_name_files_of_the_folder() {
        assert!(
            is_inside("a.sh") && is_inside("bin/a.sh") && is_inside("./a") && is_inside("../bin/a")
        );
        for not in ["/bin/sh", "$X/a", "*.sh", "~/a", ".", "..", "a\0b"] {
            assert!(!is_inside(not), "{not}");
        }
    }
}
