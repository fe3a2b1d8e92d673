//! Sizes, rates and times with their units: strict parsing, exact printing.

use std::fmt;

/// Nanoseconds since the run's epoch (monotone within a run, across restarts too).
pub type Time = u64;
/// A length of time in nanoseconds.
pub type Nanos = u64;
/// One second.
pub const SECOND: Nanos = 1_000_000_000;

/// Why a size, rate or time was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// There is no number at the start.
    #[error("`{0}` does not start with a number")]
    NoNumber(String),
    /// The unit is missing or not one of those known.
    #[error("`{text}` needs a unit: one of {units}")]
    BadUnit {
        /// The given text.
        text: String,
        /// The units that are known.
        units: &'static str,
    },
    /// A size in `K`, `M`, `G`, `T` or `P`, which may be powers of 1000 or of 1024.
    #[error(
        "`{text}` has no exact unit: write `{decimal}` (powers of 1000) or `{binary}` (powers of 1024)"
    )]
    Ambiguous {
        /// The given text.
        text: String,
        /// The same number with a decimal unit.
        decimal: String,
        /// The same number with a binary unit.
        binary: String,
    },
    /// The value does not fit into 64 bits.
    #[error("`{0}` is too large")]
    TooLarge(String),
    /// The value is not a whole number of bytes or nanoseconds.
    #[error("`{0}` is not a whole number of its smallest unit")]
    Fraction(String),
}

const SIZE_UNITS: &str = "B, kB, MB, GB, TB, PB, KiB, MiB, GiB, TiB, PiB";
const TIME_UNITS: &str = "ns, us, ms, s, m, h, d";

fn split(text: &str) -> Result<(&str, &str), UnitError> {
    let t = text.trim();
    let end = t
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(t.len());
    if end == 0 {
        return Err(UnitError::NoNumber(text.into()));
    }
    Ok((&t[..end], t[end..].trim_start()))
}

/// `number` (decimal digits, at most one point) times `unit`, exactly.
fn scale(text: &str, number: &str, unit: u64) -> Result<u64, UnitError> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) || number.ends_with('.')
    {
        return Err(UnitError::NoNumber(text.into()));
    }
    let too_large = || UnitError::TooLarge(text.into());
    let mut digits = 0u128;
    for d in whole.bytes().chain(fraction.bytes()) {
        digits = digits
            .checked_mul(10)
            .and_then(|v| v.checked_add(u128::from(d - b'0')))
            .ok_or_else(too_large)?;
    }
    let divisor = u32::try_from(fraction.len())
        .ok()
        .and_then(|n| 10u128.checked_pow(n))
        .ok_or_else(too_large)?;
    let product = digits.checked_mul(u128::from(unit)).ok_or_else(too_large)?;
    if product % divisor != 0 {
        return Err(UnitError::Fraction(text.into()));
    }
    u64::try_from(product / divisor).map_err(|_| too_large())
}

fn bad_size_unit(text: &str, number: &str, unit: &str) -> UnitError {
    let letter = unit.to_ascii_uppercase();
    if !["K", "M", "G", "T", "P"].contains(&letter.as_str()) {
        return UnitError::BadUnit {
            text: text.into(),
            units: SIZE_UNITS,
        };
    }
    let decimal = if letter == "K" { "k" } else { &letter };
    UnitError::Ambiguous {
        text: text.into(),
        decimal: format!("{number} {decimal}B"),
        binary: format!("{number} {letter}iB"),
    }
}

/// Parses a size such as `400 GiB` or `1.5GB` into bytes. The unit is required and case counts.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    let (number, unit) = split(text)?;
    let factor = match unit {
        "B" => 1,
        "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "PB" => 1_000_000_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        "PiB" => 1u64 << 50,
        _ => return Err(bad_size_unit(text, number, unit)),
    };
    scale(text, number, factor)
}

