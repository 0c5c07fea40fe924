// The live page: asks this node's JSON endpoints, one request at a time, and draws what they say.
//
// Everything that comes from the network is put in as text (textContent), never as markup. All history is bounded and
// lives in this tab. Addresses are relative: the page speaks to nobody but the node that served it.
"use strict";

const PERIOD_MS = 1000;         // between two rounds of questions
const HIDDEN_PERIOD_MS = 5000;  // while nobody looks at the tab
const BACK_OFF_MAX_MS = 8000;
const ANSWER_TIMEOUT_MS = 6000;
const HISTORY_MS = 10 * 60 * 1000;
const SAMPLES_MAX = 700;
const EVENTS_MAX = 200;
const EVENTS_SHOWN = 60;
const MARKS_MAX = 40;
const CELLS_MAX = 480;         // of a node's row; with more shards a cell stands for several
const ROWS_MAX = 256;
const RATE_MS = 5000;          // rates are taken over this time
const NUMBERS = ["training", "verified", "durable", "published"];

const VERDICTS = {
  good: ["✓", "ALL GOOD"], degraded: ["▲", "DEGRADED"], stopped: ["■", "STOPPED"],
  waiting: ["○", "WAITING"], silent: ["✕", "NO ANSWER"],
  unreadable: ["?", "UNREADABLE"],
};

const byId = (id) => document.getElementById(id);
const samples = [];   // {t, training, ..., level}
const marks = [];     // {t, text, level}
const counters = [];  // {t, nodes: {name: {frames, ...}}}
const moved = {};     // number: when it last moved
const seen = new Map();  // reason: since when the node gives it
let events = [];
let nextEvent = 0;
let lastUptime = 0;
let lastAnswer = 0;
let silentSince = 0;
let failures = 0;
let known = {level: "waiting", nodes: {}, gaps: new Set(), lineage: null};
let members = null;
let placement = null;
let round = 0;
let drawn = null;  // what the charts show
let token = "";
try { token = sessionStorage.getItem("gradtap-token") || ""; } catch (refused) { token = ""; }

// ---- small helpers

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}
// Only what changes is written: a screen reader hears the verdict once.
function put(target, value) { if (target.textContent !== value) target.textContent = value; }
function classes(target, value) { if (target.className !== value) target.className = value; }
function replace(target, children) { target.replaceChildren(...children); }

// ---- asking

class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

async function ask(path) {
  const stop = new AbortController();
  const timer = setTimeout(() => stop.abort(), ANSWER_TIMEOUT_MS);
  try {
    const options = {signal: stop.signal, cache: "no-store", credentials: "same-origin", redirect: "error"};
    if (token) options.headers = {Authorization: "Bearer " + token};
    const answer = await fetch(path, options);
    let body = null;
    try { body = await answer.json(); } catch (unreadable) { throw new Refused(answer.status, "its answer is not JSON"); }
    if (!answer.ok) {
      const error = record(record(body).error);
      throw new Refused(answer.status, `${text(error.name || answer.status)}: ${text(error.what)}`);
    }
    return record(body);
  } finally {
    clearTimeout(timer);
  }
}

// What may be missing: a node alone has no members, a node without a lineage no placement. A node that has just said its
// status and is too slow for more is not silent: what was known before stays.
async function askIfThere(path, before) {
  try {
    return await ask(path);
  } catch (error) {
    if (!(error instanceof Refused)) return before;
    if (error.status === 401 || error.status === 403) throw error;
    return null;
  }
}

async function askAll() {
  const status = await ask("v1/status");
  const now = Date.now();
  const uptime = number(status.uptime_s);
  if (uptime < lastUptime) {  // another process: its events begin anew
    nextEvent = 0;
    mark(now, "node restarted", "degraded");
  }
  lastUptime = uptime;
  lastAnswer = now;
  const job = record(list(status.jobs)[0]);
  if (round++ % 2 === 0 || known.level !== "good") {
    members = status.members ? await askIfThere("v1/nodes", members) : null;
    placement = job.shards ? await askIfThere(`v1/jobs/${encodeURIComponent(text(job.job))}/placement`, placement) : null;
  }
  const fresh = list(record(await askIfThere("v1/events?from=" + nextEvent, null)).events).map(record);
  for (const event of fresh) nextEvent = Math.max(nextEvent, number(event.seq) + 1);
  if (fresh.length) events = events.concat(fresh).slice(-EVENTS_MAX);
  return {status, job, now, freshEvents: fresh.length > 0};
}

