//! Figures beside the plain tool's, and the form in which they are given.

use serde_json::{Value, json};
use std::fs::read_to_string;

/// Units in which less is better; in all others more is.
const LESS_IS_BETTER: &[&str] = &["s", "ms", "us", "ns", "B", "MiB", "times"];

/// One result of a benchmark.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BenchFigure {
    /// The measurement: shape, medium, conditions.
    pub(crate) name: String,
    /// The measured value: a median, unless the name says otherwise.
    pub(crate) value: f64,
    /// Its unit.
    pub(crate) unit: &'static str,
    /// The plain tool or the limit, measured in turns with it: name and value in the same unit.
    pub(crate) against: Option<(String, f64)>,
}

impl BenchFigure {
    /// How many times better than the other value: above 1, tarn is better.
    pub(crate) fn ratio(&self) -> Option<f64> {
        let (_, other) = self.against.as_ref()?;
        let (good, bad) = if LESS_IS_BETTER.contains(&self.unit) {
            (*other, self.value)
        } else {
            (self.value, *other)
        };
        (bad > 0.0).then(|| good / bad)
    }

    fn json(&self) -> Value {
        let mut object = json!({"name": self.name, "value": self.value, "unit": self.unit});
        if let Some((name, value)) = &self.against {
            object["against"] = json!({"name": name, "value": value});
            object["ratio"] = json!(self.ratio());
        }
        object
    }
}

/// The machine that figures come from.
pub(crate) fn machine() -> Value {
    let field = |path: &str, key: &str| {
        let text = read_to_string(path).unwrap_or_default();
        let mut lines = text.lines().filter_map(|l| l.split_once(':'));
        lines
            .find(|(k, _)| k.trim() == key)
            .map(|(_, v)| v.trim().to_owned())
    };
    let kibibytes =
        field("/proc/meminfo", "MemTotal").and_then(|v| v.split(' ').next()?.parse::<u64>().ok());
    json!({
        "cpu": field("/proc/cpuinfo", "model name"),
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "memory_bytes": kibibytes.map(|k| k * 1024),
        "kernel": read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
    })
}

/// The results of a benchmark in the form of version 1.
pub(crate) fn to_json(bench: &str, figures: &[BenchFigure]) -> Value {
    json!({
        "schema": 1,
        "bench": bench,
        "machine": machine(),
        "results": figures.iter().map(BenchFigure::json).collect::<Vec<_>>(),
    })
}

/// The results of a benchmark for people: a line each.
pub(crate) fn to_text(figures: &[BenchFigure]) -> String {
    let width = figures
        .iter()
        .map(|f| f.name.chars().count())
        .max()
        .unwrap_or(0);
    let line = |f: &BenchFigure| {
        let beside = match (&f.against, f.ratio()) {
            (Some((name, value)), Some(ratio)) => {
                format!("   {name} {value:.3} {}   ratio {ratio:.2}", f.unit)
            }
            _ => String::new(),
        };
        format!("{:width$}  {:>10.3} {}{beside}\n", f.name, f.value, f.unit)
    };
    figures.iter().map(line).collect()
}

/// The median; the mean of the middle two when their number is even, 0 when there is none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(value: f64, unit: &'static str, other: f64) -> BenchFigure {
        BenchFigure {
            name: "x".into(),
            value,
            unit,
            against: Some(("cp".into(), other)),
        }
    }

    #[test]
    fn above_one_is_better() {
        assert_eq!(figure(2.0, "s", 3.0).ratio(), Some(1.5));
        assert_eq!(figure(2.0, "MB/s", 3.0).ratio(), Some(2.0 / 3.0));
        assert_eq!(figure(0.0, "s", 3.0).ratio(), None);
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn the_form_of_version_1() {
        let absolute = BenchFigure {
            against: None,
            ..figure(1.0, "s", 2.0)
        };
        let v = to_json("workflow", &[figure(1.0, "s", 2.0), absolute]);
        assert_eq!((&v["schema"], &v["bench"]), (&json!(1), &json!("workflow")));
        assert!(v["machine"]["cores"].as_u64() > Some(0));
        let compared = json!({"name": "x", "value": 1.0, "unit": "s", "against": {"name": "cp", "value": 2.0}, "ratio": 2.0});
        assert_eq!(
            v["results"],
            json!([compared, {"name": "x", "value": 1.0, "unit": "s"}])
        );
    }
}
