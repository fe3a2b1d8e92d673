/* Beyond so many lanes in all, a node is one curve of busy cores; beyond so many nodes, the busiest are drawn. */
const maxLanes = 120;
const maxNodes = 64;
/* Rows for what stands aside of the cores: it may overlap in the last one. */
const maxAside = 3;
const laneHeight = 18;
const asideHeight = 7;
const laneGap = 3;
const curveHeight = 34;
const box = byId('timeline');

/* (time, busy cores) of a node. */
function load(items) {
  const changes = items.flatMap((a) => [[a.from, a.cores], [a.to, -a.cores]]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  let cores = 0;
  return changes.map(([t, change]) => [t, (cores += change)]);
}
const onNode = run.nodes.map(() => ({ attempts: [], entering: [], leaving: [] }));
for (const a of attempts) for (const n of a.nodes) onNode[n]?.attempts.push(a);
for (const t of transfers) {
  onNode[t.enters]?.entering.push(t);
  for (const n of t.leaves) if (n !== t.enters) onNode[n]?.leaving.push(t);
}
const rows = onNode.map((node, n) => ({
  node: run.nodes[n],
  busy: node.attempts.reduce((sum, a) => sum + a.to - a.from, 0),
  attempts: node.attempts,
  lanes: pack(node.attempts, (a) => a.from, (a) => a.to),
  waiting: pack(node.attempts.filter((a) => a.from > a.assigned), (a) => a.assigned, (a) => a.from, maxAside),
  entering: pack(node.entering, (t) => t.ordered, (t) => t.to, maxAside),
  leaving: pack(node.leaving, (t) => t.ordered, (t) => t.to, maxAside),
}));
const asCurves = rows.reduce((sum, r) => sum + Math.max(1, r.lanes.length), 0) > maxLanes;
const drawnRows = rows.length > maxNodes
  ? [...rows].sort((a, b) => b.busy - a.busy).slice(0, maxNodes)
  : rows;
drawnRows.forEach((r) => {
  if (asCurves) r.load = load(r.attempts);
  const aside = r.entering.length + r.leaving.length + (asCurves ? 0 : r.waiting.length);
  r.height = (asCurves ? curveHeight : Math.max(1, r.lanes.length) * laneHeight) + aside * asideHeight + laneGap + 14;
});

/* What is thinner than a pixel and touches a neighbour of its kind becomes one bar with it; within one pixel,
   kinds do not count. So there are never more than some thousand bars in a lane. */
function bars(c, items, from, to, kind, draw) {
  let open = null;
  const flush = () => open && draw(open);
  for (const item of items) {
    if (to(item) < view.from || from(item) > view.to) continue;
    const x = Math.max(c.x(from(item)), side);
    const end = Math.min(Math.max(c.x(to(item)), x), c.width - right);
    const alike = open && (kind(item) === kind(open.item) || end - open.x < 1);
    if (alike && end - x < 1.5 && x - open.end < 1 && (open.count > 1 || open.end - open.x < 1.5)) {
      open.end = Math.max(open.end, end);
      open.count += 1;
    } else {
      flush();
      open = { x, end, item, count: 1 };
    }
  }
  flush();
}
const put = (c, b, y, height, attributes) => make('rect', {
  x: b.x.toFixed(2), y, width: Math.max(b.end - b.x, 0.8).toFixed(2), height, rx: b.end - b.x > 5 ? 2 : 0, ...attributes,
}, c.svg);

/* The colour tells the step: of `step[element]`, the element is what is worth the room. */
function shorten(name, room) {
  const element = name.length > room && name.endsWith(']') ? name.slice(name.indexOf('[') + 1, -1) : name;
  return element.length <= room ? element : `${element.slice(0, room - 1)}…`;
}
function drawSteps(c, row, y) {
  if (asCurves) return drawLoad(c, row, y);
  for (const lane of row.lanes) {
    bars(c, lane, (a) => a.from, (a) => a.to, (a) => a.step, (b) => {
      const failed = b.count === 1 && (b.item.how === 'failed' || b.item.how === 'interrupted');
      const rect = put(c, b, y + 1, laneHeight - 2, { class: `bar-of${failed ? ' failed' : ''}`, style: `--c:${colourOf(b.item.step)}` });
      tell(rect, b, stepTip);
      const room = Math.floor((b.end - b.x - 8) / 6.2);
      if (b.count > 1 || room < 3) return;
      make('text', { class: 'in-bar', x: b.x + 4, y: y + 13 }, c.svg, shorten(b.item.name, room));
    });
    y += laneHeight;
  }
  return y + (row.lanes.length ? 0 : laneHeight);
}
function drawLoad(c, row, y) {
  const most = Math.max(row.node.cores, ...row.load.map((p) => p[1]), 1);
  const level = (cores) => y + curveHeight - 2 - (cores / most) * (curveHeight - 6);
  const clamp = (t) => Math.min(Math.max(c.x(t), side), c.width - right);
  let path = `M${side} ${level(0)}`;
  for (const [t, cores] of row.load) path += `H${clamp(t).toFixed(2)}V${level(cores).toFixed(2)}`;
  const area = make('path', { class: 'load', d: `${path}H${c.width - right}V${level(0)}Z` }, c.svg);
  area.tip = (event) => {
    const t = c.t(pointerX(event, c));
    const now = row.load.findLast((p) => p[0] <= t)?.[1] ?? 0;
    showTip(event, row.node.name, [['at', time(t)], ['busy cores', `${now} of ${row.node.cores}`]]);
  };
  return y + curveHeight;
}
function drawWaiting(c, row, y) {
  if (asCurves) return y;
  y += laneGap;
  for (const lane of row.waiting) {
    bars(c, lane, (a) => a.assigned, (a) => a.there, () => 0, (b) => tell(put(c, b, y, asideHeight - 2, { class: 'staging' }), b, waitTip));
    bars(c, lane, (a) => a.there, (a) => a.from, () => 0, (b) => tell(put(c, b, y, asideHeight - 2, { class: 'waiting' }), b, waitTip));
    y += asideHeight;
  }
  return y;
}
function drawTransfers(c, lanes, y) {
  for (const lane of lanes) {
    bars(c, lane.filter((t) => t.from > t.ordered), (t) => t.ordered, (t) => t.from, (t) => t.kind, (b) => {
      tell(put(c, b, y + 1.5, asideHeight - 5, { class: `queued ${kindClass[b.item.kind]}` }), b, moveTip);
    });
    bars(c, lane, (t) => t.from, (t) => t.to, (t) => t.kind, (b) => {
      const failed = b.item.how === 'failed' ? ' failed' : '';
      tell(put(c, b, y, asideHeight - 2, { class: `bar-of ${kindClass[b.item.kind]}${failed}` }), b, moveTip);
    });
    y += asideHeight;
  }
  return y;
}
function tell(rect, b, one) {
  rect.tip = (event) => (b.count > 1
    ? showTip(event, `${b.count} side by side`, [['first', b.item.name ?? b.item.data]], 'Zoom in to see each.')
    : one(event, b.item));
}
function stepTip(event, a) {
  showTip(event, a.name + (a.attempt > 1 ? `, attempt ${a.attempt}` : ''), [
    ['from, to', `${time(a.from)} – ${time(a.to)}`], ['run', time(a.wall)], ['prepare, commit', `${time(a.prepare)}, ${time(a.commit)}`],
    ['staged, waited before', `${time(a.there - a.assigned)}, ${time(a.from - a.there)}`],
    ['CPU user, system', `${time(a.user)}, ${time(a.system)}`], ['read, written', `${size(a.read)}, ${size(a.written)}`],
    ['inputs', `${size(a.input)}, ${size(a.retained)} in place`], ['estimated I/O, compute', `${time(a.io)}, ${time(a.compute)}`],
  ], a.how === 'committed' ? '' : a.how);
}
function waitTip(event, a) {
  showTip(event, `${a.name}, before it ran`, [['placed at', time(a.assigned)], ['staging', time(a.there - a.assigned)], ['waiting for cores', time(a.from - a.there)]]);
}
function moveTip(event, t) {
  showTip(event, `${t.id}  ${t.data}`, [
    ['kind', run.kinds[t.kind]], ['from', t.source], ['to', t.target], ['bytes', size(t.bytes)],
    ['queued', time(t.from - t.ordered)], ['moving', time(t.to - t.from)], ['rate', t.how === 'done' ? rate(t.bytes, t.to - t.from) : t.how],
  ], t.why);
}
function drawTimeline() {
  const top = 22;
  const c = canvas(box, top + drawnRows.reduce((sum, r) => sum + r.height, 0) + 4);
  c.svg.setAttribute('aria-label', 'Timeline by node; the tables below hold the same');
  let y = top;
  drawnRows.forEach((row, n) => {
    if (n % 2) make('rect', { class: 'band', x: 0, y, width: c.width, height: row.height }, c.svg);
    y += row.height;
  });
  axis(c, top, y);
  y = top;
  for (const row of drawnRows) {
    let at = drawSteps(c, row, y + 6);
    make('text', { class: 'name', x: 8, y: y + 19 }, c.svg, row.node.name.length > 16 ? `${row.node.name.slice(0, 15)}…` : row.node.name);
    const label = (lanes, text) => lanes.length && make('text', { x: side - 8, y: at + 7, 'text-anchor': 'end' }, c.svg, text);
    if (!asCurves) label(row.waiting, 'before');
    at = drawWaiting(c, row, at);
    label(row.entering, 'in');
    at = drawTransfers(c, row.entering, at);
    label(row.leaving, 'out');
    drawTransfers(c, row.leaving, at);
    y += row.height;
    make('line', { class: 'rule', x1: 0, x2: c.width, y1: y, y2: y }, c.svg);
  }
  box.replaceChildren(c.svg);
  follow(c);
}

const legend = byId('legend');
function legendItem(text, attributes) {
  const item = make('span', {}, legend);
  make('i', attributes, item);
  item.append(text);
}
if (asCurves) legendItem('busy cores', { style: '--c:var(--s0)' });
else run.steps.slice(0, 24).forEach((name, n) => legendItem(name, { style: `--c:${colourOf(n)}` }));
if (!asCurves && run.steps.length > 24) legendItem(`and ${run.steps.length - 24} more steps`, { style: '--c:transparent' });
if (!asCurves) legendItem('staging', { class: 'stage' });
if (!asCurves) legendItem('waiting', { class: 'hatch' });
kindClass.forEach((name, n) => transfers.some((t) => t.kind === n) && legendItem(run.kinds[n], { class: name }));
if (drawnRows.length < rows.length) byId('timeline-note').append(` The ${maxNodes} busiest of ${rows.length} nodes are drawn.`);
view.redraw.push(drawTimeline);
