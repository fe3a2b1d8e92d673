//! Upward ranks: how long it is from the start of a step to the end of the workflow, with the bytes on the
//! edges counted (Topcuoglu, Hariri, Wu 2002, equation 4).

use tarn_types::units::Nanos;

/// The rank of each of so many steps. `edges`: for a step, those that need it, each with the time on that edge.
pub(crate) fn upward_ranks(
    steps: usize,
    edges: impl Fn(usize) -> Vec<(usize, Nanos)>,
    run_time: impl Fn(usize) -> Nanos,
) -> Vec<Nanos> {
    let mut ranks: Vec<Option<Nanos>> = vec![None; steps];
    let mut stack: Vec<usize> = (0..steps).collect();
    while let Some(&i) = stack.last() {
        if ranks[i].is_some() {
            stack.pop();
            continue;
        }
        let next = edges(i);
        let missing: Vec<_> = next
            .iter()
            .map(|(r, _)| *r)
            .filter(|r| ranks[*r].is_none())
            .collect();
        if missing.is_empty() {
            let below = next
                .iter()
                .map(|(r, t)| ranks[*r].unwrap_or(0).saturating_add(*t))
                .max()
                .unwrap_or(0);
            ranks[i] = Some(below.saturating_add(run_time(i)));
            stack.pop();
        } else {
            stack.extend(missing);
        }
    }
    ranks.into_iter().map(Option::unwrap_or_default).collect()
}
