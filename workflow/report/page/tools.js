/* What every page needs. */

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
  const svg = ['svg', 'rect', 'line', 'path', 'text', 'g'].includes(name);
  const node = svg ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

/* What is drawn, again after each change of the window's width. */
const view = { redraw: [] };
/* Pixels that a chart has: on paper a fixed width, so that its text keeps its size. */
const widthOf = (box) => view.paper ?? box.clientWidth;
const isNarrow = (box) => widthOf(box) < 600;

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
