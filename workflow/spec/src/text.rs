//! The text of a file, or of several, as diagnostics are drawn from it: lines are found at once, and no more is shown than a
//! person reads, however long the file or its lines.

use miette::{MietteError, MietteSpanContents, SourceCode, SourceSpan, SpanContents};

/// Bytes of one piece of the file that is drawn: some lines of usual length.
const MAX_SNIPPET: usize = 4096;
/// Bytes of a marked place; of a longer one the beginning is marked.
const MAX_MARK: usize = 160;
/// Bytes shown before and after a mark in a line that is too long to be shown.
const AROUND: usize = 60;

/// Files' names and texts, one after the other: a place is a number of bytes from the beginning of the first.
#[derive(Debug)]
pub(crate) struct SourceFiles {
    /// The name of each file, and the line that it begins with.
    files: Vec<(String, usize)>,
    text: String,
    /// The beginnings of the lines.
    lines: Vec<usize>,
}

impl SourceFiles {
    pub(crate) fn new(name: &str, text: &str) -> Self {
        let mut all = Self {
            files: Vec::new(),
            text: String::new(),
            lines: vec![0],
        };
        all.add(name, text);
        all
    }

    /// Adds a file; where it begins.
    pub(crate) fn add(&mut self, name: &str, text: &str) -> usize {
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
            self.lines.push(self.text.len());
        }
        let start = self.text.len();
        self.files.push((name.to_owned(), self.line(start)));
        let breaks = text.bytes().enumerate().filter(|(_, b)| *b == b'\n');
        self.lines.extend(breaks.map(|(at, _)| start + at + 1));
        self.text.push_str(text);
        start
    }

    /// The file's name; of several, the first one's, and how many others there are.
    pub(crate) fn name(&self) -> String {
        let (first, _) = &self.files[0];
        match self.files.len() - 1 {
            0 => first.clone(),
            others => format!("{first} and {others} more"),
        }
    }

    /// The lines of the file that has this one, and its name.
    fn file(&self, line: usize) -> (&str, std::ops::Range<usize>) {
        let at = self.files.partition_point(|(_, first)| *first <= line) - 1;
        let next = self.files.get(at + 1);
        let end = next.map_or(usize::MAX, |(_, first)| *first);
        (&self.files[at].0, self.files[at].1..end)
    }

    /// The line of a place, from 0.
    fn line(&self, offset: usize) -> usize {
        self.lines
            .partition_point(|start| *start <= offset)
            .saturating_sub(1)
    }

    /// The end of a line, its line break included.
    fn line_end(&self, line: usize) -> usize {
        self.lines.get(line + 1).copied().unwrap_or(self.text.len())
    }

    /// Characters between the beginning of the line and a place.
    fn column(&self, offset: usize) -> usize {
        self.text[self.lines[self.line(offset)]..offset]
            .chars()
            .count()
    }

    /// The file of a place, and line and column there, from 1.
    pub(crate) fn position(&self, span: SourceSpan) -> (&str, usize, usize) {
        let start = self.text.floor_char_boundary(span.offset());
        let line = self.line(start);
        let (name, lines) = self.file(line);
        (name, line - lines.start + 1, self.column(start) + 1)
    }

    /// The span within the text, on one line and not too long: a span that can be marked.
    pub(crate) fn mark(&self, span: SourceSpan) -> SourceSpan {
        let start = self.text.floor_char_boundary(span.offset());
        let line = self.text[start..self.line_end(self.line(start))].trim_end_matches(['\n', '\r']);
        let length = line.floor_char_boundary(span.len().min(MAX_MARK));
        (start, length).into()
    }

    /// The first place of `needle` within a span; the span itself when it is not found (it may be written with escapes).
    pub(crate) fn find(&self, span: SourceSpan, needle: &str) -> SourceSpan {
        let end = span.offset().saturating_add(span.len());
        match self
            .text
            .get(span.offset()..end)
            .and_then(|text| text.find(needle))
        {
            Some(at) => (span.offset() + at, needle.len()).into(),
            None => span,
        }
    }
}