async function turn() {
  let pause = document.hidden ? HIDDEN_PERIOD_MS : PERIOD_MS;
  try {
    const answer = await askAll();
    failures = 0;
    silentSince = 0;
    byId("token-form").hidden = true;
    classes(byId("main"), "");
    showOrSay(answer);
  } catch (error) {
    if (error instanceof Refused && (error.status === 401 || error.status === 403)) return askForToken();
    ++failures;
    pause = Math.min(BACK_OFF_MAX_MS, PERIOD_MS * 2 ** Math.min(failures - 1, 10));
    showSilence(error);
  }
  setTimeout(turn, pause);
}

function showOrSay(answer) {
  try {
    show(answer);
  } catch (error) {
    verdict("unreadable", `This page cannot show what the node says (${text(error, 200)}). Ask with gradtap status.`);
    classes(byId("main"), "stale");
    console.error(error);
  }
}

function askForToken() {
  verdict("waiting", "This node wants a read token before it shows anything.");
  classes(byId("main"), "stale");
  put(byId("token-refused"), token ? "That token was refused." : "");
  token = "";
  byId("token-form").hidden = false;
  put(byId("clock"), "");
  byId("token").focus();
}

byId("token-form").addEventListener("submit", (submitted) => {
  submitted.preventDefault();
  token = byId("token").value.trim();
  byId("token").value = "";
  // A header takes printable ASCII only.
  if (!/^[\x21-\x7e]+$/.test(token)) return askForToken();
  try { sessionStorage.setItem("gradtap-token", token); } catch (refused) { /* kept until the tab is loaded again */ }
  turn();
});

function showSilence(error) {
  if (!silentSince) {
    silentSince = lastAnswer || Date.now();
    mark(Date.now(), "no answer", "stopped");
  }
  const why = error instanceof Refused ? ` It says ${error.message}.` : "";
  const shown = lastAnswer ? " What is grey below is what it said last; another node shows the same page." : "";
  verdict("silent", `This node does not answer since ${clock(silentSince)}.${why}${shown}`);
  classes(byId("main"), "stale");
  classes(byId("pulse"), "pulse off");
  put(byId("clock"), `no answer since ${clock(silentSince)}`);
  document.title = `✕ no answer – gradtap`;
}

function verdict(level, sentence) {
  const [symbol, word] = VERDICTS[level];
  classes(byId("verdict"), "verdict " + level);
  put(byId("verdict-symbol"), symbol);
  put(byId("verdict-word"), word);
  put(byId("verdict-text"), sentence);
}

// ---- judging

function mark(t, words, level, ofNode = false) {
  marks.push({t, text: words, level, ofNode});
  if (marks.length > MARKS_MAX) marks.shift();
}

// The members with what each says of itself; a node alone is its only member.
function nodesOf(status) {
  const absent = new Set(list(status.absent).map((name) => text(name)));
  const reports = new Map();
  for (const report of [status, ...list(status.nodes).map(record)]) reports.set(text(report.node), report);
  const named = new Map(list(record(members).members).map((m) => [text(record(m).name), record(m)]));
  let found = list(status.members).map(record);
  if (!found.length) found = [{name: status.node, state: "up", tap: status.tap !== "none"}];
  return found.slice(0, ROWS_MAX).map((member) => {
    const name = text(member.name, 80);
    return {name, member, facts: named.get(name) || {}, report: reports.get(name) || null, state: stateOf(member, absent)};
  });
}

