//! Results of the papers' experiments: their format (research/evidence/README.md), a table for terminals, a page with
//! figures.
//!
//! Reading order: here (the format), [`text()`], [`markdown()`], [`page()`].

mod markdown;
mod numbers;
mod page;
mod text;

pub use markdown::markdown;
pub use page::page;
pub use text::{brief, text};

use crate::html::sections::counted;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;

/// The version of the format.
pub const SCHEMA: u32 = 1;
/// Bytes of a text.
pub const MAX_TEXT: usize = 4096;
/// Entries of a list.
pub const MAX_ENTRIES: usize = 10_000;
/// Minutes that all experiments together are meant to take at most, with `--quick`.
pub const QUICK_MINUTES: f64 = 15.0;
/// The same in full.
pub const FULL_MINUTES: f64 = 90.0;

/// Results that cannot be drawn.
#[derive(Debug, thiserror::Error)]
pub enum EvidenceError {
    /// No JSON of this shape.
    #[error(
        "these are no results of experiments: {0}; research/evidence/README.md has their format"
    )]
    Shape(#[from] serde_json::Error),
    /// Of a version that is not known.
    #[error(
        "the results have format {0}, this tarn reads format {SCHEMA}: take the tarn that wrote them"
    )]
    Version(u32),
    /// Something breaks a rule of the format.
    #[error("{experiment}: {what}")]
    Rule {
        /// The experiment.
        experiment: String,
        /// The broken rule.
        what: String,
    },
}

/// All that one `tarn reproduce` measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The machine, as `tarn bench --json` describes it.
    pub machine: Value,
    /// Version of the tarn that measured.
    pub tarn: String,
    /// Seconds since 1970 when it began.
    pub date: u64,
    /// Whether sizes and repetitions were those of `--quick`.
    pub quick: bool,
    /// The experiments, in the order in which they ran.
    pub experiments: Vec<Experiment>,
}

/// The findings of one experiment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Its name.
    pub experiment: String,
    /// Its title.
    pub title: String,
    /// Paper, section, table or figure.
    pub source: String,
    /// Why it has no results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_run: Option<String>,
    /// The emulated devices and their rates.
    #[serde(default)]
    pub emulated: Vec<String>,
    /// The origin of its figures, unless they were measured with the devices of `emulated`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<BTreeSet<FigureMethod>>,
    /// Differences from the paper.
    #[serde(default)]
    pub differs: Vec<String>,
    /// Repetitions that count.
    #[serde(default)]
    pub rounds: u32,
    /// Seconds that it took.
    #[serde(default)]
    pub seconds: f64,
    /// Figures.
    #[serde(default)]
    pub tables: Vec<EvidenceTable>,
    /// Pictures of them.
    #[serde(default)]
    pub plots: Vec<Plot>,
    /// The paper's claims and the findings here.
    #[serde(default)]
    pub claims: Vec<PaperClaim>,
}

/// How figures came about that were not measured on what they are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FigureMethod {
    /// By a simulator, in its own time.
    Simulated,
    /// Measured on something that is emulated.
    Emulated,
    /// Computed from a formula.
    Modelled,
}

impl FigureMethod {
    fn words(self) -> &'static str {
        match self {
            Self::Simulated => "simulated",
            Self::Emulated => "emulated",
            Self::Modelled => "modelled",
        }
    }
}

/// Figures in rows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EvidenceTable {
    /// The title.
    pub title: String,
    /// Names of the columns, the first of the rows'.
    pub columns: Vec<String>,
    /// Cells of each row, as many as there are columns.
    pub rows: Vec<Vec<EvidenceCell>>,
    /// How these came about, where it is otherwise than in the rest of the experiment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<BTreeSet<FigureMethod>>,
}

/// A cell of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum EvidenceCell {
    /// A text.
    Text(String),
    /// A number without spread.
    Number(f64),
    /// A measured figure.
    Figure(MeasuredFigure),
}

/// A measured figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredFigure {
    /// The median of the repetitions.
    pub value: f64,
    /// The least of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// The greatest of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
    /// The paper's own figure there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paper: Option<f64>,
}

/// A picture.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    /// The title.
    pub title: String,
    /// How.
    pub kind: ChartKind,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The drawn series.
    pub series: Vec<Series>,
    /// How these came about, where it is otherwise than in the rest of the experiment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<BTreeSet<FigureMethod>>,
}

/// How points are drawn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChartKind {
    /// Points and lines between them.
    #[default]
    Lines,
    /// A group of bars for each name on the horizontal axis.
    Bars,
    /// The phases of each node: points are node, from, to; time is the horizontal axis.
    Gantt,
}

