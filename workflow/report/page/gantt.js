/* One chart a policy: nodes downwards, time to the right, a box a job, as in Weiland et al.'s Figures 8 and 9. */
const boxesHeight = 520;
const rowHeights = [3, 20];
/* Of the strip for transfers below a node's jobs, of a row. */
const stripShare = 0.3;
/* Of the curve below boxes, and of one that stands alone. */
const curveHeights = [46, 150];
const top = 20;
const flowColours = 9;
const narrowSide = 62;
const colourOf = (b) => (b.flow < 0 ? 'var(--ordinary)' : `var(--step${b.flow % flowColours})`);
const phaseClass = ['reading', 'writing', 'idle'];
const moveClass = ['ext-in', 'ext-out', 'peer'];
const moveName = ['from the external store', 'to the external store', 'between nodes'];
const offName = ['reboots into another memory mode', 'sleeps', 'is lost'];

const nodes = run.islands.reduce((sum, [, count]) => sum + count, 0);
function nodeName(node) {
  /* A real site's nodes have names of their own. */
  if (run.nodes) return run.nodes[node] ?? String(node);
  for (const [name, count] of run.islands) {
    if (node < count) return `${name}${node}`;
    node -= count;
  }
  return String(node);
}

/* Rows of arrays as workflow/report/src/site/charts.rs writes them. */
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
  /* Transfers have a strip of their own, so that none seems to be of the job above it. */
  const strip = chart.moves.length ? stripShare : 0;
  const counts = lanes.map((of) => Math.max(of.length, 1) + strip);
  const all = counts.reduce((sum, n) => sum + n, 0);
  const unit = Math.min(Math.max(boxesHeight / Math.max(all, 1), rowHeights[0]), rowHeights[1]);
  const tops = [0];
  for (const count of counts) tops.push(tops.at(-1) + count * unit);
  const drawn = chart.jobs.length + chart.off.length > 0;
  return { ...chart, pieces, tops, unit, strip: strip * unit, height: drawn ? tops.at(-1) : 0, curveHeight: curveHeights[drawn ? 0 : 1] };
}
const charts = run.charts.map((c) => lay(read(c)));

