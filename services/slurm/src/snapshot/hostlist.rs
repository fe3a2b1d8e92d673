//! Lists of nodes as Slurm writes them (`node[1-3,7],login`), expanded here: no `scontrol show hostnames` for each.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Nodes of one list: Slurm's own bound on nodes of a cluster is 65,536.
const MAX_NODES: usize = 1 << 17;
/// Names of all different lists of one snapshot.
const MAX_NAMES: usize = 1 << 22;
/// Bytes of a name; POSIX allows a host 255.
const MAX_NAME: usize = 255;

/// Why a list of nodes cannot be expanded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostlistError {
    /// It is none: a bracket without its partner, a range that runs backwards, a name that is too long.
    #[error("`{0}` is no list of nodes: tarn reads lists such as `node[1-3,7],login`")]
    Malformed(String),
    /// It has more nodes than tarn takes.
    #[error("a list of nodes names more than {0} nodes, the most that tarn takes")]
    TooMany(usize),
}

/// The names of a list, in its order; a name that is there twice comes twice.
///
/// # Errors
/// When the text is no such list, or has more than 131,072 names.
///
/// ```
/// let names = tarn_slurm::expand_hostlist("n[08-10,12],login")?;
/// assert_eq!(names, ["n08", "n09", "n10", "n12", "login"]);
/// # Ok::<(), tarn_slurm::HostlistError>(())
/// ```
pub fn expand_hostlist(text: &str) -> Result<Vec<String>, HostlistError> {
    let text = text.trim();
    let malformed = || HostlistError::Malformed(crate::excerpt(text));
    let mut names = Vec::new();
    for element in elements(text).ok_or_else(malformed)? {
        if !element.is_empty() {
            let pieces = pieces(element)
                .filter(|pieces| longest(pieces) <= MAX_NAME)
                .ok_or_else(malformed)?;
            let count = pieces
                .iter()
                .try_fold(1usize, |all, piece| all.checked_mul(piece.count()));
            let left = MAX_NODES - names.len();
            if count.is_none_or(|count| count > left) {
                return Err(HostlistError::TooMany(MAX_NODES));
            }
            append(&mut names, &pieces);
        }
    }
    Ok(names)
}

/// The text between commas that are in no bracket.
fn elements(text: &str) -> Option<Vec<&str>> {
    let (mut is_inside, mut begin) = (false, 0);
    let mut elements = Vec::new();
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'[' if !is_inside => is_inside = true,
            b']' if is_inside => is_inside = false,
            b'[' | b']' => return None,
            b',' if !is_inside => {
                elements.push(text.get(begin..at)?);
                begin = at + 1;
            }
            b if b.is_ascii_whitespace() || b.is_ascii_control() => return None,
            _ => {}
        }
    }
    elements.push(text.get(begin..)?);
    (!is_inside).then_some(elements)
}

/// A piece of a name: the same in all names, or a range of numbers.
enum HostlistPiece<'t> {
    Text(&'t str),
    /// The first, the last and the digits of each.
    Numbers(Vec<(u64, u64, usize)>),
}

impl HostlistPiece<'_> {
    /// How many names it makes of one; `usize::MAX` for more than that.
    fn count(&self) -> usize {
        match self {
            Self::Text(_) => 1,
            Self::Numbers(ranges) => ranges.iter().fold(0, |all, (first, last, _)| {
                let count = usize::try_from(last - first).unwrap_or(usize::MAX);
                all.saturating_add(count.saturating_add(1))
            }),
        }
    }
}

/// The pieces of one element, such as `rack[1-2]n[01-40]`.
fn pieces(element: &str) -> Option<Vec<HostlistPiece<'_>>> {
    let mut pieces = Vec::new();
    let mut rest = element;
    while let Some((text, behind)) = rest.split_once('[') {
        let (ranges, behind) = behind.split_once(']')?;
        pieces.push(HostlistPiece::Text(text));
        let ranges: Option<Vec<_>> = ranges.split(',').map(range).collect();
        pieces.push(HostlistPiece::Numbers(ranges?));
        rest = behind;
    }
    pieces.push(HostlistPiece::Text(rest));
    Some(pieces)
}

