//! The configuration of a site: docs/admin/site.md, "Configuration".

use super::Options;
use super::metrics::MetricsPlace;
use super::mode::{PlanningLines, SiteMode};
use anyhow::{Context, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use tarn_proto::site::{Owner, Uid};
use tarn_site::Config;
use tarn_site_planner::{SitePower, SiteRates};
use tarn_types::policy::Policy;
use tarn_types::site::Rates;
use tarn_types::units::{parse_rate, parse_size, parse_time};

/// How long a job waits for a node that sleeps, unless the site says otherwise.
const WAKE: &str = "10m";

/// Watts of a node: more is a mistake.
const MAX_WATTS: f64 = 1_000_000.0;

/// The configuration file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(super) struct ControllerConfigFile {
    /// The nodes, if not all that Slurm knows.
    pub(super) nodes: Option<Vec<String>>,
    /// Whether Slurm gets the free space of nodes.
    pub(super) sinfo: Option<bool>,
    /// Whether jobs' input is brought before they have nodes.
    pub(super) ahead: Option<bool>,
    /// The time without a job and without data after which nodes sleep.
    pub(super) sleep: Option<String>,
    /// Of these so many stay awake.
    pub(super) awake: Option<u32>,
    /// The draw of nodes where nothing measures it.
    pub(super) power: PowerLines,
    /// How long a job waits for a node that sleeps.
    pub(super) wake: Option<String>,
    /// The port of `tarnd --site`.
    pub(super) port: Option<u16>,
    /// The user that slurmctld runs as.
    pub(super) slurm_user: Option<String>,
    /// The mode in which tarn acts in Slurm.
    pub(super) mode: SiteMode,
    /// The policy of its plans.
    pub(super) policy: Option<String>,
    /// The most that workflows may delay the first ordinary job.
    pub(super) bound: Option<String>,
    /// Bytes a second between two nodes, as plans estimate them.
    pub(super) peer_rate: Option<String>,
    /// Where metrics for Prometheus are served: a path, or a loopback address.
    pub(super) metrics: Option<String>,
    /// The mode of the socket at that path, and its group.
    pub(super) metrics_mode: Option<String>,
    pub(super) metrics_group: Option<String>,
    /// The users beside root who get them at that address.
    pub(super) metrics_users: Vec<String>,
    /// How long data stays after its last use.
    pub(super) lease: Option<String>,
    /// How long before its end a lease is reported to end soon.
    pub(super) warning: Option<String>,
    /// Bytes that a user may have on all nodes together.
    pub(super) quota: Option<String>,
    /// Of users, by name or number.
    pub(super) user_quotas: BTreeMap<String, String>,
    /// Bytes that a project may have.
    pub(super) project_quota: Option<String>,
    /// Of projects, by their group's name or number.
    pub(super) project_quotas: BTreeMap<String, String>,
}

/// The figures of nodes: watts, and how long waking takes.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(super) struct PowerLines {
    pub(super) idle: Option<f64>,
    pub(super) busy: Option<f64>,
    pub(super) asleep: Option<f64>,
    pub(super) boot: Option<f64>,
    pub(super) wake: Option<String>,
}

impl PowerLines {
    fn power(&self) -> anyhow::Result<SitePower> {
        let watts = |name: &str, watts: Option<f64>| match watts {
            Some(w) if !(0.0..=MAX_WATTS).contains(&w) => {
                bail!("power.{name}: {w} is no number of watts from 0 to {MAX_WATTS}")
            }
            watts => Ok(watts),
        };
        let wake = self.wake.as_deref().map(parse_time);
        Ok(SitePower {
            idle: watts("idle", self.idle)?,
            busy: watts("busy", self.busy)?,
            asleep: watts("asleep", self.asleep)?,
            boot: watts("boot", self.boot)?,
            wake: wake.transpose().context("power.wake")?,
        })
    }
}

impl ControllerConfigFile {
    /// The draw of nodes where nothing measures it.
    pub(super) fn power(&self, options: &Options) -> anyhow::Result<SitePower> {
        let path = options.config.as_deref().unwrap_or(Path::new(""));
        self.power
            .power()
            .with_context(|| path.display().to_string())
    }

    /// The mode, the policy of plans, and the bandwidths that they count on.
    pub(super) fn planning(
        &self,
        options: &Options,
    ) -> anyhow::Result<(SiteMode, Policy, SiteRates)> {
        let lines = PlanningLines {
            policy: self.policy.as_deref(),
            bound: self.bound.as_deref(),
            sleep: self.sleep.as_deref(),
            awake: self.awake,
        };
        let path = options.config.as_deref().unwrap_or(Path::new(""));
        let policy = lines.policy().with_context(|| path.display().to_string())?;
        let mut rates = SiteRates::default();
        if let Some(rate) = &self.peer_rate {
            let rate =
                parse_rate(rate).with_context(|| format!("{}: peer-rate", path.display()))?;
            rates.link = Rates {
                read: rate,
                write: rate,
            };
        }
        Ok((self.mode, policy, rates))
    }
}

/// The mode that the configuration has now.
pub(super) fn configured_mode(path: Option<&Path>) -> anyhow::Result<SiteMode> {
    let Some(path) = path else {
        return Ok(SiteMode::default());
    };
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let file: ControllerConfigFile = toml::from_str(&text)?;
    Ok(file.mode)
}