const clampX = (c, t) => Math.min(Math.max(c.x(t), side), c.width - right);
function place(c, chart, p) {
  const y = top + chart.tops[p.first] + (p.lane ?? 0) * chart.unit;
  const height = p.lane === undefined ? chart.tops[p.last] - chart.tops[p.first] - chart.strip : chart.unit;
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
    const kind = phaseClass[phase.kind];
    const lanes = (places.get(phase.name) ?? []).filter((p) => p.first >= phase.first && p.last <= phase.last && p.from <= phase.from && p.to >= phase.to);
    const parts = lanes.length ? lanes.map((p) => ({ ...phase, first: p.first, last: p.last, lane: p.lane })) : [phase];
    for (const part of parts) rect(c, place(c, chart, part), { class: kind }, 0.5);
  }
}
function drawLabels(c, chart) {
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
/* Each node's strip, and the transfers in it. */
const strip = (chart, node) => ({ y: top + chart.tops[node + 1] - chart.strip, height: chart.strip });
function drawStrips(c, chart) {
  if (chart.strip < 1) return;
  for (let n = 0; n < nodes; n += 1) rect(c, { x: side, width: c.width - right - side, ...strip(chart, n) }, { class: 'strip' });
}
function drawMoves(c, chart) {
  if (chart.strip < 1) return;
  for (const m of chart.moves.filter(seen)) {
    const { x, width } = place(c, chart, m);
    for (let n = m.first; n < m.last; n += 1) {
      const bar = rect(c, { x, width, ...strip(chart, n) }, { class: `move ${moveClass[m.kind]}` });
      bar.tip = (event) => showTip(event, m.name < 0 ? moveName[m.kind] : chart.names[m.name], [
        ['moves', moveName[m.kind]], ['from, to', `${time(m.from)} – ${time(m.to)}`], ['nodes', span(m.first, m.last)],
      ]);
    }
  }
}
function drawNames(c, chart) {
  let free = top;
  for (let n = 0; n < nodes && chart.height; n += 1) {
    const middle = top + (chart.tops[n] + chart.tops[n + 1]) / 2;
    if (middle < free) continue;
    const name = nodeName(n);
    const most = Math.floor((side - 10) / 6.6);
    make('text', { x: side - 8, y: middle + 4, 'text-anchor': 'end' }, c.svg, name.length > most ? `…${name.slice(1 - most)}` : name);
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
  const usageTip = (event) => {
    const t = c.t(pointerX(event, c));
    const u = chart.used[Math.floor(t / slice)];
    if (u) showTip(event, `nodes in use at ${time(t)}`, [['ordinary jobs', `${u[0] / 10} %`], ['workflows', `${u[1] / 10} %`]]);
  };
  area((u) => u[0] + u[1], 'ordinary').tip = usageTip;
  area((u) => u[1], 'flows').tip = usageTip;
  make('line', { class: 'rule', x1: side, x2: c.width - right, y1: level(1000), y2: level(1000) }, c.svg);
  make('text', { x: side - 8, y: level(1000) + 8, 'text-anchor': 'end' }, c.svg, '100 %');
  make('text', { x: side - 8, y: level(0), 'text-anchor': 'end' }, c.svg, '0');
}
function drawChart(chart, box) {
  const bottom = top + chart.height;
  const end = bottom + 6 + chart.curveHeight;
  const c = canvas(box, end + 4, narrowSide);
  c.svg.setAttribute('aria-label', `Jobs over nodes and time under ${chart.policy}`);
  axis(c, top, end);
  if (chart.height) make('rect', { class: 'frame', x: side, y: top, width: c.width - right - side, height: chart.height }, c.svg);
  drawStrips(c, chart);
  drawAside(c, chart);
  drawJobs(c, chart);
  drawMoves(c, chart);
  drawLabels(c, chart);
  drawNames(c, chart);
  drawUse(c, chart, bottom + 6);
  box.replaceChildren(c.svg);
  follow(c);
}
charts.forEach((chart, n) => view.redraw.push(() => drawChart(chart, byId(`chart-${n}`))));

/* What colours mean, a line for each kind of thing. */
function legend(title, items) {
  if (!items.length) return;
  const place = make('div', { class: 'legend' }, byId('legends'));
  make('b', {}, place, title);
  for (const [text, attributes] of items) {
    const item = make('span', {}, place);
    make('i', attributes, item);
    item.append(text);
  }
}
const maxNamed = 16;
const some = (list) => charts.some(list);
const boxed = some((c) => c.pieces.length);
const named = run.flows.slice(0, maxNamed).map((name, n) => [`workflow ${name}`, { style: `--c:var(--step${n % flowColours})` }]);
if (run.flows.length > named.length) named.push([`and ${run.flows.length - named.length} more workflows`, { style: '--c:transparent' }]);
if (some((c) => c.jobs.some((j) => j.flow < 0))) named.push(['ordinary jobs', { style: '--c:var(--ordinary)' }]);
if (boxed) {
  legend('Jobs of', named);
  legend('A job itself', [['reads from outside', { class: 'reading' }, 0], ['writes outside', { class: 'writing' }, 1],
    ['is started, waits for its data, or is ended', { class: 'idle' }, 2]]
    .filter(([, , kind]) => some((c) => c.phases.some((p) => p.kind === kind))));
}
legend('Transfers', moveName.map((name, n) => [name, { class: moveClass[n] }]).filter((_, n) => some((c) => c.moves.some((m) => m.kind === n))));
legend('A node', [['sleeps', { class: 'sleeping' }, (o) => o.kind === 1], ['reboots, or is lost', { class: 'hatch' }, (o) => o.kind !== 1]]
  .filter(([, , of]) => some((c) => c.off.some(of))));
legend('Nodes in use', [['by workflows', { class: 'flows' }, 1], ['by ordinary jobs', { class: 'ordinary' }, 0]]
  .filter(([, , kind]) => some((c) => c.used.some((u) => u[kind]))));

/* The same as a list: what a chart shows of a policy is found by its name. */
if (byId('jobs')) {
  const all = charts.flatMap((c) => c.jobs.map((j) => ({ policy: c.policy, job: c.names[j.name], workflow: run.flows[j.flow] ?? '', at: span(j.first, j.last), ...j })));
  list('jobs', all, [
    ['job', (j) => j.job],
    ['workflow', (j) => j.workflow, (name) => name || '·'],
    ['policy', (j) => j.policy],
    ['nodes', (j) => j.at],
    ['begins', (j) => j.from, time, 'n'],
    ['ends', (j) => j.to, time, 'n'],
    ['holds its nodes for', (j) => j.to - j.from, time, 'n'],
  ], colourOf);
}
