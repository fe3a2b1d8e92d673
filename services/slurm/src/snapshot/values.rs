//! Values as Slurm's programs write them: empty texts, times, limits, sizes, words with `=`.

use std::collections::BTreeMap;
use std::time::Duration;

/// Slurm's `NO_VAL` and `INFINITE` of 32 and 64 bits, and what is near them.
const NO_VALUE_32: u64 = 0xffff_fff0;
const NO_VALUE_32_END: u64 = 0xffff_ffff;
const NO_VALUE_64: u64 = u64::MAX - 0xf;
/// Bytes of a unit of Slurm's sizes of memory, which are in MiB where it writes none.
pub(super) const MIB: u64 = 1 << 20;

/// A text, empty where Slurm writes a word in place of none.
pub(crate) fn text(text: &str) -> &str {
    match text.trim() {
        "(null)" | "N/A" | "n/a" => "",
        text => text,
    }
}

/// The parts of a list.
pub(super) fn parts(list: &str) -> Vec<String> {
    let parts = text(list).split(',').map(str::trim);
    parts
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect()
}

/// A number that is one, and none of Slurm's numbers for "none" and "without end".
pub(crate) fn known(number: u64) -> Option<u64> {
    let is_none = (NO_VALUE_32..=NO_VALUE_32_END).contains(&number) || number >= NO_VALUE_64;
    (!is_none).then_some(number)
}

/// A whole number.
pub(crate) fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok().and_then(known)
}

/// Seconds since 1970, as Slurm's programs write them under `SLURM_TIME_FORMAT=%s`.
pub(crate) fn time(text: &str) -> Option<u64> {
    number(text).filter(|seconds| *seconds > 0)
}

/// A limit as Slurm writes one: `[days-]hours:minutes:seconds`, the leading ones only where they are needed;
/// `UNLIMITED`. `None`: it is neither. `Some(None)`: there is no limit.
pub(crate) fn limit(text: &str) -> Option<Option<Duration>> {
    if matches!(
        text,
        "UNLIMITED" | "NOT_SET" | "INFINITE" | "infinite" | "Partition_Limit"
    ) {
        return Some(None);
    }
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (days.parse::<u64>().ok()?, clock),
        None => (0, text),
    };
    let fields: Option<Vec<u64>> = clock.split(':').map(|f| f.parse().ok()).collect();
    let fields = fields.filter(|f| (2..=3).contains(&f.len()))?;
    let seconds = fields
        .iter()
        .try_fold(0u64, |sum, field| sum.checked_mul(60)?.checked_add(*field))?;
    let all = days.checked_mul(24 * 3600)?.checked_add(seconds)?;
    Some(Some(Duration::from_secs(all)))
}

/// The bytes of `mem=` in a list of trackable resources (`cpu=4,mem=4000M,node=1`): MiB without a unit.
pub(crate) fn memory_of(resources: &str) -> Option<u64> {
    let memory = resources
        .split(',')
        .find_map(|r| r.trim().strip_prefix("mem="))?;
    let digits = memory
        .bytes()
        .take_while(|b| b.is_ascii_digit() || *b == b'.');
    let (size, unit) = memory.split_at(digits.count());
    let unit: u64 = match unit {
        "K" => 1 << 10,
        "" | "M" => MIB,
        "G" => 1 << 30,
        "T" => 1 << 40,
        "P" => 1 << 50,
        _ => return None,
    };
    let (whole, part) = size.split_once('.').unwrap_or((size, ""));
    let whole = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    // Slurm writes two digits behind the point.
    let part: u64 = match part.get(..2.min(part.len())) {
        Some("") | None => 0,
        Some(digits) if digits.len() == 1 => digits.parse::<u64>().ok()?.checked_mul(10)?,
        Some(digits) => digits.parse().ok()?,
    };
    whole.checked_add(part.checked_mul(unit / 100)?)
}

/// The words `key=value` of a line of `scontrol -o show`. The first of a key counts: texts of people are at the end of
/// Slurm's lines, and none of them takes the place of a field.
pub(super) fn words(line: &str) -> BTreeMap<&str, &str> {
    let mut words = BTreeMap::new();
    for word in line.split(' ') {
        if let Some((key, value)) = word.split_once('=') {
            words.entry(key).or_insert(value.trim());
        }
    }
    words
}

/// The lines `key = value` of `scontrol show config`.
pub(crate) fn settings(text: &str) -> BTreeMap<&str, &str> {
    let lines = text.lines().filter_map(|line| line.split_once('='));
    let mut settings = BTreeMap::new();
    for (key, value) in lines {
        settings.entry(key.trim()).or_insert(value.trim());
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_left_of_a_limit_is_read() {
        let seconds = |text| limit(text).map(|t| t.map(|t| t.as_secs()));
        assert_eq!(seconds("0:00"), Some(Some(0)));
        assert_eq!(seconds("59:07"), Some(Some(59 * 60 + 7)));
        assert_eq!(seconds("2:00:00"), Some(Some(7200)));
        assert_eq!(seconds("1-02:00:01"), Some(Some(26 * 3600 + 1)));
        assert_eq!(seconds("UNLIMITED"), Some(None));
        assert_eq!(seconds("NOT_SET"), Some(None));
        for bad in [
            "",
            "INVALID",
            "5",
            "-1:00",
            "1:2:3:4",
            "a-1:00",
            "1-",
            "99999999999999999999:00",
        ] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
        assert_eq!(seconds("18446744073709551615-00:00"), None);
    }

    #[test]
    fn sizes_are_in_bytes() {
        assert_eq!(memory_of("cpu=4,mem=4000M,node=1"), Some(4000 << 20));
        assert_eq!(memory_of("mem=4G"), Some(4 << 30));
        assert_eq!(memory_of("mem=12"), Some(12 << 20));
        assert_eq!(
            memory_of("mem=1.50G"),
            Some((1 << 30) + 50 * ((1 << 30) / 100))
        );
        for none in [
            "cpu=4",
            "mem=",
            "mem=x",
            "mem=1Z",
            "mem=99999999999999999999M",
            "mem=1.é",
        ] {
            assert_eq!(memory_of(none), None, "{none}");
        }
    }

    #[test]
    fn numbers_that_mean_none_are_none() {
        for none in ["4294967294", "4294967295", "18446744073709551614", "", "-1"] {
            assert_eq!(number(none), None, "{none}");
        }
        assert_eq!(number(" 12 "), Some(12));
        assert_eq!((time("0"), time("7")), (None, Some(7)));
    }

    #[test]
    fn the_first_of_a_key_counts() {
        let words = words("Name=a State=UP Comment=x State=DOWN Nodes=(null)");
        assert_eq!((words["State"], words["Comment"]), ("UP", "x"));
        assert_eq!(text(words["Nodes"]), "");
    }

    proptest! {
        #[test]
        fn no_text_panics(any in "\\PC{0,60}", size in "mem=[0-9.KMGTPé]{0,24}") {
            let _ = (limit(&any), memory_of(&any), memory_of(&size), parts(&any));
            let _ = (number(&any), time(&any), words(&any).len(), settings(&any).len());
        }
    }
}
