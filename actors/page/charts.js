// Lines over time, drawn as SVG: whatever is given, over the last so many milliseconds.
"use strict";

function svg(parent, name, attributes, words) {
  const made = document.createElementNS(parent.namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (words !== undefined) made.textContent = words;
  parent.append(made);
  return made;
}

function niceStep(range, parts) {
  const raw = Math.max(1, range / parts), power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((f) => f * power).find((step) => step >= raw);
}

// Lines of `series` over the last `windowMs`; {name, of(sample), fill}.
// samples: [{t, level, ...}], oldest first. marks: [{t, text, level, ofNode}].
function draw(chart, {samples, marks, series, now, windowMs, low, withMarks}) {
  const width = Math.max(240, chart.clientWidth), height = Math.max(60, chart.clientHeight);
  const left = 44, right = 8, top = withMarks ? 18 : 6, bottom = 20;
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.replaceChildren();
  const shown = samples.filter((sample) => now - sample.t <= windowMs + 2000);
  let least = Infinity, most = -Infinity;
  for (const sample of shown) for (const one of series) { least = Math.min(least, one.of(sample)); most = Math.max(most, one.of(sample)); }
  if (!shown.length) { least = 0; most = 1; }
  if (low !== undefined) least = low;
  const step = niceStep(Math.max(most - least, low !== undefined ? 4 : 8), height > 120 ? 4 : 2);
  const floor = Math.floor(least / step) * step, ceiling = Math.max(floor + step, Math.ceil(most / step) * step);
  const x = (t) => left + (width - left - right) * Math.max(0, 1 - (now - t) / windowMs);
  const y = (value) => top + (height - top - bottom) * (1 - (value - floor) / (ceiling - floor));
  for (let value = floor; value <= ceiling; value += step) {
    svg(chart, "line", {class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value)});
    svg(chart, "text", {x: left - 6, y: y(value) + 4, "text-anchor": "end"}, short(value));
  }
  const parts = width < 420 ? 2 : windowMs % 40000 === 0 || windowMs === 60000 ? 4 : 3;
  for (let part = 0; part <= parts; ++part) {
    const ago = Math.round(windowMs * (1 - part / parts));
    svg(chart, "text", {x: x(now - ago), y: height - 7, "text-anchor": part === parts ? "end" : part ? "middle" : "start"},
      part === parts ? "now" : ago >= 60000 && ago % 60000 === 0 ? `−${ago / 60000} min` : `−${Math.round(ago / 1000)} s`);
  }
  // When it was not good: a thin strip on the time axis, thicker where it had stopped.
  for (let i = 0; i + 1 < shown.length; ++i) {
    const {level} = shown[i];
    if (level === "degraded" || level === "stopped")
      svg(chart, "rect", {class: "strip " + level, x: x(shown[i].t), width: Math.max(0.5, x(shown[i + 1].t) - x(shown[i].t)) + 0.3,
        y: height - bottom + 1, height: level === "stopped" ? 5 : 2.5});
  }
  for (const one of series) {
    const points = shown.map((sample) => `${x(sample.t).toFixed(1)} ${y(one.of(sample)).toFixed(1)}`);
    if (!points.length) continue;
    if (one.fill) svg(chart, "path", {class: "fill " + one.name, d: `M${x(shown[0].t)} ${y(floor)}L${points.join("L")}L${x(shown[shown.length - 1].t)} ${y(floor)}Z`});
    svg(chart, "path", {class: "line " + one.name, d: "M" + points.join("L")});
  }
  // Newest first; a label that finds no room is left out, its line stays. Of those of one moment a node's says most.
  let free = width - right;
  const moments = [];
  for (const one of marks.filter((m) => now - m.t <= windowMs)) {
    const last = moments[moments.length - 1];
    if (last && one.t - last.t < 3000) { if (one.ofNode && !last.ofNode) moments[moments.length - 1] = {...one, t: last.t}; } else moments.push(one);
  }
  for (const {t, text: words, level} of moments.reverse()) {
    const at = x(t), color = {stopped: "var(--bad)", degraded: "var(--warn)", good: "var(--good)"}[level];
    const line = svg(chart, "line", {class: "mark", x1: at, x2: at, y1: withMarks ? 4 : top, y2: height - bottom});
    line.style.setProperty("--mark", color);
    if (!withMarks) continue;
    const label = svg(chart, "text", {class: "mark-text", x: at + 4, y: 13}, words);
    const wide = label.getComputedTextLength() + 10;
    if (at + wide > free) {
      if (at - wide > left && at <= free + 0.5) { label.setAttribute("x", at - 4); label.setAttribute("text-anchor", "end"); free = at - wide; } else label.remove();
    } else free = at;
  }
}