impl SourceCode for SourceFiles {
    fn read_span<'a>(
        &'a self,
        span: &SourceSpan,
        context_lines_before: usize,
        context_lines_after: usize,
    ) -> Result<Box<dyn SpanContents<'a> + 'a>, MietteError> {
        let (start, end) = (span.offset(), span.offset().saturating_add(span.len()));
        if self.text.get(start..end).is_none() {
            return Err(MietteError::OutOfBounds);
        }
        let (first, last) = (
            self.line(start),
            self.line(end.saturating_sub(1).max(start)),
        );
        let (name, file) = self.file(first);
        if !file.contains(&last) {
            // Places in two files are not drawn together.
            return Err(MietteError::OutOfBounds);
        }
        let top = first.saturating_sub(context_lines_before).max(file.start);
        let bottom = (last + context_lines_after).min(file.end - 1);
        let (mut from, mut to) = (self.lines[top], self.line_end(bottom));
        let mut line = top;
        if context_lines_before == 0 && context_lines_after == 0 {
            (from, to, line) = (start, end, first);
        } else if to - from > MAX_SNIPPET {
            if end - start > MAX_SNIPPET {
                return Err(MietteError::OutOfBounds);
            }
            from = self
                .text
                .floor_char_boundary(start.saturating_sub(AROUND))
                .max(self.lines[first]);
            to = self
                .text
                .floor_char_boundary(end.saturating_add(AROUND))
                .min(self.line_end(last));
            line = first;
        }
        let shown = &self.text.as_bytes()[from..to];
        let lines = self.line(to.saturating_sub(1).max(from)) - line;
        let contents = MietteSpanContents::new_named(
            name.to_owned(),
            shown,
            (from, to - from).into(),
            line - file.start,
            self.column(from),
            lines,
        );
        Ok(Box::new(contents))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let text = SourceFiles::new("f", "a = 1\nüb = \"x\"\n");
        assert_eq!(text.position((6, 1).into()), ("f", 2, 1));
        assert_eq!(
            text.position((9, 1).into()),
            ("f", 2, 3),
            "columns are characters"
        );
        assert_eq!(
            text.position((100, 1).into()),
            ("f", 3, 1),
            "past the end is the end"
        );
        assert_eq!(
            text.find((11, 10).into(), "x"),
            (11, 10).into(),
            "a span past the end is left alone"
        );
        assert_eq!(text.find((6, 8).into(), "x"), (13, 1).into());
        assert_eq!(text.mark((0, 12).into()), (0, 5).into(), "one line only");
    }

    #[test]
    fn each_of_several_files_has_its_own_lines() {
        let mut text = SourceFiles::new("a", "1\n2");
        assert_eq!((text.add("b", ""), text.add("c", "4\n5\n6\n")), (4, 4));
        assert_eq!(text.name(), "a and 2 more");
        assert_eq!(text.position((2, 1).into()), ("a", 2, 1));
        assert_eq!(text.position((6, 1).into()), ("c", 2, 1));
        let shown = text.read_span(&(4, 1).into(), 1, 1).unwrap();
        assert_eq!(
            (shown.name(), shown.line(), shown.data()),
            (Some("c"), 0, "4\n5\n".as_bytes())
        );
        let shown = text.read_span(&(2, 1).into(), 1, 1).unwrap();
        assert_eq!(
            (shown.name(), shown.data()),
            (Some("a"), "1\n2\n".as_bytes())
        );
        assert!(text.read_span(&(2, 3).into(), 1, 1).is_err());
    }

    #[test]
    fn a_long_line_is_not_shown_whole() {
        let text = SourceFiles::new(
            "f",
            &format!("{}MARK{}\nnext", "x".repeat(10_000), "y".repeat(10_000)),
        );
        let shown = text.read_span(&(10_000, 4).into(), 1, 1).unwrap();
        assert_eq!(
            (shown.line(), shown.column(), shown.data().len()),
            (0, 10_000 - AROUND, 4 + 2 * AROUND)
        );
        assert!(
            text.read_span(&(0, 10_000).into(), 1, 1).is_err(),
            "two far places are not drawn together"
        );
    }
}
