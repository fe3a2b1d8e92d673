/* What every page needs. `run.end` is its length in microseconds. */

/* Bytes and microseconds for people, as tarn prints them. */
function size(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
  let unit = 0;
  for (; bytes >= 1024 && unit + 1 < units.length; unit += 1) bytes /= 1024;
  return unit === 0 ? `${Math.round(bytes)} B` : `${bytes.toFixed(2)} ${units[unit]}`;
}
function time(us) {
  const s = us / 1e6;
  if (us < 1e3) return `${Math.round(us)} us`;
  if (us < 1e6) return `${Math.round(us / 1e3)} ms`;
  if (s < 60) return `${s.toFixed(2)} s`;
  const two = (n) => String(Math.floor(n)).padStart(2, '0');
  if (s < 3600) return `${Math.floor(s / 60)}m ${two(s % 60)}s`;
  return `${Math.floor(s / 3600)}h ${two((s / 60) % 60)}m`;
}
const rate = (bytes, us) => (us > 0 ? `${size((bytes / us) * 1e6)}/s` : '');

function make(name, attributes, parent, text) {
  const svg = ['svg', 'rect', 'line', 'path', 'text'].includes(name);
  const node = svg ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

/* The window of time that both charts show, in microseconds. */
const whole = Math.max(run.end, 1);
const view = { from: 0, to: whole, redraw: [] };
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
const side = 118;
const right = 14;
const scale = (width) => {
  const per = (width - side - right) / (view.to - view.from);
  return { x: (t) => side + (t - view.from) * per, t: (x) => view.from + (x - side) / per };
};
/* Above some hundred seconds, ticks are at whole minutes, hours or days. */
const longSteps = [300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400].map((s) => s * 1e6);
const day = 86400e6;
function ticks(width) {
  const about = (view.to - view.from) / Math.max(2, (width - side) / 110);
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
function canvas(box, height) {
  const width = Math.max(box.clientWidth, 480);
  const svg = make('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img' });
  return { svg, width, ...scale(width) };
}
function axis(c, top, bottom) {
  for (const [t, label] of ticks(c.width)) {
    make('line', { class: 'grid', x1: c.x(t), x2: c.x(t), y1: top, y2: bottom }, c.svg);
    make('text', { x: c.x(t), y: top - 6, 'text-anchor': 'middle' }, c.svg, label);
  }
}

/* A box that follows the pointer: a title, pairs, a sentence. */
const tip = make('div', { class: 'tip', hidden: '' }, document.body);
function showTip(event, title, pairs, sentence) {
  tip.replaceChildren(make('b', {}, null, title));
  for (const [key, value] of pairs) {
    const row = make('div', {}, tip);
    make('span', {}, row, key);
    make('span', {}, row, value);
  }
  if (sentence) make('p', {}, tip, sentence);
  tip.hidden = false;
  const x = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
  const below = event.clientY + 18 + tip.offsetHeight < window.innerHeight;
  tip.style.left = `${Math.max(8, x)}px`;
  tip.style.top = `${below ? event.clientY + 18 : Math.max(8, event.clientY - tip.offsetHeight - 12)}px`;
}

/* First-fit lanes, so that nothing in one lane overlaps; beyond `most` lanes, the last one takes the rest. */
function pack(items, from, to, most = Infinity) {
  const lanes = [];
  const ends = [];
  for (const item of [...items].sort((a, b) => from(a) - from(b))) {
    let at = ends.findIndex((end) => end <= from(item));
    if (at < 0) at = Math.min(lanes.length, most - 1);
    if (!lanes[at]) lanes[at] = [];
    lanes[at].push(item);
    ends[at] = Math.max(ends[at] ?? 0, to(item));
  }
  return lanes;
}
const pointerX = (event, c) => {
  const r = c.svg.getBoundingClientRect();
  return ((event.clientX - r.left) / r.width) * c.width;
};

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
