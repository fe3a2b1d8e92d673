/* One chart a policy: nodes downwards, time to the right, a box a job, as in Weiland et al.'s Figures 8 and 9. */
const boxesHeight = 520;
const rowHeights = [3, 20];
/* Of the curve below boxes, and of one that stands alone. */
const curveHeights = [46, 150];
const top = 20;
const flowColours = 10;
const colourOf = (b) => `var(--${b.flow < 0 ? `g${b.number % 3}` : `s${b.flow % flowColours}`})`;
const moveClass = ['ext-in', 'ext-out', 'peer'];
const moveName = ['from the external store', 'to the external store', 'between nodes'];
const offName = ['reboots into another memory mode', 'sleeps', 'is lost'];

const nodes = run.islands.reduce((sum, [, count]) => sum + count, 0);
function nodeName(node) {
  for (const [name, count] of run.islands) {
    if (node < count) return `${name}${node}`;
    node -= count;
  }
  return String(node);
}

/* Rows of arrays as crates/report/src/site/charts.rs writes them. */
function read(chart) {
  const part = (r) => ({ first: r[0], last: r[1], from: r[2], to: r[3], name: r[4], kind: r[5] });
  const jobs = chart.boxes.map((r) => ({ name: r[0], flow: r[1], first: r[2], last: r[3], from: r[4], to: r[5], shares: r[6], number: r[7] }));
  return {
    ...chart, jobs, phases: chart.phases.map(part), moves: chart.moves.map(part), off: chart.off.map(part),
  };
}
/* Jobs that share a node lie in lanes of it. */
function lay(chart) {
  const shared = Array.from({ length: nodes }, () => []);
  const pieces = [];
  for (const job of chart.jobs) {
    if (!job.shares) pieces.push({ ...job, job });
    else for (let n = job.first; n < job.last; n += 1) shared[n]?.push({ ...job, first: n, last: n + 1, job });
  }
  const lanes = shared.map((list) => pack(list, (p) => p.from, (p) => p.to));
  lanes.forEach((of) => of.forEach((lane, n) => lane.forEach((p) => { p.lane = n; pieces.push(p); })));
  const counts = lanes.map((of) => Math.max(of.length, 1));
  const all = counts.reduce((sum, n) => sum + n, 0);
  const unit = Math.min(Math.max(boxesHeight / Math.max(all, 1), rowHeights[0]), rowHeights[1]);
  const tops = [0];
  for (const count of counts) tops.push(tops.at(-1) + count * unit);
  const drawn = chart.jobs.length + chart.off.length > 0;
  return { ...chart, pieces, tops, unit, height: drawn ? tops.at(-1) : 0, curveHeight: curveHeights[drawn ? 0 : 1] };
}
const charts = run.charts.map((c) => lay(read(c)));

const clampX = (c, t) => Math.min(Math.max(c.x(t), side), c.width - right);
function place(c, chart, p) {
  const y = top + chart.tops[p.first] + (p.lane ?? 0) * chart.unit;
  const height = p.lane === undefined ? chart.tops[p.last] - chart.tops[p.first] : chart.unit;
  const x = clampX(c, p.from);
  return { x, y, width: clampX(c, p.to) - x, height };
}
const seen = (p) => p.to >= view.from && p.from <= view.to && p.last <= nodes;
function rect(c, at, attributes, inset = 0) {
  return make('rect', {
    x: at.x.toFixed(2), y: (at.y + inset).toFixed(2), width: Math.max(at.width, 0.7).toFixed(2),
    height: Math.max(at.height - 2 * inset, 0.7).toFixed(2), ...attributes,
  }, c.svg);
}
const span = (first, last) => (last - first > 1 ? `${nodeName(first)} – ${nodeName(last - 1)}` : nodeName(first));

