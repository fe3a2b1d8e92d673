//! The power that nodes draw, as Slurm reports it: if one of its energy plug-ins measures it (docs/admin/energy.md).

use crate::SlurmError;
use crate::command::answer;
use std::collections::BTreeMap;
use std::time::Duration;

/// For an answer that can be done without.
const SOON: Duration = Duration::from_secs(10);

/// The plug-in that measures the power of nodes, such as `acct_gather_energy/ipmi`, if there is one.
///
/// # Errors
/// When Slurm cannot be asked.
pub fn energy_plugin() -> Result<Option<String>, SlurmError> {
    let output = answer("scontrol", &["show", "config"], SOON)?;
    Ok(plugin(&output).map(str::to_owned))
}

/// Bytes of names in one call: Linux takes 128 KiB in an argument.
const MAX_NAMES: usize = 64 * 1024;

/// Names of nodes, separated by commas, as many as one call takes.
fn calls<N: AsRef<str>>(nodes: &[N]) -> Vec<String> {
    let mut calls: Vec<String> = Vec::new();
    for node in nodes {
        let node = node.as_ref();
        match calls.last_mut() {
            Some(names) if names.len() + node.len() < MAX_NAMES => {
                names.push(',');
                names.push_str(node);
            }
            _ => calls.push(node.to_owned()),
        }
    }
    calls
}

/// Milliwatts that these nodes draw, of those of which Slurm knows it.
///
/// # Errors
/// When Slurm cannot be asked.
pub fn drawn(nodes: &[String]) -> Result<BTreeMap<String, u64>, SlurmError> {
    let mut all = BTreeMap::new();
    for names in calls(nodes) {
        let output = answer("scontrol", &["--oneliner", "show", "node", &names], SOON)?;
        let known = output.lines().filter_map(milliwatts);
        all.extend(known.map(|(n, mw)| (n.to_owned(), mw)));
    }
    Ok(all)
}

/// A change of nodes' power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PowerChange {
    /// Idle nodes go to sleep (`SuspendProgram`), until Slurm has a job for them.
    Down,
    /// They wake up (`ResumeProgram`).
    Up,
}

/// Has Slurm change the power of nodes; needs Slurm's own rights.
///
/// # Errors
/// When Slurm cannot be asked, or refuses: where it is not set up to save power.
pub fn change_power(nodes: &[&str], change: PowerChange) -> Result<(), SlurmError> {
    let state = match change {
        PowerChange::Down => "state=power_down",
        PowerChange::Up => "state=power_up",
    };
    for names in calls(nodes) {
        let name = format!("nodename={names}");
        answer("scontrol", &["update", &name, state], SOON)?;
    }
    Ok(())
}

fn plugin(output: &str) -> Option<&str> {
    let lines = output.lines().filter_map(|l| l.split_once('='));
    let mut types = lines.filter(|(name, _)| name.trim() == "AcctGatherEnergyType");
    let found = types.next()?.1.trim();
    let none = matches!(found, "" | "(null)" | "acct_gather_energy/none");
    (!none).then_some(found)
}

/// A node and its power. Slurm prints `n/s` if it has no plug-in, and 0 if that has not measured yet or cannot.
fn milliwatts(line: &str) -> Option<(&str, u64)> {
    let value = |key: &str| line.split_whitespace().find_map(|w| w.strip_prefix(key));
    let watts: u64 = value("CurrentWatts=")?.parse().ok()?;
    // No node has a megawatt: an unknown value as older releases write it (NO_VAL).
    let known = (1..1_000_000).contains(&watts);
    Some((value("NodeName=")?, watts * 1000)).filter(|_| known)
}

/// Joules that a step has taken so far, as `sstat --parsable2` prints them.
pub(crate) fn joules(output: &str) -> Option<u64> {
    let lines = output.lines().map(str::trim).filter(|l| !l.is_empty());
    let all: Option<Vec<u64>> = lines.map(|l| l.parse().ok()).collect();
    // NO_VAL64 and 0 mean that nothing is measured.
    let known = |j: &u64| (1..u64::MAX >> 8).contains(j);
    all?.into_iter().next().filter(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Slurm 22.05 writes it, shortened.
    const NODES: &str = "NodeName=n1 Arch=x86_64 CoresPerSocket=8 State=MIXED CapWatts=n/a CurrentWatts=212 AveWatts=190 ExtSensorsJoules=n/s
NodeName=n2 Arch=x86_64 State=IDLE CurrentWatts=0 AveWatts=0
NodeName=n3 State=IDLE CurrentWatts=n/s AveWatts=n/s
NodeName=n4 State=IDLE CurrentWatts=4294967294 LowestJoules=0 ConsumedJoules=0
Node n9 not found
";

    #[test]
    fn only_what_is_known_has_a_figure() {
        let all: Vec<_> = NODES.lines().filter_map(milliwatts).collect();
        assert_eq!(all, [("n1", 212_000)]);
    }

    #[test]
    fn no_argument_is_longer_than_linux_takes() {
        let nodes: Vec<String> = (0..100_000).map(|n| format!("cabinet-{n:06}")).collect();
        let calls = calls(&nodes);
        assert!(calls.iter().all(|names| names.len() <= MAX_NAMES));
        assert_eq!(calls.len(), 1_500_000usize.div_ceil(MAX_NAMES));
        assert_eq!(calls.join(","), nodes.join(","));
        assert!(super::calls::<String>(&[]).is_empty());
    }

    #[test]
    fn a_plugin_has_a_name() {
        let output = |value: &str| {
            format!("AccountingStorageType = x\nAcctGatherEnergyType    = {value}\nFoo = 1\n")
        };
        let rapl = output("acct_gather_energy/rapl");
        assert_eq!(plugin(&rapl), Some("acct_gather_energy/rapl"));
        for none in ["acct_gather_energy/none", "(null)", ""] {
            assert_eq!(plugin(&output(none)), None, "{none}");
        }
        assert_eq!(plugin("nothing of it"), None);
    }

    #[test]
    fn a_steps_joules_are_a_number_above_zero() {
        assert_eq!(joules("1234\n"), Some(1234));
        for unknown in ["", "0\n", "18446744073709551614\n", "12K\n", "\n"] {
            assert_eq!(joules(unknown), None, "{unknown}");
        }
    }
}
