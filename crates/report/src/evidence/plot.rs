//! Plots as SVG, in the manner of the papers' figures.

use super::{At, Kind, Of, Plot, Point, Series};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::FontTransform;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::error::Error;

const SIZE: (u32, u32) = (760, 380);
/// Names in a row of the legend at most, where they begin, and pixels of a row and of a letter.
const COLUMNS: usize = 3;
const MARGIN: usize = 70;
const ROW: u32 = 22;
const LETTER: usize = 7;
const FONT: &str = "sans-serif";
/// A series of more points is a line without marks.
const MARKED: usize = 24;
/// Pixels of a line of a name below bars.
const LINE: usize = 15;
/// At most so many numbers stand at an axis of values.
const NUMBERS: usize = 7;
const GRID: RGBColor = RGBColor(223, 231, 234);
/// tarn's figures, series after series.
const HERE: [RGBColor; 6] = [
    RGBColor(15, 124, 134),
    RGBColor(224, 154, 26),
    RGBColor(47, 111, 219),
    RGBColor(122, 79, 208),
    RGBColor(207, 90, 31),
    RGBColor(95, 148, 64),
];
/// The plain tool's.
const PEER: [RGBColor; 4] = [
    RGBColor(91, 109, 120),
    RGBColor(141, 154, 162),
    RGBColor(60, 75, 84),
    RGBColor(184, 194, 200),
];
/// The paper's.
const PAPER: [RGBColor; 3] = [
    RGBColor(192, 89, 107),
    RGBColor(214, 140, 152),
    RGBColor(150, 60, 76),
];

type Drawn = Result<(), Box<dyn Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The plot as an SVG element, below its legend; of one that cannot be drawn, why.
pub(super) fn svg(plot: &Plot) -> Result<String, String> {
    let mut text = String::new();
    {
        // A Gantt chart has the names of its series in their boxes.
        let named = match plot.kind {
            Kind::Gantt => 0,
            Kind::Lines | Kind::Bars => plot.series.len(),
        };
        let columns = columns(plot);
        let strip = named.div_ceil(columns) as u32 * ROW;
        let size = (SIZE.0, SIZE.1 + strip);
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        let (above, below) = area.split_vertically(strip);
        let drawn = legend(plot, (named, columns), &above).and_then(|()| draw(plot, &below));
        drawn.map_err(|e| e.to_string())?;
        area.present().map_err(|e| e.to_string())?;
    }
    Ok(text)
}

/// How many names are side by side in the legend: as many as have room where the longest has.
fn columns(plot: &Plot) -> usize {
    let longest = plot.series.iter().map(|s| called(s).chars().count()).max();
    let wanted = 20 + longest.unwrap_or(0) * LETTER;
    ((SIZE.0 as usize - MARGIN) / wanted).clamp(1, COLUMNS)
}

/// What the colours of the first series mean.
fn legend(plot: &Plot, (named, columns): (usize, usize), area: &Area<'_>) -> Drawn {
    area.fill(&WHITE)?;
    let style = (FONT, 13)
        .into_text_style(area)
        .pos(Pos::new(HPos::Left, VPos::Center));
    for (index, series) in plot.series.iter().take(named).enumerate() {
        let (column, row) = (index % columns, index / columns);
        let x = (MARGIN + column * ((SIZE.0 as usize - MARGIN) / columns)) as i32;
        let y = row as i32 * ROW as i32 + ROW as i32 / 2 + 4;
        let colour = colour(plot, index).filled();
        area.draw(&Rectangle::new([(x, y - 4), (x + 14, y + 4)], colour))?;
        area.draw(&Text::new(called(series), (x + 20, y), style.clone()))?;
    }
    Ok(())
}

fn draw(plot: &Plot, area: &Area<'_>) -> Drawn {
    area.fill(&WHITE)?;
    if plot.series.iter().all(|s| s.points.is_empty()) {
        return Ok(());
    }
    match plot.kind {
        Kind::Lines => lines(plot, area),
        Kind::Bars => bars(plot, area),
        Kind::Gantt => gantt(plot, area),
    }
}

/// The colour of a series: its number among those of the same origin.
fn colour(plot: &Plot, index: usize) -> RGBColor {
    let of = plot.series.get(index).map(|s| s.of).unwrap_or_default();
    let before = plot
        .series
        .iter()
        .take(index)
        .filter(|s| s.of == of)
        .count();
    let colours: &[RGBColor] = match of {
        Of::Here => &HERE,
        Of::Peer => &PEER,
        Of::Paper => &PAPER,
    };
    colours
        .get(before % colours.len())
        .copied()
        .unwrap_or(BLACK)
}

/// What the legend calls it.
fn called(series: &Series) -> String {
    match series.of {
        Of::Paper if !series.name.contains("paper") => format!("{} (paper)", series.name),
        _ => series.name.clone(),
    }
}

