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

/* Tables that are too long to be written out: columns of [title, value, how it and its row are shown, class]. What
   is shown is a text or a link, or a list of such, of which the later ones stand in small lines below. */
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
        td.dataset.label = columns[at][0];
        const [first, ...below] = [show ? show(raw, row) : raw].flat();
        td.append(first);
        below.filter((text) => text).forEach((text) => make('small', {}, td).append(text));
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
    const text = (row) => Object.values(row).join(' ').toLowerCase();
    const hit = (row) => text(row).includes(wanted) || columns.some(([, value]) => String(value(row)).toLowerCase().includes(wanted));
    shown = wanted ? rows.filter(hit) : rows;
    count = page;
    draw();
  };
  byId(`${id}-find`).addEventListener('input', find);
  draw();
}
