//! A variable that a text reads, and the rules for names and comments in any text.

/// A variable that is read as `$NAME` or `${NAME...}`, or by a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VariableRead<'s> {
    pub(crate) name: &'s str,
    /// The place in bytes: `$NAME`, `${NAME`, `"NAME`.
    pub(crate) at: usize,
    /// There is a value or a message for the case that it is not set: `${NAME:-...}`, `${NAME+...}`, `${NAME:?...}`.
    pub(crate) has_default: bool,
    /// The text only checks whether it is empty or there: `-n "$NAME"`, `-z "$NAME"`, `if os.getenv("NAME")`.
    pub(crate) is_test: bool,
    /// Not read by this script, but perhaps by a script that it starts or writes: `\$NAME`, or a here-document with a
    /// quoted delimiter.
    pub(crate) is_literal: bool,
    /// By a call of a program in Python or R, not by a `$`.
    pub(crate) is_call: bool,
}

impl VariableRead<'_> {
    /// Bytes of it in the text.
    pub(crate) fn len(&self, text: &str) -> usize {
        let braced = text[self.at..].starts_with("${");
        self.name.len() + if braced { 2 } else { 1 }
    }
}

/// Whether a letter may be in the name of a variable.
pub(crate) fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// A line up to a `#` at the begin of a word, outside of quotes that begin in the line.
pub(crate) fn without_comment(line: &str) -> &str {
    let mut quote = None;
    let mut before = ' ';
    let mut letters = line.char_indices();
    while let Some((at, c)) = letters.next() {
        match (quote, c) {
            (None, '#') if before.is_whitespace() || before == ';' => return &line[..at],
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            (None | Some('"'), '\\') => {
                letters.next();
            }
            _ => {}
        }
        before = c;
    }
    line
}
