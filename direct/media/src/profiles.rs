//! Profiles by name: those of `profiles.toml`, or as a text such as
//! `device=2.5GB/s,core=1GB/s,latency=300ns`.

use crate::slow::Profile;
use serde::Deserialize;
use std::collections::BTreeMap;
use tarn_types::units::{UnitError, parse_rate, parse_time};

/// The profiles that results name.
const PROFILES: &str = include_str!("../profiles.toml");

/// One of them, as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileEntry {
    device: Option<String>,
    core: Option<String>,
    latency: Option<String>,
}

/// Why a text is no profile of an NVRAM.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// No profile has this name.
    #[error(
        "there is no NVRAM profile {name:?}; there are {}, and texts such as device=2.5GB/s,latency=300ns",
        .known.join(", ")
    )]
    Unknown {
        /// The name that was given.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// It limits what a profile does not limit.
    #[error("an NVRAM profile has no {0:?}: it has device, core and latency")]
    NoLimit(String),
    /// A limit cannot be read.
    #[error("the NVRAM profile {name:?} is not valid: {source}")]
    Value {
        /// The name that was given.
        name: String,
        /// The error in the limit.
        source: UnitError,
    },
    /// The list of profiles that is built in is damaged.
    #[error(transparent)]
    List(#[from] toml::de::Error),
}

impl Profile {
    /// A profile by its name in profiles.toml, or by its limits: `device=2.5GB/s,core=1GB/s,latency=300ns`.
    ///
    /// # Errors
    /// There is no such profile, or a limit cannot be read.
    pub fn named(name: &str) -> Result<Self, ProfileError> {
        let written = match name.contains('=') {
            true => limits(name)?,
            false => {
                let mut all: BTreeMap<String, ProfileEntry> = toml::from_str(PROFILES)?;
                all.remove(name).ok_or_else(|| ProfileError::Unknown {
                    name: name.to_owned(),
                    known: all.into_keys().collect(),
                })?
            }
        };
        let rate = |text: Option<String>| text.map_or(Ok(0), |t| parse_rate(&t));
        let latency = written.latency.map_or(Ok(0), |t| parse_time(&t));
        let bad = |source| ProfileError::Value {
            name: name.to_owned(),
            source,
        };
        Ok(Self {
            name: name.to_owned(),
            device: rate(written.device).map_err(bad)?,
            core: rate(written.core).map_err(bad)?,
            latency: latency.map_err(bad)?,
        })
    }
}

fn limits(text: &str) -> Result<ProfileEntry, ProfileError> {
    let mut written = ProfileEntry::default();
    for limit in text.split(',') {
        let (what, value) = limit.split_once('=').unwrap_or((limit, ""));
        let field = match what.trim() {
            "device" => &mut written.device,
            "core" => &mut written.core,
            "latency" => &mut written.latency,
            other => {
                return Err(ProfileError::NoLimit(other.to_owned()));
            }
        };
        *field = Some(value.trim().to_owned());
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_have_names_or_say_what_they_limit() {
        let all: BTreeMap<String, ProfileEntry> = toml::from_str(PROFILES).unwrap();
        for name in all.keys() {
            assert!(Profile::named(name).unwrap().device > 0, "{name}");
        }
        let own = Profile::named("device=2.5GB/s, core=1 GB/s,latency=300ns").unwrap();
        let numbers = (own.device, own.core, own.latency);
        assert_eq!(numbers, (2_500_000_000, 1_000_000_000, 300));
        let cases = [
            ("floppy", "there are eighth, "),
            ("size=3", "\"size\""),
            ("device=3", "unit"),
            ("device", "no NVRAM profile"),
            ("latency=-1s", "not valid"),
        ];
        for (text, expected) in cases {
            let error = Profile::named(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
