//! Scheduling policies by name: an order of jobs, and a treatment of data. `docs/internals/scheduling.md` explains each. Written
//! as text everywhere: on the command line, in reports and in event logs.

use crate::units::{Nanos, SECOND, parse_time};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// In which order jobs get nodes, and which nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Strictly as they came: nobody overtakes.
    Fcfs,
    /// As they came, but any job that fits begins.
    Greedy,
    /// As they came; a job that does not delay the first in the queue may begin before it.
    Easy,
    /// As they came; a job that delays none of those before it may begin before them, as Slurm's backfill has it.
    Conservative,
    /// Like `easy`, the shortest (by its limit) first.
    SjfEasy,
    /// The job with the longest way to its workflow's end first, where it ends first.
    Heft,
    /// Like `easy`; a step of a workflow waits for the nodes of its predecessor.
    SameNodes,
    /// Jobs go to their data.
    Data,
    /// Like `data`, with as little energy as possible.
    Energy,
}

/// The treatment of a job's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataMode {
    /// Everything is read from the external store and written there, by the job itself.
    StageThrough,
    /// Like `stage-through`, but data that happens to be on the job's nodes is read there.
    Cache,
    /// Data stays on the nodes; only data that must be in the external store goes there. With `easy` it is what a site
    /// does whose Slurm schedules and whose data tarn moves.
    Keep,
}

/// A policy with its settings. Written `ORDER[+DATA][:KEY=VALUE,...]`, such as `easy`, `heft+cache` or
/// `data:bound=10m`. `stage-through` alone is `heft+stage-through`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Policy {
    /// The order.
    pub order: Order,
    /// The treatment of data: always `Keep` with `Data` and `Energy`.
    pub data_mode: DataMode,
    /// With `Greedy`: a job that has waited so long is not overtaken any more.
    pub max_wait: Option<Nanos>,
    /// With `Data` and `Energy`: the most that workflows which overtake the first ordinary job that waits may delay it,
    /// against the earliest begin that it could rely on since it was the first.
    pub bound: Nanos,
    /// With `Data` and `Energy`: a workflow queues as if it had come so much earlier; jobs that came before that are not
    /// behind it.
    pub lead: Nanos,
    /// With `Energy`: the most that sleeping nodes may raise the mean bounded slow-down, in percent.
    pub slow_down: u32,
    /// With `Data` and `Energy`: a node that has been idle for so long sleeps; with `Energy` only if it pays, too.
    pub sleep: Option<Nanos>,
    /// Of the nodes that may sleep so many stay awake.
    pub awake: u32,
    /// It was called `stage-through`, and is called so: another name of `heft+stage-through`.
    pub alias: bool,
}

/// The default bound on the delay of others: short against the hours for which batch jobs queue; on KTH-SP2 more was no gain for
/// workflows.
const DEFAULT_BOUND: Nanos = 600 * SECOND;
/// The default head start of workflows: the jobs of a day.
const DEFAULT_LEAD: Nanos = 24 * 3600 * SECOND;
/// The default slow-down in percent that is accepted for energy.
const DEFAULT_SLOW_DOWN: u32 = 10;
/// The baseline of a single run, by the name that it has always had there: the most urgent job begins first.
const STAGE_THROUGH: &str = "stage-through";
/// The setting of `greedy`.
const MAX_WAIT: &str = "max-wait";
/// Its former name, which logs keep.
const FORMER_MAX_WAIT: &str = "patience";

impl Policy {
    /// Whether they decide the same, under any name.
    pub fn same_as(&self, other: &Self) -> bool {
        let named = Self {
            alias: other.alias,
            ..*self
        };
        named == *other
    }

    /// Whether idle nodes sleep.
    pub fn has_sleepers(&self) -> bool {
        self.order == Order::Energy || self.sleep.is_some()
    }

    /// A policy with its default settings. No data mode: the usual one of that order.
    pub fn new(order: Order, data_mode: Option<DataMode>) -> Self {
        let usual = match order {
            Order::Data | Order::Energy => DataMode::Keep,
            _ => DataMode::StageThrough,
        };
        Self {
            order,
            data_mode: data_mode.unwrap_or(usual),
            max_wait: None,
            bound: DEFAULT_BOUND,
            lead: DEFAULT_LEAD,
            slow_down: DEFAULT_SLOW_DOWN,
            sleep: None,
            awake: 0,
            alias: false,
        }
    }

