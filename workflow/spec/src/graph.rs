//! Circles of waiting: strongly connected components (Tarjan, without recursion), one shortest circle of each.

use crate::data::RawDataset;
use crate::diag::{Finding, FindingCode, Findings, quoted};
use crate::step::RawStep;
use miette::SourceSpan;
use std::collections::{HashMap, VecDeque};
use tarn_types::id::{DataId, StepId};

/// A step waits for another.
#[derive(Debug, Clone)]
pub(crate) struct StepDependency {
    /// The step waited for.
    pub(crate) on: StepId,
    /// The place in the file.
    pub(crate) span: SourceSpan,
    /// Why.
    pub(crate) why: DependencyReason,
}

/// Why a step waits for another.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DependencyReason {
    /// It reads an output of the other.
    Reads(DataId),
    /// Its `after` names the other.
    After,
}

/// Steps of a circle that are drawn in the file; all are named.
const MAX_DRAWN: usize = 12;

/// Reports one circle for each knot of steps that wait for each other.
pub(crate) fn check(
    out: &mut Findings,
    data: &[RawDataset],
    steps: &[RawStep],
    edges: &[Vec<StepDependency>],
) {
    for knot in knots(edges) {
        let circle = shortest_circle(&knot, edges);
        let names: Vec<String> = circle
            .iter()
            .map(|(step, _)| quoted(&steps[step.at()].name.value))
            .collect();
        let first = names.first().cloned().unwrap_or_default();
        let message = match names.len() {
            1 => format!("step {first} waits for itself"),
            n => format!(
                "{n} steps wait for each other in a circle: {} -> {first}",
                names.join(" -> ")
            ),
        };
        let mut problem = Finding::error(FindingCode::Cycle, message);
        for (step, edge) in circle.iter().take(MAX_DRAWN) {
            let (step, on) = (
                &steps[step.at()].name.value,
                &steps[edge.on.at()].name.value,
            );
            problem = problem.at(
                edge.span,
                match edge.why {
                    DependencyReason::Reads(d) => {
                        format!(
                            "{} reads {}, which {} makes",
                            quoted(step),
                            quoted(&data[d.at()].name.value),
                            quoted(on)
                        )
                    }
                    DependencyReason::After => {
                        format!("{} comes after {}", quoted(step), quoted(on))
                    }
                },
            );
        }
        out.add(problem.help(
            "one of these must not wait: read another dataset, change the order of the steps in the file \
             (an `in` reads the latest version made before it), or remove an `after`",
        ));
    }
}

/// The components that hold a circle: more than one step, or a step that waits for itself. Steps in order.
fn knots(edges: &[Vec<StepDependency>]) -> Vec<Vec<StepId>> {
    const UNSEEN: usize = usize::MAX;
    let mut order = vec![UNSEEN; edges.len()];
    let mut low = vec![0usize; edges.len()];
    let mut on_stack = vec![false; edges.len()];
    let (mut stack, mut seen, mut found) = (Vec::new(), 0, Vec::new());
    for root in 0..edges.len() {
        if order[root] != UNSEEN {
            continue;
        }
        // A step, and how many of its edges have been followed.
        let mut path: Vec<(usize, usize)> = vec![(root, 0)];
        while let Some((step, next)) = path.pop() {
            if next == 0 {
                (order[step], low[step]) = (seen, seen);
                seen += 1;
                stack.push(step);
                on_stack[step] = true;
            }
            if let Some(edge) = edges[step].get(next) {
                path.push((step, next + 1));
                let on = edge.on.at();
                if order[on] == UNSEEN {
                    path.push((on, 0));
                } else if on_stack[on] {
                    low[step] = low[step].min(order[on]);
                }
                continue;
            }
            if let Some((parent, _)) = path.last() {
                low[*parent] = low[*parent].min(low[step]);
            }
            if low[step] == order[step] {
                let begin = stack.iter().rposition(|s| *s == step).unwrap_or(0);
                let mut knot: Vec<StepId> =
                    stack.drain(begin..).map(|s| StepId(s as u32)).collect();
                for s in &knot {
                    on_stack[s.at()] = false;
                }
                knot.sort_unstable();
                if knot.len() > 1 || edges[step].iter().any(|e| e.on.at() == step) {
                    found.push(knot);
                }
            }
        }
    }
    found.sort_unstable();
    found
}

/// A shortest circle through the first step of a knot: each step with the edge to the next.
fn shortest_circle(
    knot: &[StepId],
    edges: &[Vec<StepDependency>],
) -> Vec<(StepId, StepDependency)> {
    let Some(&first) = knot.first() else {
        return Vec::new();
    };
    let mut from: HashMap<StepId, (StepId, &StepDependency)> = HashMap::new();
    let mut queue = VecDeque::from([first]);
    while let Some(step) = queue.pop_front() {
        for edge in &edges[step.at()] {
            if edge.on == first {
                let mut circle = vec![(step, edge.clone())];
                let mut at = step;
                while let Some((before, edge)) = from.get(&at) {
                    circle.push((*before, (*edge).clone()));
                    at = *before;
                }
                circle.reverse();
                return circle;
            }
            if knot.binary_search(&edge.on).is_ok() && !from.contains_key(&edge.on) {
                from.insert(edge.on, (step, edge));
                queue.push_back(edge.on);
            }
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn graph(steps: usize, pairs: &[(usize, usize)]) -> Vec<Vec<StepDependency>> {
        let mut edges = vec![Vec::new(); steps];
        for (from, on) in pairs {
            edges[*from].push(StepDependency {
                on: StepId(*on as u32),
                span: (0, 0).into(),
                why: DependencyReason::After,
            });
        }
        edges
    }

    #[test]
    fn finds_each_knot_once() {
        let edges = graph(7, &[(0, 1), (1, 2), (2, 0), (2, 1), (3, 3), (4, 5), (5, 6)]);
        let ids = |v: &[u32]| v.iter().map(|i| StepId(*i)).collect::<Vec<_>>();
        assert_eq!(knots(&edges), [ids(&[0, 1, 2]), ids(&[3])]);
        let circle: Vec<_> = shortest_circle(&ids(&[0, 1, 2]), &edges)
            .iter()
            .map(|(s, _)| *s)
            .collect();
        assert_eq!(circle, ids(&[0, 1, 2]));
    }

    #[test]
    fn a_long_chain_is_no_circle_and_needs_no_stack() {
        let pairs: Vec<_> = (0..99_999).map(|i| (i, i + 1)).collect();
        assert!(knots(&graph(100_000, &pairs)).is_empty());
    }

    proptest! {
        /// Against reachability by brute force.
        #[test]
        fn agrees_with_reachability(pairs in prop::collection::vec((0usize..8, 0usize..8), 0..20)) {
            let mut reach = [[false; 8]; 8];
            for (a, b) in &pairs {
                reach[*a][*b] = true;
            }
            for k in 0..8 {
                for i in 0..8 {
                    for j in 0..8 {
                        reach[i][j] |= reach[i][k] && reach[k][j];
                    }
                }
            }
            let edges = graph(8, &pairs);
            let found = knots(&edges);
            let in_knot: Vec<usize> = found.iter().flatten().map(|s| s.at()).collect();
            let expected: Vec<usize> = (0..8).filter(|i| reach[*i][*i]).collect();
            let mut sorted = in_knot.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, expected);
            for knot in &found {
                let circle = shortest_circle(knot, &edges);
                prop_assert!(!circle.is_empty());
                for (i, (_, edge)) in circle.iter().enumerate() {
                    prop_assert_eq!(edge.on, circle[(i + 1) % circle.len()].0);
                }
            }
        }
    }
}
