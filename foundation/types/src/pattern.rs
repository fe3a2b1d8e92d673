//! Names with one hole: scatter rules (`processor{rank}`) and entry patterns (`*.fits`).

use serde::{Deserialize, Serialize};

/// A path of one or more components, one of which holds `{rank}` once: entries that match go to their
/// rank's node, everything else to every node. Stored as written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ScatterRule(String);

/// Why a pattern was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// `{rank}` is missing or stands more than once.
    #[error("a scatter rule needs `{{rank}}` exactly once, such as `processor{{rank}}`")]
    Rank,
    /// It is absolute, empty, or has `.`, `..` or empty components.
    #[error("`{0}` is not a relative path inside a dataset")]
    Path(String),
    /// An entry pattern has more than one component.
    #[error("`{0}` must name top-level entries: no `/`")]
    Depth(String),
}

impl ScatterRule {
    /// Checks a rule.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        if text.matches("{rank}").count() != 1 {
            return Err(PatternError::Rank);
        }
        if text
            .split('/')
            .any(|c| c.is_empty() || c == "." || c == "..")
        {
            return Err(PatternError::Path(text.into()));
        }
        Ok(Self(text.into()))
    }

    /// The rule as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the rule names top-level entries.
    pub fn is_top_level(&self) -> bool {
        !self.0.contains('/')
    }

    /// The rank of a path inside the dataset, or `None` for a path that goes to every node. Paths below a matching entry belong
    /// to it; `processor01` is not rank 1 (ranks have no leading zero).
    pub fn rank(&self, path: &[u8]) -> Option<u32> {
        let mut parts = path.split(|&b| b == b'/');
        let mut rank = None;
        for want in self.0.split('/') {
            let got = parts.next()?;
            match want.split_once("{rank}") {
                None if got == want.as_bytes() => {}
                None => return None,
                Some((before, after)) => {
                    let digits = got
                        .strip_prefix(before.as_bytes())?
                        .strip_suffix(after.as_bytes())?;
                    let canonical = digits == b"0" || digits.first().is_some_and(|d| *d != b'0');
                    if !canonical || !digits.iter().all(u8::is_ascii_digit) {
                        return None;
                    }
                    rank = std::str::from_utf8(digits).ok()?.parse().ok();
                    rank?;
                }
            }
        }
        rank
    }
}

/// A pattern for top-level entries: literal text with any number of `*` (any run of characters).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EntryPattern(String);

impl EntryPattern {
    /// Checks a pattern.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        if text.contains('/') {
            return Err(PatternError::Depth(text.into()));
        }
        if text.is_empty() || text == "." || text == ".." {
            return Err(PatternError::Path(text.into()));
        }
        Ok(Self(text.into()))
    }

    /// The pattern as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether an entry's name matches. Linear backtracking to the last `*` only.
    pub fn matches(&self, name: &str) -> bool {
        let (p, n) = (self.0.as_bytes(), name.as_bytes());
        let (mut i, mut j, mut star) = (0, 0, None);
        while j < n.len() {
            if i < p.len() && p[i] == b'*' {
                star = Some((i, j));
                i += 1;
            } else if i < p.len() && p[i] == n[j] {
                (i, j) = (i + 1, j + 1);
            } else if let Some((si, sj)) = star {
                star = Some((si, sj + 1));
                (i, j) = (si + 1, sj + 1);
            } else {
                return false;
            }
        }
        p[i..].iter().all(|&b| b == b'*')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks() {
        let r = ScatterRule::new("processor{rank}").unwrap();
        assert_eq!(r.rank(b"processor12/0/U"), Some(12));
        assert_eq!(r.rank(b"processor0"), Some(0));
        for not in [
            "processor",
            "processor01",
            "processor1x",
            "system/processor1",
            "processor99999999999",
        ] {
            assert_eq!(r.rank(not.as_bytes()), None, "{not}");
        }
        let deep = ScatterRule::new("run/p{rank}.d").unwrap();
        assert_eq!(deep.rank(b"run/p3.d/x"), Some(3));
        assert_eq!(deep.rank(b"run"), None);
        for bad in [
            "processor",
            "{rank}{rank}",
            "/p{rank}",
            "../{rank}",
            "a//{rank}",
        ] {
            assert!(ScatterRule::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn entries() {
        let p = |s: &str| EntryPattern::new(s).unwrap();
        assert!(
            p("*").matches("anything")
                && p("*.fits").matches("a.b.fits")
                && p("a*b*c").matches("axxbyybzc")
        );
        assert!(!p("*.fits").matches("a.fit") && !p("a").matches("ab") && !p("a*b").matches("axc"));
        assert!(EntryPattern::new("a/*").is_err() && EntryPattern::new("..").is_err());
    }
}