// Notes when a number moved, when nodes and reasons came and went.
function watch(job, nodes, now) {
  if (known.lineage !== null && job.lineage && known.lineage !== job.lineage) {
    mark(now, `lineage ${number(job.lineage)}`, "good");
  }
  if (job.lineage) known.lineage = job.lineage;
  const last = samples[samples.length - 1] || {};
  for (const which of NUMBERS) if (last[which] !== number(job[which]) || !moved[which]) moved[which] = now;
  const given = new Set(list(job.gaps).slice(0, GAPS_MAX).map((gap) => text(record(gap).name, 80)));
  for (const name of given) if (!seen.has(name)) seen.set(name, now);
  for (const name of [...seen.keys()]) if (!given.has(name)) seen.delete(name);
  for (const node of nodes) {
    const before = known.nodes[node.name];
    if (before && before !== node.state)
      mark(now, `${node.name} ${node.state}`, node.state === "absent" ? "stopped" : node.state === "present" ? "good" : "degraded", true);
  }
  known.nodes = Object.fromEntries(nodes.map((node) => [node.name, node.state]));
}

function remember(job, gaps, level, now) {
  const loud = new Set(gaps.filter((gap) => gap.level !== "good").map((gap) => gap.name));
  for (const name of loud) if (!known.gaps.has(name)) mark(now, name, "stopped");
  for (const name of known.gaps) if (!loud.has(name)) mark(now, name + " over", "good");
  known.gaps = loud;
  known.level = level;
  const sample = {t: now, level};
  for (const which of NUMBERS) sample[which] = number(job[which]);
  samples.push(sample);
  while (samples.length > SAMPLES_MAX || (samples.length && now - samples[0].t > HISTORY_MS)) samples.shift();
  while (marks.length && now - marks[0].t > HISTORY_MS) marks.shift();
}

// ---- showing

function show({status, job, now, freshEvents}) {
  const nodes = nodesOf(status);
  watch(job, nodes, now);
  const rate = rateOf("training", now, HISTORY_MS);
  const judged = judge(status, job, nodes, {moved, seen, stepMs: rate > 0 ? 1000 / rate : 0, now});
  remember(job, judged.gaps, judged.level, now);
  verdict(judged.level, judged.sentence);
  put(byId("job"), job.job ? `job ${text(job.job, 80)}` + (job.lineage ? `, lineage ${number(job.lineage)}` : "") : "no job");
  put(byId("seen-from"), `seen from node ${text(status.node, 80)}, up for ${span(number(status.uptime_s))}`);
  put(byId("clock"), clock(now));
  classes(byId("pulse"), "pulse on" + (round % 2 ? " beat" : ""));
  document.title = `${VERDICTS[judged.level][0]} ${number(job.published)} – gradtap ${text(job.job, 40)}`;
  showNumbers(job, now);
  showNotes(judged.notes);
  showReasons(judged.gaps, judged.level);
  drawn = {job, now};
  drawCharts(job, now);
  showNodes(status, nodes);
  showShards(nodes);
  showHandoffs();
  showFlows(nodes, now);
  if (freshEvents) showEvents();
}

function showNumbers(job, now) {
  const training = number(job.training);
  for (const which of NUMBERS) put(byId(which), job.lineage ? grouped(number(job[which])) : "–");
  for (const which of ["verified", "durable", "published"]) {
    const behind = training - number(job[which]);
    const still = now - (moved[which] || now);
    const late = behind > 0 && still >= STUCK_MS;
    const words = behind === 0 ? "level with training" : `${plural(behind, "step")} behind`;
    const stands = late ? `, stands for ${span(still / 1000)}` : "";
    put(byId(which + "-sub"), !job.lineage ? "" : (which === "published" ? "restart point, " : "") + words + stands);
    classes(byId(which + "-sub"), late ? "sub behind" : "sub");
  }
  const still = now - (moved.training || now), rate = rateOf("training", now);
  put(byId("training-sub"), !job.lineage ? "" : still > 15000 ? `stands for ${span(still / 1000)}`
    : rate > 0 ? `newest step, ${rate >= 1 ? rate.toFixed(1) + " steps/s" : (60 * rate).toFixed(1) + " steps/min"}` : "newest step seen");
}

// Steps a second.
function rateOf(which, now, over = 15000) {
  const old = samples.find((sample) => now - sample.t <= over), last = samples[samples.length - 1];
  return old && last && last.t > old.t ? (last[which] - old[which]) / ((last.t - old.t) / 1000) : 0;
}

