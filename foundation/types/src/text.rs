//! Text that messages of several crates share: lists with a bound, and dates.

use std::fmt::Display;

/// The beginning of a command's failure text.
pub const COMMAND_ENDED: &str = "its command ended with ";
/// The fate of its data then.
pub const FATE: &str = "its inputs are intact, nothing it wrote was kept";
/// The same, and its log; the log's path follows.
pub const FATE_AND_LOG: &str =
    "; its inputs are intact, nothing it wrote was kept; all that it printed is in ";

const DAY: u64 = 24 * 3600;

/// Why a file of length 0 is not copied, though it holds something.
pub fn not_empty(path: impl Display) -> String {
    format!(
        "`{path}` has size 0 but is not empty: its content is made whenever it is read, as that of files in /proc is; \
         write it to a file first (`cat {path} > FILE`) and name that one"
    )
}

/// The first `shown` names; how many more there are, if any: `a, b and 3 more`.
pub fn first_of<T: Display>(names: &[T], shown: usize) -> String {
    let first = names.iter().take(shown).map(T::to_string);
    some_of(first, names.len() as u64)
}

/// These names of `all`, and how many more there are.
pub fn some_of(first: impl Iterator<Item = String>, all: u64) -> String {
    let first: Vec<_> = first.collect();
    match all.saturating_sub(first.len() as u64) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// The first `shown` names as a sentence has them: `a, b and c`, or `a, b and 3 more`.
pub fn sentence_of(names: &[String], shown: usize) -> String {
    match names {
        [before @ .., last] if !before.is_empty() && names.len() <= shown => {
            format!("{} and {last}", before.join(", "))
        }
        _ => first_of(names, shown),
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

/// Days of a year.
pub fn days_of_year(year: u64) -> u64 {
    365 + u64::from(is_leap(year))
}

/// Days of a month.
pub fn days_of_month(year: u64, month: u64) -> u64 {
    match month {
        2 => 28 + u64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// The minute of `seconds` since 1970, as `2026-11-29 14:05 UTC`.
pub fn minute(seconds: u64) -> String {
    let (date, of_day) = date(seconds);
    let (hour, minute) = (of_day / 3600, of_day / 60 % 60);
    format!("{date} {hour:02}:{minute:02} UTC")
}

/// The second, as `2026-11-29T14:05:09Z`.
pub fn second(seconds: u64) -> String {
    let (date, of_day) = date(seconds);
    let (hour, minute) = (of_day / 3600, of_day / 60 % 60);
    format!("{date}T{hour:02}:{minute:02}:{:02}Z", of_day % 60)
}

/// The date in UTC, and the seconds since its midnight.
fn date(seconds: u64) -> (String, u64) {
    let (mut days, of_day) = (seconds / DAY, seconds % DAY);
    let (mut year, mut month) = (1970, 1);
    // Nothing later is ever meant.
    while year < 9999 && days >= days_of_year(year) {
        days -= days_of_year(year);
        year += 1;
    }
    while month < 12 && days >= days_of_month(year, month) {
        days -= days_of_month(year, month);
        month += 1;
    }
    (format!("{year}-{month:02}-{:02}", days + 1), of_day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(minute(0), "1970-01-01 00:00 UTC");
        assert_eq!(second(86_399), "1970-01-01T23:59:59Z");
        assert_eq!(minute(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(minute(1_795_255_380), "2026-11-21 10:03 UTC");
        assert!(minute(u64::MAX).starts_with("9999-12-"));
    }

    #[test]
    fn lists_are_bounded() {
        let names = ["a", "b", "c"].map(String::from);
        assert_eq!(first_of(&names, 3), "a, b, c");
        assert_eq!(first_of(&names, 2), "a, b and 1 more");
        assert_eq!(first_of(&names[..0], 2), "");
        assert_eq!(sentence_of(&names, 3), "a, b and c");
        assert_eq!(sentence_of(&names, 2), "a, b and 1 more");
        assert_eq!(sentence_of(&names[..1], 2), "a");
    }
}
