//! Sets of ranks in words.

use std::collections::BTreeSet;

/// Them as `rank 3` or `ranks 0-2, 5`.
pub(super) fn list(numbers: &BTreeSet<u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => runs.push((*number, *number)),
        }
    }
    text(&runs)
}

/// Those below `all` that are not there, as `rank 3 is` or `ranks 0-2, 5 are`.
pub(super) fn missing(there: &BTreeSet<u32>, all: u32) -> Option<String> {
    let mut gaps = Vec::new();
    let mut next = 0;
    for number in there.iter().copied().chain([all]) {
        if number > next {
            gaps.push((next, number - 1));
        }
        next = next.max(number.saturating_add(1));
    }
    match &gaps[..] {
        [] => None,
        [(first, last)] if first == last => Some(format!("{} is", text(&gaps))),
        _ => Some(format!("{} are", text(&gaps))),
    }
}

fn text(runs: &[(u32, u32)]) -> String {
    let one = |(first, last): &(u32, u32)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    };
    let all: Vec<String> = runs.iter().map(one).collect();
    match runs {
        [(first, last)] if first == last => format!("rank {first}"),
        _ => format!("ranks {}", all.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_listed_in_runs() {
        assert_eq!(list(&[0, 1, 2, 5, 7, 8].into()), "ranks 0-2, 5, 7-8");
        assert_eq!(list(&[4].into()), "rank 4");
        let of = |there: &[u32], all| missing(&there.iter().copied().collect(), all);
        assert_eq!(of(&[0, 1, 2], 3), None);
        assert_eq!(of(&[0, 2], 3), Some("rank 1 is".into()));
        assert_eq!(of(&[3], 8), Some("ranks 0-2, 4-7 are".into()));
        assert_eq!(of(&[], u32::MAX), Some("ranks 0-4294967294 are".into()));
    }
}
