/* Charts over time: the window of it that they share. `run.end` is its length in microseconds. */
const day = 86400e6;
/* The window of time that both charts show, in microseconds. */
const whole = Math.max(run.end, 1);
Object.assign(view, { from: 0, to: whole });
const smallest = Math.max(whole / 1e5, 10);
function look(from, to) {
  const width = Math.min(Math.max(to - from, smallest), whole);
  view.from = Math.min(Math.max(from, 0), whole - width);
  view.to = view.from + width;
  if (view.pending) return;
  view.pending = requestAnimationFrame(() => {
    view.pending = 0;
    view.redraw.forEach((draw) => draw());
  });
}
function zoom(factor, at = (view.from + view.to) / 2) {
  look(at - (at - view.from) * factor, at + (view.to - at) * factor);
}

/* Both charts: a column of names, then time. */
const wideSide = 118;
let side = wideSide;
const right = 14;
const scale = (width) => {
  const per = (width - side - right) / (view.to - view.from);
  return { x: (t) => side + (t - view.from) * per, t: (x) => view.from + (x - side) / per };
};
/* Above some hundred seconds, ticks are at whole minutes, hours or days. */
const longSteps = [300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400].map((s) => s * 1e6);
function ticks(width) {
  const about = (view.to - view.from) / Math.max(2, (width - side) / (width < 600 ? 70 : 110));
  const long = about > 200e6;
  const power = 10 ** Math.floor(Math.log10(about));
  const steps = long ? longSteps : [1, 2, 5, 10].map((m) => m * power);
  const step = steps.find((s) => s >= about) ?? Math.ceil(about / day) * day;
  const digits = Math.max(0, Math.ceil(-Math.log10(step / 1e6) - 1e-9));
  const list = [];
  for (let n = Math.ceil(view.from / step); n * step <= view.to; n += 1) list.push(n * step);
  return list.map((t) => [t, long ? longTime(t) : `${(t / 1e6).toFixed(digits)} s`]);
}
function longTime(us) {
  const minutes = Math.round(us / 60e6);
  const [d, h, m] = [Math.floor(minutes / 1440), Math.floor(minutes / 60) % 24, minutes % 60];
  return [d && `${d}d`, h && `${h}h`, m && `${m}m`].filter(Boolean).join(' ') || '0';
}
/* `narrowSide`: pixels of the column of names on a phone. */
function canvas(box, height, narrowSide) {
  const width = Math.max(widthOf(box), 300);
  side = isNarrow(box) ? narrowSide : wideSide;
  const svg = make('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img' });
  return { svg, width, ...scale(width) };
}
/* Space above a chart: seconds since the start, and the clock where it is known. */
const axisHeight = run.started === undefined || run.started === null ? 22 : 36;
function clockTime(us, seconds) {
  const text = new Date(run.started * 1000 + us / 1000).toISOString();
  return whole > day ? `${text.slice(5, 10)} ${text.slice(11, 16)}` : text.slice(11, seconds ? 19 : 16);
}
function axis(c, top, bottom) {
  const list = ticks(c.width);
  const isClock = axisHeight > 22;
  const isFine = list.length > 1 && list[1][0] - list[0][0] < 60e6;
  let before = '';
  for (const [t, label] of list) {
    const x = c.x(t);
    const edge = x < 28 ? 'start' : x > c.width - 32 ? 'end' : 'middle';
    const at = { x: edge === 'start' ? 0 : Math.min(x, c.width - 2), 'text-anchor': edge };
    make('line', { class: 'grid', x1: x, x2: x, y1: top, y2: bottom }, c.svg);
    make('text', { ...at, y: top - (isClock ? 20 : 6) }, c.svg, label);
    const clock = isClock ? clockTime(t, isFine) : '';
    if (clock !== before) make('text', { ...at, class: 'clock', y: top - 6 }, c.svg, clock);
    before = clock;
  }
  if (isClock && side === wideSide) make('text', { class: 'clock', x: 8, y: top - 6 }, c.svg, 'UTC');
}

/* Wheel, drag and tooltip, for both charts. */
function follow(c) {
  c.svg.addEventListener('pointermove', (event) => {
    if (view.drag) {
      const by = (view.drag.x - event.clientX) * view.drag.per;
      return look(view.drag.from + by, view.drag.to + by);
    }
    if (event.target.tip) event.target.tip(event);
    else tip.hidden = true;
  });
  c.svg.addEventListener('pointerleave', () => { tip.hidden = true; });
  c.svg.addEventListener('pointerdown', (event) => {
    const shown = c.svg.getBoundingClientRect().width * ((c.width - side - right) / c.width);
    view.drag = { x: event.clientX, from: view.from, to: view.to, per: (view.to - view.from) / shown };
    tip.hidden = true;
  });
  c.svg.addEventListener('wheel', (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(Math.exp(event.deltaY * 0.002), c.t(pointerX(event, c)));
  }, { passive: false });
}
window.addEventListener('pointerup', () => { view.drag = null; });
byId('zoom-in').addEventListener('click', () => zoom(0.5));
byId('zoom-out').addEventListener('click', () => zoom(2));
byId('zoom-all').addEventListener('click', () => look(0, whole));