function drawJobs(c, chart) {
  const places = new Map();
  for (const p of chart.pieces.filter(seen)) {
    const at = place(c, chart, p);
    const box = rect(c, at, { class: 'job', style: `--c:${colourOf(p)}` }, at.height > 6 ? 0.5 : 0);
    box.tip = (event) => showTip(event, chart.names[p.name], [
      ['from, to', `${time(p.from)} – ${time(p.to)}`], ['for', time(p.to - p.from)], ['nodes', span(p.job.first, p.job.last)],
    ], p.flow < 0 ? '' : `workflow ${run.flows[p.flow]}`);
    if (p.lane !== undefined) places.set(p.name, [...(places.get(p.name) ?? []), p]);
  }
  for (const phase of chart.phases.filter(seen)) {
    const kind = phase.kind ? 'writing' : 'reading';
    const lanes = (places.get(phase.name) ?? []).filter((p) => p.first >= phase.first && p.last <= phase.last && p.from <= phase.from && p.to >= phase.to);
    const parts = lanes.length ? lanes.map((p) => ({ ...phase, first: p.first, last: p.last, lane: p.lane })) : [phase];
    for (const part of parts) rect(c, place(c, chart, part), { class: kind }, 0.5);
  }
  for (const p of chart.pieces.filter(seen)) {
    const at = place(c, chart, p);
    const room = Math.floor((at.width - 6) / 6.3);
    const name = chart.names[p.name];
    if (at.height < 11 || room < Math.min(name.length, 4)) continue;
    const text = name.length <= room ? name : `${name.slice(0, room - 1)}…`;
    make('text', { class: 'label', x: at.x + at.width / 2, y: at.y + at.height / 2 }, c.svg, text);
  }
}
function drawAside(c, chart) {
  for (const o of chart.off.filter(seen)) {
    const box = rect(c, place(c, chart, o), { class: o.kind === 1 ? 'asleep' : 'off' });
    box.tip = (event) => showTip(event, `${span(o.first, o.last)} ${offName[o.kind]}`, [['from, to', `${time(o.from)} – ${time(o.to)}`]]);
  }
}
/* Moves beside the jobs: thin bars at the lower edge of their nodes. */
function drawMoves(c, chart) {
  const thin = Math.min(chart.unit / 4, 4);
  if (thin < 1) return;
  for (const m of chart.moves.filter(seen)) {
    const at = place(c, chart, m);
    const bar = rect(c, { ...at, y: at.y + at.height - thin, height: thin }, { class: `move ${moveClass[m.kind]}` });
    bar.tip = (event) => showTip(event, moveName[m.kind], [['from, to', `${time(m.from)} – ${time(m.to)}`], ['nodes', span(m.first, m.last)]]);
  }
}
function drawNames(c, chart) {
  let free = top;
  for (let n = 0; n < nodes && chart.height; n += 1) {
    const middle = top + (chart.tops[n] + chart.tops[n + 1]) / 2;
    if (middle < free) continue;
    make('text', { x: side - 8, y: middle + 4, 'text-anchor': 'end' }, c.svg, nodeName(n));
    free = middle + 13;
  }
}
/* Nodes in use: workflows below, ordinary jobs on top of them. */
function drawUse(c, chart, y) {
  const { curveHeight } = chart;
  const slice = chart.end / chart.used.length;
  const level = (share) => y + curveHeight - 2 - (Math.min(share, 1000) / 1000) * (curveHeight - 6);
  const area = (share, name) => {
    let d = `M${side} ${level(0)}`;
    chart.used.forEach((u, n) => { d += `H${clampX(c, n * slice).toFixed(1)}V${level(share(u)).toFixed(1)}`; });
    const end = clampX(c, chart.end).toFixed(1);
    return make('path', { class: name, d: `${d}H${end}V${level(0)}Z` }, c.svg);
  };
  const tell = (event) => {
    const t = c.t(pointerX(event, c));
    const u = chart.used[Math.floor(t / slice)];
    if (u) showTip(event, `nodes in use at ${time(t)}`, [['ordinary jobs', `${u[0] / 10} %`], ['workflows', `${u[1] / 10} %`]]);
  };
  area((u) => u[0] + u[1], 'ordinary').tip = tell;
  area((u) => u[1], 'flows').tip = tell;
  make('line', { class: 'rule', x1: side, x2: c.width - right, y1: level(1000), y2: level(1000) }, c.svg);
  make('text', { x: side - 8, y: y + curveHeight / 2 + 4, 'text-anchor': 'end' }, c.svg, 'nodes in use');
}
function drawChart(chart, box) {
  const bottom = top + chart.height;
  const end = bottom + 6 + chart.curveHeight;
  const c = canvas(box, end);
  c.svg.setAttribute('aria-label', `Jobs over nodes and time under ${chart.policy}`);
  axis(c, top, end);
  if (chart.height) make('rect', { class: 'frame', x: side, y: top, width: c.width - right - side, height: chart.height }, c.svg);
  drawAside(c, chart);
  drawJobs(c, chart);
  drawMoves(c, chart);
  drawNames(c, chart);
  drawUse(c, chart, bottom + 6);
  box.replaceChildren(c.svg);
  follow(c);
}
charts.forEach((chart, n) => view.redraw.push(() => drawChart(chart, byId(`chart-${n}`))));

const legend = byId('legend');
function legendItem(text, attributes) {
  const item = make('span', {}, legend);
  make('i', attributes, item);
  item.append(text);
}
const maxNamed = 16;
const boxed = charts.some((c) => c.pieces.length);
const named = boxed ? run.flows.slice(0, maxNamed) : [];
named.forEach((name, n) => legendItem(name, { style: `--c:var(--s${n % flowColours})` }));
if (run.flows.length > named.length) legendItem(named.length ? `and ${run.flows.length - named.length} more workflows` : 'workflows', { style: '--c:var(--s0)' });
if (charts.some((c) => c.used.some((u) => u[0]))) legendItem('ordinary jobs', { style: '--c:var(--g0)' });
if (charts.some((c) => c.phases.some((p) => !p.kind))) legendItem('reads from outside', { class: 'reading' });
if (charts.some((c) => c.phases.some((p) => p.kind))) legendItem('writes outside', { class: 'writing' });
moveName.forEach((name, n) => charts.some((c) => c.moves.some((m) => m.kind === n)) && legendItem(`moves ${name}`, { class: moveClass[n] }));
if (charts.some((c) => c.off.some((o) => o.kind === 1))) legendItem('asleep', { class: 'sleeping' });
if (charts.some((c) => c.off.some((o) => o.kind !== 1))) legendItem('reboots, or is lost', { class: 'hatch' });