function showNotes(notes) {
  const shown = [...new Set(notes)].slice(0, 8);
  byId("notes").hidden = !shown.length;
  replace(byId("notes"), shown.map((note) => element("li", "", note)));
}

function showReasons(gaps, level) {
  const shown = gaps.filter((gap) => gap.name !== "NONE");
  byId("why").hidden = !shown.some((gap) => gap.level !== "good");
  classes(byId("why"), "panel why " + level);
  replace(byId("reasons"), shown.map((gap) => {
    const item = element("li"), name = element("div", "name", gap.name + " ");
    name.append(element("span", "since", `concerns ${gap.which}, since step ${number(gap.since_step)}`));
    item.append(name);
    const known = Object.prototype.hasOwnProperty.call(REASONS, gap.name) ? REASONS[gap.name] : null;
    const line = (label, words, className) => {
      if (!words) return;
      const p = element("p", className);
      p.append(element("span", "label", label + " "), document.createTextNode(words));
      item.append(p);
    };
    if (known) line("What it means:", known.means, "");
    if (known) line("What to do:", known.does, "do");
    line("What the node does:", text(gap.action), "");
    line("Evidence:", text(gap.evidence), "evidence");
    return item;
  }));
}

// A cell of a table; on a phone the heading stands with it.
function cell(label, value, className, more) {
  const made = element("td", className, value);
  if (label) made.dataset.label = label;
  if (more) made.append(element("small", "", more));
  return made;
}

function showNodes(status, nodes) {
  const present = nodes.filter((node) => node.state === "present" || node.state === "draining").length;
  put(byId("nodes-sum"), `${present} of ${nodes.filter((node) => node.state !== "removed").length} present`);
  replace(byId("nodes").tBodies[0], nodes.map(({name, member, facts, report, state}) => {
    const row = element("tr", ""), job = record(list(record(report).jobs)[0]);
    row.dataset.node = name;
    row.dataset.state = state;
    const what = [name === text(status.home) ? "home of the job" : "", member.tap === false ? "no mirror" : "", text(member.domain, 60)];
    row.append(cell("", name, "name", what.filter(Boolean).join(", ")));
    const stateCell = element("td", "wide");
    stateCell.append(element("span", "state " + state.replace(" ", "-"), state));
    const waits = text(facts.waits_for || (state === "absent" ? member.last_error : ""), 160);
    if (waits) stateCell.append(element("small", "", waits));
    row.append(stateCell);
    row.append(cell("verified", report && job.lineage ? grouped(number(job.verified)) : "–"));
    row.append(cell("shards in sync", facts.assigned !== undefined ? `${number(facts.in_sync)} of ${number(facts.assigned)}`
      : report && job.shards_here !== undefined ? String(number(job.shards_here)) : "–"));
    row.append(cell("up for", report ? span(number(report.uptime_s)) : "–"));
    return row;
  }));
}

function holdersByNode() {
  const rows = new Map();
  const shards = list(record(placement).shards).map(record);
  let newest = 0;
  for (const shard of shards) for (const holder of list(shard.holders)) newest = Math.max(newest, number(record(holder).version));
  for (const shard of shards)
    for (const holder of list(shard.holders).map(record)) {
      const who = text(holder.node, 80);
      if (!rows.has(who)) rows.set(who, []);
      const kind = holder.live === false ? "lost" : holder.role === "syncing" ? "syncing" : holder.role === "releasing" ? "releasing"
        : number(holder.version) + 2 < newest ? "behind" : "in-sync";
      rows.get(who).push({shard: number(shard.shard), kind, version: holder.version, holder});
    }
  return {rows, count: shards.length};
}

const WORST = ["lost", "syncing", "behind", "releasing", "in-sync"];
const KIND_WORDS = {"in-sync": "in sync", behind: "behind", syncing: "coming", releasing: "going", lost: "node absent"};

