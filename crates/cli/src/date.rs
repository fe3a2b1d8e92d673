//! Dates, in UTC.

const DAY: u64 = 24 * 3600;

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of_year(year: u64) -> u64 {
    365 + u64::from(is_leap(year))
}

fn length(year: u64, month: u64) -> u64 {
    match month {
        2 => 28 + u64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

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
        && (1..=length(year, month)).contains(&day);
    let years: u64 = (1970..year).map(days_of_year).sum();
    let months: u64 = (1..month).map(|m| length(year, m)).sum();
    is_date.then(|| years + months + day - 1)
}

/// The minute of `seconds` since 1970, as `2026-11-29 14:05 UTC`.
pub(crate) fn minute(seconds: u64) -> String {
    let (mut days, of_day) = (seconds / DAY, seconds % DAY);
    let (mut year, mut month) = (1970, 1);
    // Nothing later is ever meant.
    while year < 9999 && days >= days_of_year(year) {
        days -= days_of_year(year);
        year += 1;
    }
    while month < 12 && days >= length(year, month) {
        days -= length(year, month);
        month += 1;
    }
    let (hour, minute) = (of_day / 3600, of_day / 60 % 60);
    format!(
        "{year}-{month:02}-{:02} {hour:02}:{minute:02} UTC",
        days + 1
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read_and_written() {
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
            let seconds = days(text).expect("a date") * DAY + 3 * 3600 + 4 * 60 + 5;
            assert_eq!(minute(seconds), format!("{text} 03:04 UTC"));
        }
        assert!(minute(u64::MAX).starts_with("9999-12-"));
    }
}
