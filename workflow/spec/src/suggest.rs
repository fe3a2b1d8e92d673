//! Did you mean ...?

/// Names that are compared at most: a hint is not worth more than some milliseconds.
const MAX_CANDIDATES: usize = 10_000;

/// `did you mean ...?` with the nearest of the candidates: at most a third of the letters differ. `None` if
/// none is near.
///
/// # Examples
/// ```
/// let hint = tarn_spec::did_you_mean("sorce", ["source", "dest", "keep"]);
/// assert_eq!(hint.as_deref(), Some("did you mean `source`?"));
/// assert_eq!(tarn_spec::did_you_mean("x", ["source"]), None);
/// ```
pub fn did_you_mean<'a>(
    given: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    nearest(given, candidates).map(|name| format!("did you mean `{name}`?"))
}

/// The candidate with the fewest edits, if at most a third of the name (and at least one letter) is edited.
fn nearest<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given: Vec<char> = given.chars().flat_map(char::to_lowercase).collect();
    let allowed = given.len().div_ceil(3).max(1);
    let all = candidates.into_iter().take(MAX_CANDIDATES);
    let near = all.filter_map(|name| {
        let letters: Vec<char> = name.chars().flat_map(char::to_lowercase).collect();
        if letters.len().abs_diff(given.len()) > allowed {
            return None;
        }
        Some((edits(&given, &letters), name))
    });
    near.filter(|(edits, _)| *edits <= allowed && *edits < given.len().max(1))
        .min()
        .map(|(_, name)| name)
}

/// Insertions, deletions, replacements and swaps of neighbours that turn one into the other
/// (optimal string alignment).
fn edits(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replace = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replace.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_and_far() {
        let keys = ["memory", "name", "nodes", "in", "inout", "retries"];
        assert_eq!(nearest("memroy", keys), Some("memory"));
        assert_eq!(nearest("Name", keys), Some("name"));
        assert_eq!(nearest("node", keys), Some("nodes"));
        assert_eq!(nearest("retry", keys), None);
        assert_eq!(nearest("walltime", keys), None);
        assert_eq!(nearest("x", ["y"]), None);
        assert_eq!(nearest("", ["y"]), None);
    }

    #[test]
    fn counts_edits() {
        let count = |a: &str, b: &str| {
            edits(
                &a.chars().collect::<Vec<_>>(),
                &b.chars().collect::<Vec<_>>(),
            )
        };
        assert_eq!(count("kitten", "sitting"), 3);
        assert_eq!(count("ab", "ba"), 1);
        assert_eq!(count("", "abc"), 3);
        assert_eq!(count("abc", "abc"), 0);
    }
}
