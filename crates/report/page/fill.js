/* Tiers that are drawn at most, those that held most; of the others the table of nodes in the JSON tells. */
const maxTiers = 48;
const tierHeight = 62;
const tierColours = ['var(--retained)', 'var(--peer)', 'var(--promote)', 'var(--ext-in)'];
const fillBox = byId('fill');
const tiers = run.nodes.flatMap((node) => node.tiers.map((tier, level) => ({ node: node.name, level, ...tier })));
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
function drawTier(c, tier, y) {
  const capacity = Math.max(...tier.capacity.map((p) => p[1]));
  /* A tier that is nearly empty is drawn to its own peak; the capacity then stands at the edge, and says so. */
  const fits = tier.peak * 5 >= capacity;
  const most = (fits ? Math.max(capacity, tier.peak) : tier.peak * 1.25) || 1;
  const bottom = y + tierHeight - 8;
  const level = (bytes) => bottom - (Math.min(bytes, most) / most) * (tierHeight - 20);
  const area = make('path', {
    class: 'area', style: `--c:${tierColours[tier.level % tierColours.length]}`,
    d: `${curve(c, tier.fill, level, level(0))}V${level(0)}Z`,
  }, c.svg);
  if (fits) make('path', { class: 'limit', d: curve(c, tier.capacity, level, level(tier.capacity[0][1])) }, c.svg);
  else make('line', { class: 'limit', x1: side, x2: c.width - right, y1: y + 5, y2: y + 5 }, c.svg);
  const said = fits ? `capacity ${size(capacity)}` : `capacity ${size(capacity)}, not to scale`;
  make('text', { x: c.width - right - 4, y: fits ? level(capacity) - 3 : y + 16, 'text-anchor': 'end' }, c.svg, said);
  make('text', { class: 'name', x: 8, y: y + 22 }, c.svg, `${tier.node} ${tier.name}`.slice(0, 17));
  make('text', { x: 8, y: y + 38 }, c.svg, `peak ${size(tier.peak)}`);
  area.tip = (event) => {
    const t = c.t(pointerX(event, c));
    const held = tier.fill.findLast((p) => p[0] <= t)?.[1] ?? 0;
    const limit = tier.capacity.findLast((p) => p[0] <= t)?.[1] ?? capacity;
    showTip(event, `${tier.node} ${tier.name}`, [['at', time(t)], ['held', size(held)], ['capacity', size(limit)]]);
  };
}
function drawFill() {
  const top = 22;
  const c = canvas(fillBox, top + drawnTiers.length * tierHeight + 4);
  c.svg.setAttribute('aria-label', 'Bytes held by each tier over time');
  axis(c, top, top + drawnTiers.length * tierHeight);
  drawnTiers.forEach((tier, n) => {
    drawTier(c, tier, top + n * tierHeight);
    make('line', { class: 'rule', x1: 0, x2: c.width, y1: top + (n + 1) * tierHeight, y2: top + (n + 1) * tierHeight }, c.svg);
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
