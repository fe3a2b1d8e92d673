const byId = (id) => document.getElementById(id);
const run = JSON.parse(byId('tarn-run').textContent);

/* Rows come as arrays; these are their columns, as workflow/report/src/html/data.rs writes them. */
const attempts = run.attempts.map((r) => ({
  step: r[0], name: r[1], attempt: r[2], nodes: r[3], cores: r[4], assigned: r[5], there: r[6], from: r[7], to: r[8],
  how: r[9], prepare: r[10], wall: r[11], commit: r[12], user: r[13], system: r[14], read: r[15], written: r[16],
  input: r[17], retained: r[18], output: r[19], log: r[20],
}));
const transfers = run.transfers.map((r) => ({
  id: r[0], data: r[1], kind: r[2], leaves: r[3], enters: r[4], source: r[5], target: r[6], ordered: r[7], from: r[8],
  to: r[9], bytes: r[10], how: r[11], why: run.texts[r[12]],
}));
const kindClass = ['ext-in', 'ext-out', 'peer', 'promote', 'demote'];
const stepColours = 10;
const colourOf = (step) => `var(--step${step % stepColours})`;
const kindTitle = ['external in', 'external out', 'between nodes', 'to a faster tier', 'to a slower tier'];
