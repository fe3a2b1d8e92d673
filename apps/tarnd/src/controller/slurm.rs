//! The controller's requests to Slurm, and its reports: the free space on nodes, for `sinfo -O NodeList,Extra`.
//! docs/internals/site.md.

use super::ControllerInput;
use super::mode::SharedSiteMode;
use super::reader::{SlurmReader, SlurmReading};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tarn_proto::site::{NodeInfo, StoreInfo};
use tarn_slurm::show_on;
use tarn_types::space::TierSpace;
use tarn_types::units::Bytes;

/// Between two checks for a change to report.
const EVERY: Duration = Duration::from_secs(5);
/// And until all is shown again: Slurm may have been started again, without its state.
const AGAIN: Duration = Duration::from_secs(3600);

/// Between two requests for the power that nodes draw.
const DRAWN: Duration = Duration::from_secs(30);
/// For Slurm's state to be read, if it is not known.
const UNREAD: Duration = Duration::from_secs(5);

/// Asks Slurm again and again for the power that nodes draw, if one of its plug-ins measures that, by a thread of its own.
pub(super) fn ask_what_is_drawn(reader: SlurmReader, inputs: Sender<ControllerInput>) {
    let ask = move || {
        // Slurm may begin after the controller, and get a plug-in later.
        loop {
            let reading = reader.newest();
            let drawn = reading
                .as_ref()
                .map_or_else(BTreeMap::new, |r| drawn_now(r));
            if inputs.send(ControllerInput::Drawn(drawn)).is_err() {
                return;
            }
            std::thread::sleep(if reading.is_some() { DRAWN } else { UNREAD });
        }
    };
    let thread = std::thread::Builder::new().name("watts".into());
    if let Err(e) = thread.spawn(ask) {
        tracing::error!("the power that Slurm reports for nodes is not known: no thread: {e}");
    }
}

fn drawn_now(reading: &SlurmReading) -> BTreeMap<String, u64> {
    let plugin = &reading.snapshot.settings.energy_type[..];
    if matches!(plugin, "" | "acct_gather_energy/none") {
        return BTreeMap::new();
    }
    let nodes: Vec<String> = reading.snapshot.nodes.keys().cloned().collect();
    tarn_slurm::drawn(&nodes).unwrap_or_default()
}

/// Tells Slurm something now and then, by a thread of its own: Slurm may take its time.
pub(super) struct SlurmNotifier<T> {
    to: Option<SyncSender<T>>,
    last: Option<Instant>,
}

impl<T: Send + 'static> SlurmNotifier<T> {
    /// One that reports nothing.
    pub(super) fn silent() -> Self {
        let (to, last) = (None, None);
        Self { to, last }
    }

    pub(super) fn start(name: &str, run: impl FnOnce(&Receiver<T>) + Send + 'static) -> Self {
        let (to, updates) = sync_channel(1);
        let thread = std::thread::Builder::new().name(name.into());
        match thread.spawn(move || run(&updates)) {
            Ok(_) => Self {
                to: Some(to),
                last: None,
            },
            Err(e) => {
                tracing::error!("Slurm is not notified of {name}: no thread: {e}");
                Self::silent()
            }
        }
    }

    /// Tells how it is now, if the last time is a while ago. False if that is to be done later.
    pub(super) fn notify_if_due(&mut self, now: impl FnOnce() -> T) -> bool {
        let Some(to) = &self.to else { return true };
        if self.last.is_some_and(|last| last.elapsed() < EVERY) {
            return false;
        }
        self.last = Some(Instant::now());
        // While Slurm takes its time there is nothing newer to report.
        to.try_send(now()).is_ok()
    }
}

/// Has `sinfo` show the free space of nodes, if that is `wanted`.
pub(super) fn spaces(wanted: bool, mode: &SharedSiteMode) -> SlurmNotifier<Vec<NodeInfo>> {
    let mode = mode.clone();
    match wanted {
        true => SlurmNotifier::start("space", move |updates| show_all(updates, &mode)),
        false => SlurmNotifier::silent(),
    }
}

fn show_all(updates: &Receiver<Vec<NodeInfo>>, mode: &SharedSiteMode) {
    let mut shown: BTreeMap<String, String> = BTreeMap::new();
    let mut began = Instant::now();
    let mut failed = false;
    for nodes in updates {
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
            let Some(_call) = mode.acting_call() else {
                break;
            };
            if let Err(e) = show_on(&names, &text) {
                if !failed {
                    tracing::warn!("sinfo does not show the space on {}: {e}", names.join(","));
                }
                failed = true;
                break;
            }
            failed = false;
            shown.extend(names.iter().map(|name| (String::from(*name), text.clone())));
        }
    }
}

/// The text about a node; rounded, so that it changes seldom.
fn text(node: &NodeInfo) -> String {
    let space = |capacity: u64, taken: u64| {
        let mut space = TierSpace::new(capacity);
        space.occupy(taken);
        format!("{} of {}", Bytes(space.free()), Bytes(capacity))
    };
    let store = |store: &StoreInfo| match store.is_away {
        true => format!("{} not mounted", store.name),
        false => format!("{} {}", store.name, space(store.capacity, store.taken)),
    };
    match (node.up, &node.stores[..]) {
        (false, _) => "tarn does not answer".to_owned(),
        (true, []) => format!("tarn {} free", space(node.capacity, node.taken)),
        (true, stores) => {
            let stores: Vec<String> = stores.iter().map(store).collect();
            format!("tarn {} free", stores.join(", "))
        }
    }
}