/// The least and the greatest of values.
fn span(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), v| {
        (least.min(v), most.max(v))
    })
}

/// Whether an axis is logarithmic: one that has less than a power of ten would have next to no numbers.
fn is_log((least, most): (f64, f64), log: bool) -> bool {
    log && most >= 10.0 * least
}

/// What an axis shows of values: room at both ends; where it is not logarithmic, it begins at 0.
fn range((least, most): (f64, f64), log: bool) -> (f64, f64) {
    if log {
        return (least / 1.3, most * 1.3);
    }
    let most = if most > 0.0 { most * 1.08 } else { 1.0 };
    (least.min(0.0) * 1.08, most)
}

fn lines(plot: &Plot, area: &Area<'_>) -> Drawn {
    let points = || plot.series.iter().flat_map(|s| &s.points);
    let (x0, x1) = span(points().filter_map(place));
    let x = if plot.x.log {
        (x0 / 1.1, x1 * 1.1)
    } else {
        let room = ((x1 - x0) * 0.03).max(f64::MIN_POSITIVE);
        (x0 - room, x1 + room)
    };
    let values = span(points().flat_map(|p| p.numbers.iter().copied()));
    let log = is_log(values, plot.y.log);
    let y = range(values, log);
    let (x, y) = (x.0..x.1, y.0..y.1);
    match (plot.x.log, log) {
        (false, false) => curves(plot, area, (x, y)),
        (false, true) => curves(plot, area, (x, y.log_scale())),
        (true, false) => curves(plot, area, (x.log_scale(), y)),
        (true, true) => curves(plot, area, (x.log_scale(), y.log_scale())),
    }
}

fn place(point: &Point) -> Option<f64> {
    match point.at {
        At::Number(x) => Some(x),
        At::Name(_) => None,
    }
}

fn curves<X, Y>(plot: &Plot, area: &Area<'_>, axes: (X, Y)) -> Drawn
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .margin_right(24)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d(axes.0, axes.1)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .x_desc(&plot.x.label)
        .y_desc(&plot.y.label)
        .label_style((FONT, 13))
        .axis_desc_style((FONT, 14))
        .x_label_formatter(&|v| short(*v))
        .y_labels(NUMBERS)
        .y_label_formatter(&|v| short(*v))
        .draw()?;
    for (index, series) in plot.series.iter().enumerate() {
        let colour = colour(plot, index);
        let width = if series.of == Of::Here { 2 } else { 1 };
        let style = ShapeStyle::from(&colour).stroke_width(width);
        let points = || {
            let points = series.points.iter();
            points.filter_map(|p| Some((place(p)?, *p.numbers.first()?)))
        };
        match series.of {
            Of::Paper => chart.draw_series(DashedLineSeries::new(points(), 5, 4, style))?,
            _ => chart.draw_series(LineSeries::new(points(), style))?,
        };
        let spread = series.points.iter().filter_map(|p| match *p.numbers {
            [_, low, high] => Some(PathElement::new(
                [(place(p)?, low), (place(p)?, high)],
                colour.stroke_width(1),
            )),
            _ => None,
        });
        chart.draw_series(spread)?;
        if series.points.len() <= MARKED {
            chart.draw_series(points().map(|at| Circle::new(at, 3, colour.filled())))?;
        }
    }
    Ok(())
}

fn bars(plot: &Plot, area: &Area<'_>) -> Drawn {
    let mut names: Vec<&str> = Vec::new();
    for point in plot.series.iter().flat_map(|s| &s.points) {
        if let At::Name(name) = &point.at
            && !names.contains(&name.as_str())
        {
            names.push(name);
        }
    }
    let all = plot.series.iter().flat_map(|s| &s.points);
    let values = span(all.flat_map(|p| p.numbers.iter().copied()));
    let log = is_log(values, plot.y.log);
    let y = range(values, log);
    if log {
        groups(plot, area, &names, y.0, (y.0..y.1).log_scale())
    } else {
        groups(plot, area, &names, 0.0, y.0..y.1)
    }
}

