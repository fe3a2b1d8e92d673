/* Plots of measurements, of the shape that the format of results has (research/evidence/README.md). Each is drawn as
   wide as its box, so that text has one size in all of them. Axes of values begin at 0; logarithmic ones say so. */
const tones = 6;
const marks = ['circle', 'square', 'triangle', 'diamond', 'cross', 'down'];
const dashes = ['', '9 3', '2 3', '9 3 2 3', '5 3', '12 4'];
/* A series of more points is a line without marks. */
const maxMarked = 24;
const letter = 6.6;
const lineHeight = 15;
const plotHeight = 226;

/* A number with three digits that count; a whole one up to 99,999 with all. */
function short(value) {
  const most = Math.abs(value);
  if (most === 0) return '0';
  if (most < 1e-3) return value.toExponential(1).replace('.0e', 'e').replace('-', '−');
  if (most >= 1e5) {
    const [unit, by] = most >= 1e9 ? [' G', 1e9] : most >= 1e6 ? [' M', 1e6] : [' k', 1e3];
    return `${Number((value / by).toPrecision(3)).toLocaleString('en')}${unit}`;
  }
  const digits = Number.isInteger(value) ? 5 : Math.max(3, Math.floor(Math.log10(most)) + 1);
  return Number(value.toPrecision(digits)).toLocaleString('en', { maximumFractionDigits: 6 });
}
/* Requests and files have sizes by powers of two. */
const binary = (value) => (value >= 1 << 20 ? `${value / (1 << 20)} Mi` : value >= 1024 ? `${value / 1024} Ki` : String(value));

/* Beside figures that are no whole numbers, zeros at the end count, too. */
const figure = (value, values) => (values.every(Number.isInteger) || Math.abs(value) < 1e-3 || Math.abs(value) >= 100 ? short(value) : value.toPrecision(3));
const valuesOf = (plot) => plot.series.flatMap((s) => [...s.points, ...(s.dots ?? [])].flatMap((p) => p.slice(1)));
/* Less than a power of ten would have next to no numbers on a logarithmic axis. */
const isLog = (wanted, values) => wanted && Math.min(...values) > 0 && Math.max(...values) >= 10 * Math.min(...values);

