//! Text of others in lines of ours.

use std::borrow::Cow;

fn stays(c: char) -> bool {
    matches!(c, '"' | '\'' | '\\') || c.escape_debug().len() == 1
}

/// A text as it can stand in a line of a log, or of output, from any author: text that would end the line, turn it round,
/// hide some of it or speak to the terminal is escaped.
pub fn plain(text: &str) -> Cow<'_, str> {
    if text.chars().all(stays) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match stays(c) {
            true => escaped.push(c),
            false => escaped.extend(c.escape_debug()),
        }
    }
    Cow::Owned(escaped)
}

/// The same of a line of JSON, by JSON's own escapes: escaped characters stand in strings alone.
pub fn plain_json(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    let mut units = [0; 2];
    for c in text.chars() {
        match stays(c) {
            true => escaped.push(c),
            false => {
                let units = c.encode_utf16(&mut units);
                escaped.extend(units.iter().map(|unit| format!("\\u{unit:04x}")));
            }
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_stays_json() {
        let text = "{\"a\":\"x \u{85}\u{202e}\u{e0001} \\n \"}";
        let escaped = plain_json(text);
        assert_eq!(escaped, "{\"a\":\"x \\u0085\\u202e\\udb40\\udc01 \\n \"}");
    }

    #[test]
    fn what_forges_lines_is_escaped_and_all_else_stays() {
        let usual = "fields/T 300 K \"x\" 'y' \\ äöü 東京 …";
        assert!(matches!(plain(usual), Cow::Borrowed(_)));
        for bad in [
            '\n', '\r', '\t', '\0', '\u{7f}', '\u{85}', '\u{9b}', '\u{1b}', '\u{2028}', '\u{2029}',
            '\u{202e}', '\u{2066}', '\u{200b}', '\u{feff}',
        ] {
            let text = plain(&format!("a{bad}b")).into_owned();
            assert!(text.len() > 3 && !text.contains(bad), "{text:?}");
            assert!(text.starts_with("a\\") && text.ends_with('b'), "{text}");
        }
    }
}
