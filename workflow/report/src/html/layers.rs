//! A layered layout of a graph: every edge leads downwards, long edges bend around the boxes between
//! (Sugiyama, Tagawa and Toda 1981, in short: longest path, then barycentres).

use std::collections::VecDeque;

/// Sweeps over the layers that order them: more change next to nothing.
const SWEEPS: usize = 6;

/// An edge between two boxes, by their numbers.
pub(super) type VertexPair = (usize, usize);

/// An element of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LayerCell {
    /// A box.
    Vertex(usize),
    /// An edge that passes on its way to a lower layer.
    Bend(usize),
}

/// The layers from top to bottom, each from left to right; at most `most` boxes in one.
pub(super) fn layers(count: usize, edges: &[VertexPair], most: usize) -> Vec<Vec<LayerCell>> {
    let level = levels(count, edges, most.max(1));
    let depth = level.iter().max().map_or(0, |deepest| deepest + 1);
    let mut layers: Vec<Vec<LayerCell>> = vec![Vec::new(); depth];
    for (vertex, at) in level.iter().enumerate() {
        layers[*at].push(LayerCell::Vertex(vertex));
    }
    for (number, (from, to)) in edges.iter().enumerate() {
        for layer in layers.iter_mut().take(level[*to]).skip(level[*from] + 1) {
            layer.push(LayerCell::Bend(number));
        }
    }
    order(&mut layers, edges);
    layers
}

/// The layer of each box: below all that lead to it. Boxes that nothing leads to stand just above what they
/// lead to.
fn levels(count: usize, edges: &[VertexPair], most: usize) -> Vec<usize> {
    let (mut above, mut below) = (vec![Vec::new(); count], vec![Vec::new(); count]);
    for (from, to) in edges {
        below[*from].push(*to);
        above[*to].push(*from);
    }
    let mut missing: Vec<usize> = above.iter().map(Vec::len).collect();
    let mut ready: VecDeque<usize> = (0..count).filter(|v| missing[*v] == 0).collect();
    let mut level = vec![0; count];
    let mut held: Vec<usize> = Vec::new();
    // Of a cycle, which no valid log has, nothing becomes ready: its boxes stay in the first layer.
    while let Some(vertex) = ready.pop_front() {
        let lowest = above[vertex].iter().map(|v| level[*v] + 1).max();
        let mut at = lowest.unwrap_or(0);
        while held.get(at).is_some_and(|n| *n >= most) {
            at += 1;
        }
        held.resize(held.len().max(at + 1), 0);
        held[at] += 1;
        level[vertex] = at;
        for next in &below[vertex] {
            missing[*next] -= 1;
            if missing[*next] == 0 {
                ready.push_back(*next);
            }
        }
    }
    for vertex in (0..count).filter(|v| above[*v].is_empty()) {
        let lowest = below[vertex].iter().map(|v| level[*v]).min().unwrap_or(0);
        let free = (level[vertex] + 1..lowest)
            .rev()
            .find(|at| held[*at] < most);
        if let Some(at) = free {
            held[level[vertex]] -= 1;
            held[at] += 1;
            level[vertex] = at;
        }
    }
    without_gaps(level)
}

/// Layers that have become empty go.
fn without_gaps(level: Vec<usize>) -> Vec<usize> {
    let mut used = level.clone();
    used.sort_unstable();
    used.dedup();
    let place = |at: &usize| used.binary_search(at).unwrap_or(0);
    level.iter().map(place).collect()
}

/// Orders each layer by the mean position of its neighbours above, then below, in turn.
fn order(layers: &mut [Vec<LayerCell>], edges: &[VertexPair]) {
    for sweep in 0..SWEEPS {
        let down = sweep % 2 == 0;
        for step in 1..layers.len() {
            let (at, beside) = if down {
                (step, step - 1)
            } else {
                (layers.len() - 1 - step, layers.len() - step)
            };
            let fixed = std::mem::take(&mut layers[beside]);
            let here = std::mem::take(&mut layers[at]);
            let mut keyed: Vec<(f64, LayerCell)> = here
                .iter()
                .enumerate()
                .map(|(now, cell)| {
                    let own = (now as f64 + 0.5) / here.len() as f64;
                    (barycentre(*cell, &fixed, edges, down).unwrap_or(own), *cell)
                })
                .collect();
            keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
            layers[at] = keyed.into_iter().map(|(_, cell)| cell).collect();
            layers[beside] = fixed;
        }
    }
}

/// The mean position, 0 to 1, of a cell's neighbours in the layer above (`down`) or below it.
fn barycentre(
    cell: LayerCell,
    fixed: &[LayerCell],
    edges: &[VertexPair],
    down: bool,
) -> Option<f64> {
    let touches = |edge: usize, vertex: usize| {
        let (from, to) = edges[edge];
        if down { to == vertex } else { from == vertex }
    };
    let meets = |other: &LayerCell| match (cell, *other) {
        (LayerCell::Bend(a), LayerCell::Bend(b)) => a == b,
        (LayerCell::Vertex(v), LayerCell::Bend(edge)) => touches(edge, v),
        (LayerCell::Bend(edge), LayerCell::Vertex(v)) => {
            let (from, to) = edges[edge];
            v == if down { from } else { to }
        }
        (LayerCell::Vertex(v), LayerCell::Vertex(o)) => {
            edges.contains(&if down { (o, v) } else { (v, o) })
        }
    };
    let places = (0..fixed.len()).filter(|at| meets(&fixed[*at]));
    let (sum, count) = places.fold((0, 0), |(sum, count), at| (sum + 2 * at + 1, count + 1));
    (count > 0).then(|| sum as f64 / (2 * count * fixed.len()) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn level_of(layers: &[Vec<LayerCell>], vertex: usize) -> usize {
        let at = layers
            .iter()
            .position(|l| l.contains(&LayerCell::Vertex(vertex)));
        at.expect("it has a place")
    }

    proptest! {
        #[test]
        fn edges_lead_down_and_pass_every_layer_between(
            count in 1usize..24, pairs in prop::collection::vec((0usize..24, 0usize..24), 0..40), most in 1usize..5,
        ) {
            let mut edges: Vec<VertexPair> = pairs.into_iter().filter(|(a, b)| a < b && *b < count).collect();
            edges.sort_unstable();
            edges.dedup();
            let layers = layers(count, &edges, most);
            for (number, (from, to)) in edges.iter().enumerate() {
                let (above, below) = (level_of(&layers, *from), level_of(&layers, *to));
                prop_assert!(above < below);
                let bends = layers.iter().filter(|l| l.contains(&LayerCell::Bend(number))).count();
                prop_assert_eq!(bends, below - above - 1);
            }
            for layer in &layers {
                let boxes = layer.iter().filter(|c| matches!(c, LayerCell::Vertex(_))).count();
                prop_assert!((1..=most).contains(&boxes));
            }
        }
    }

    #[test]
    fn a_cycle_ends() {
        let layers = layers(3, &[(0, 1), (1, 0), (1, 2)], 2);
        assert_eq!(
            layers
                .iter()
                .flatten()
                .filter(|c| matches!(c, LayerCell::Vertex(_)))
                .count(),
            3
        );
    }

    #[test]
    fn a_source_stands_above_its_reader() {
        // 0 -> 1 -> 2 -> 3, and 4 -> 3.
        let layers = layers(5, &[(0, 1), (1, 2), (2, 3), (4, 3)], 2);
        assert_eq!(level_of(&layers, 4), 2);
    }
}