/// `3` or `01-40`; leading zeros are kept.
fn range(text: &str) -> Option<(u64, u64, usize)> {
    let number = |text: &str| {
        let is_number = (1..=18).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        is_number.then(|| text.parse::<u64>().ok()).flatten()
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let width = first.len();
    let (first, last) = (number(first)?, number(last)?);
    (first <= last).then_some((first, last, width))
}

/// Bytes of the longest name that pieces can make, or more.
fn longest(pieces: &[HostlistPiece<'_>]) -> usize {
    let bytes = pieces.iter().map(|piece| match piece {
        HostlistPiece::Text(text) => text.len(),
        // A number has up to 18 digits.
        HostlistPiece::Numbers(ranges) => ranges
            .iter()
            .map(|range| range.2.max(18))
            .max()
            .unwrap_or(0),
    });
    bytes.sum()
}

/// Adds the names that pieces make.
fn append(names: &mut Vec<String>, pieces: &[HostlistPiece<'_>]) {
    let mut made = vec![String::new()];
    for piece in pieces {
        match piece {
            HostlistPiece::Text(text) => made.iter_mut().for_each(|name| name.push_str(text)),
            HostlistPiece::Numbers(ranges) => {
                let mut longer = Vec::new();
                for name in &made {
                    for (first, last, width) in ranges {
                        let numbers = *first..=*last;
                        longer.extend(numbers.map(|n| format!("{name}{n:0width$}")));
                    }
                }
                made = longer;
            }
        }
    }
    names.extend(made);
}

/// The names of a list of nodes, shared by all jobs that have the same list.
pub type NodeNames = Arc<[String]>;

/// Expands the lists of one snapshot: each text once, and all together within a bound.
#[derive(Default)]
pub(crate) struct NodeLists {
    known: BTreeMap<String, NodeNames>,
    names: usize,
}

impl NodeLists {
    /// The names of a list; none for what Slurm writes in place of an empty one.
    pub(crate) fn names(&mut self, text: &str) -> Result<NodeNames, HostlistError> {
        let text = super::values::text(text);
        if let Some(names) = self.known.get(text) {
            return Ok(Arc::clone(names));
        }
        let names: NodeNames = expand_hostlist(text)?.into();
        self.names = self.names.saturating_add(names.len());
        if self.names > MAX_NAMES {
            return Err(HostlistError::TooMany(MAX_NAMES));
        }
        self.known.insert(text.to_owned(), Arc::clone(&names));
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(text: &str) -> Vec<String> {
        expand_hostlist(text).unwrap()
    }

    #[test]
    fn lists_are_expanded_as_scontrol_does() {
        assert_eq!(names("node1"), ["node1"]);
        assert_eq!(names("n[9-11]"), ["n9", "n10", "n11"]);
        assert_eq!(names("n[09-11]"), ["n09", "n10", "n11"]);
        assert_eq!(names("a[1,3],b,c[2]-ib"), ["a1", "a3", "b", "c2-ib"]);
        assert_eq!(names("r[1-2]n[1-2]"), ["r1n1", "r1n2", "r2n1", "r2n2"]);
        assert_eq!(names("n2,n1,n2"), ["n2", "n1", "n2"]);
        assert_eq!(names(""), [""; 0]);
    }

    #[test]
    fn what_is_no_list_is_an_error() {
        for text in [
            "n[1-3",
            "n1-3]",
            "n[[1]]",
            "n[3-1]",
            "n[a-b]",
            "n[]",
            "n[1-]",
            "a b",
            "a\nb",
            "n[1-2-3]",
            "n[1234567890123456789]",
        ] {
            let error = expand_hostlist(text).unwrap_err();
            assert!(matches!(error, HostlistError::Malformed(_)), "{text}");
        }
        assert!(expand_hostlist(&"x".repeat(MAX_NAME + 1)).is_err());
    }

    #[test]
    fn a_list_that_would_fill_the_memory_is_refused() {
        for text in [
            "n[0-131072]",
            "n[0-999999999999999999]",
            "n[1-999]x[1-999]x[1-999]x[1-999]x[1-999]x[1-999]x[1-999]",
            "n[0-99999],m[0-99999]",
            "n[0-99999],m[0-99999],o[0-99999]",
        ] {
            let error = expand_hostlist(text).unwrap_err();
            assert_eq!(error, HostlistError::TooMany(MAX_NODES), "{text}");
        }
        assert_eq!(names("n[0-131071]").len(), MAX_NODES);
    }

    #[test]
    fn a_list_is_expanded_once_for_all_jobs() {
        let mut lists = NodeLists::default();
        let first = lists.names("n[1-3]").unwrap();
        assert!(Arc::ptr_eq(&first, &lists.names("n[1-3]").unwrap()));
        assert_eq!(lists.names("(null)").unwrap().len(), 0);
    }

    proptest! {
        #[test]
        fn no_text_panics_or_makes_too_much(text in "[a-c0-9,\\[\\]\\- \n|é]{0,30}") {
            if let Ok(names) = expand_hostlist(&text) {
                prop_assert!(names.len() <= MAX_NODES);
                prop_assert!(names.iter().all(|name| name.len() <= MAX_NAME));
            }
        }

        #[test]
        fn a_list_without_brackets_is_its_names(names in proptest::collection::vec("[a-z]{1,8}[0-9]{0,4}", 0..20)) {
            prop_assert_eq!(expand_hostlist(&names.join(",")).unwrap(), names);
        }
    }
}
