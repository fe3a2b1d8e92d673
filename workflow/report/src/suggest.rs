//! Did you mean: the known names nearest to one that is not known.

/// Names that are suggested at most.
const MAX_SUGGESTIONS: usize = 5;

/// The names nearest to `query`, best first: those that differ in at most a third of their letters, or contain it.
pub(crate) fn nearest<'a>(query: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let wanted = query.to_lowercase();
    let near = names.filter_map(|name| {
        let lower = name.to_lowercase();
        let apart = distance(&wanted, &lower);
        let allowed = wanted
            .chars()
            .count()
            .max(lower.chars().count())
            .div_ceil(3);
        let contained = !wanted.is_empty() && lower.contains(&wanted);
        (apart <= allowed || contained).then_some((apart, name))
    });
    let mut near: Vec<(usize, &str)> = near.collect();
    near.sort_unstable();
    near.dedup();
    near.into_iter()
        .take(MAX_SUGGESTIONS)
        .map(|(_, n)| n.to_string())
        .collect()
}

/// Letters that have to be changed, added or left out (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let change = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_meant() {
        let names = ["project", "overlap", "mosaic", "n0", "tmpfs"];
        let near = |q| nearest(q, names.into_iter());
        assert_eq!(near("projcet"), ["project"]);
        assert_eq!(near("Mosaik"), ["mosaic"]);
        assert_eq!(near("mos"), ["mosaic"]);
        assert!(near("quite-another-thing").is_empty());
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
