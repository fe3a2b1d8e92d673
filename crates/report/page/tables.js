/* Rows that a list begins with; each `more` shows four times as many. */
const page = 25;
function byValue(a, b) {
  return typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b), 'en', { numeric: true });
}
function onHead(table, sort) {
  table.tHead.querySelectorAll('th').forEach((th, column, all) => {
    th.tabIndex = 0;
    const act = () => {
      const down = th.ariaSort ? th.ariaSort === 'ascending' : th.classList.contains('n');
      all.forEach((other) => other.removeAttribute('aria-sort'));
      th.setAttribute('aria-sort', down ? 'descending' : 'ascending');
      sort(column, down ? -1 : 1);
    };
    th.addEventListener('click', act);
    th.addEventListener('keydown', (event) => (event.key === 'Enter' || event.key === ' ') && (event.preventDefault(), act()));
  });
}

/* Tables that Rust wrote. */
document.querySelectorAll('table.sortable').forEach((table) => {
  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
  };
  onHead(table, (column, sign) => {
    const sorted = [...table.tBodies[0].rows].sort((a, b) => sign * byValue(value(a, column), value(b, column)));
    table.tBodies[0].append(...sorted);
  });
});

/* Tables that are too long to be written out: columns of [title, value, how it is shown, class]. */
function list(id, rows, columns, colour) {
  const table = byId(id);
  const head = make('tr', {}, make('thead', {}, table));
  columns.forEach(([title, , , css]) => make('th', css === 'n' ? { class: 'n' } : {}, head, title));
  const body = make('tbody', {}, table);
  const more = byId(`${id}-more`);
  let shown = rows;
  let count = page;
  const draw = () => {
    body.replaceChildren();
    for (const row of shown.slice(0, count)) {
      const tr = make('tr', {}, body);
      columns.forEach(([, value, show, css], at) => {
        const raw = value(row);
        const td = make('td', css ? { class: css } : {}, tr);
        if (at === 0) make('i', { class: 'dot', style: `--c:${colour(row)}` }, td);
        td.append(show ? show(raw) : raw);
        if (css === 'state') td.className = `state-${raw}`;
      });
    }
    more.hidden = shown.length <= count;
    more.textContent = `show ${Math.min(3 * count, shown.length - count)} of ${shown.length - count} more`;
  };
  more.addEventListener('click', () => { count *= 4; draw(); });
  onHead(table, (column, sign) => {
    const value = columns[column][1];
    rows.sort((a, b) => sign * byValue(value(a), value(b)));
    find();
  });
  const find = () => {
    const wanted = byId(`${id}-find`).value.trim().toLowerCase();
    const hit = (row) => columns.some(([, value]) => String(value(row)).toLowerCase().includes(wanted));
    shown = wanted ? rows.filter(hit) : rows;
    count = page;
    draw();
  };
  byId(`${id}-find`).addEventListener('input', find);
  draw();
}
const none = (show) => (n) => (n ? show(n) : '·');
const nodeNames = (nodes) => nodes.map((n) => run.nodes[n]?.name ?? `n${n}`).join(', ');
list('attempts', [...attempts], [
  ['instance', (a) => a.name],
  ['attempt', (a) => a.attempt, String, 'n'],
  ['on', (a) => nodeNames(a.nodes)],
  ['ended', (a) => a.how, null, 'state'],
  ['start', (a) => a.from, time, 'n'],
  ['staging', (a) => a.there - a.assigned, none(time), 'n'],
  ['waiting', (a) => a.from - a.there, none(time), 'n'],
  ['run', (a) => a.wall, none(time), 'n'],
  ['commit', (a) => a.commit, none(time), 'n'],
  ['CPU user', (a) => a.user, none(time), 'n'],
  ['CPU system', (a) => a.system, none(time), 'n'],
  ['read', (a) => a.read, none(size), 'n'],
  ['written', (a) => a.written, none(size), 'n'],
  ['inputs', (a) => a.input, none(size), 'n'],
  ['in place', (a) => a.retained, none(size), 'n'],
  ['outputs', (a) => a.output, none(size), 'n'],
], (a) => colourOf(a.step));
list('transfers', [...transfers], [
  ['transfer', (t) => t.id],
  ['data', (t) => t.data],
  ['kind', (t) => run.kinds[t.kind]],
  ['from', (t) => t.source],
  ['to', (t) => t.target],
  ['ended', (t) => t.how, null, 'state'],
  ['ordered', (t) => t.ordered, time, 'n'],
  ['queued', (t) => t.from - t.ordered, none(time), 'n'],
  ['moving', (t) => t.to - t.from, none(time), 'n'],
  ['bytes', (t) => t.bytes, none(size), 'n'],
  ['rate', (t) => (t.how === 'done' && t.to > t.from ? t.bytes / (t.to - t.from) : 0), none((r) => `${size(r * 1e6)}/s`), 'n'],
  ['why', (t) => t.why, null, 'wide'],
], (t) => `var(--${kindClass[t.kind]})`);