function showShards(nodes) {
  const {rows, count} = holdersByNode();
  put(byId("shards-sum"), count ? plural(count, "shard") + (number(record(members).replicas) ? `, on ${plural(number(members.replicas), "node")} each` : "") : "none yet");
  const order = nodes.map((node) => node.name).filter((name) => rows.has(name));
  for (const name of rows.keys()) if (!order.includes(name)) order.push(name);
  replace(byId("shards"), order.slice(0, ROWS_MAX).map((name) => {
    const held = rows.get(name);
    const each = Math.ceil(held.length / CELLS_MAX);
    const row = element("div", "shard-row" + (held.length > 96 ? " many" : "")), cells = element("div", "shard-cells");
    row.dataset.node = name;
    for (let at = 0; at < held.length; at += each) {
      const group = held.slice(at, at + each);
      const worst = WORST.find((kind) => group.some((one) => one.kind === kind));
      const made = element("span", "cell " + worst);
      made.title = (each > 1 ? `shards ${group[0].shard} to ${group[group.length - 1].shard}` : `shard ${group[0].shard}`) +
        `: ${KIND_WORDS[worst]}` + (each === 1 && typeof group[0].version === "number" ? ` at step ${group[0].version}` : "");
      cells.append(made);
    }
    const sums = WORST.map((kind) => [KIND_WORDS[kind], held.filter((one) => one.kind === kind).length]).filter(([, n]) => n);
    cells.setAttribute("role", "img");
    cells.setAttribute("aria-label", `${name}: ` + sums.map(([word, n]) => `${n} ${word}`).join(", "));
    row.append(element("span", "who", name), cells);
    return row;
  }));
}

function showHandoffs() {
  const lines = [];
  const waiting = list(record(placement).shards).map(record).flatMap((shard) => list(shard.holders).map(record)
    .filter((holder) => holder.role !== "in_sync").map((holder) => ({shard: number(shard.shard), holder})));
  for (const {shard, holder} of waiting.slice(0, 6))
    lines.push(holder.role === "releasing"
      ? `shard ${shard} leaves ${text(holder.node, 80)}` + (holder.waits_for ? `: waits for ${text(holder.waits_for, 120)}` : "")
      : `shard ${shard} ${holder.live === false ? "waits for" : "comes to"} ${text(holder.node, 80)}` +
        (typeof holder.version === "number" ? `, it has step ${holder.version}` : ""));
  if (waiting.length > 6) lines.push(`and ${waiting.length - 6} more`);
  if (!waiting.length) lines.push("none under way");
  for (const member of list(record(members).members).map(record))
    if (number(member.bytes_left)) lines.push(`${text(member.name, 80)} still needs ${(number(member.bytes_left) / 1048576).toFixed(1)} MiB`);
  if (record(members).epoch !== undefined) lines.push(`map ${number(members.epoch)}: ${text(members.cause, 160)}`);
  replace(byId("handoffs"), lines.map((line) => element("li", "", line)));
}

// The counters of a node's receive queues and assemblers, added up.
function countersOf(report) {
  const sum = {flows: 0, anchored: 0, idle: 0, suspect: 0, frames: 0, holes: 0, dropped: 0, conflicts: 0, peers: 0};
  for (const [who, body] of Object.entries(record(record(report).actors))) {
    const part = record(body);
    if (who.startsWith("ingress.")) {
      const decoder = record(part.decoder);
      for (const flow of list(part.flows).map(record)) {
        const state = text(flow.state, 20).toUpperCase();
        if (state === "FOREIGN" || state === "CLOSED") continue;
        ++sum.flows;
        if (state === "ANCHORED") ++sum.anchored;
        if (state === "ROLE" || state === "NEW") ++sum.idle;
        if (state === "SUSPECT") ++sum.suspect;
      }
      sum.frames += number(part.frames);
      sum.holes += number(decoder.gap_frames) + number(decoder.lost_parses);
      sum.dropped += number(part.dropped_without_credit_segments) + number(part.oversized);
      for (const [kind, count] of Object.entries(record(part.drops)))
        if (!kind.startsWith("not_")) sum.dropped += number(count);
    }
    if (who.startsWith("assembler.")) sum.conflicts += number(part.conflicts);
    if (who === "fetcher") sum.peers += number(part.gradients);
  }
  return sum;
}

