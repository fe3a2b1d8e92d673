//! Values of options and arguments beyond sizes, rates and times, strictly parsed.

use tarn_types::units::{UnitError, parse_rate};

/// Why the value of an option or argument is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ArgumentError {
    /// It is no size, rate or time.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// Anything else: the error, or the expected value.
    #[error("{0}")]
    Unusable(String),
}

impl ArgumentError {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self::Unusable(text.into())
    }
}

/// The number, if it is above zero; or the error, which says `otherwise`.
pub(crate) fn above_zero<T: Default + PartialOrd>(
    number: T,
    otherwise: &str,
) -> Result<T, ArgumentError> {
    if number > T::default() {
        Ok(number)
    } else {
        Err(ArgumentError::new(otherwise))
    }
}

/// A limit of a rate: with zero nothing would move.
pub(crate) fn parse_rate_limit(text: &str) -> Result<u64, ArgumentError> {
    above_zero(parse_rate(text)?, "nothing would ever move")
}

/// The number of a version, of which the first is 1.
pub(crate) fn parse_version_number(text: &str) -> Result<u64, ArgumentError> {
    let number = text.parse().ok().filter(|n| *n > 0);
    number.ok_or_else(|| ArgumentError::new("versions are numbered from 1 on"))
}
