// The page: the list of runs, the streams of figures and of the run in focus, and its panels.

import { drawActors } from "/actors.js";
import { Chart, USUAL, colour, number } from "/charts.js";

const token = new URLSearchParams(location.search).get("token") ?? "";
const $ = id => document.getElementById(id);
const link = (path, more = {}) => `${path}?${new URLSearchParams({ token, ...more })}`;
const kept = key => { try { return localStorage.getItem(`orchestra.${key}`); } catch { return null; } };
const keep = (key, value) => { try { localStorage.setItem(`orchestra.${key}`, value); } catch { /* without storage it lasts as long as the page */ } };

const state = { runs: new Map(), chosen: [], focus: null, axis: kept("axis") ?? "env_steps", bands: kept("bands") === "yes", extra: new Set(), charts: new Map(), started: false };
let events = null, queued = false, drawing = false;

const cell = (row, text, kind = "td", name = "") => { const made = document.createElement(kind); made.textContent = text; made.className = name; row.append(made); return made; };

function note(text) { $("note").textContent = text; }

async function get(path) {
  const answer = await fetch(link(path));
  if (!answer.ok) throw new Error((await answer.text()).trim() || answer.statusText);
  return answer.json();
}

async function refresh() {
  try {
    const rows = await get("/api/runs");
    const known = new Set(rows.map(row => row.id));
    for (const id of state.runs.keys()) if (!known.has(id)) state.runs.delete(id);
    const order = new Map();
    for (const row of rows) order.set(row.id, { columns: {}, ...state.runs.get(row.id), ...row });
    state.runs = order;
    state.chosen = state.chosen.filter(id => known.has(id));
    if (!state.started && rows.length) {
      state.started = true;
      const first = rows.find(row => row.state === "running") ?? rows[0];
      choose([first.id]);
      focus(first.id);
    }
    note(rows.length ? `${rows.length} runs, ${rows.filter(row => row.state === "running").length} running` : "no runs yet");
    list();
    const run = state.runs.get(state.focus);
    if (run) problem(run);
  } catch (error) { note(`not connected: ${error.message}`); }
}

function list() {
  const wanted = $("filter").value.toLowerCase();
  const made = [];
  for (const run of state.runs.values()) {
    if (wanted && !`${run.experiment} ${run.name} ${run.state}`.toLowerCase().includes(wanted)) continue;
    const item = document.createElement("li");
    item.className = run.id === state.focus ? "focus" : "";
    item.dataset.run = run.id;
    const box = document.createElement("input");
    box.type = "checkbox";
    box.checked = state.chosen.includes(run.id);
    box.title = "draw its curves";
    if (box.checked) box.style.accentColor = colour(run.slot ?? 0);
    box.addEventListener("click", event => { event.stopPropagation(); choose(box.checked ? [...state.chosen, run.id] : state.chosen.filter(id => id !== run.id)); });
    const name = document.createElement("span");
    name.className = "name";
    name.textContent = run.experiment;
    const result = document.createElement("span");
    result.className = "result";
    result.textContent = run.result === null ? "" : run.is_share ? `${(100 * run.result).toFixed(0)} %` : number(run.result);
    const under = document.createElement("span");
    under.className = "under";
    const told = document.createElement("span");
    told.className = `state ${run.state}`;
    told.textContent = run.state;
    under.append(told, `  ${run.name}  ${number(run.steps)} steps`);
    const bar = document.createElement("span");
    bar.className = "bar";
    const part = document.createElement("i");
    part.style.width = `${run.goal ? Math.min(100, 100 * (run.steps ?? 0) / run.goal) : 0}%`;
    bar.append(part);
    item.append(box, name, result, under, bar);
    item.addEventListener("click", event => { choose(event.ctrlKey || event.metaKey || event.shiftKey ? [...new Set([...state.chosen, run.id])] : [run.id]); focus(run.id); });
    made.push(item);
  }
  $("runs").replaceChildren(...made);
}

function choose(ids) {
  state.chosen = ids;
  const order = [];
  for (const id of ids) {
    const run = state.runs.get(id), key = state.bands ? run.configuration : id;
    if (!order.includes(key)) order.push(key);
    run.slot = order.indexOf(key);
    run.columns = {};
  }
  list();
  draw();
  follow();
}

