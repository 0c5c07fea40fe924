// The verdict: the worst of what a node says of the job, of its members and of itself.
"use strict";

const STUCK_MS = 3000;   // a number that stands this long beside a reason that can stop it has stopped
const SLOW_MS = 12000;   // so long a passing reason may last,
const SLOW_STEPS = 3;    // or as long as so many steps take, but not longer than
const SLOW_MAX_MS = 120000;
const GAPS_MAX = 12;

// Reasons that stop a number until somebody acts, and those that come and go in normal work. All others: degraded.
const STOPPING = new Set(["SCALARS_MISSING", "COVERAGE_HOLE", "LOST_DEFINITIVE", "CONFLICT", "WITNESS_MISMATCH", "UNWIRED",
  "OP_AMBIGUOUS", "UNSUPPORTED", "TAP_DOWN", "OWNER_DOWN", "CLIENT_DISABLED", "STORAGE_FULL", "STORAGE_ERROR",
  "UNKNOWN_STATE", "DIVERGED", "OBJECT_STORE_ERROR", "PUBLISH_CONFLICT"]);
const PASSING = new Set(["NONE", "BASELINE_PENDING", "IN_FLIGHT", "LAYOUT_UNKNOWN", "FLUSH_LAG", "LOG_OFF",
  "SIDE_STATE_MISSING", "PUBLISH_INTERVAL", "UPLOAD_LAG"]);
const NO_MATTER = new Set(["NONE", "PUBLISH_INTERVAL", "LOG_OFF"]);  // however long they last

function stateOf(member, absent) {
  if (member.membership === "out") return "removed";
  if (member.state === "down" || absent.has(text(member.name))) return "absent";
  if (member.membership === "draining") return "draining";
  return member.state === "syncing" ? "catching up" : "present";
}

const CONSEQUENCE = {
  verified: "The replica does not follow training", durable: "Nothing newer comes to disk",
  published: "No new recovery point comes",
};

// moved: {number: when it last moved}. seen: Map of reasons to when they came. stepMs: what a step takes.
// The answer {level, sentence, notes, gaps} is the worst of everything, in words that change only when the matter does.
function judge(status, job, nodes, {moved, seen, stepMs, now}) {
  const causes = {stopped: [], degraded: []};
  const notes = list(status.warnings).concat(list(job.warnings)).map((w) => text(w, 300));
  const stage = (reason) => reason <= 20 ? "verified" : reason <= 25 ? "durable" : "published";
  const stands = (which, name) => now - Math.max(moved[which] || now, seen.get(name) || now);
  const stopped = [];
  const training = number(job.training);
  const gaps = list(job.gaps).slice(0, GAPS_MAX).map(record).map((gap) => {
    const name = text(gap.name, 80), which = stage(number(gap.reason));
    const still = stands(which, name), behind = training > number(job[which]);
    let level = "degraded";
    if (STOPPING.has(name)) level = job.state === "refused" || still >= STUCK_MS ? "stopped" : "degraded";
    else if (PASSING.has(name))
      level = !NO_MATTER.has(name) && behind && still >= Math.max(SLOW_MS, Math.min(SLOW_STEPS * stepMs, SLOW_MAX_MS)) ? "degraded" : "good";
    if (level === "stopped") stopped.push(which);
    if (level !== "good") causes[level].push(level === "stopped" ? `${which} stands at step ${number(job[which])} (${name})` : name);
    return {...gap, name, level, which};
  });
  if (job.state === "held" && !stopped.length && now - (moved.verified || now) >= STUCK_MS) {
    stopped.push("verified");
    causes.stopped.push(`verified is held at step ${number(job.verified)}`);
  }
  const is = (state) => nodes.filter((node) => node.state === state).map((node) => node.name);
  const away = is("absent"), coming = is("catching up"), leaving = is("draining");
  if (away.length) causes.degraded.unshift(`${some(away)} ${away.length === 1 ? "is" : "are"} absent`);
  if (coming.length) causes.degraded.push(`${some(coming)} ${coming.length === 1 ? "is" : "are"} catching up`);
  if (leaving.length) notes.push(`${some(leaving)} ${leaving.length === 1 ? "is" : "are"} being drained`);
  const names = new Set(nodes.map((node) => node.name));
  const mute = list(status.absent).map((who) => text(who, 80)).filter((who) => !names.has(who));
  if (mute.length) causes.degraded.push(`inside the node there is no answer from ${some(mute)}`);
  const unattached = !job.lineage && job.state === "unattached";
  let level = causes.stopped.length ? "stopped" : causes.degraded.length ? "degraded" : "good";
  const all = [...new Set(causes.stopped.concat(causes.degraded))];
  let sentence = all.slice(0, 3).join("; ") + (all.length > 3 ? "; and more below." : ".");
  if (level === "stopped") sentence = `${CONSEQUENCE[stopped[0]]}: ${sentence}`;
  if (job.state === "refused") sentence = "The job trains without protection: it was refused at attach.";
  if (level === "degraded") sentence = `The replica goes on, with less in reserve: ${sentence}`;
  if (level === "good") sentence = "The replica follows training, every node is there.";
  if (level === "good" && job.state !== "tracking") {
    level = "waiting";
    sentence = unattached || !job.state ? "No job is attached." : `The job is attaching (${text(job.state, 60)}).`;
  }
  if (level === "degraded" && unattached) sentence = `No job is attached; ${all.slice(0, 3).join("; ")}.`;
  return {level, sentence, notes, gaps};
}
