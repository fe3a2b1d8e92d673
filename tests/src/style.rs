//! Rules of style that a machine can see. Each function takes a file and returns the violations, with their lines.

use crate::tree::Text;

/// Lines of one source file.
pub const MAX_LINES: usize = 800;
/// Columns of a line of a document.
const MAX_COLUMNS: usize = 100;
/// Lines above an unsafe block within which its reason is.
const SAFETY_REACH: usize = 10;
/// Crates that may hold unsafe code, by folder.
const UNSAFE_CRATES: &[&str] = &[
    "foundation/sys/",
    "foundation/ring/",
    "direct/media/",
    "transfer/data-plane/",
    "checkpoint/dirty-pages/",
    "checkpoint/session/",
    "checkpoint/objects/",
    "bindings/c/",
    "bindings/python/",
];

fn at(file: &Text, line: usize, what: &str) -> String {
    format!("{}:{}: {what}", file.path, line + 1)
}

/// The identifiers of a line.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// A Rust line without its comment and the text of its strings, as far as one line shows.
fn code(line: &str) -> String {
    let mut kept = String::new();
    let mut inside = false;
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\\' if inside => drop(rest.next()),
            '"' => inside = !inside,
            '/' if !inside && rest.peek() == Some(&'/') => break,
            _ if inside => {}
            _ => kept.push(c),
        }
    }
    kept
}

/// Files that have grown too long.
pub fn length(file: &Text) -> Vec<String> {
    let lines = file.text.lines().count();
    if lines > MAX_LINES {
        vec![format!(
            "{}: {lines} lines, at most {MAX_LINES}: divide it",
            file.path
        )]
    } else {
        Vec::new()
    }
}

/// Whether a line of a document has a space at which it could be broken: outside code, links and brackets.
fn is_divisible(line: &str) -> bool {
    let text = line.trim_start().trim_start_matches(['-', '*', ' ']);
    let (mut is_code, mut depth) = (false, 0u32);
    for c in text.chars() {
        match c {
            '`' => is_code = !is_code,
            _ if is_code => {}
            '[' | '(' => depth += 1,
            ']' | ')' => depth = depth.saturating_sub(1),
            ' ' if depth == 0 => return true,
            _ => {}
        }
    }
    false
}

/// Lines of a document that are too wide. Tables, code and links may be wider.
pub fn width(file: &Text) -> Vec<String> {
    let mut is_fenced = false;
    let mut found = Vec::new();
    for (n, line) in file.text.lines().enumerate() {
        is_fenced ^= line.trim_start().starts_with("```");
        let is_wide = line.chars().count() > MAX_COLUMNS;
        let is_prose = !is_fenced && !line.starts_with('|') && !line.starts_with("    ");
        if is_wide && is_prose && is_divisible(line) {
            found.push(at(file, n, "a line of a document ends at 100 columns"));
        }
    }
    found
}

/// Comments whose first sentence does not name its subject.
pub fn headless(file: &Text) -> Vec<String> {
    const CLAUSES: &[&str] = &["What", "Who", "Whose", "Whoever", "Whatever", "Whichever"];
    let begins = |line: &str| {
        let comment = line.trim_start().strip_prefix("//")?;
        let text = comment.trim_start_matches(['/', '!']).trim_start();
        text.split(|c: char| !c.is_alphanumeric())
            .next()
            .map(str::to_owned)
    };
    let lines = file.text.lines().enumerate();
    lines
        .filter(|(_, l)| begins(l).is_some_and(|word| CLAUSES.contains(&word.as_str())))
        .map(|(n, _)| at(file, n, "a comment names its subject"))
        .collect()
}

/// Marks of unfinished work.
pub fn unfinished(file: &Text) -> Vec<String> {
    // Written in halves, so that this file does not break its own rule.
    let marks = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("X", "XX"),
        concat!("HA", "CK"),
    ];
    let macros = [
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
        concat!("dbg", "!("),
    ];
    let lines = file.text.lines().enumerate();
    lines
        .filter(|(_, l)| {
            words(l).any(|w| marks.contains(&w)) || macros.iter().any(|m| l.contains(m))
        })
        .map(|(n, _)| at(file, n, "unfinished work"))
        .collect()
}

/// Absolute paths of one machine, and paths out of the repository.
pub fn machine_paths(file: &Text) -> Vec<String> {
    let places = [concat!("/wo", "rk/"), concat!("../sha", "red")];
    let apart = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && !"_-.}".contains(c));
    let begins = |line: &str, place: &str| {
        let mut starts = line.match_indices(place);
        starts.any(|(i, _)| {
            let (before, behind) = (line[..i].chars().next_back(), &line[i + place.len()..]);
            // A page whose name only begins so is another one.
            let whole = place.ends_with('/') || apart(behind.chars().next());
            apart(before) && before != Some('/') && whole
        })
    };
    let lines = file.text.lines().enumerate();
    lines
        .filter(|(_, l)| places.iter().any(|p| begins(l, p)))
        .map(|(n, _)| at(file, n, "a path that exists on one machine only"))
        .collect()
}

/// Unsafe code outside the crates that may hold it, or without its reason.
pub fn unsafe_code(file: &Text) -> Vec<String> {
    let allowed = UNSAFE_CRATES.iter().any(|c| file.path.starts_with(c));
    let lines: Vec<&str> = file.text.lines().collect();
    let mut found = Vec::new();
    for (n, line) in lines.iter().enumerate() {
        if !words(&code(line)).any(|w| w == concat!("un", "safe")) {
            continue;
        }
        if !allowed {
            found.push(at(
                file,
                n,
                "unsafe code; put it into foundation/sys behind a safe function",
            ));
        } else if !lines[n.saturating_sub(SAFETY_REACH)..=n]
            .iter()
            .any(|l| l.contains("SAFETY:") || l.contains("# Safety"))
        {
            found.push(at(file, n, "unsafe code without a `// SAFETY:` above it"));
        }
    }
    found
}

/// Bounds (`const MAX_...`) without a comment that gives unit and reason.
pub fn bounds(file: &Text) -> Vec<String> {
    let lines: Vec<&str> = file.text.lines().map(str::trim).collect();
    let mut found = Vec::new();
    for (n, line) in lines.iter().enumerate() {
        let code = code(line);
        let mut before = words(&code).skip_while(|w| *w != "const");
        if before.nth(1).is_some_and(|name| name.starts_with("MAX_")) {
            let above = lines[..n].iter().rev().find(|l| !l.starts_with("#["));
            if !above.is_some_and(|l| l.starts_with("//") || l.contains("const MAX_")) {
                found.push(at(
                    file,
                    n,
                    "a bound without a comment that gives its unit and reason",
                ));
            }
        }
    }
    found
}