// A page has one stream, for the curves and for the run in focus, since a browser allows six connections to one server.
// It is open while the page can be seen: a hidden page costs nothing.
function follow() {
  if (queued) return;
  queued = true;
  queueMicrotask(() => { queued = false; open(); });  // a click changes both the curves and the focus
}

function open() {
  events?.close();
  const ids = state.chosen, id = state.focus;
  if ((!ids.length && !id) || document.hidden) return;
  events = new EventSource(link("/api/events", { runs: ids.join(","), focus: id ?? "" }));
  events.addEventListener("figures", event => {
    const { run: of, columns, anew } = JSON.parse(event.data), run = state.runs.get(of);
    if (run && anew) run.columns = {};
    if (run) append(run.columns, columns);
  });
  events.addEventListener("looked", draw);
  events.addEventListener("status", event => status(JSON.parse(event.data)));
  events.addEventListener("log", event => logged(JSON.parse(event.data)));
  // A stream that was broken begins anew, and so must curves and log; until then the old ones stay.
  events.onopen = () => {
    for (const of of ids) { const run = state.runs.get(of); if (run) run.columns = {}; }
    $("log").replaceChildren();
  };
}

function append(columns, more) {
  const before = Math.max(0, ...Object.values(columns).map(values => values.length));
  const added = Math.max(...Object.values(more).map(values => values.length));
  for (const name of new Set([...Object.keys(columns), ...Object.keys(more)])) {
    columns[name] ??= Array(before).fill(null);
    columns[name].push(...(more[name] ?? Array(added).fill(null)));
  }
}

function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    const runs = state.chosen.map(id => state.runs.get(id)).filter(Boolean);
    const names = new Set(runs.flatMap(run => Object.keys(run.columns)));
    const wanted = [...USUAL.filter(name => names.has(name)), ...[...state.extra].filter(name => names.has(name))];
    for (const [name, chart] of state.charts) if (!wanted.includes(name)) { chart.element.remove(); state.charts.delete(name); }
    for (const name of wanted) {
      if (!state.charts.has(name)) state.charts.set(name, new Chart($("charts"), name));
      state.charts.get(name).draw(runs, state.axis, state.bands);
    }
    $("charts").querySelector(".empty")?.remove();
    if (![...state.charts.values()].some(chart => !chart.element.hidden)) {
      const empty = document.createElement("p");
      empty.className = "empty";
      empty.textContent = runs.length ? "no figures yet" : "choose a run on the left; with Ctrl several";
      $("charts").append(empty);
    }
    others(names);
  });
}

function others(names) {
  const rest = [...names].filter(name => !USUAL.includes(name) && !["env_steps", "elapsed_s", "goal_steps"].includes(name)).sort();
  const key = rest.join();
  if ($("names").dataset.key === key) return;
  $("names").dataset.key = key;
  $("names").replaceChildren(...rest.map(name => {
    const label = document.createElement("label"), box = document.createElement("input");
    box.type = "checkbox";
    box.checked = state.extra.has(name);
    box.addEventListener("change", () => { box.checked ? state.extra.add(name) : state.extra.delete(name); draw(); });
    label.append(box, ` ${name}`);
    return label;
  }));
}

async function focus(id) {
  state.focus = id;
  list();
  for (const name of ["actors", "hosts", "log", "configuration"]) $(name).replaceChildren();
  const run = state.runs.get(id);
  $("run").hidden = false;
  $("title").textContent = `${run.experiment} `;
  const path = document.createElement("code");
  path.textContent = run.path;
  $("title").append(path);
  problem(run);
  follow();
  try {
    const told = await get(`/api/runs/${id}`);
    if (state.focus === id) configuration(told);
  } catch (error) { note(error.message); }
}

function problem(run) {
  const failed = ["failed", "killed"].includes(run.state);
  $("problem").hidden = !failed;
  $("problem").textContent = failed ? `${run.state}: ${run.reason ?? "its process ended without a word; the log below has its last lines"}` : "";
}

