const byId = (id) => document.getElementById(id);
const run = JSON.parse(byId('tarn-run').textContent);

/* Rows come as arrays; these are their columns, as crates/report/src/html/data.rs writes them. */
const attempts = run.attempts.map((r) => ({
  step: r[0], name: r[1], attempt: r[2], nodes: r[3], cores: r[4], assigned: r[5], there: r[6], from: r[7], to: r[8],
  how: r[9], prepare: r[10], wall: r[11], commit: r[12], user: r[13], system: r[14], read: r[15], written: r[16],
  input: r[17], retained: r[18], output: r[19], io: r[20], compute: r[21],
}));
const transfers = run.transfers.map((r) => ({
  id: r[0], data: r[1], kind: r[2], leaves: r[3], enters: r[4], source: r[5], target: r[6], ordered: r[7], from: r[8],
  to: r[9], bytes: r[10], how: r[11], why: run.texts[r[12]],
}));
const kindClass = ['ext-in', 'ext-out', 'peer', 'promote', 'demote'];
const stepColours = 10;
const colourOf = (step) => `var(--s${step % stepColours})`;

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
function ticks(width) {
  const about = (view.to - view.from) / Math.max(2, (width - side) / 110);
  const power = 10 ** Math.floor(Math.log10(about));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= about);
  const list = [];
  for (let n = Math.ceil(view.from / step); n * step <= view.to; n += 1) list.push(n * step);
  const digits = Math.max(0, Math.ceil(-Math.log10(step / 1e6) - 1e-9));
  return list.map((t) => [t, `${(t / 1e6).toFixed(digits)} s`]);
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
