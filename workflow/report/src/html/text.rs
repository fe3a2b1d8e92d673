//! Text into a page, and nothing but text.

use serde::Serialize;
use tarn_types::units::Nanos;

/// Text for an element or a quoted attribute. Control characters, which no page may hold, become visible.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// JSON that no HTML parser can leave early: `<` appears only as an escape.
pub(crate) fn json_in_script(value: &impl Serialize) -> String {
    // Only maps with keys that are no strings, and failing Serialize implementations, make an error: there are none.
    let json = serde_json::to_string(value)
        .unwrap_or_else(|e| format!("{{\"error\":{:?}}}", e.to_string()));
    json.replace('<', "\\u003c")
}

/// A share in percent with one decimal, never NaN: of nothing, it is 0.
pub(super) fn percent(part: u128, whole: u128) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    (part.min(whole) * 1000 / whole) as f64 / 10.0
}

/// Nanoseconds as whole microseconds, the unit of the page's drawings.
pub(crate) fn micros(t: Nanos) -> u64 {
    t / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes() {
        assert_eq!(
            escape("<a href='x'>&\u{0}"),
            "&lt;a href=&#39;x&#39;&gt;&amp;\u{fffd}"
        );
        assert_eq!(json_in_script(&"</script>"), "\"\\u003c/script>\"");
    }

    #[test]
    fn shares() {
        assert_eq!(percent(1, 3), 33.3);
        assert_eq!(percent(5, 0), 0.0);
        assert_eq!(percent(u128::from(u64::MAX), 1), 100.0);
    }
}
