//! Generic resources as Slurm writes them: `gpu:2`, `gpu:a100:4(S:0-1)`, `gres:gpu:1`, `gres/gpu:1`.

/// The resources of a list with their counts. Text that is none is left out.
pub(crate) fn resources(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.split(',').filter_map(|entry| {
        let entry = entry.split('(').next().unwrap_or_default().trim();
        let named = entry.strip_prefix("gres:").or(entry.strip_prefix("gres/"));
        let (name, rest) = match named.unwrap_or(entry).split_once([':', '=']) {
            Some((name, rest)) => (name, rest),
            None => (named.unwrap_or(entry), ""),
        };
        let count = rest.rsplit([':', '=']).next().unwrap_or_default();
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let is_name = !name.is_empty() && name.chars().all(is_word);
        is_name.then(|| (name, count_of(count)))
    })
}

/// How many of a resource a node has, or a job wants of each node.
pub(crate) fn count(text: &str, name: &str) -> u64 {
    let counts = resources(text).filter(|(n, _)| *n == name).map(|(_, n)| n);
    counts.fold(0, u64::saturating_add)
}

/// The GPUs of a list.
pub(crate) fn gpus_of(text: &str) -> u32 {
    u32::try_from(count(text, "gpu")).unwrap_or(u32::MAX)
}

/// `4`, `12G`; 1 where there is no number.
fn count_of(text: &str) -> u64 {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let Ok(number) = digits.parse::<u64>() else {
        return 1;
    };
    let shift = match text.get(digits.len()..) {
        Some("K") => 10,
        Some("M") => 20,
        Some("G") => 30,
        Some("T") => 40,
        _ => 0,
    };
    number.saturating_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_in_each_form() {
        for (text, gpus) in [
            ("", 0),
            ("(null)", 0),
            ("gpu", 1),
            ("gpu:2", 2),
            ("gpu:a100:4(S:0-1),scm:12G", 4),
            ("gres:gpu:1", 1),
            ("gres/gpu=3", 3),
            ("gpu:a100:4,gpu:v100:2", 6),
            ("scm:4G", 0),
        ] {
            assert_eq!(gpus_of(text), gpus, "{text}");
        }
        assert_eq!(count("scm:12G,gpu:1", "scm"), 12 << 30);
    }
}
