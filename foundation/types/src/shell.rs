//! How the command of a step is started: by which program and with which words. docs/reference/workflow-file.md, "The shell".

/// The default shell where `bash` is there: the first failing line, a failing part of a pipe and a variable that is not set end
/// the command.
pub const BASH: &str = "bash -euo pipefail";
/// The same where there is no `bash`.
pub const PLAIN: &str = "sh -eu";

/// The variable that marks that a job's number in `SLURM_JOB_ID` is tarn's own: there is no such job.
pub const OWN_JOB: &str = "TARN_JOB_ID";

/// Shells that know `set` as POSIX has it.
const KNOW_SET: &[&str] = &["sh", "bash", "dash", "ash", "ksh", "mksh", "zsh"];
/// Options of theirs that `set` takes too. Any other has a meaning at the start only.
const SETTABLE: &str = "abefhkmnuvxBCEHPT";

/// A command as it is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The program, by its name or path, and its arguments.
    pub argv: Vec<String>,
    /// The text of a script, which is in a file: the path of that is one argument more.
    pub file: Option<String>,
}

impl Command {
    /// The command of a step, by this shell unless its first line names an interpreter. A prelude comes before it, in a shell that ends
    /// when a line of it fails; the other options of the shell hold from the command on, as many a script that is sourced uses variables that are not set.
    pub fn new(run: &str, prelude: Option<&str>, shell: &str) -> Self {
        let mut words: Vec<&str> = shell.split_whitespace().collect();
        if words.is_empty() {
            words = PLAIN.split(' ').collect();
        }
        let (argv, file) = match (interpreter(run), prelude) {
            (None, None) => {
                words.extend(["-c", run]);
                (owned(&words), None)
            }
            (None, Some(prelude)) => (after(&words, prelude, run), None),
            (Some(interpreter), None) => (owned(&interpreter), Some(run)),
            (Some(interpreter), Some(prelude)) => {
                let mut argv = after(&words, prelude, "exec \"$@\"");
                argv.push(words[0].to_owned());
                argv.extend(owned(&interpreter));
                (argv, Some(run))
            }
        };
        Self {
            argv,
            file: file.map(str::to_owned),
        }
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The interpreter in the first line, as the kernel reads it: a program, and perhaps one argument.
fn interpreter(run: &str) -> Option<Vec<&str>> {
    let line = run.strip_prefix("#!")?.lines().next()?.trim();
    let (program, argument) = match line.split_once(char::is_whitespace) {
        Some((program, argument)) => (program, Some(argument.trim())),
        None => (line, None),
    };
    (!program.is_empty()).then(|| [Some(program), argument].into_iter().flatten().collect())
}

/// A shell that runs the prelude, and then the command as its words direct.
fn after(words: &[&str], prelude: &str, run: &str) -> Vec<String> {
    let name = words[0].rsplit('/').next().unwrap_or_default();
    let (mut argv, text) = if KNOW_SET.contains(&name) {
        let (start, set) = divided(&words[1..]);
        let set = match set.is_empty() {
            true => String::new(),
            false => format!("set {}\n", set.join(" ")),
        };
        let mut argv = vec![words[0].to_owned()];
        argv.extend(start);
        (argv, format!("set -e\n{prelude}\nset +e\n{set}{run}"))
    } else {
        (owned(words), format!("{prelude}\n{run}"))
    };
    argv.extend(["-c".to_owned(), text]);
    argv
}

/// The words of a shell that it must be started with, and those that `set` takes later.
fn divided(words: &[&str]) -> (Vec<String>, Vec<String>) {
    let (mut start, mut set) = (Vec::new(), Vec::new());
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let is_cluster = word.len() > 1 && word.starts_with(['-', '+']) && !word.starts_with("--");
        if !is_cluster {
            start.push((*word).to_owned());
            continue;
        }
        let (sign, letters) = word.split_at(1);
        let is_settable = |c: &char| SETTABLE.contains(*c);
        let (now, later): (String, String) = {
            let plain = letters.chars().filter(|c| *c != 'o');
            let (later, now): (Vec<char>, Vec<char>) = plain.partition(is_settable);
            (now.into_iter().collect(), later.into_iter().collect())
        };
        if !now.is_empty() {
            start.push(format!("{sign}{now}"));
        }
        if !later.is_empty() {
            set.push(format!("{sign}{later}"));
        }
        for _ in letters.matches('o') {
            if let Some(option) = words.next() {
                set.extend([format!("{sign}o"), (*option).to_owned()]);
            }
        }
    }
    (start, set)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(run: &str, prelude: Option<&str>, shell: &str) -> (Vec<String>, bool) {
        let command = Command::new(run, prelude, shell);
        assert!(command.file.as_ref().is_none_or(|text| text == run));
        (command.argv, command.file.is_some())
    }

    #[test]
    fn a_command_is_run_by_its_shell() {
        let (argv, file) = started("a | b", None, BASH);
        assert_eq!(argv, ["bash", "-euo", "pipefail", "-c", "a | b"]);
        assert!(!file);
        assert_eq!(started("a", None, "python3").0, ["python3", "-c", "a"]);
    }

    #[test]
    fn a_prelude_runs_before_the_options_hold() {
        let (argv, _) = started("a", Some("p"), BASH);
        let text = "set -e\np\nset +e\nset -eu -o pipefail\na";
        assert_eq!(argv, ["bash", "-c", text]);
        let (argv, _) = started("a", Some("p"), "/bin/bash -leu --norc -O extglob +x");
        let text = "set -e\np\nset +e\nset -eu +x\na";
        assert_eq!(argv[..4], ["/bin/bash", "-l", "--norc", "-O"]);
        assert_eq!(argv[4..], ["extglob", "-c", text]);
        let (argv, _) = started("a", Some("p"), "sh");
        assert_eq!(argv, ["sh", "-c", "set -e\np\nset +e\na"]);
        assert_eq!(started("a", Some("p"), "fish").0, ["fish", "-c", "p\na"]);
    }

    #[test]
    fn the_first_line_names_the_interpreter() {
        let run = "#!/usr/bin/env -S python3 -u\nprint(1)";
        let (argv, file) = started(run, None, BASH);
        assert_eq!(argv, ["/usr/bin/env", "-S python3 -u"]);
        assert!(file);
        let (argv, file) = started("#! /bin/awk -f\nBEGIN {}", Some("p"), BASH);
        let text = "set -e\np\nset +e\nset -eu -o pipefail\nexec \"$@\"";
        assert_eq!(argv, ["bash", "-c", text, "bash", "/bin/awk", "-f"]);
        assert!(file);
        assert!(!started("#!\na", None, BASH).1);
        assert!(!started("# no\n#!/bin/sh\na", None, BASH).1);
    }
}