    /// Every order with its name. One that is missing here cannot be parsed, and is printed as nothing.
    pub const ORDERS: [(&'static str, Order); 9] = [
        ("fcfs", Order::Fcfs),
        ("greedy", Order::Greedy),
        ("easy", Order::Easy),
        ("conservative", Order::Conservative),
        ("sjf-easy", Order::SjfEasy),
        ("heft", Order::Heft),
        ("same-nodes", Order::SameNodes),
        ("data", Order::Data),
        ("energy", Order::Energy),
    ];
}

/// Why the text of a policy was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No such order.
    #[error(
        "no policy is called `{0}`; there are fcfs, greedy, easy, conservative, sjf-easy, heft, same-nodes, data and energy, and \
         stage-through for heft+stage-through"
    )]
    UnknownOrder(String),
    /// No such data mode, or not with this order.
    #[error(
        "`{0}` is no way of handling data for {1}; fcfs, greedy, easy, conservative, sjf-easy, heft and same-nodes take \
         `+stage-through`, `+cache` or `+keep`, data and energy take none"
    )]
    BadDataMode(String, String),
    /// No such setting, or not with this order.
    #[error(
        "`{0}` is no setting of {1}; greedy has `max-wait=TIME`, data and energy have `bound=TIME`, `lead=TIME` and \
         `sleep=TIME`, and with that `awake=NODES`, energy has `slow-down=PERCENT`"
    )]
    BadSetting(String, String),
    /// A setting is given more than once.
    #[error("`{0}` is given twice; give it once")]
    Repeated(String),
    /// A value that cannot be read.
    #[error("the value of `{0}` cannot be read: {1}")]
    BadValue(String, String),
}

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        if text == STAGE_THROUGH {
            return Ok(Self {
                alias: true,
                ..Self::new(Order::Heft, Some(DataMode::StageThrough))
            });
        }
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        let (order_name, data_mode) = match name.split_once('+') {
            Some((order, data_mode)) => (order, Some(data_mode)),
            None => (name, None),
        };
        let found = Self::ORDERS.iter().find(|(n, _)| *n == order_name);
        let order = found.map(|(_, o)| *o);
        let order = order.ok_or_else(|| PolicyError::UnknownOrder(order_name.into()))?;
        let own = matches!(order, Order::Data | Order::Energy);
        let data_mode = match data_mode {
            None => None,
            Some("stage-through") if !own => Some(DataMode::StageThrough),
            Some("cache") if !own => Some(DataMode::Cache),
            Some("keep") if !own => Some(DataMode::Keep),
            Some(other) => {
                return Err(PolicyError::BadDataMode(other.into(), order_name.into()));
            }
        };
        let mut policy = Self::new(order, data_mode);
        let mut given = Vec::new();
        for setting in settings.split(',').filter(|s| !s.is_empty()) {
            let (key, _) = key_and_value(setting);
            if given.contains(&key) {
                return Err(PolicyError::Repeated(key.into()));
            }
            given.push(key);
            policy.set(setting, order_name)?;
        }
        if policy.awake > 0 && !policy.has_sleepers() {
            let setting = format!("awake={}", policy.awake);
            return Err(PolicyError::BadSetting(setting, order_name.into()));
        }
        Ok(policy)
    }
}

/// A setting's key, by its name of today, and its value.
fn key_and_value(setting: &str) -> (&str, &str) {
    match setting.split_once('=').unwrap_or((setting, "")) {
        (FORMER_MAX_WAIT, value) => (MAX_WAIT, value),
        other => other,
    }
}

impl Policy {
    fn set(&mut self, setting: &str, order: &str) -> Result<(), PolicyError> {
        let bad = || PolicyError::BadSetting(setting.into(), order.into());
        let (key, value) = key_and_value(setting);
        let time =
            || parse_time(value).map_err(|e| PolicyError::BadValue(key.into(), e.to_string()));
        match (key, self.order) {
            (MAX_WAIT, Order::Greedy) => self.max_wait = Some(time()?),
            ("bound", Order::Data | Order::Energy) => self.bound = time()?,
            ("lead", Order::Data | Order::Energy) => self.lead = time()?,
            ("sleep", Order::Data | Order::Energy) => self.sleep = Some(time()?),
            ("awake", Order::Data | Order::Energy) => {
                self.awake = value.parse().map_err(|_| {
                    PolicyError::BadValue(key.into(), "a number of nodes is expected".into())
                })?;
            }
            ("slow-down", Order::Energy) => {
                let percent = value.trim_end_matches('%').parse();
                self.slow_down = percent.map_err(|_| {
                    PolicyError::BadValue(
                        key.into(),
                        "a whole number of percent is expected".into(),
                    )
                })?;
            }
            _ => return Err(bad()),
        }
        Ok(())
    }
}

