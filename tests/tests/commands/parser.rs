//! Commands anywhere in the documents, in prose too, are such that the programs take.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use tarn_tests::{pages, programs, tree};

/// A command of a page: the number of its line, and its words.
type Found = (usize, Vec<String>);

/// The commands of a page: lines of blocks, and text in backquotes that may be a command.
fn commands(text: &str) -> Vec<Found> {
    let mut found = Vec::new();
    let mut prose: Vec<&str> = text.lines().collect();
    for block in pages::blocks(text) {
        let mut open = String::new();
        for (at, line) in block.text.lines().enumerate() {
            prose[block.line - 1 + at] = "";
            let line = line.strip_prefix("$ ").unwrap_or(line);
            let line = line.split(" # ").next().unwrap_or_default().trim();
            match line.strip_suffix('\\') {
                Some(begun) => open.push_str(begun),
                None => found.push((block.line + at, std::mem::take(&mut open) + line)),
            }
        }
    }
    prose
        .iter_mut()
        .filter(|l| l.trim_start().starts_with("```"))
        .for_each(|l| *l = "");
    for (at, line) in prose.iter().enumerate() {
        let inline = line.split('`').skip(1).step_by(2);
        found.extend(inline.map(|code| (at + 1, code.to_owned())));
    }
    let words = |line: &str| -> Vec<String> {
        let ends = |word: &&str| {
            let ends = matches!(*word, "--" | "|" | "||" | "&&" | ">" | "&");
            ends || word.starts_with("$(") || word.starts_with("<<")
        };
        let words = line.strip_prefix("sudo ").unwrap_or(line);
        let words = words.split_whitespace().take_while(|word| !ends(word));
        words.map(str::to_owned).collect()
    };
    found
        .into_iter()
        .map(|(at, line)| (at, words(&line)))
        .collect()
}

#[test]
fn commands_are_found() {
    let page = "Say `tarn why x`, not\n\n    sudo tarn a --b \\\n        --c # why\n\n```sh\ntarn d -- e\n```\n";
    let found = commands(page);
    let found: Vec<_> = found
        .iter()
        .map(|(at, words)| (*at, words.join(" ")))
        .collect();
    let wanted = [(4, "tarn a --b --c"), (7, "tarn d"), (1, "tarn why x")];
    assert_eq!(found, wanted.map(|(at, words)| (at, words.to_owned())));
}

/// The text of `--help` of a program, by its words; and the names of its own commands.
#[derive(Default)]
struct Helps(BTreeMap<Vec<String>, (String, BTreeSet<String>)>);

impl Helps {
    fn of(&mut self, words: &[String]) -> &(String, BTreeSet<String>) {
        let ask = || {
            let program = programs::built(&words[0]).unwrap_or_else(|e| panic!("{e:#}"));
            let help = Command::new(program)
                .args(&words[1..])
                .arg("--help")
                .output();
            let help = String::from_utf8(help.expect("its help").stdout).expect("UTF-8");
            let below = help.split_once("\nCommands:\n");
            let below = below.map_or("", |(_, rest)| rest);
            let below = below.split("\n\n").next().unwrap_or_default();
            let name = |line: &str| {
                let own = line.strip_prefix("  ").filter(|l| !l.starts_with(' '))?;
                Some(own.split(' ').next()?.to_owned())
            };
            let names = below.lines().filter_map(name).collect();
            (help, names)
        };
        self.0.entry(words.to_vec()).or_insert_with(ask)
    }

    /// The options of a command, whose own words must all be such, or the error in these.
    fn options<'a>(&mut self, words: &'a [String]) -> Result<(Vec<String>, Vec<&'a str>), String> {
        let mut path = vec![words[0].clone()];
        let mut options = Vec::new();
        for word in &words[1..] {
            let (_, below) = self.of(&path);
            match word.strip_prefix("--") {
                // Options that would be commands of another program.
                Some("site" | "controller") if path.len() == 1 && words[0] == "tarnd" => {
                    path.push(word.clone())
                }
                Some(option) => {
                    let end = option.find(|c: char| c != '-' && !c.is_ascii_alphanumeric());
                    options.push(&option[..end.unwrap_or(option.len())]);
                }
                None if options.is_empty() && below.contains(word) => path.push(word.clone()),
                None => {
                    // Where a command is wanted, a word is one, or stands for one: `tarn mode show|plan|set`, `tarn ...`.
                    let first = word.split(['|', ',']).next().unwrap_or_default();
                    let plain = first.chars().all(|c| c.is_ascii_lowercase() || c == '-');
                    let wants = options.is_empty() && !below.is_empty() && plain;
                    if wants && !below.contains(first) {
                        return Err(format!("there is no command `{word}`"));
                    }
                }
            }
        }
        Ok((path, options))
    }
}

