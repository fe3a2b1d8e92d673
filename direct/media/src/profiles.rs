//! Profiles by name: those of `profiles.toml`, or as a text such as `device=2.5GB/s,core=1GB/s,latency=300ns`.

use crate::slow::Profile;
use serde::Deserialize;
use std::collections::BTreeMap;
use tarn_types::units::{parse_rate, parse_time};

/// The profiles that results name.
const PROFILES: &str = include_str!("../profiles.toml");

/// One of them, as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    device: Option<String>,
    core: Option<String>,
    latency: Option<String>,
}

impl Profile {
    /// A profile by its name, or by what it limits.
    ///
    /// # Errors
    /// A text that says what is wrong, and which names there are.
    pub fn named(name: &str) -> Result<Self, String> {
        let written = match name.contains('=') {
            true => limits(name)?,
            false => {
                let mut all: BTreeMap<String, Written> =
                    toml::from_str(PROFILES).map_err(|e| e.to_string())?;
                let Some(written) = all.remove(name) else {
                    let names: Vec<&str> = all.keys().map(String::as_str).collect();
                    let names = names.join(", ");
                    return Err(format!(
                        "there is no NVRAM profile {name:?}; there are {names}, and texts such as device=2.5GB/s,latency=300ns"
                    ));
                };
                written
            }
        };
        let rate = |text: Option<String>| text.map_or(Ok(0), |t| parse_rate(&t));
        let latency = written.latency.map_or(Ok(0), |t| parse_time(&t));
        let bad = |e| format!("the NVRAM profile {name:?} is not valid: {e}");
        Ok(Self {
            name: name.to_owned(),
            device: rate(written.device).map_err(bad)?,
            core: rate(written.core).map_err(bad)?,
            latency: latency.map_err(bad)?,
        })
    }
}

fn limits(text: &str) -> Result<Written, String> {
    let mut written = Written::default();
    for limit in text.split(',') {
        let (what, value) = limit.split_once('=').unwrap_or((limit, ""));
        let field = match what.trim() {
            "device" => &mut written.device,
            "core" => &mut written.core,
            "latency" => &mut written.latency,
            other => {
                return Err(format!(
                    "an NVRAM profile has no {other:?}: it has device, core and latency"
                ));
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
        let all: BTreeMap<String, Written> = toml::from_str(PROFILES).unwrap();
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
        for (text, says) in cases {
            let said = Profile::named(text).unwrap_err();
            assert!(said.contains(says), "{text}: {said}");
        }
    }
}
