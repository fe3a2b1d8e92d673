//! The workflow as a picture: steps, datasets and the edges between them, as plain SVG.

use super::layers::{LayerCell, VertexPair, layers};
use super::text::escape;
use crate::names::RunNames;
use crate::summary::Summary;
use crate::trace::RunTrace;
use std::collections::BTreeMap;
use std::fmt::Write;
use tarn_types::id::{DataId, StepId};
use tarn_types::units::{Bytes, Elapsed};

/// Boxes of a graph that is drawn: more cannot be distinguished.
pub(super) const MAX_BOXES: usize = 120;
/// Boxes side by side, on a wide screen and on a phone.
const WIDE: usize = 4;
const NARROW: usize = 2;
/// Sizes in pixels.
const WIDTH: usize = 158;
const HEIGHT: usize = 42;
const GAP: usize = 14;
const BEND: usize = 12;
const PITCH: usize = HEIGHT + 26;
/// Characters of a name that fit into a box.
const NAME: usize = 19;

enum WorkflowVertexKind {
    Step { number: usize, failed: bool },
    Data { result: bool },
}

struct Vertex {
    name: String,
    note: String,
    kind: WorkflowVertexKind,
}

/// The graph of a workflow.
#[derive(Default)]
pub(super) struct WorkflowGraph {
    vertices: Vec<Vertex>,
    edges: Vec<VertexPair>,
    /// Of each edge, whether it only is an `after`.
    is_order: Vec<bool>,
}

impl WorkflowGraph {
    pub(super) fn of(trace: &RunTrace, names: &RunNames<'_>, summary: &Summary) -> Self {
        let mut graph = Self::default();
        let steps = &trace.start.workflow.steps;
        for (number, step) in summary.steps.iter().enumerate() {
            let i = &step.instances;
            let all = i.run + i.reused + i.failed + i.open;
            let done = i.run + i.reused;
            let count = if all == done {
                done.to_string()
            } else {
                format!("{done} of {all}")
            };
            let note = if step.run_ns > 0 {
                format!("{count} run · {}", Elapsed(step.run_ns))
            } else if i.reused > 0 {
                format!("{} reused", i.reused)
            } else {
                "not run".into()
            };
            let failed = i.failed > 0;
            let kind = WorkflowVertexKind::Step { number, failed };
            graph.vertices.push(Vertex {
                name: step.name.clone(),
                note,
                kind,
            });
        }
        let mut known = BTreeMap::new();
        for (at, step) in steps.iter().enumerate().take(graph.vertices.len()) {
            for used in &step.uses {
                if let Some(version) = used.reads {
                    let data = graph.data(&mut known, trace, names, (used.data, version));
                    graph.join(data, at, false);
                }
                if let Some(version) = used.makes {
                    let data = graph.data(&mut known, trace, names, (used.data, version));
                    graph.join(at, data, false);
                }
            }
            for StepId(before) in &step.after {
                if (*before as usize) < summary.steps.len() {
                    graph.join(*before as usize, at, true);
                }
            }
        }
        graph
    }

    pub(super) fn boxes(&self) -> usize {
        self.vertices.len()
    }

    fn join(&mut self, from: usize, to: usize, order: bool) {
        if from != to && !self.edges.contains(&(from, to)) {
            self.edges.push((from, to));
            self.is_order.push(order);
        }
    }

    /// The box of a version, made when it is first met.
    fn data(
        &mut self,
        known: &mut BTreeMap<(DataId, u32), usize>,
        trace: &RunTrace,
        names: &RunNames<'_>,
        (data, version): (DataId, u32),
    ) -> usize {
        if let Some(at) = known.get(&(data, version)) {
            return *at;
        }
        let workflow = &trace.start.workflow;
        let about = workflow.data.get(data.at());
        let last = workflow.last_version(data);
        let name = if last > 1 {
            names.version(data, version)
        } else {
            names.data(data)
        };
        let parts = trace.history.parts_of(data, version);
        let bytes = parts.fold(0u64, |sum, (_, info)| sum.saturating_add(info.bytes));
        let result = version == last && about.is_some_and(|d| d.dest.is_some());
        let role = match (version, result) {
            (0, _) => Some("source"),
            (_, true) => Some("result"),
            _ => None,
        };
        let size = (bytes > 0).then(|| Bytes(bytes).to_string());
        let note: Vec<String> = role.map(str::to_string).into_iter().chain(size).collect();
        let note = if note.is_empty() {
            "not made".into()
        } else {
            note.join(" · ")
        };
        self.vertices.push(Vertex {
            name,
            note,
            kind: WorkflowVertexKind::Data { result },
        });
        known.insert((data, version), self.vertices.len() - 1);
        self.vertices.len() - 1
    }