function status(now) {
  if (now.over) {
    if (!$("actors").childElementCount) { const said = document.createElement("p"); said.className = "empty"; said.textContent = now.over; $("actors").append(said); }
    refresh();
    return;
  }
  drawActors($("actors"), now);
  const table = document.createElement("table"), head = table.insertRow();
  if (!now.hosts.length) { const said = document.createElement("p"); said.className = "empty"; said.textContent = "the run is on one machine"; $("hosts").replaceChildren(said); return; }
  for (const [title, kind] of [["slot", "n"], ["host", ""], ["state", ""], ["cores", "n"], ["nodes", "n"], ["steps/s", "n"], ["lag", "n"], ["round trip", "n"], ["said last", ""]]) cell(head, title, "th", kind);
  for (const host of now.hosts) {
    const row = table.insertRow();
    cell(row, host.slot, "td", "n"); cell(row, host.name); cell(row, host.state, "td", `state ${host.state === "playing" ? "done" : "stopped"}`);
    cell(row, `${host.cores_used?.toFixed(1) ?? "–"} of ${host.cores || "?"}`, "td", "n"); cell(row, `${host.running}/${host.nodes.length}`, "td", "n");
    cell(row, number(host.env_steps_per_s), "td", "n"); cell(row, host.policy_lag ?? "–", "td", "n");
    cell(row, host.round_trip_s === null ? "–" : `${(1000 * host.round_trip_s).toFixed(1)} ms`, "td", "n"); cell(row, host.reason);
  }
  $("hosts").replaceChildren(table);
}

function logged(lines) {
  const panel = $("log"), end = panel.scrollTop + panel.clientHeight >= panel.scrollHeight - 20;
  for (const line of lines) {
    const made = document.createElement("pre");
    made.className = line.level;
    made.textContent = line.text;
    panel.append(made);
  }
  while (panel.childElementCount > 1000) panel.firstElementChild.remove();
  if (end) panel.scrollTop = panel.scrollHeight;
}

function configuration(run) {
  const parts = [];
  const say = (title, text) => {
    const head = document.createElement("p"), block = document.createElement("pre");
    head.textContent = title; block.textContent = text; block.className = "copy";
    parts.push(head, block);
  };
  for (const remark of run.remarks) say("Remark", remark);
  if (run.command.length) say("A run with these settings begins with", run.command.join(" "));
  if (run.resume) say("It goes on with", run.resume);
  for (const [title, values] of [["flags of the experiment", run.flags], ["flags of the run", run.options], ["machine", run.machine]]) {
    const table = document.createElement("table"), head = table.insertRow();
    cell(head, title, "th"); cell(head, "", "th");
    for (const [name, value] of Object.entries(values)) {
      const row = table.insertRow();
      cell(row, name); cell(row, typeof value === "object" ? JSON.stringify(value) : String(value));
    }
    parts.push(table);
  }
  $("configuration").replaceChildren(...parts);
  if (run.messages.length) messages(run.messages);
}

// What passed between the actors of a run that is over.
function messages(flows) {
  const table = document.createElement("table"), head = table.insertRow();
  for (const [title, kind] of [["from", ""], ["message", ""], ["to", ""], ["count", "n"]]) cell(head, title, "th", kind);
  for (const flow of flows.slice(0, 60)) {
    const row = table.insertRow();
    cell(row, flow.sender); cell(row, flow.type); cell(row, flow.recipient); cell(row, flow.count.toLocaleString("en"), "td", "n");
  }
  $("actors").append(table);
}

for (const tab of document.querySelectorAll("[role=tab]"))
  tab.addEventListener("click", () => {
    for (const other of document.querySelectorAll("[role=tab]")) {
      other.setAttribute("aria-selected", other === tab);
      $(other.dataset.panel).hidden = other !== tab;
    }
    $("log").scrollTop = $("log").scrollHeight;
  });
$("axis").value = state.axis;
$("axis").addEventListener("change", () => { state.axis = $("axis").value; keep("axis", state.axis); draw(); });
$("bands").checked = state.bands;
$("bands").addEventListener("change", () => { state.bands = $("bands").checked; keep("bands", state.bands ? "yes" : "no"); choose(state.chosen); });
$("filter").addEventListener("input", list);
document.documentElement.dataset.theme = kept("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
$("theme").addEventListener("click", () => {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  keep("theme", next);
  draw();
});
addEventListener("resize", draw);
document.addEventListener("visibilitychange", () => { follow(); if (!document.hidden) refresh(); });
refresh();
setInterval(() => { if (!document.hidden) refresh(); }, 5000);
