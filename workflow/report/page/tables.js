/* The lists of a run's report. */
const none = (show) => (n) => (n ? show(n) : '·');
const nodeNames = (nodes) => nodes.map((n) => run.nodes[n]?.name ?? `n${n}`).join(', ');
const pair = (title, a, b, show) => [title, a, (_, row) => [none(show)(a(row)), b(row) ? `${b.title} ${show(b(row))}` : ''], 'n'];
const also = (title, value) => Object.assign((row) => value(row), { title });
function logLink(a) {
  return make('a', { href: a.log }, null, 'log');
}
list('attempts', [...attempts], [
  ['instance', (a) => a.name, (name, a) => [name, a.attempt > 1 ? `attempt ${a.attempt}` : '', logLink(a)]],
  ['on', (a) => nodeNames(a.nodes)],
  ['ended', (a) => a.how, null, 'state'],
  ['start', (a) => a.from, time, 'n'],
  pair('staging', (a) => a.there - a.assigned, also('waiting', (a) => a.from - a.there), time),
  pair('run', (a) => a.wall, also('commit', (a) => a.commit), time),
  pair('CPU user', (a) => a.user, also('kernel', (a) => a.system), time),
  pair('read', (a) => a.read, also('written', (a) => a.written), size),
  pair('inputs', (a) => a.input, also('in place', (a) => a.retained), size),
  ['outputs', (a) => a.output, none(size), 'n'],
], (a) => colourOf(a.step));
const rateOf = (t) => (t.how === 'done' ? rate(t.bytes, t.to - t.from) : '');
list('transfers', [...transfers], [
  ['transfer', (t) => t.id],
  ['data', (t) => t.data],
  ['kind', (t) => kindTitle[t.kind]],
  ['from, to', (t) => t.source, (from, t) => [from, `to ${t.target}`]],
  ['ended', (t) => t.how, null, 'state'],
  pair('ordered', (t) => t.ordered, also('queued', (t) => t.from - t.ordered), time),
  ['moving', (t) => t.to - t.from, none(time), 'n'],
  ['bytes', (t) => t.bytes, (bytes, t) => [none(size)(bytes), rateOf(t)], 'n'],
  ['why', (t) => t.why, null, 'wide'],
], (t) => `var(--${kindClass[t.kind]})`);
