//! The identity of an instance: an unchanged instance need not run again.

use crate::data::TrackedData;
use crate::steps::StepInstance;
use tarn_types::event::version_hash;
use tarn_types::hash::{Hash, Hasher};
use tarn_types::workflow::{Role, Step, Workflow};

/// Hash of the step's code, the element and the content of its inputs; `None` while an input has not been
/// read. Content, not times: a touched file changes nothing.
pub(crate) fn identity(
    w: &Workflow,
    step: &Step,
    instance: &StepInstance,
    data: &TrackedData,
) -> Option<Hash> {
    let mut h = Hasher::new();
    h.field(b"tarn step identity 1")
        .field(&step.code.0.to_le_bytes());
    match &instance.item {
        Some(item) => h.field(b"item").field(item.as_bytes()),
        None => h.field(b"plain"),
    };
    for (used, needs) in step.uses.iter().zip(&instance.needs) {
        if used.role == Role::Out {
            continue;
        }
        h.field(w.dataset(used.data).name.as_bytes());
        for position in needs {
            let parts: Option<Vec<_>> = position
                .iter()
                .map(|p| {
                    data.part(*p)
                        .and_then(|part| part.info.hash.map(|x| (&part.info.class, x)))
                })
                .collect();
            h.field(&version_hash(parts?).0.to_le_bytes());
        }
    }
    Some(h.finish())
}