/// The lines of a name that has room for so many letters: broken between words, which stay whole.
fn lines_of(name: &str, letters: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in name.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= letters => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn groups<Y>(plot: &Plot, area: &Area<'_>, groups: &[&str], ground: f64, y: Y) -> Drawn
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let room = (SIZE.0 as usize - MARGIN - 24) / groups.len().max(1);
    let names: Vec<_> = groups.iter().map(|n| lines_of(n, room / LETTER)).collect();
    let most = names.iter().map(Vec::len).max().unwrap_or(1).max(1);
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(44 + ((most - 1) * LINE) as u32)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..names.len() as f64, y)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .x_desc(&plot.x.label)
        .y_desc(&plot.y.label)
        .label_style((FONT, 13))
        .axis_desc_style((FONT, 14))
        .y_labels(NUMBERS)
        .y_label_formatter(&|v| short(*v))
        .draw()?;
    // A group takes 0.8 of its place.
    let width = 0.8 / plot.series.len() as f64;
    for (index, series) in plot.series.iter().enumerate() {
        let colour = colour(plot, index);
        let left = |p: &Point| {
            let At::Name(name) = &p.at else { return None };
            let group = groups.iter().position(|n| n == name)?;
            Some(group as f64 + 0.1 + width * index as f64)
        };
        let boxes = series.points.iter().filter_map(|p| {
            let (x, top) = (left(p)?, *p.numbers.first()?);
            let corners = [(x, ground), (x + width * 0.92, top)];
            Some(Rectangle::new(corners, colour.filled()))
        });
        chart.draw_series(boxes)?;
        let spread = series.points.iter().filter_map(|p| match *p.numbers {
            [_, low, high] => {
                let x = left(p)? + width * 0.46;
                Some(PathElement::new([(x, low), (x, high)], BLACK))
            }
            _ => None,
        });
        chart.draw_series(spread)?;
    }
    let style = (FONT, 13)
        .into_text_style(area)
        .pos(Pos::new(HPos::Center, VPos::Top));
    for (group, lines) in names.iter().enumerate() {
        chart.draw_series(lines.iter().enumerate().map(|(line, text)| {
            EmptyElement::at((group as f64 + 0.5, ground))
                + Text::new(text.clone(), (0, 6 + (line * LINE) as i32), style.clone())
        }))?;
    }
    Ok(())
}

fn gantt(plot: &Plot, area: &Area<'_>) -> Drawn {
    let points = || plot.series.iter().flat_map(|s| &s.points);
    let (first, last) = span(points().filter_map(place));
    let (_, end) = span(points().flat_map(|p| p.numbers.iter().copied()));
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..end.max(f64::MIN_POSITIVE) * 1.02, last + 1.0..first)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .x_desc(&plot.x.label)
        .y_desc(&plot.y.label)
        .label_style((FONT, 13))
        .axis_desc_style((FONT, 14))
        .x_label_formatter(&|v| short(*v))
        .y_label_formatter(&|v| short(*v))
        .draw()?;
    for (index, series) in plot.series.iter().enumerate() {
        let colour = colour(plot, index);
        let boxes = series.points.iter().filter_map(|p| match *p.numbers {
            [from, to] => {
                let node = place(p)?;
                Some(Rectangle::new(
                    [(from, node), (to, node + 1.0)],
                    colour.filled(),
                ))
            }
            _ => None,
        });
        chart.draw_series(boxes)?;
    }
    // Over all boxes, as a name may be wider than its own: it stands beside that then.
    let label = (FONT, 12)
        .into_text_style(area)
        .transform(FontTransform::None);
    for (index, series) in plot.series.iter().enumerate() {
        let nodes = span(series.points.iter().filter_map(place));
        if let Some([from, to]) = series.points.first().map(|p| p.numbers.as_slice()) {
            let height = (nodes.0 + nodes.1 + 1.0) / 2.0;
            let (left, right) = (
                chart.backend_coord(&(*from, height)).0,
                chart.backend_coord(&(*to, height)).0,
            );
            let fits = (right - left) as usize > series.name.chars().count() * LETTER;
            let (x, side, ink) = match fits {
                true => ((from + to) / 2.0, HPos::Center, ink_on(colour(plot, index))),
                false => (*to, HPos::Left, BLACK),
            };
            let style = label.color(&ink).pos(Pos::new(side, VPos::Center));
            chart.draw_series([Text::new(series.name.clone(), (x, height), style)])?;
        }
    }
    Ok(())
}

/// White, or black where a colour is too light for it.
fn ink_on(colour: RGBColor) -> RGBColor {
    let weighed = 299 * u32::from(colour.0) + 587 * u32::from(colour.1) + 114 * u32::from(colour.2);
    match weighed > 110_000 {
        true => BLACK,
        false => WHITE,
    }
}

/// A number with as many digits as an axis needs.
pub(super) fn short(value: f64) -> String {
    let size = value.abs();
    let (value, unit) = match size {
        _ if size >= 1e9 => (value / 1e9, "G"),
        _ if size >= 1e6 => (value / 1e6, "M"),
        _ if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let size = value.abs();
    let digits = match size {
        _ if size == 0.0 || size >= 100.0 => 0,
        _ if size >= 10.0 => 1,
        _ if size >= 1.0 => 2,
        _ if size >= 0.001 => 4,
        _ => return format!("{value:.1e}{unit}"),
    };
    let text = format!("{value:.digits$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text}{unit}")
}
