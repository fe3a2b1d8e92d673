//! Capacities as tools write them.

/// Bytes of `126.375 GiB`, `135744782336 B`, `2964.94 GiB (3183.58 GB)`, `16777216` or `0xff00`. Nothing for `N/A`, `-`, `Unknown` and what
/// is no capacity.
pub fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let text = text.split_once('(').map_or(text, |(first, _)| first).trim();
    if let Some(hex) = text.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok();
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    let unit: u64 = match unit.trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        "KB" | "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return None,
    };
    if !number.contains('.') {
        return number.parse::<u64>().ok()?.checked_mul(unit);
    }
    let bytes = number.parse::<f64>().ok()? * unit as f64;
    (bytes < u64::MAX as f64).then_some(bytes.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn capacities_are_read_in_all_spellings() {
        let gib = 1u64 << 30;
        let all = [
            ("126.375 GiB", Some(126 * gib + 3 * gib / 8)),
            ("135744782336 B", Some(135_744_782_336)),
            ("0.000 GiB", Some(0)),
            ("2964.50 GiB (3183.58 GB)", Some(2964 * gib + gib / 2)),
            ("16777216000", Some(16_777_216_000)),
            ("0x10", Some(16)),
            ("1 TB", Some(1_000_000_000_000)),
            ("N/A", None),
            ("-", None),
            ("", None),
            ("-3 GiB", None),
            ("1.2.3 GiB", None),
            ("3 parsecs", None),
            ("99999999999999 TiB", None),
            ("99999999999999.5 TiB", None),
        ];
        for (text, bytes) in all {
            assert_eq!(parse(text), bytes, "{text}");
        }
    }
}
