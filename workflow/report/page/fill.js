/* Tiers that are drawn at most, those that held most; of the others the table of nodes in the JSON tells. */
const maxTiers = 48;
const tierHeight = 78;
/* On a phone the text of a tier has two lines above its curve. */
const tierHead = 36;
const fillBox = byId('fill');
const tiers = run.nodes.flatMap((node) => node.tiers.map((tier) => ({ node: node.name, ...tier })));
const usedTiers = tiers.filter((t) => t.peak > 0);
const drawnTiers = usedTiers.length > maxTiers
  ? [...usedTiers].sort((a, b) => b.peak - a.peak).slice(0, maxTiers)
  : usedTiers;

/* A step curve from `points` (time, value from then on), 0 before the first. */
function curve(c, points, level, start) {
  const clamp = (t) => Math.min(Math.max(c.x(t), side), c.width - right).toFixed(2);
  let path = `M${side} ${start.toFixed(2)}`;
  for (const [t, bytes] of points) path += `H${clamp(t)}V${level(bytes).toFixed(2)}`;
  return `${path}H${c.width - right}`;
}
/* The next round number of bytes: 1, 2 or 5 times a power of ten of a unit. */
function roundBytes(bytes) {
  let unit = 1;
  while (bytes >= 1000 * unit) unit *= 1024;
  const power = 10 ** Math.floor(Math.log10(Math.max(bytes / unit, 1)));
  const step = [1, 2, 5, 10].find((m) => m * power * unit >= bytes) ?? 10;
  return step * power * unit;
}
const shortSize = (bytes) => size(bytes).replace('.00', '');
/* Peak against capacity, in words and as a bar of the capacity's length. */
function drawShare(c, tier, capacity, x, y, head) {
  const share = capacity > 0 ? tier.peak / capacity : 1;
  const percent = share > 0 && share < 0.01 ? '< 1 %' : `${Math.round(share * 100)} %`;
  const length = 96;
  const bar = { x: head ? c.width - right - length : x, y: head ? y + 8 : y + 56, height: 7, rx: 2 };
  const of = `${percent} of ${size(capacity)}`;
  make('text', { class: 'name', x, y: y + 17 }, c.svg, `${tier.node} ${tier.name}`.slice(0, head ? 32 : 15));
  make('text', { x, y: y + 33 }, c.svg, head ? `peak ${size(tier.peak)}, ${of}` : `peak ${size(tier.peak)}`);
  if (!head) make('text', { x, y: y + 48 }, c.svg, of);
  make('rect', { ...bar, class: 'gauge', width: length }, c.svg);
  make('rect', { ...bar, class: 'held', width: Math.max(1, Math.min(share, 1) * length) }, c.svg);
}
function drawTier(c, tier, y, head) {
  const capacity = Math.max(...tier.capacity.map((p) => p[1]));
  /* Up to its own peak; the capacity is drawn where it is near, and written in any case. */
  const most = roundBytes(Math.max(tier.peak <= capacity / 2 ? tier.peak : Math.max(capacity, tier.peak), 1));
  const bottom = y + head + tierHeight - 8;
  const level = (bytes) => bottom - (Math.min(bytes, most) / most) * (tierHeight - 24);
  for (const [bytes, label] of [[most, shortSize(most)], [0, '0']]) {
    make('line', { class: 'grid', x1: side, x2: c.width - right, y1: level(bytes), y2: level(bytes) }, c.svg);
    if (bytes) make('text', { class: 'scale', x: side + 4, y: level(bytes) - 4 }, c.svg, label);
  }
  const area = make('path', {
    class: 'area', d: `${curve(c, tier.fill, level, level(0))}V${level(0)}Z`,
  }, c.svg);
  if (capacity <= most) {
    make('path', { class: 'limit', d: curve(c, tier.capacity, level, level(tier.capacity[0][1])) }, c.svg);
    make('text', { x: c.width - right - 4, y: level(capacity) - 4, 'text-anchor': 'end' }, c.svg, 'capacity');
  }
  drawShare(c, tier, capacity, head ? 0 : 8, y, head);
  area.tip = (event) => {
    const t = c.t(pointerX(event, c));
    const held = tier.fill.findLast((p) => p[0] <= t)?.[1] ?? 0;
    const limit = tier.capacity.findLast((p) => p[0] <= t)?.[1] ?? capacity;
    showTip(event, `${tier.node} ${tier.name}`, [['at', time(t)], ['held', size(held)], ['capacity', size(limit)]]);
  };
}
function drawFill() {
  const top = axisHeight;
  const head = isNarrow(fillBox) ? tierHead : 0;
  const each = tierHeight + head;
  const c = canvas(fillBox, top + drawnTiers.length * each + 4, 8);
  c.svg.setAttribute('aria-label', 'Bytes held by each tier over time');
  axis(c, top, top + drawnTiers.length * each);
  drawnTiers.forEach((tier, n) => {
    drawTier(c, tier, top + n * each, head);
    make('line', { class: 'rule', x1: 0, x2: c.width, y1: top + (n + 1) * each, y2: top + (n + 1) * each }, c.svg);
  });
  fillBox.replaceChildren(c.svg);
  follow(c);
}
const empty = tiers.length - usedTiers.length;
const notDrawn = usedTiers.length - drawnTiers.length;
byId('fill-note').textContent = [
  empty ? `${empty} of ${tiers.length} tiers held nothing of this run.` : '',
  notDrawn ? `The ${maxTiers} fullest are drawn.` : '',
].join(' ').trim();
if (drawnTiers.length) view.redraw.push(drawFill);
else byId('fill-note').textContent = 'Nothing was kept on any tier.';
