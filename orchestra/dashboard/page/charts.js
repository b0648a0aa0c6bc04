// Curves: one for each run, or a mean with a band for the seeds of a configuration.

const LIGHT = ["#2563c9", "#d9730d", "#2f9e6e", "#a34fc0", "#c9302c", "#0e8fa8", "#8a6d00", "#d6498f", "#5a6ea8", "#6d8b2c"];
const DARK = ["#6ea8ff", "#f0a35e", "#5fd0a0", "#cf94e8", "#ff8078", "#58cde3", "#d9c04a", "#ff8fc4", "#a3b4e6", "#b2d466"];
export const TITLES = {
  test_win_rate: "win rate of tests", test_return: "return of tests", train_win_rate: "win rate of training",
  train_return: "return of training", env_steps_per_s: "environment steps a second", updates_per_s: "updates a second",
  loss: "loss", params_lag: "age of parameters, versions", mailbox_depth: "fullest mailbox, messages", epsilon: "ε",
  workers: "workers", restarts: "restarts",
};
export const USUAL = ["test_win_rate", "test_return", "train_win_rate", "train_return", "env_steps_per_s", "updates_per_s", "loss", "params_lag"];
export const colour = index => (document.documentElement.dataset.theme === "dark" ? DARK : LIGHT)[index % LIGHT.length];
const resolved = name => { const probe = document.createElement("i"); probe.style.color = `var(${name})`; document.body.append(probe);
  const value = getComputedStyle(probe).color; probe.remove(); return value; };