    /// Writes the picture: once if it is narrow, else once for wide screens and once for phones.
    pub(super) fn draw(&self, page: &mut String) {
        let wide = layers(self.vertices.len(), &self.edges, WIDE);
        let boxes = |layer: &Vec<LayerCell>| {
            layer
                .iter()
                .filter(|c| matches!(c, LayerCell::Vertex(_)))
                .count()
        };
        if wide.iter().map(boxes).max().unwrap_or(0) <= NARROW {
            return self.svg(page, &wide, "");
        }
        self.svg(page, &wide, "wide");
        let narrow = layers(self.vertices.len(), &self.edges, NARROW);
        self.svg(page, &narrow, "slim");
    }

    fn svg(&self, page: &mut String, layers: &[Vec<LayerCell>], class: &str) {
        let widths: Vec<usize> = layers.iter().map(|l| row_width(l)).collect();
        let width = widths.iter().max().copied().unwrap_or(0) + 4;
        let height = layers.len() * PITCH - (PITCH - HEIGHT) + 4;
        let _ = writeln!(
            page,
            "<svg class=\"dag {class}\" viewBox=\"0 0 {width} {height}\" style=\"max-width:{width}px\" role=\"img\" \
             aria-label=\"Graph of the workflow: steps and datasets; the list of steps tells the same\">"
        );
        let mut place = vec![(0, 0); self.vertices.len()];
        let mut bends: Vec<Vec<(usize, usize)>> = vec![Vec::new(); self.edges.len()];
        for (row, layer) in layers.iter().enumerate() {
            let mut x = (width - row_width(layer)) / 2;
            let y = row * PITCH + 2;
            for cell in layer {
                match cell {
                    LayerCell::Vertex(v) => place[*v] = (x, y),
                    LayerCell::Bend(edge) => bends[*edge].push((x + BEND / 2, y)),
                }
                x += cell_width(*cell) + GAP;
            }
        }
        for (number, (from, to)) in self.edges.iter().enumerate() {
            let class = if self.is_order[number] {
                "edge order"
            } else {
                "edge"
            };
            let path = path(place[*from], &bends[number], place[*to]);
            let _ = writeln!(page, "<path class=\"{class}\" d=\"{path}\"/>");
        }
        for (vertex, at) in self.vertices.iter().zip(place) {
            vertex.draw(page, at);
        }
        page.push_str("</svg>\n");
    }
}

fn cell_width(cell: LayerCell) -> usize {
    match cell {
        LayerCell::Vertex(_) => WIDTH,
        LayerCell::Bend(_) => BEND,
    }
}

fn row_width(layer: &[LayerCell]) -> usize {
    let cells: usize = layer.iter().map(|c| cell_width(*c)).sum();
    cells + GAP * layer.len().saturating_sub(1)
}

/// From the lower edge of a box past others to the upper edge of another.
fn path(from: (usize, usize), bends: &[(usize, usize)], to: (usize, usize)) -> String {
    let (mut x, mut y) = (from.0 + WIDTH / 2, from.1 + HEIGHT);
    let mut path = format!("M{x} {y}");
    let curve = |path: &mut String, (x, y): (usize, usize), (tx, ty): (usize, usize)| {
        let middle = (y + ty) / 2;
        let _ = write!(path, "C{x} {middle} {tx} {middle} {tx} {ty}");
    };
    for (bx, by) in bends {
        curve(&mut path, (x, y), (*bx, *by));
        (x, y) = (*bx, by + HEIGHT);
        let _ = write!(path, "V{y}");
    }
    curve(&mut path, (x, y), (to.0 + WIDTH / 2, to.1));
    path
}

impl Vertex {
    fn draw(&self, page: &mut String, (x, y): (usize, usize)) {
        let (class, style, radius) = match &self.kind {
            WorkflowVertexKind::Step { number, failed } => {
                let class = if *failed {
                    "vertex step failed"
                } else {
                    "vertex step"
                };
                (class, format!("--c:{}", step_colour(*number)), 6)
            }
            WorkflowVertexKind::Data { result: true } => {
                ("vertex data result", String::new(), HEIGHT / 2)
            }
            WorkflowVertexKind::Data { result: false } => {
                ("vertex data", String::new(), HEIGHT / 2)
            }
        };
        let middle = x + WIDTH / 2;
        let _ = writeln!(
            page,
            "<g class=\"{class}\" style=\"{style}\"><title>{}: {}</title>\
             <rect x=\"{x}\" y=\"{y}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"{radius}\"/>\
             <text class=\"name\" x=\"{middle}\" y=\"{}\">{}</text><text x=\"{middle}\" y=\"{}\">{}</text></g>",
            escape(&self.name),
            escape(&self.note),
            y + 18,
            escape(&shorten(&self.name)),
            y + 34,
            escape(&self.note),
        );
    }
}

/// The colour of a step everywhere on the page; `page/base.js` has the same.
pub(super) fn step_colour(number: usize) -> String {
    format!("var(--step{})", number % 10)
}

fn shorten(name: &str) -> String {
    if name.chars().count() <= NAME {
        return name.into();
    }
    let short: String = name.chars().take(NAME - 1).collect();
    format!("{short}…")
}
