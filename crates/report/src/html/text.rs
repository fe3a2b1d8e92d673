//! Text into a page, and nothing but text.

use serde::Serialize;
use tarn_base::units::Nanos;

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

/// Wall-clock seconds since 1970 as `2026-11-21 10:03 UTC` (civil calendar after H. Hinnant's days algorithm).
pub(crate) fn date(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year_of_era = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let minute = seconds / 60 % 1440;
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02} UTC",
        minute / 60,
        minute % 60
    )
}

/// Nanoseconds as whole microseconds: what the page draws with.
pub(crate) fn micros(t: Nanos) -> u64 {
    t / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_795_255_380), "2026-11-21 10:03 UTC");
        assert!(date(u64::MAX).ends_with("UTC"));
    }

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