/* About `count` round numbers from 0, or powers of ten. */
function valueTicks(least, most, log, count) {
  const list = [];
  if (log) {
    const decades = Math.round(Math.log10(most / least));
    const each = Math.max(1, Math.ceil(decades / count));
    for (let n = Math.ceil(Math.log10(least) - 1e-9); 10 ** n <= most * 1.0001; n += each) list.push(Number(`1e${n}`));
    return list;
  }
  const about = (most - least) / count;
  const power = 10 ** Math.floor(Math.log10(about));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= about * 0.999);
  for (let n = Math.ceil(least / step - 1e-9); n * step <= most * 1.0001; n += 1) list.push(Number((n * step).toPrecision(12)));
  return list;
}
/* An axis of values: from 0 to a round number (that of `most`, where it is given), or over whole powers of ten. */
function valueAxis(label, values, wantsLog, count, most) {
  const log = isLog(wantsLog, values);
  let [from, to] = [Math.min(0, ...values), most ?? Math.max(...values)];
  if (log) {
    [from, to] = [10 ** Math.floor(Math.log10(Math.min(...values)) + 1e-9), 10 ** Math.ceil(Math.log10(to) - 1e-9)];
  } else {
    if (to <= from) to = from + 1;
    const each = valueTicks(from, to, false, count);
    const step = each[1] - each[0];
    [from, to] = [Math.floor(from / step + 1e-9) * step, Math.ceil(to / step - 1e-9) * step];
  }
  const share = log ? (v) => Math.log(v / from) / Math.log(to / from) : (v) => (v - from) / (to - from);
  const title = [label, log ? 'logarithmic scale' : ''].filter(Boolean).join(', ');
  return { log, from, to, share: (v) => Math.min(Math.max(share(v), 0), 1), ticks: valueTicks(from, to, log, count), title };
}
/* Words of a text in lines of so many letters. */
function linesOf(text, letters) {
  const lines = [''];
  for (const word of text.split(/\s+/)) {
    const longer = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
    if (longer.length <= letters || !lines.at(-1)) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

/* Those of one name have one colour: a paper's figures that of what they stand against. */
function toned(plot) {
  const names = [...(plot.names ?? [])];
  return plot.series.map((s) => {
    let at = names.indexOf(s.name);
    if (at < 0) at = names.push(s.name) - 1;
    const isPaper = s.of === 'paper';
    const name = isPaper && !s.name.toLowerCase().includes('paper') ? `${s.name} (paper)` : s.name;
    return { ...s, at, name, tone: `tone${at % tones}`, hollow: isPaper ? ' hollow' : '' };
  });
}
function mark(kind, x, y, attributes, parent) {
  const r = 3.8;
  const shapes = {
    circle: `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`,
    square: `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}Z`,
    triangle: `M${x} ${y - r - 1}l${r + 1} ${2 * r}h${-2 * r - 2}Z`,
    diamond: `M${x} ${y - r - 1}l${r + 1} ${r + 1}l${-r - 1} ${r + 1}l${-r - 1} ${-r - 1}Z`,
    cross: `M${x - r} ${y - r}l${2 * r} ${2 * r}m0 ${-2 * r}l${-2 * r} ${2 * r}`,
    down: `M${x} ${y + r + 1}l${r + 1} ${-2 * r}h${-2 * r - 2}Z`,
    beyond: `M${x - r - 1} ${y + r}l${r + 1} ${-r - 1}l${r + 1} ${r + 1}`,
  };
  return make('path', { class: 'mark', d: shapes[kind], ...attributes }, parent);
}
const isMarked = (s) => s.points.length <= maxMarked;
const dashOf = (s) => (s.hollow ? '5 4' : isMarked(s) ? '' : dashes[Math.floor(s.at / 2) % dashes.length]);
const pairsOf = (plot, point, at) => [
  [plot.x.label || 'of', at], [plot.y.label || 'value', short(point[1])],
  ...(point.length > 3 ? [['least to greatest', `${short(point[2])} to ${short(point[3])}`]] : []),
];
const withTip = (node, title, pairs) => { node.tip = (event) => showTip(event, title, pairs); };
function frame(box, height, label) {
  const width = Math.max(widthOf(box), 240);
  return { svg: make('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': label }) };
}
/* The title of an axis, in as many lines as it needs; returns how many. */
function axisTitle(svg, text, width, y, anchor) {
  const lines = text ? linesOf(text, Math.floor(width / letter)) : [];
  lines.forEach((line, n) => make('text', { x: anchor === 'end' ? width : 0, y: y + n * lineHeight, 'text-anchor': anchor }, svg, line));
  return lines.length;
}
const titleHeight = (text, width) => (text ? linesOf(text, Math.floor(width / letter)).length : 0) * lineHeight;
function follows(svg, box) {
  svg.addEventListener('pointermove', (event) => (event.target.tip ? event.target.tip(event) : (tip.hidden = true)));
  svg.addEventListener('pointerleave', () => { tip.hidden = true; });
  box.replaceChildren(svg);
}

function drawLines(plot, box) {
  const series = toned(plot);
  const places = series.flatMap((s) => s.points.map((p) => p[0]));
  const y = valueAxis(plot.y.label, valuesOf(plot), plot.y.log, 5, plot.most);
  const rows = y.ticks.map((v) => (plot.percent ? v.toFixed(2) : short(v)));
  const left = Math.max(...rows.map((t) => t.length)) * letter + 12;
  const width = Math.max(widthOf(box), 240);
  const top = titleHeight(y.title, width) + 9;
  const [bottom, end] = [top + plotHeight, width - 16];
  const log = isLog(plot.x.log, places);
  const x = log
    ? { from: Math.min(...places), to: Math.max(...places), title: `${plot.x.label}, logarithmic scale` }
    : { ...valueAxis(plot.x.label, places, false, Math.max(3, Math.floor(width / 110))), title: plot.x.label };
  const { svg } = frame(box, bottom + titleHeight(x.title, width) + 32, plot.title);
  const share = (v) => (log ? Math.log(v / x.from) / Math.log(x.to / x.from) : (v - x.from) / (x.to - x.from));
  const px = (v) => left + share(v) * (end - left);
  const py = (v) => bottom - y.share(v) * (bottom - top);
  axisTitle(svg, y.title, width, 12, 'start');
  y.ticks.forEach((v, n) => {
    make('line', { class: v === plot.even ? 'even' : 'grid', x1: left, x2: end, y1: py(v), y2: py(v) }, svg);
    make('text', { x: left - 6, y: py(v) + 4, 'text-anchor': 'end' }, svg, rows[n]);
  });
  let free = 0;
  const distinct = [...new Set(places)].sort((a, b) => a - b);
  const label = plot.percent ? (v) => `${Math.round(v * 100)} %` : /byte/.test(x.title) && distinct.every((v) => Number.isInteger(Math.log2(v))) ? binary : short;
  for (const v of distinct.length <= 12 ? distinct : x.ticks ?? distinct) {
    const half = (label(v).length * letter) / 2;
    const middle = Math.min(px(v), width - half);
    make('line', { class: 'axis', x1: px(v), x2: px(v), y1: bottom, y2: bottom + 4 }, svg);
    if (middle - half < free) continue;
    make('text', { x: middle, y: bottom + 20, 'text-anchor': 'middle' }, svg, label(v));
    free = middle + half + 8;
  }
  make('line', { class: 'axis', x1: left, x2: end, y1: bottom, y2: bottom }, svg);
  axisTitle(svg, x.title, width, bottom + 39, 'end');
  for (const s of series) {
    const g = make('g', { class: s.tone }, svg);
    const d = s.points.map((p, n) => `${n ? 'L' : 'M'}${px(p[0]).toFixed(1)} ${py(p[1]).toFixed(1)}`).join('');
    make('path', { class: 'curve', d, 'stroke-dasharray': dashOf(s) }, g);
    for (const p of s.points.filter((q) => q.length > 3)) {
      make('line', { class: 'spread thin', x1: px(p[0]), x2: px(p[0]), y1: py(p[2]), y2: py(p[3]) }, g);
    }
    for (const p of s.dots ?? []) {
      const dot = p[1] > y.to ? mark('beyond', px(p[0]), top + 4, { class: 'mark hollow' }, g) : make('path', { class: 'dot-of', d: `M${px(p[0]) - 2.6} ${py(p[1])}a2.6 2.6 0 1 0 5.2 0a2.6 2.6 0 1 0 -5.2 0Z` }, g);
      withTip(dot, s.name, pairsOf(plot, p, label(p[0])));
    }
    for (const p of s.points) {
      const at = isMarked(s) ? { class: `mark${s.hollow}` } : { class: 'mark', opacity: 0 };
      const [shape, height] = p[1] > y.to ? ['beyond', top + 4] : [marks[s.at % marks.length], py(p[1])];
      withTip(mark(shape, px(p[0]), height, at, g), s.name, pairsOf(plot, p, label(p[0])));
    }
  }
  follows(svg, box);
}

/* Bars lie, and what they are of stands above them: so names have room on a phone, too. On a logarithmic scale a length
   means nothing: there, a mark stands at the value. */
function drawBars(plot, box) {
  const series = toned(plot);
  const groups = [...new Set(series.flatMap((s) => s.points.map((p) => p[0])))];
  const width = Math.max(widthOf(box), 240);
  const letters = Math.floor(width / letter);
  const rows = [];
  for (const group of groups) {
    const of = series.map((s) => [s, s.points.find((p) => p[0] === group)]).filter(([, p]) => p);
    of.forEach(([s, p], n) => {
      const text = groups.length === 1 ? s.name : n ? '' : group;
      rows.push({ s, p, first: n === 0, lines: text ? linesOf(text, letters) : [] });
    });
  }
  const x = valueAxis(plot.y.label, valuesOf(plot), plot.y.log, Math.max(3, Math.floor(width / 130)));
  const text = (p) => figure(p[1], valuesOf(plot));
  const room = Math.max(...rows.map((r) => text(r.p).length)) * letter + 12;
  const barHeight = 15;
  const heights = rows.map((r) => (r.first && groups.length > 1 ? 8 : 4) + r.lines.length * lineHeight + barHeight);
  const bottom = heights.reduce((sum, h) => sum + h, 0) + 4;
  const { svg } = frame(box, bottom + titleHeight(x.title, width) + 28, plot.title);
  const end = width - room;
  const px = (v) => 2 + x.share(v) * (end - 2);
  const ticks = x.ticks.map((v) => ({ v, text: short(v), at: px(v) }));
  for (const t of ticks) make('line', { class: 'grid', x1: t.at, x2: t.at, y1: 0, y2: bottom }, svg);
  let y = 0;
  rows.forEach(({ s, p, first, lines }, n) => {
    let at = y + (first && groups.length > 1 ? 8 : 4);
    for (const line of lines) {
      make('text', { class: 'named', x: 2, y: at + 12 }, svg, line);
      at += lineHeight;
    }
    const g = make('g', { class: s.tone }, svg);
    const middle = at + barHeight / 2;
    const shown = x.log
      ? mark(marks[s.at % marks.length], px(p[1]), middle, { class: `mark${s.hollow}` }, g)
      : make('rect', { class: `tower${s.hollow}`, x: px(Math.min(p[1], 0)), y: at + 1, width: Math.max(px(Math.abs(p[1])) - px(0), 1), height: barHeight - 3 }, g);
    withTip(shown, `${p[0]}: ${s.name}`, pairsOf(plot, p, p[0]));
    if (p.length > 3) {
      const [a, b] = [px(p[2]), px(p[3])];
      make('path', { class: x.log ? 'spread thin' : 'spread', d: `M${a} ${middle}H${b}M${a} ${middle - 4}v8M${b} ${middle - 4}v8` }, g);
    }
    make('text', { class: 'value', x: Math.max(px(p[1]), p.length > 3 ? px(p[3]) : 0) + 8, y: middle + 4 }, svg, text(p));
    y += heights[n];
  });
  make('line', { class: 'axis', x1: 2, x2: 2, y1: 0, y2: bottom }, svg);
  let free = -1;
  for (const t of ticks) {
    const half = (t.text.length * letter) / 2;
    const at = Math.max(t.at, half);
    if (at - half < free) continue;
    make('text', { x: at, y: bottom + 16, 'text-anchor': 'middle' }, svg, t.text);
    free = at + half + 6;
  }
  axisTitle(svg, x.title, width, bottom + 36, 'start');
  follows(svg, box);
}

/* What nodes do from when to when: nodes downwards, a box for neighbours that do the same. */
function jobsOf(plot) {
  const jobs = [];
  for (const s of plot.series) {
    for (const [node, from, to] of s.points) {
      const last = jobs.at(-1);
      if (last && last.s === s && last.end === node && last.from === from && last.to === to) last.end = node + 1;
      else jobs.push({ s, node, end: node + 1, from, to });
    }
  }
  return jobs;
}
function drawGantt(plot, box) {
  const jobs = jobsOf(plot);
  const [first, end] = [Math.min(...jobs.map((p) => p.node)), Math.max(...jobs.map((p) => p.end))];
  const rowHeight = Math.min(Math.max(320 / (end - first), 3), 20);
  const height = (end - first) * rowHeight;
  const width = Math.max(widthOf(box), 240);
  const top = titleHeight(plot.y.label, width) + 5;
  const { svg } = frame(box, top + height + titleHeight(plot.x.label, width) + 28, plot.title);
  /* Schedules of the same time have the same axis, so that they can be compared. */
  const alike = plots.filter((p) => p.kind === 'gantt' && p.x.label === plot.x.label);
  const ends = alike.flatMap((p) => p.series.flatMap((s) => s.points.map((q) => q[2])));
  const x = valueAxis(plot.x.label, ends, false, Math.max(3, Math.floor(width / 110)));
  const [left, edge] = [30, width - 20];
  const px = (t) => left + x.share(t) * (edge - left);
  const py = (node) => top + (node - first) * rowHeight;
  axisTitle(svg, plot.y.label, width, 12, 'start');
  for (const t of x.ticks) {
    make('line', { class: 'grid', x1: px(t), x2: px(t), y1: top, y2: top + height }, svg);
    make('text', { x: px(t), y: top + height + 16, 'text-anchor': 'middle' }, svg, short(t));
  }
  let free = top;
  for (let node = first; node < end; node += 1) {
    const middle = py(node) + rowHeight / 2;
    if (middle < free) continue;
    make('text', { x: left - 6, y: middle + 4, 'text-anchor': 'end' }, svg, String(node));
    free = middle + lineHeight;
  }
  axisTitle(svg, plot.x.label, width, top + height + 36, 'end');
  for (const p of jobs) {
    const kind = p.s.of === 'here' ? 'flow-job' : 'other-job';
    const job = make('rect', { class: `job ${kind}`, x: px(p.from), y: py(p.node), width: Math.max(px(p.to) - px(p.from), 1), height: py(p.end) - py(p.node) }, svg);
    const on = p.end - p.node > 1 ? `${p.node} – ${p.end - 1}` : String(p.node);
    withTip(job, p.s.name, [['nodes', on], [plot.x.label, `${short(p.from)} to ${short(p.to)}`]]);
  }
  /* A name stands in its job's largest box, or beside it where nothing else is. */
  for (const s of plot.series) {
    const [p] = jobs.filter((q) => q.s === s).sort((a, b) => b.end - b.node - (a.end - a.node));
    if (!p) continue;
    const y = (py(p.node) + py(p.end)) / 2;
    const long = s.name.length * letter + 4;
    const near = (q) => py(q.node) < y + lineHeight / 2 && py(q.end) > y - lineHeight / 2;
    const next = Math.min(edge, ...jobs.filter((q) => q.from >= p.to && near(q)).map((q) => px(q.from)));
    const inside = px(p.to) - px(p.from) > long;
    if (!inside && next - px(p.to) < long + 4) continue;
    const at = inside ? { class: 'label', x: (px(p.from) + px(p.to)) / 2, 'text-anchor': 'middle' } : { class: 'named', x: px(p.to) + 4 };
    make('text', { ...at, y: y + 4 }, svg, s.name);
  }
  follows(svg, box);
}

/* What colours and marks mean; bars of one group have their names beside them. */
function plotLegend(plot, place) {
  place.replaceChildren();
  const item = (text) => {
    const span = make('span', {}, place);
    return { span, end: () => span.append(text) };
  };
  if (plot.kind === 'gantt') {
    for (const [of, kind, text] of [['here', 'flow-job', 'jobs of the workflow'], ['peer', 'other-job', 'other jobs']]) {
      if (!plot.series.some((s) => s.of === of)) continue;
      const { span, end } = item(text);
      make('i', { class: kind }, span);
      end();
    }
    return;
  }
  const series = toned(plot);
  const bars = plot.kind === 'bars';
  const groups = new Set(series.flatMap((s) => s.points.map((p) => p[0])));
  if (series.length < 2 || (bars && groups.size === 1)) return;
  const marked = !bars || isLog(plot.y.log, valuesOf(plot));
  for (const s of series) {
    const { span, end } = item(s.name);
    if (!marked) make('i', { class: `${s.tone}${s.hollow}` }, span);
    else {
      const svg = make('svg', { viewBox: '0 0 26 12', class: s.tone, 'aria-hidden': 'true' }, span);
      if (!bars) make('path', { class: 'curve', d: 'M0 6H26', 'stroke-dasharray': dashOf(s) }, svg);
      if (isMarked(s)) mark(marks[s.at % marks.length], 13, 6, { class: `mark${s.hollow}` }, svg);
    }
    end();
  }
}

const drawers = { lines: drawLines, bars: drawBars, gantt: drawGantt };
plots.forEach((plot, n) => {
  const box = byId(`plot-${n}`);
  if (!plot.series.some((s) => s.points.length)) return box.append('Nothing was measured.');
  const legend = byId(`legend-${n}`);
  if (legend) plotLegend(plot, legend);
  view.redraw.push(() => drawers[plot.kind](plot, box));
});
