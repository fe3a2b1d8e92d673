//! Figures as people read them: with as many digits as count, the same beside each other.

use super::{EvidenceCell, EvidenceTable};

/// Digits that count of a figure that is no whole number.
const DIGITS: i32 = 3;
/// Whole numbers below this, and figures, are written out; above, with a unit of thousands.
const WRITTEN_OUT: f64 = 1e7;

/// A number: a whole one as it is, another one with three digits that count.
pub(super) fn short(value: f64) -> String {
    let size = value.abs();
    if size >= WRITTEN_OUT {
        let (unit, by) = if size >= 1e9 { ("G", 1e9) } else { ("M", 1e6) };
        return format!("{} {unit}", fixed(value / by, decimals(value / by)));
    }
    if value.fract() == 0.0 {
        return grouped(&format!("{value:.0}"));
    }
    measured(value)
}

/// A measured figure: zeros at its end count, too.
pub(super) fn measured(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if size >= WRITTEN_OUT => short(value),
        _ if value == 0.0 => "0".into(),
        _ if size < 0.001 => format!("{value:.1e}"),
        _ => fixed(value, decimals(value)),
    }
}

/// Places after the point with which three digits count.
fn decimals(value: f64) -> usize {
    let before = value.abs().max(1e-3).log10().floor() as i32 + 1;
    usize::try_from(DIGITS - before).unwrap_or(0).min(5)
}

fn fixed(value: f64, decimals: usize) -> String {
    grouped(&format!("{value:.decimals$}"))
}

/// Thousands are set apart from 10,000 on.
fn grouped(number: &str) -> String {
    let (whole, rest) = number
        .split_once('.')
        .map_or((number, None), |(w, r)| (w, Some(r)));
    let digits = whole.trim_start_matches('-');
    let mut out = String::from(if whole.starts_with('-') { "-" } else { "" });
    for (at, digit) in digits.chars().enumerate() {
        let left = digits.len() - at;
        if at > 0 && left.is_multiple_of(3) && digits.len() > 4 {
            out.push(',');
        }
        out.push(digit);
    }
    if let Some(rest) = rest {
        out.push('.');
        out.push_str(rest);
    }
    out
}

/// A cell: the figure, the least and the greatest of its repetitions where they differ from it, the paper's.
pub(super) struct FigureCell {
    /// The figure, or a text.
    pub(super) value: String,
    /// The spread.
    pub(super) spread: Option<(String, String)>,
    /// The paper's own figure.
    pub(super) paper: Option<String>,
}

impl FigureCell {
    /// `is_whole`: all figures of its column are whole numbers.
    pub(super) fn of(cell: &EvidenceCell, is_whole: bool) -> Self {
        let plain = |value| Self {
            value,
            spread: None,
            paper: None,
        };
        let number = if is_whole { short } else { measured };
        let figure = match cell {
            EvidenceCell::Text(text) => return plain(text.clone()),
            EvidenceCell::Number(n) => return plain(number(*n)),
            EvidenceCell::Figure(figure) => figure,
        };
        let value = number(figure.value);
        let spread = figure.low.zip(figure.high);
        let spread = spread.map(|(low, high)| (number(low), number(high)));
        Self {
            spread: spread.filter(|(low, high)| *low != value || *high != value),
            paper: figure.paper.map(number),
            value,
        }
    }
}

impl EvidenceTable {
    /// Whether all figures of a column are whole numbers, with their spread and the paper's.
    pub(super) fn is_whole(&self, column: usize) -> bool {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        let mut numbers = cells.flat_map(|cell| match cell {
            EvidenceCell::Text(_) => vec![],
            EvidenceCell::Number(n) => vec![*n],
            EvidenceCell::Figure(f) => [Some(f.value), f.low, f.high, f.paper]
                .into_iter()
                .flatten()
                .collect(),
        });
        numbers.all(|n| n.fract() == 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::MeasuredFigure;

    #[test]
    fn as_many_digits_as_count() {
        for (value, whole, of_a_measurement) in [
            (0.0, "0", "0"),
            (1.0, "1", "1.00"),
            (0.8782, "0.878", "0.878"),
            (12.345, "12.3", "12.3"),
            (490.0, "490", "490"),
            (23_783.57, "23,784", "23,784"),
            (-1234.5, "-1234", "-1234"),
            (12_345_678.0, "12.3 M", "12.3 M"),
            (3e9, "3.00 G", "3.00 G"),
            (8e-7, "8.0e-7", "8.0e-7"),
            (0.0123, "0.0123", "0.0123"),
        ] {
            assert_eq!(
                (&*short(value), &*measured(value)),
                (whole, of_a_measurement)
            );
        }
    }

    #[test]
    fn a_spread_that_does_not_show_is_not_shown() {
        let of = |value, low, high| {
            let (low, high) = (Some(low), Some(high));
            let figure = MeasuredFigure {
                value,
                low,
                high,
                paper: None,
            };
            let shown = FigureCell::of(&EvidenceCell::Figure(figure), false);
            (shown.value, shown.spread)
        };
        assert_eq!(of(1.0, 1.0, 1.0), ("1.00".into(), None));
        let spread = Some(("0.800".into(), "1.10".into()));
        assert_eq!(of(1.0, 0.8, 1.1), ("1.00".into(), spread));
    }
}
