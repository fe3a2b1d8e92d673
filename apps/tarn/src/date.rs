//! Dates that people write, in UTC.

use tarn_types::text::{days_of_month, days_of_year};

/// Days since 1970 of `year-month-day`, if that is a date since then.
pub(crate) fn days(text: &str) -> Option<u64> {
    let words: Vec<&str> = text.split('-').collect();
    let [year, month, day] = words[..] else {
        return None;
    };
    let (year, month, day): (u64, u64, u64) =
        (year.parse().ok()?, month.parse().ok()?, day.parse().ok()?);
    let is_date = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=days_of_month(year, month)).contains(&day);
    let years: u64 = (1970..year).map(days_of_year).sum();
    let months: u64 = (1..month).map(|m| days_of_month(year, m)).sum();
    is_date.then(|| years + months + day - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read() {
        assert_eq!(days("1970-01-01"), Some(0));
        assert_eq!(days("2000-03-01"), Some(11_017));
        assert_eq!(days("2026-11-23"), Some(20_780));
        for text in [
            "2026-02-29",
            "2026-13-01",
            "2026-00-01",
            "2026-1",
            "1969-12-31",
            "x-y-z",
        ] {
            assert_eq!(days(text), None, "{text}");
        }
        for text in ["1970-01-01", "2000-02-29", "2026-12-31", "2100-03-01"] {
            let seconds = days(text).expect("a date") * 24 * 3600 + 3 * 3600 + 4 * 60 + 5;
            assert_eq!(
                tarn_types::text::minute(seconds),
                format!("{text} 03:04 UTC")
            );
        }
    }
}