/// An axis.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// Quantity and unit.
    pub label: String,
    /// Whether it is logarithmic.
    #[serde(default)]
    pub log: bool,
}

/// Points that belong together in a picture.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// The owner of the figures.
    pub of: FigureOwner,
    /// The points, in the order of x.
    pub points: Vec<ChartPoint>,
}

/// The owner of figures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FigureOwner {
    /// tarn's, on this machine.
    #[default]
    Here,
    /// The paper's, on its machine.
    Paper,
    /// The plain tool's, on this machine.
    Peer,
}

/// A point: where, then y, or y with the least and the greatest of its repetitions, or from when to when.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Value>", into = "Vec<Value>")]
pub struct ChartPoint {
    /// The position on the horizontal axis; the node of a Gantt chart.
    pub at: PointPosition,
    /// One to three numbers.
    pub numbers: Vec<f64>,
}

/// The position of a point.
#[derive(Debug, Clone, PartialEq)]
pub enum PointPosition {
    /// At a number.
    Number(f64),
    /// At a name.
    Name(String),
}

/// A value in the place of a point that is none.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("a point is [x, y], [x, y, low, high] or [node, from, to], not {0}")]
pub struct PointError(pub Value);

impl TryFrom<Vec<Value>> for ChartPoint {
    type Error = PointError;

    fn try_from(values: Vec<Value>) -> Result<Self, PointError> {
        let wrong = || PointError(Value::from(values.clone()));
        let (first, rest) = values.split_first().ok_or_else(wrong)?;
        let at = match first {
            Value::String(name) => PointPosition::Name(name.clone()),
            other => PointPosition::Number(other.as_f64().ok_or_else(wrong)?),
        };
        let numbers: Option<Vec<f64>> = rest.iter().map(Value::as_f64).collect();
        let numbers = numbers.filter(|n| (1..=3).contains(&n.len()));
        Ok(Self {
            at,
            numbers: numbers.ok_or_else(wrong)?,
        })
    }
}

impl From<ChartPoint> for Vec<Value> {
    fn from(point: ChartPoint) -> Self {
        let at = match point.at {
            PointPosition::Number(x) => Value::from(x),
            PointPosition::Name(name) => Value::from(name),
        };
        let numbers = point.numbers.into_iter().map(Value::from);
        std::iter::once(at).chain(numbers).collect()
    }
}

/// A claim of a paper, and the finding here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PaperClaim {
    /// The claim.
    pub claim: String,
    /// The paper's figure.
    pub paper: String,
    /// This machine's.
    pub here: String,
    /// Whether it holds.
    pub verdict: ClaimVerdict,
    /// How these came about, where it is otherwise than in the rest of the experiment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<BTreeSet<FigureMethod>>,
}

/// Whether a claim holds here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClaimVerdict {
    /// It holds.
    Holds,
    /// It does not.
    Fails,
    /// The spread is wider than the difference.
    Unclear,
}

impl ClaimVerdict {
    /// In the order of the page: failed claims come first.
    const BY_WEIGHT: [Self; 3] = [Self::Fails, Self::Unclear, Self::Holds];

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Fails => "does not hold",
            Self::Unclear => "undecided",
        }
    }
}

impl Results {
    /// Reads the file beside a page.
    ///
    /// # Errors
    /// When it has another shape or version, or breaks a rule.
    pub fn parse(text: &[u8]) -> Result<Self, EvidenceError> {
        let results: Self = serde_json::from_slice(text)?;
        if results.schema != SCHEMA {
            return Err(EvidenceError::Version(results.schema));
        }
        at_most("the results", "experiments", results.experiments.len())?;
        for experiment in &results.experiments {
            experiment.check()?;
        }
        Ok(results)
    }

    /// How long all of it took, beside the time that is meant for a whole run.
    pub fn took(&self) -> String {
        let seconds: f64 = self.experiments.iter().map(|e| e.seconds).sum();
        let (how, meant) = if self.quick {
            ("with --quick", QUICK_MINUTES)
        } else {
            ("in full", FULL_MINUTES)
        };
        let number = self.experiments.len() as u64;
        format!(
            "{} took {:.1} min; the target for all of them, {how}, is at most {meant} min",
            counted(number, "experiment"),
            seconds / 60.0
        )
    }
}

impl Experiment {
    /// Reads the output of an experiment.
    ///
    /// # Errors
    /// As [`Results::parse`].
    pub fn parse(text: &[u8]) -> Result<Self, EvidenceError> {
        let experiment: Self = serde_json::from_slice(text)?;
        experiment.check()?;
        Ok(experiment)
    }