function showFlows(nodes, now) {
  const current = {};
  for (const node of nodes) if (node.report) current[node.name] = countersOf(node.report);
  counters.push({t: now, nodes: current});
  while (counters.length > 2 && now - counters[1].t > RATE_MS) counters.shift();
  const seconds = (now - counters[0].t) / 1000;
  replace(byId("flows").tBodies[0], nodes.map(({name, report}) => {
    const row = element("tr"), sum = current[name], before = counters[0].nodes[name];
    row.dataset.node = name;
    row.append(cell("", name, "name"));
    if (!report) {
      row.append(cell("flows", "–"), cell("frames", "–"), cell("frames after a hole", "–"), cell("dropped by the node", "–"), cell("conflicts", "–"), cell("from peers", "–"));
      return row;
    }
    const rate = (key) => before && seconds > 0.5 && sum[key] >= before[key] ? (sum[key] - before[key]) / seconds : 0;
    const counted = (label, key, className) => {
      const per = rate(key);
      const made = cell(label, short(sum[key]), per > 0 && className ? className : "", per > 0 ? `+${per < 10 ? per.toFixed(1) : short(per)}/s now` : "");
      made.dataset.key = key;
      return made;
    };
    row.append(cell("flows", `${sum.anchored} followed`, "",
      [sum.idle ? `${sum.idle} without data yet` : "", sum.suspect ? `${sum.suspect} suspect` : ""].filter(Boolean).join(", ")));
    row.append(counted("frames", "frames", ""), counted("frames after a hole", "holes", "now"), counted("dropped by the node", "dropped", "bad"),
      counted("conflicts", "conflicts", "bad"), counted("from peers", "peers", ""));
    return row;
  }));
}

function showEvents() {
  const groups = [];
  for (const event of events) {  // the same matter, again and again, is one line
    const matter = text(event.text).split(":")[0] + text(event.node), last = groups[groups.length - 1];
    if (last && last.matter === matter && text(last.event.text).includes(":")) { last.event = event; ++last.count; } else groups.push({matter, event, count: 1});
  }
  put(byId("events-sum"), events.length ? "newest first" : "none yet");
  replace(byId("events"), groups.reverse().slice(0, EVENTS_SHOWN).map(({event, count}) => {
    const level = text(event.level, 10), bad = level === "error" || level === "fatal";
    const row = element("li"), what = element("span", "what", text(event.text) + (count > 1 ? ` (the newest of ${count})` : ""));
    const fields = Object.entries(record(event.fields)).slice(0, 8).map(([key, value]) => `${text(key, 40)} ${text(value, 120)}`).join(", ");
    if (fields) what.append(element("span", "fields", fields));
    const symbol = element("span", bad ? "error" : level.startsWith("warn") ? "warn" : "", bad ? "■" : level.startsWith("warn") ? "▲" : "·");
    symbol.setAttribute("role", "img");
    symbol.setAttribute("aria-label", level);
    row.append(element("span", "when", clock(number(event.wall_ms))), symbol, what);
    return row;
  }));
}

// ---- drawing

function drawCharts(job, now) {
  const age = samples.length ? now - samples[0].t : 0;
  const minutes = [0.5, 1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((m) => age <= m * 60000) || 10;
  put(byId("window"), minutes < 2 ? `the last ${60 * minutes} seconds` : `the last ${minutes} minutes`);
  const common = {samples, marks, now, windowMs: minutes * 60000};
  draw(byId("steps-chart"), {...common, withMarks: true, series: NUMBERS.map((name) => ({name, of: (sample) => sample[name]}))});
  draw(byId("lag-chart"), {...common, low: 0, series: [
    {name: "published", of: (sample) => sample.training - sample.published, fill: true},
    {name: "verified", of: (sample) => sample.training - sample.verified}]});
  const training = number(job.training), verified = training - number(job.verified), published = training - number(job.published);
  put(byId("lag"), job.lineage ? `verified ${verified}, published ${published}` : "");
  byId("lag-chart").setAttribute("aria-label", `Lag over time; now verified is ${verified} and published ${published} steps behind training`);
}

window.addEventListener("resize", () => { if (drawn) drawCharts(drawn.job, drawn.now); });
document.addEventListener("visibilitychange", () => { if (drawn && !document.hidden) drawCharts(drawn.job, drawn.now); });
turn();
