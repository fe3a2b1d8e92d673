//! What the controller asks Slurm, and what it has Slurm show: the room on nodes, in `sinfo -O NodeList,Extra`. docs/site.md.

use super::Input;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tarn_base::units::Bytes;
use tarn_proto::site::NodeInfo;
use tarn_slurm::show_on;

/// Between two looks at what is to be shown.
const EVERY: Duration = Duration::from_secs(5);
/// And until all is shown again: Slurm may have been started anew, without its state.
const AGAIN: Duration = Duration::from_secs(3600);

/// Between two questions what nodes draw.
const DRAWN: Duration = Duration::from_secs(30);
/// And whether any plug-in measures it.
const NONE_DRAWN: Duration = Duration::from_secs(600);

/// Asks Slurm again and again what nodes draw, if one of its plug-ins measures that, by a thread of its own.
pub(super) fn ask_what_is_drawn(inputs: Sender<Input>) {
    let ask = move || {
        // Slurm may begin after the controller, and get a plug-in later.
        loop {
            let is_measured = matches!(tarn_slurm::energy_plugin(), Ok(Some(_)));
            let drawn = match is_measured {
                true => tarn_slurm::drawn(&nodes()).unwrap_or_default(),
                false => BTreeMap::new(),
            };
            if inputs.send(Input::Drawn(drawn)).is_err() {
                return;
            }
            std::thread::sleep(if is_measured { DRAWN } else { NONE_DRAWN });
        }
    };
    let thread = std::thread::Builder::new().name("watts".into());
    if let Err(e) = thread.spawn(ask) {
        tracing::error!("what Slurm says that nodes draw is not known: no thread: {e}");
    }
}

/// The nodes that Slurm knows.
pub(super) fn nodes() -> Vec<String> {
    let said = std::process::Command::new("sinfo")
        .args(["-h", "-N", "-o", "%N"])
        .output();
    match said {
        Ok(said) if said.status.success() => {
            let text = String::from_utf8_lossy(&said.stdout).into_owned();
            text.split_whitespace().map(str::to_owned).collect()
        }
        Ok(said) => {
            let why = String::from_utf8_lossy(&said.stderr).trim().to_owned();
            tracing::warn!(
                "Slurm's nodes are not known (sinfo: {why}); each is, when a job has it"
            );
            Vec::new()
        }
        Err(e) => {
            tracing::warn!("Slurm's nodes are not known (sinfo: {e}); each is, when a job has it");
            Vec::new()
        }
    }
}

/// Has Slurm show what room nodes have, by a thread of its own: Slurm may take its time.
pub(super) struct Shown {
    to: Option<SyncSender<Vec<NodeInfo>>>,
    last: Option<Instant>,
}

impl Shown {
    /// Nothing is shown unless that is `wanted`.
    pub(super) fn start(wanted: bool) -> Self {
        let start = || {
            let (to, news) = sync_channel(1);
            let thread = std::thread::Builder::new().name("sinfo".into());
            let started = thread.spawn(move || show_all(&news));
            started
                .map_err(|e| {
                    tracing::error!("sinfo does not show the room on nodes: no thread: {e}")
                })
                .ok()?;
            Some(to)
        };
        Self {
            to: wanted.then(start).flatten(),
            last: None,
        }
    }

    /// Shows what nodes have now, if the last time is a while ago.
    pub(super) fn show(&mut self, nodes: impl FnOnce() -> Vec<NodeInfo>) {
        let Some(to) = &self.to else { return };
        if self.last.is_none_or(|last| last.elapsed() >= EVERY) {
            self.last = Some(Instant::now());
            // While Slurm takes its time there is nothing newer to say.
            let _ = to.try_send(nodes());
        }
    }
}

fn show_all(news: &Receiver<Vec<NodeInfo>>) {
    let mut shown: BTreeMap<String, String> = BTreeMap::new();
    let mut began = Instant::now();
    let mut failed = false;
    for nodes in news {
        if began.elapsed() >= AGAIN {
            began = Instant::now();
            shown.clear();
        }
        // One call for all that have as much.
        let mut alike: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for node in &nodes {
            let text = text(node);
            if shown.get(&node.name) != Some(&text) {
                alike.entry(text).or_default().push(&node.name);
            }
        }
        for (text, names) in alike {
            if let Err(e) = show_on(&names, &text) {
                if !failed {
                    tracing::warn!("sinfo does not show the room on {}: {e}", names.join(","));
                }
                failed = true;
                break;
            }
            failed = false;
            shown.extend(names.iter().map(|name| (String::from(*name), text.clone())));
        }
    }
}

/// What is said of a node; rounded, so that it changes seldom.
fn text(node: &NodeInfo) -> String {
    let free = node.capacity.saturating_sub(node.taken);
    match node.up {
        true => format!("tarn {} of {} free", Bytes(free), Bytes(node.capacity)),
        false => "tarn does not answer".to_owned(),
    }
}