    /// How figures came about, in words: of a part with its own entry, or else of all of it. Nothing if they were simply
    /// measured.
    fn how(&self, own: Option<&BTreeSet<FigureMethod>>) -> Option<String> {
        let emulated = || {
            if self.emulated.is_empty() {
                BTreeSet::new()
            } else {
                BTreeSet::from([FigureMethod::Emulated])
            }
        };
        let how = own.or(self.how.as_ref()).cloned().unwrap_or_else(emulated);
        let words: Vec<&str> = how.into_iter().map(FigureMethod::words).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }

    /// How often it was repeated, in words.
    fn repeated(&self) -> Option<String> {
        let rounds = self.rounds.into();
        (rounds > 0).then(|| {
            format!(
                "medians of {}, the least and the greatest beside them",
                counted(rounds, "repetition")
            )
        })
    }

    /// Checks the rules that the types do not express.
    fn check(&self) -> Result<(), EvidenceError> {
        if self.schema != SCHEMA {
            return Err(EvidenceError::Version(self.schema));
        }
        let name = self.experiment.as_str();
        let rule = |what: String| EvidenceError::Rule {
            experiment: name.to_owned(),
            what,
        };
        for (what, count) in [
            ("tables", self.tables.len()),
            ("plots", self.plots.len()),
            ("claims", self.claims.len()),
        ] {
            at_most(name, what, count)?;
        }
        for table in &self.tables {
            at_most(name, "rows", table.rows.len())?;
            at_most(name, "columns", table.columns.len())?;
            if let Some(row) = table.rows.iter().find(|r| r.len() != table.columns.len()) {
                let (cells, columns) = (row.len(), table.columns.len());
                return Err(rule(format!(
                    "table `{}` has {columns} columns, and a row of {cells} cells",
                    table.title
                )));
            }
        }
        for plot in &self.plots {
            at_most(name, "series", plot.series.len())?;
            for series in &plot.series {
                at_most(name, "points", series.points.len())?;
                if let Some(point) = series.points.iter().find(|p| !plot.fits(p)) {
                    return Err(rule(format!(
                        "plot `{}` cannot have the point {:?}",
                        plot.title,
                        Vec::from(point.clone())
                    )));
                }
            }
        }
        match self.texts().find(|t| t.len() > MAX_TEXT) {
            Some(text) => Err(rule(format!(
                "a text has {} bytes, {MAX_TEXT} are the most",
                text.len()
            ))),
            None => Ok(()),
        }
    }

    fn texts(&self) -> impl Iterator<Item = &str> {
        let own = [&self.experiment, &self.title, &self.source];
        let tables = self.tables.iter().flat_map(|table| {
            let cells = table.rows.iter().flatten().filter_map(|cell| match cell {
                EvidenceCell::Text(text) => Some(text),
                _ => None,
            });
            [&table.title]
                .into_iter()
                .chain(&table.columns)
                .chain(cells)
        });
        let plots = self.plots.iter().flat_map(|plot| {
            let names = plot.series.iter().map(|s| &s.name);
            [&plot.title, &plot.x.label, &plot.y.label]
                .into_iter()
                .chain(names)
        });
        let claims = self
            .claims
            .iter()
            .flat_map(|c| [&c.claim, &c.paper, &c.here]);
        own.into_iter()
            .chain(&self.not_run)
            .chain(&self.emulated)
            .chain(&self.differs)
            .chain(tables)
            .chain(plots)
            .chain(claims)
            .map(String::as_str)
    }
}

impl Plot {
    fn fits(&self, point: &ChartPoint) -> bool {
        let numbers = &point.numbers;
        match (self.kind, &point.at) {
            (ChartKind::Lines, PointPosition::Number(x)) => {
                numbers.len() != 2
                    && (!self.x.log || *x > 0.0)
                    && (!self.y.log || numbers.iter().all(|y| *y > 0.0))
            }
            (ChartKind::Bars, PointPosition::Name(_)) => {
                numbers.len() != 2 && (!self.y.log || numbers.iter().all(|y| *y > 0.0))
            }
            (ChartKind::Gantt, PointPosition::Number(_)) => numbers.len() == 2,
            _ => false,
        }
    }
}

fn at_most(experiment: &str, what: &str, count: usize) -> Result<(), EvidenceError> {
    if count <= MAX_ENTRIES {
        return Ok(());
    }
    Err(EvidenceError::Rule {
        experiment: experiment.to_owned(),
        what: format!("{count} {what}, {MAX_ENTRIES} are the most"),
    })
}