impl TryFrom<String> for Policy {
    type Error = PolicyError;

    fn try_from(text: String) -> Result<Self, PolicyError> {
        text.parse()
    }
}

impl From<Policy> for String {
    fn from(policy: Policy) -> Self {
        // Logs keep the former word: a tarn of before reads them.
        policy.to_string().replace(MAX_WAIT, FORMER_MAX_WAIT)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.alias {
            return f.write_str(STAGE_THROUGH);
        }
        let name = Self::ORDERS.iter().find(|(_, o)| *o == self.order);
        f.write_str(name.map_or("", |(n, _)| n))?;
        let own = matches!(self.order, Order::Data | Order::Energy);
        match self.data_mode {
            DataMode::Cache => f.write_str("+cache")?,
            DataMode::Keep if !own => f.write_str("+keep")?,
            _ => {}
        }
        let default = Self::new(self.order, Some(self.data_mode));
        let mut settings = Vec::new();
        if let Some(max_wait) = self.max_wait {
            settings.push(format!("{MAX_WAIT}={max_wait}ns").replace("000000000ns", "s"));
        }
        if self.bound != default.bound {
            settings.push(format!("bound={}ns", self.bound).replace("000000000ns", "s"));
        }
        if self.lead != default.lead {
            settings.push(format!("lead={}ns", self.lead).replace("000000000ns", "s"));
        }
        if self.slow_down != default.slow_down {
            settings.push(format!("slow-down={}%", self.slow_down));
        }
        if let Some(sleep) = self.sleep {
            settings.push(format!("sleep={sleep}ns").replace("000000000ns", "s"));
        }
        if self.awake != default.awake {
            settings.push(format!("awake={}", self.awake));
        }
        if settings.is_empty() {
            return Ok(());
        }
        write!(f, ":{}", settings.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_printed() {
        for text in [
            "fcfs",
            "greedy",
            "easy",
            "easy+cache",
            "easy+keep",
            "conservative",
            "conservative+keep",
            "sjf-easy",
            "heft+cache",
            "same-nodes",
            "data",
            "energy",
            "energy:slow-down=25%",
            "energy:sleep=300s",
            "data:sleep=1200s,awake=2",
            "data:bound=60s,lead=3600s",
            "greedy:max-wait=1500000000ns",
            "greedy+cache:max-wait=0ns",
        ] {
            let policy: Policy = text.parse().expect(text);
            assert_eq!(policy.to_string(), text);
            let json = serde_json::to_string(&policy).expect("text");
            let written = text.replace("max-wait", "patience");
            assert_eq!(json, format!("\"{written}\""));
            assert_eq!(serde_json::from_str::<Policy>(&json).expect(text), policy);
        }
        let same: Policy = "easy+stage-through".parse().expect("the usual data mode");
        assert_eq!(same, Policy::new(Order::Easy, None));
        let old: Policy = serde_json::from_str("\"stage-through\"").expect("as in old logs");
        assert!(old.same_as(&Policy::new(Order::Heft, Some(DataMode::StageThrough))));
        assert_eq!(old.to_string(), "stage-through");
        let bounded: Policy = "data:bound=60s".parse().expect("a bound");
        assert_eq!(bounded.bound, 60 * SECOND);
        let old: Policy = "greedy:patience=5m".parse().expect("the name before");
        assert_eq!(old.max_wait, Some(300 * SECOND));
        assert_eq!(old.to_string(), "greedy:max-wait=300s");
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("fifo", "fifo"),
            ("easy+hold", "hold"),
            ("data+keep", "keep"),
            ("data+cache", "cache"),
            ("easy:bound=5m", "bound=5m"),
            ("data:bound=5", "bound"),
            ("data:awake=2", "awake=2"),
            ("easy:sleep=5m", "sleep=5m"),
            ("data:sleep=5m,awake=few", "awake"),
            ("data:bound", "the value of `bound`"),
            ("data:lead=1h,lead=2h", "`lead` is given twice"),
            ("energy:slow-down=x", "slow-down"),
            ("greedy:max-wait", "max-wait"),
            (
                "greedy:patience=1s,max-wait=2s",
                "`max-wait` is given twice",
            ),
        ] {
            let error = text.parse::<Policy>().expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