#[test]
fn programs_know_the_options_that_the_documents_give_them() {
    let mut helps = Helps::default();
    let all = helps.of(&["tarn".to_owned()]).1.clone();
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for page in tree::texts(&tree::root(), &["md"]).expect("the repository") {
        for (line, words) in commands(&page.text) {
            let second = words.get(1).map_or("", String::as_str);
            // In prose, a format's first word may be `tarn`, too.
            let ours = match words.first().map(String::as_str) {
                Some("tarn") => all.contains(second),
                // It starts workers itself.
                Some("tarnd") => second.starts_with("--") && second != "--worker",
                _ => false,
            };
            if !ours {
                continue;
            }
            let mut wrong = |what: &str| {
                wrong.push(format!(
                    "{}:{line}: `{}`: {what}",
                    page.path,
                    words.join(" ")
                ))
            };
            match helps.options(&words) {
                Err(what) => wrong(&what),
                Ok((path, options)) => {
                    let help = &helps.of(&path).0;
                    for option in options {
                        checked += 1;
                        if !help.contains(&format!("--{option}")) {
                            wrong(&format!("`{} --help` has no --{option}", path.join(" ")));
                        }
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 150, "only {checked} options");
}

/// The real parser reads commands that measure for minutes, values included: with `--help` behind them nothing starts.
#[test]
fn what_is_too_long_to_be_run_is_parsed() {
    let tarn = programs::built("tarn").expect("tarn");
    let experiments = tree::root().join("research/experiments");
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for page in pages::all().expect("the pages") {
        for (line, words) in commands(&page.text) {
            let words: Vec<&str> = words
                .iter()
                .map(|word| word.trim_matches(['\'', '"']))
                .collect();
            // A line with brackets shows the form of commands, and is none.
            let command = matches!(words[..], ["tarn", "bench" | "reproduce", ..]);
            if !command || words.iter().any(|word| word.starts_with('[')) {
                continue;
            }
            let mut wrong = |what: &str| {
                wrong.push(format!(
                    "{}:{line}: `{}`: {what}",
                    page.path,
                    words.join(" ")
                ))
            };
            let parsed = Command::new(&tarn)
                .args(&words[1..])
                .arg("--help")
                .output()
                .expect("tarn");
            if !parsed.status.success() {
                wrong(&String::from_utf8_lossy(&parsed.stderr));
            }
            let names = words
                .iter()
                .skip(2)
                .take_while(|word| words[1] == "reproduce" && !word.starts_with("--"));
            for name in names.filter(|name| !experiments.join(format!("{name}.py")).exists()) {
                wrong(&format!("there is no experiment {name}"));
            }
            checked += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 60, "only {checked} commands");
}

#[test]
fn scripts_and_targets_of_make_are_there() {
    let makefile = std::fs::read_to_string(tree::root().join("Makefile")).expect("the Makefile");
    let products = std::fs::read_to_string(tree::root().join("scripts/test-product.sh"));
    let products = products.expect("the script of the products");
    let makes = |target: &str| {
        let product = target.strip_prefix("test-").unwrap_or("none");
        makefile.contains(&format!("\n{target}:"))
            || products.contains(&format!("\n    {product})"))
    };
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for page in pages::all().expect("the pages") {
        for (line, words) in commands(&page.text) {
            let Some(program) = words.first() else {
                continue;
            };
            let mut wrong = |what: &str| wrong.push(format!("{}:{line}: {what}", page.path));
            if program == "make" {
                let targets = words[1..]
                    .iter()
                    .skip_while(|w| *w == "-C" || w.contains('.'));
                for target in
                    targets.filter(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '-'))
                {
                    checked += 1;
                    if !makes(target) {
                        wrong(&format!("the Makefile makes no `{target}`"));
                    }
                }
            }
            let program = program.trim_start_matches("../");
            if ["bench/", "scripts/"]
                .iter()
                .any(|begin| program.starts_with(begin))
                && program.contains('.')
            {
                let Ok(source) = std::fs::read_to_string(tree::root().join(program)) else {
                    wrong(&format!("there is no {program}"));
                    continue;
                };
                for option in words.iter().filter(|word| word.starts_with("--")) {
                    checked += 1;
                    if !source.contains(option.as_str()) {
                        wrong(&format!("{program} does not know {option}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 40, "only {checked} targets and options");
}