export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toFixed(size >= 1e7 ? 0 : 1)}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toFixed(size >= 1e5 ? 0 : 1))}k`;
  if (size >= 100 || Number.isInteger(value)) return value.toLocaleString("en", { maximumFractionDigits: 0 });
  return value.toPrecision(3);
}
const share = name => name.endsWith("win_rate");
const shown = (name, value) => share(name) && value !== null && value !== undefined ? `${(100 * value).toFixed(0)} %` : number(value);

// A curve as pairs, without what is missing; tests are drawn where their value changed or was repeated, as recorded.
function pairs(columns, name, axis) {
  const xs = columns[axis] ?? [], ys = columns[name] ?? [], found = [];
  for (let i = 0; i < xs.length; i++) {
    if (xs[i] === null || ys[i] === null || ys[i] === undefined) continue;
    const x = axis === "elapsed_s" ? xs[i] / 60 : xs[i];
    if (found.length && x <= found[found.length - 1][0]) continue;
    found.push([x, ys[i]]);
  }
  return found;
}

function at(curve, x) {
  if (!curve.length || x < curve[0][0] || x > curve[curve.length - 1][0]) return null;
  let low = 0, high = curve.length - 1;
  while (low < high) { const mid = (low + high) >> 1; if (curve[mid][0] < x) low = mid + 1; else high = mid; }
  if (curve[low][0] === x || low === 0) return curve[low][1];
  const [x0, y0] = curve[low - 1], [x1, y1] = curve[low];
  return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
}

// Lines of a chart: each has the curves of one run, or of all seeds of a configuration.
function lines(runs, name, axis, bands) {
  const groups = new Map();
  for (const run of runs) {
    const curve = pairs(run.columns, name, axis);
    if (!curve.length) continue;
    const key = bands ? run.configuration : run.id;
    if (!groups.has(key)) groups.set(key, { label: bands ? run.experiment : `${run.experiment} ${run.name}`, colour: colour(run.slot), curves: [] });
    groups.get(key).curves.push(curve);
  }
  return [...groups.values()];
}

// The mean of several curves, and its band. Both end where the shortest curve ends, and begin where the last one begins.
// Elsewhere `rest` is the mean of those that have a value, with a gap wherever another number of them counts.
export function summary(curves, xs) {
  const values = xs.map(x => curves.map(curve => at(curve, x)).filter(y => y !== null));
  const average = some => some.reduce((a, b) => a + b, 0) / some.length;
  const whole = some => some.length === curves.length;
  return {
    counts: values.map(some => some.length),
    mean: values.map(some => whole(some) ? average(some) : null),
    rest: values.map((some, i) => !some.length || whole(some) || (i && some.length !== values[i - 1].length && values[i - 1].length && !whole(values[i - 1])) ? null : average(some)),
    most: values.map(some => whole(some) ? Math.max(...some) : null),
    least: values.map(some => whole(some) ? Math.min(...some) : null),
  };
}

export class Chart {
  constructor(parent, name) {
    this.name = name;
    this.element = document.createElement("div");
    this.element.className = "chart";
    this.element.innerHTML = "<h3></h3>";
    this.element.querySelector("h3").append(TITLES[name] ?? name.replace("/", ": ").replaceAll("_", " "), document.createElement("span"));
    this.body = document.createElement("div");
    this.element.append(this.body);
    parent.append(this.element);
  }

  draw(runs, axis, bands) {
    const groups = lines(runs, this.name, axis, bands);
    this.element.hidden = groups.length === 0;
    if (!groups.length) { this.plot?.destroy(); this.plot = null; return; }
    const places = [...new Set(groups.flatMap(g => g.curves.flatMap(c => c.map(p => p[0]))))].sort((a, b) => a - b);
    const xs = places.length > 1500 ? places.filter((_, i) => i % Math.ceil(places.length / 1500) === 0 || i === places.length - 1) : places;
    const data = [xs], series = [{}], areas = [];
    for (const group of groups) {
      const { counts, mean, rest, most, least } = summary(group.curves, xs), many = group.curves.length;
      const line = { stroke: group.colour, width: 1.6, points: { show: xs.length < 3 } };
      if (bands && many > 1) {
        const first = data.length;
        data.push(most, least);
        series.push({ stroke: "transparent", points: { show: false } }, { stroke: "transparent", points: { show: false } });
        areas.push({ series: [first, first + 1], fill: `${group.colour}30` });
        data.push(rest);
        series.push({ ...line, label: `${group.label}, some of ${many} seeds`, dash: [4, 4], told: i => ` (${counts[i]} of ${many})` });
      }
      data.push(mean);
      series.push({ ...line, label: many > 1 ? `${group.label}, ${many} seeds` : group.label, spanGaps: many === 1 });
    }
    const last = groups.length === 1 && !bands ? groups[0].curves[0].at(-1)[1] : null;
    this.element.querySelector("span").textContent = last === null ? "" : shown(this.name, last);
    const key = `${series.map(s => `${s.label}${s.stroke}`).join("|")}|${axis}|${document.documentElement.dataset.theme}`;
    const width = Math.max(this.body.clientWidth, 200);
    if (this.plot && this.key === key) {
      this.plot.setData(data);
      if (this.plot.width !== width) this.plot.setSize({ width, height: 190 });
      return;
    }
    this.plot?.destroy();
    this.key = key;
    const dim = resolved("--dim"), line = resolved("--line");
    const grid = { stroke: line, width: 1 }, ticks = { stroke: line, width: 1 };
    this.plot = new uPlot({
      width, height: 190, series, bands: areas, legend: { show: false }, cursor: { drag: { x: true, y: false } },
      scales: { x: { time: false }, y: share(this.name) ? { range: [0, 1.02] } : {} },
      axes: [
        { stroke: dim, grid, ticks, values: (_, v) => v.map(number), font: "11px system-ui" },
        { stroke: dim, grid, ticks, size: 60, values: (_, v) => v.map(y => shown(this.name, y)), font: "11px system-ui" },
      ],
      hooks: { setCursor: [plot => {
        const i = plot.cursor.idx;
        if (i === null || i === undefined) return;
        const told = series.map((s, k) => s.label && data[k][i] !== null ? shown(this.name, data[k][i]) + (s.told?.(i) ?? "") : null).filter(Boolean);
        this.element.querySelector("span").textContent = `${number(xs[i])}${axis === "elapsed_s" ? " min" : ""}: ${told.slice(0, 6).join("  ")}`;
      }] },
    }, data, this.body);
  }
}
