/* Beyond so many lanes in all, a node is one curve of busy cores; beyond so many nodes, the busiest are drawn. */
const maxLanes = 120;
const maxNodes = 64;
/* Rows for what stands aside of the cores: it may overlap in the last one. */
const maxAside = 3;
const laneHeight = 20;
/* High enough for the label of one row. */
const asideHeight = 14;
const asideBar = 8;
const laneGap = 4;
/* On a phone a node's name has a line of its own. */
const nameHeight = 18;
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
  r.height = (asCurves ? curveHeight : Math.max(1, r.lanes.length) * laneHeight) + aside * asideHeight + laneGap + 12;
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
      setTip(rect, b, stepTip);
      const room = Math.floor((b.end - b.x - 8) / 7);
      if (b.count > 1 || room < 3) return;
      make('text', { class: 'in-bar', x: b.x + 4, y: y + 14 }, c.svg, shorten(b.item.name, room));
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
  for (const lane of row.waiting) {
    bars(c, lane, (a) => a.assigned, (a) => a.there, () => 0, (b) => setTip(put(c, b, y + 3, asideBar, { class: 'staging' }), b, waitTip));
    bars(c, lane, (a) => a.there, (a) => a.from, () => 0, (b) => setTip(put(c, b, y + 3, asideBar, { class: 'waiting' }), b, waitTip));
    y += asideHeight;
  }
  return y;
}
function drawTransfers(c, lanes, y) {
  for (const lane of lanes) {
    bars(c, lane.filter((t) => t.from > t.ordered), (t) => t.ordered, (t) => t.from, (t) => t.kind, (b) => {
      setTip(put(c, b, y + 5, asideBar - 4, { class: `queued ${kindClass[b.item.kind]}` }), b, moveTip);
    });
    bars(c, lane, (t) => t.from, (t) => t.to, (t) => t.kind, (b) => {
      const failed = b.item.how === 'failed' ? ' failed' : '';
      setTip(put(c, b, y + 3, asideBar, { class: `bar-of ${kindClass[b.item.kind]}${failed}` }), b, moveTip);
    });
    y += asideHeight;
  }
  return y;
}
function setTip(rect, b, one) {
  rect.tip = (event) => (b.count > 1
    ? showTip(event, `${b.count} side by side`, [['first', b.item.name ?? b.item.data]], 'Zoom in to see each.')
    : one(event, b.item));
}
function stepTip(event, a) {
  showTip(event, a.name + (a.attempt > 1 ? `, attempt ${a.attempt}` : ''), [
    ['from, to', `${time(a.from)} – ${time(a.to)}`], ['run', time(a.wall)], ['prepare, commit', `${time(a.prepare)}, ${time(a.commit)}`],
    ['staged, waited before', `${time(a.there - a.assigned)}, ${time(a.from - a.there)}`],
    ['CPU user, system', `${time(a.user)}, ${time(a.system)}`], ['read, written', `${size(a.read)}, ${size(a.written)}`],
    ['inputs', `${size(a.input)}, ${size(a.retained)} in place`],
  ], a.how === 'committed' ? '' : a.how);
}
function waitTip(event, a) {
  showTip(event, `${a.name}, before it ran`, [['placed at', time(a.assigned)], ['staging', time(a.there - a.assigned)], ['waiting for cores', time(a.from - a.there)]]);
}
function moveTip(event, t) {
  showTip(event, `${t.id}  ${t.data}`, [
    ['kind', kindTitle[t.kind]], ['from', t.source], ['to', t.target], ['bytes', size(t.bytes)],
    ['queued', time(t.from - t.ordered)], ['moving', time(t.to - t.from)], ['rate', t.how === 'done' ? rate(t.bytes, t.to - t.from) : t.how],
  ], t.why);
}
function drawTimeline() {
  const top = axisHeight;
  const head = isNarrow(box) ? nameHeight : 0;
  const c = canvas(box, top + drawnRows.reduce((sum, r) => sum + r.height + head, 0) + 4, 52);
  c.svg.setAttribute('aria-label', 'Timeline by node; the tables below hold the same');
  let y = top;
  drawnRows.forEach((row, n) => {
    if (n % 2) make('rect', { class: 'band', x: 0, y, width: c.width, height: row.height + head }, c.svg);
    y += row.height + head;
  });
  axis(c, top, y);
  y = top;
  for (const row of drawnRows) {
    const most = head ? 40 : 15;
    const name = row.node.name.length > most ? `${row.node.name.slice(0, most - 1)}…` : row.node.name;
    make('text', { class: 'name', x: 8, y: y + 19 }, c.svg, name);
    let at = drawSteps(c, row, y + 4 + head);
    const label = (lanes, text) => lanes.length && make('text', { x: side - 8, y: at + 11, 'text-anchor': 'end' }, c.svg, text);
    if (!asCurves) {
      at += laneGap;
      label(row.waiting, 'before');
      at = drawWaiting(c, row, at);
    }
    label(row.entering, 'in');
    at = drawTransfers(c, row.entering, at);
    label(row.leaving, 'out');
    drawTransfers(c, row.leaving, at);
    y += row.height + head;
    make('line', { class: 'rule', x1: 0, x2: c.width, y1: y, y2: y }, c.svg);
  }
  box.replaceChildren(c.svg);
  follow(c);
}

function legend(id, title, items) {
  const place = byId(id);
  if (!items.length) return;
  make('b', {}, place, title);
  for (const [text, attributes] of items) {
    const item = make('span', {}, place);
    make('i', attributes, item);
    item.append(text);
  }
}
const maxNamed = 24;
const named = run.steps.slice(0, maxNamed).map((name, n) => [name, { style: `--c:${colourOf(n)}` }]);
if (run.steps.length > maxNamed) named.push([`and ${run.steps.length - maxNamed} more`, { style: '--c:transparent' }]);
legend('legend-steps', 'Steps', asCurves ? [['busy cores', { style: '--c:var(--step7)' }]] : named);
if (!asCurves) legend('legend-before', 'Before a step', [['staging its inputs', { class: 'stage' }], ['waiting for cores', { class: 'hatch' }]]);
const moved = kindClass.map((css, n) => [kindTitle[n], { class: css }]);
legend('legend-moves', 'Data transfers', moved.filter((_, n) => transfers.some((t) => t.kind === n)));
if (drawnRows.length < rows.length) byId('timeline-note').append(` The ${maxNodes} busiest of ${rows.length} nodes are drawn.`);
view.redraw.push(drawTimeline);
