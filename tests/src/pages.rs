//! The blocks of code that the documents show.

use crate::tree::{self, Text};

/// A block of code of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The line of its first line of code, from 1.
    pub line: usize,
    /// The words behind the fence: `sh`, `toml`, `sh controller`. Empty for a block that is indented.
    pub label: String,
    /// Whether a fence is around it; else it is indented.
    pub fenced: bool,
    /// Its lines, each with its end.
    pub text: String,
}

impl Block {
    /// Whether these are commands: an indented block, or one with such a label.
    pub fn is_commands(&self) -> bool {
        let first = self.label.split(' ').next().unwrap_or_default();
        !self.fenced || ["sh", "bash", "console"].contains(&first)
    }

    /// The commands, line by line: of a `console` the text behind its prompts, else all.
    pub fn commands(&self) -> String {
        if self.label != "console" {
            return self.text.clone();
        }
        // Lines of output stay as empty lines, so that the numbers of lines are the page's.
        let command = |line: &str| line.strip_prefix("$ ").unwrap_or_default().to_owned() + "\n";
        self.text.lines().map(command).collect()
    }
}

/// The blocks of a page, in order.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut fenced = false;
    let mut before = "";
    for (at, line) in page.lines().enumerate() {
        if let Some(label) = line.trim_start().strip_prefix("```") {
            fenced = !fenced;
            if fenced {
                found.push(Block {
                    line: at + 2,
                    label: label.trim().to_owned(),
                    fenced: true,
                    text: String::new(),
                });
            }
        } else if fenced {
            let block = found.last_mut().expect("the block that was begun");
            block.text.push_str(line);
            block.text.push('\n');
        } else if let Some(code) = line.strip_prefix("    ") {
            if before.is_empty() {
                found.push(Block {
                    line: at + 1,
                    label: String::new(),
                    fenced: false,
                    text: String::new(),
                });
            }
            if let Some(block) = found.last_mut().filter(|b| !b.fenced) {
                block.text.push_str(code);
                block.text.push('\n');
            }
        }
        before = line;
    }
    found
}

/// Those at the top.
const TOP: [&str; 4] = [
    "README.md",
    "CONTRIBUTING.md",
    "ARCHITECTURE.md",
    "GLOSSARY.md",
];

/// The pages that scripts/book.sh makes for the book alone.
pub const MADE: [&str; 2] = ["docs/reference/commands.md", "docs/reference/calls.md"];

/// The pages that the book is made of: some at the top, docs, examples and research, without the book's own summary.
///
/// # Errors
/// When they cannot be read.
pub fn all() -> anyhow::Result<Vec<Text>> {
    let mut pages = tree::texts(&tree::root(), &["md"])?;
    pages.retain(|page| {
        let below = ["docs/", "examples/", "research/"]
            .iter()
            .any(|folder| page.path.starts_with(folder));
        let top = TOP.contains(&page.path.as_str());
        (below || top) && page.path != "docs/SUMMARY.md"
    });
    Ok(pages)
}