/// Parses a rate such as `200 MB/s` into bytes a second.
pub fn parse_rate(text: &str) -> Result<u64, UnitError> {
    match text.trim_end().strip_suffix("/s") {
        Some(size) => parse_size(size),
        None => Err(UnitError::BadUnit {
            text: text.into(),
            units: "a size unit followed by /s, such as 200 MB/s",
        }),
    }
}

/// Parses a length of time such as `10m`, `1.5 h` or `1h30m` into nanoseconds.
pub fn parse_time(text: &str) -> Result<Nanos, UnitError> {
    let mut rest = text.trim();
    let mut total = 0u64;
    loop {
        let (number, tail) = split(rest).map_err(|_| UnitError::NoNumber(text.into()))?;
        let end = tail
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(tail.len());
        let factor = match &tail[..end] {
            "ns" => 1,
            "us" => 1_000,
            "ms" => 1_000_000,
            "s" => SECOND,
            "m" => 60 * SECOND,
            "h" => 3600 * SECOND,
            "d" => 86_400 * SECOND,
            _ => {
                return Err(UnitError::BadUnit {
                    text: text.into(),
                    units: TIME_UNITS,
                });
            }
        };
        total = scale(text, number, factor)?
            .checked_add(total)
            .ok_or_else(|| UnitError::TooLarge(text.into()))?;
        rest = tail[end..].trim_start();
        if rest.is_empty() {
            return Ok(total);
        }
    }
}

/// Prints bytes for people: `1.50 GiB`.
#[derive(Debug, Clone, Copy)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let mut unit = 0;
        let mut value = self.0 as f64;
        while value >= 1024.0 && unit + 1 < units.len() {
            value /= 1024.0;
            unit += 1;
        }
        let text = if unit == 0 {
            format!("{} B", self.0)
        } else {
            format!("{value:.2} {}", units[unit])
        };
        f.pad(&text)
    }
}

/// Prints a length of time for people: `1.25 s`, `3m 20s`.
#[derive(Debug, Clone, Copy)]
pub struct Elapsed(pub Nanos);

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self.0 as f64 / SECOND as f64;
        let whole = self.0 / SECOND;
        let text = if self.0 < 1_000_000 {
            format!("{:.0} us", s * 1e6)
        } else if self.0 < SECOND {
            format!("{:.0} ms", s * 1e3)
        } else if whole < 60 {
            format!("{s:.2} s")
        } else if whole < 3600 {
            format!("{}m {:02}s", whole / 60, whole % 60)
        } else {
            format!("{}h {:02}m", whole / 3600, whole / 60 % 60)
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_strict() {
        assert_eq!(parse_size("400 GiB"), Ok(400 << 30));
        assert_eq!(parse_size("1.5GB"), Ok(1_500_000_000));
        assert_eq!(parse_size("3.5TB"), Ok(3_500_000_000_000));
        for bad in [
            "", "12", "12 gb", "12 Gib", "1.2.3 GB", "GB", "-1 GB", "1. GB", "1e3 B", "0.5 B",
            "1 GB x",
        ] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert!(matches!(
            parse_size("99999999999 PiB"),
            Err(UnitError::TooLarge(_))
        ));
    }

    #[test]
    fn times_and_rates() {
        assert_eq!(parse_time("1h30m"), Ok(5400 * SECOND));
        assert_eq!(parse_time("0.5 s"), Ok(SECOND / 2));
        assert_eq!(parse_rate("200 MB/s"), Ok(200_000_000));
        assert!(parse_rate("200 MB").is_err());
        assert_eq!(
            parse_size("4G").unwrap_err().to_string(),
            "`4G` has no exact unit: write `4 GB` (powers of 1000) or `4 GiB` (powers of 1024)"
        );
        for bad in ["", "10", "10 min", "m", "1h30"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(s in "\\PC{0,24}") {
            let _ = (parse_size(&s), parse_rate(&s), parse_time(&s));
        }

        #[test]
        fn whole_bytes_round_trip(n in any::<u64>()) {
            prop_assert_eq!(parse_size(&format!("{n} B")), Ok(n));
        }
    }
}
