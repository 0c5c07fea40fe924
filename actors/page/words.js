// Values of an answer, whatever their type, as words: bounded, never an exception.
"use strict";
const list = (value) => Array.isArray(value) ? value : [];
const record = (value) => value !== null && typeof value === "object" && !Array.isArray(value) ? value : {};
const text = (value, most = 600) => {
  let shown = "";
  try {
    if (value instanceof Error || typeof value !== "object") shown = value === undefined ? "" : String(value);
    else if (value !== null) shown = JSON.stringify(value);
  } catch (unspeakable) {
    shown = "…";
  }
  return shown.length > most ? shown.slice(0, most) + " …" : shown;
};
const number = (value) => typeof value === "number" && Number.isFinite(value) ? value : 0;
const grouped = (value) => String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, "\u202f");
function some(words, most = 4) {
  const distinct = [...new Set(words)];
  return distinct.slice(0, most).join(", ") + (distinct.length > most ? ` and ${distinct.length - most} more` : "");
}
const plural = (count, word) => `${grouped(count)} ${word}${count === 1 ? "" : "s"}`;
function short(value) {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e4]])
    if (value >= size) return (value / (unit === "k" ? 1e3 : size)).toFixed(1) + "\u202f" + unit;
  return grouped(value);
}
function span(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  return s < 172800 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} days`;
}
function clock(ms) {
  const at = new Date(ms);
  return [at.getHours(), at.getMinutes(), at.getSeconds()].map((part) => String(part).padStart(2, "0")).join(":");
}
