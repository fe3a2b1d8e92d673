//! What instances have made of a version and what is not there any more.

use std::collections::BTreeSet;
use tarn_base::history::History;
use tarn_base::id::{DataId, InstanceId};

/// How many instances a message names.
const NAMED: usize = 8;

/// That what these instances have made is not there any more, and how it is kept; `None` if there are none.
pub(crate) fn missing(
    history: &History,
    data: DataId,
    makers: &BTreeSet<InstanceId>,
) -> Option<String> {
    let w = &history.start.as_ref()?.workflow;
    let name = |id: &InstanceId| {
        let step = &w.step(id.step).name;
        let item = history.item(*id);
        item.map_or_else(|| step.clone(), |item| format!("{step}[{item}]"))
    };
    let mut names: Vec<String> = makers.iter().take(NAMED).map(name).collect();
    match makers.len() - names.len() {
        0 => {}
        more => names.push(format!("{more} more")),
    }
    let last = names.pop()?;
    let names = match names.as_slice() {
        [] => last,
        before => format!("{} and {last}", before.join(", ")),
    };
    Some(format!(
        "what {names} made is not there any more (`keep = \"workflow\"` in [data.{}] keeps it)",
        w.dataset(data).name
    ))
}