/// The site's configuration; the defaults without a file.
pub(super) fn read(options: &Options) -> anyhow::Result<(Config, ControllerConfigFile)> {
    let path = options.config.as_deref();
    let place = path.map_or_else(String::new, |path| path.display().to_string());
    let text = match path {
        Some(path) => {
            std::fs::read_to_string(path).with_context(|| format!("cannot read {place}"))?
        }
        None => String::new(),
    };
    let file: ControllerConfigFile = toml::from_str(&text).with_context(|| place.clone())?;
    let mut config = Config::default();
    let about = |what: &str| format!("{place}: {what}");
    if let Some(lease) = &file.lease {
        config.lease = parse_time(lease).with_context(|| about("lease"))?;
    }
    if let Some(warning) = &file.warning {
        config.warning = parse_time(warning).with_context(|| about("warning"))?;
    }
    if let Some(quota) = &file.quota {
        config.quota = parse_size(quota).with_context(|| about("quota"))?;
    }
    if let Some(quota) = &file.project_quota {
        config.project_quota = parse_size(quota).with_context(|| about("project-quota"))?;
    }
    config.ahead = file.ahead.unwrap_or(true);
    let wake = parse_time(file.wake.as_deref().unwrap_or(WAKE)).with_context(|| about("wake"))?;
    let (_, policy, _) = file.planning(options)?;
    config.wake = policy.has_sleepers().then_some(wake);
    for (group, quota) in &file.project_quotas {
        let quota = parse_size(quota).with_context(|| about(group))?;
        let number = group_number(group).with_context(|| place.clone())?;
        config.quotas.insert(Owner::Project(number), quota);
    }
    for (user, quota) in &file.user_quotas {
        let quota = parse_size(quota).with_context(|| about(user))?;
        let number = number_of(user)
            .with_context(|| about(&format!("there is no user `{user}` on this host")))?;
        config.quotas.insert(Owner::User(number), quota);
    }
    Ok((config, file))
}

/// Where the site wants metrics.
pub(super) fn metrics_place(file: &ControllerConfigFile) -> anyhow::Result<Option<MetricsPlace>> {
    let Some(place) = &file.metrics else {
        let is_set = file.metrics_mode.is_some() || file.metrics_group.is_some();
        anyhow::ensure!(
            !is_set && file.metrics_users.is_empty(),
            "`metrics-mode`, `metrics-group` and `metrics-users` need `metrics`"
        );
        return Ok(None);
    };
    let group = file.metrics_group.as_ref();
    let group = group.map(|name| group_number(name)).transpose()?;
    let users = file.metrics_users.iter().map(|user| {
        number_of(user)
            .with_context(|| format!("metrics-users: there is no user `{user}` on this host"))
    });
    let users = users.collect::<anyhow::Result<Vec<_>>>()?;
    MetricsPlace::parse(place, file.metrics_mode.as_deref(), group, users).map(Some)
}

/// A group's number, by name or number.
fn group_number(group: &str) -> anyhow::Result<u32> {
    let number = match group.parse() {
        Ok(number) => Some(number),
        Err(_) => tarn_sys::users::group(group).with_context(|| group.to_owned())?,
    };
    number.with_context(|| format!("there is no group `{group}` on this host"))
}

/// A user's number, by name or number.
pub(super) fn number_of(user: &str) -> Option<Uid> {
    if let Ok(number) = user.parse() {
        return Some(number);
    }
    let output = std::process::Command::new("id")
        .args(["-u", "--", user])
        .output()
        .ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::path::PathBuf;

    fn config(text: &str) -> anyhow::Result<Config> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("site.toml");
        std::fs::write(&path, text).unwrap();
        let words = ["tarnd", "--state", "/nowhere", "--config"];
        let words = words.map(PathBuf::from).into_iter().chain([path]);
        read(&Options::parse_from(words)).map(|(config, ..)| config)
    }

    #[test]
    fn quotas_and_leases_are_what_the_site_says() {
        let text = "lease = \"2d\"\nwarning = \"12h\"\nquota = \"1 GiB\"\nproject-quota = \"2 GiB\"\n\
            [user-quotas]\nroot = \"3 GiB\"\n77 = \"4 GiB\"\n[project-quotas]\nroot = \"5 GiB\"\n78 = \"6 GiB\"\n";
        let config = config(text).unwrap();
        let hour = 3600 * tarn_types::units::SECOND;
        assert_eq!((config.lease, config.warning), (48 * hour, 12 * hour));
        assert_eq!((config.quota, config.project_quota), (1 << 30, 2 << 30));
        let quotas = [
            (Owner::User(0), 3 << 30),
            (Owner::User(77), 4 << 30),
            (Owner::Project(0), 5 << 30),
            (Owner::Project(78), 6 << 30),
        ];
        assert_eq!(config.quotas, quotas.into());
    }

    #[test]
    fn what_the_site_cannot_mean_is_an_error_that_names_it() {
        for (text, expected) in [
            ("quotas = 5", "quotas"),
            ("lease = \"soon\"", "lease"),
            (
                "[project-quotas]\nnobodys-group = \"1 GiB\"",
                "nobodys-group",
            ),
            ("[project-quotas]\nroot = \"much\"", "root"),
            ("project-quota = 5", "project-quota"),
            ("sleep = \"soon\"", "sleep"),
            ("sleep = \"1h\"\nwake = \"soon\"", "wake"),
            ("wake = \"soon\"", "wake"),
        ] {
            let why = format!("{:#}", config(text).expect_err(text));
            assert!(
                why.contains(expected) && why.contains("site.toml"),
                "{text}: {why}"
            );
        }
    }
}
