// Nodes, their actors, and the messages between actors, as a drawing.

const SPACE = "http://www.w3.org/2000/svg";
const WIDTH = 960, LEFT = 12, COLUMN = 220, ROW = 46, HEAD = 30, GAP = 18;

function make(name, attributes, parent, text) {
  const element = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

const rate = value => value === null ? "" : value >= 100 ? `${value.toFixed(0)}/s` : `${value.toFixed(1)}/s`;
const clipped = (text, most) => text.length > most ? `${text.slice(0, most - 1)}…` : text;

// Columns: nodes by their distance from the root along messages, so that experience flows from right to left.
function columns(status) {
  const names = status.nodes.map(node => node.name), distance = new Map([[names[0], 0]]);
  for (let round = 0; round < names.length; round++)
    for (const flow of status.flows) {
      const [one, other] = [flow.from.split("/")[0], flow.to.split("/")[0]];
      for (const [near, far] of [[one, other], [other, one]])
        if (distance.has(near) && !distance.has(far)) distance.set(far, distance.get(near) + 1);
    }
  const made = [];
  for (const node of status.nodes) {
    const place = Math.min(distance.get(node.name) ?? 1, 3);
    (made[place] ??= []).push(node);
  }
  return made.filter(Boolean);
}

export function drawActors(element, status) {
  const parts = columns(status), places = new Map();
  const height = Math.max(...parts.map(nodes => nodes.reduce((sum, node) => sum + HEAD + ROW * Math.max(node.actors.length, 1) + GAP, 0))) + 10;
  const svg = document.createElementNS(SPACE, "svg");
  svg.setAttribute("class", "actors");
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
  const flows = make("g", {}, svg), step = parts.length > 1 ? (WIDTH - COLUMN - 2 * LEFT) / (parts.length - 1) : 0;
  parts.forEach((nodes, column) => {
    let y = 6;
    for (const node of nodes) {
      const x = LEFT + column * step, tall = HEAD + ROW * Math.max(node.actors.length, 1);
      make("rect", { x, y, width: COLUMN, height: tall, rx: 8, class: "node" }, svg);
      make("text", { x: x + 10, y: y + 19, "font-weight": 600 }, svg, clipped(node.name, 16));
      const state = node.silent ? "silent" : `${node.cpu === null ? "" : `${(100 * node.cpu).toFixed(0)} % `}${(node.rss / 1e6).toFixed(0)} MB`;
      make("text", { x: x + COLUMN - 10, y: y + 19, "text-anchor": "end", class: node.silent || node.given_up ? "wrong dim" : "dim" }, svg,
        node.restarts ? `${state}, ${node.restarts} restarts` : state);
      node.actors.forEach((actor, index) => {
        const top = y + HEAD + index * ROW;
        const box = make("rect", { x: x + 6, y: top, width: COLUMN - 12, height: ROW - 6, rx: 5, class: `actor ${actor.state}` }, svg);
        if (actor.busy) make("rect", { x: x + 6, y: top, width: (COLUMN - 12) * Math.min(actor.busy, 1), height: ROW - 6, rx: 5, class: "busy" }, svg);
        make("text", { x: x + 14, y: top + 16 }, svg, clipped(actor.address.slice(actor.address.indexOf("/") + 1), 18));
        make("text", { x: x + COLUMN - 14, y: top + 16, "text-anchor": "end", class: "dim" }, svg, rate(actor.per_s));
        make("text", { x: x + 14, y: top + 32, class: actor.restarts ? "wrong dim" : "dim" }, svg,
          clipped(`${actor.kind}${actor.does ? `: ${actor.does}` : ""}`, actor.waiting || actor.restarts ? 18 : 28));
        make("text", { x: x + COLUMN - 14, y: top + 32, "text-anchor": "end", class: actor.waiting > 50 ? "wrong dim" : "dim" }, svg,
          actor.restarts ? `${actor.restarts} restarts` : actor.waiting ? `${actor.waiting} waiting` : "");
        make("title", {}, box, `${actor.address}: ${actor.state}, ${actor.waiting} waiting`);
        places.set(actor.address, { x, y: top + (ROW - 6) / 2, column });
      });
      y += tall + GAP;
    }
  });
  const sums = new Map();
  for (const flow of status.flows) {
    if (flow.from === flow.to || !places.has(flow.from) || !places.has(flow.to)) continue;
    const key = `${flow.from} ${flow.to}`, sum = sums.get(key) ?? { ...flow, rate: 0, types: [] };
    sum.rate += flow.per_s ?? 0;
    sum.types.push(`${flow.type} ${flow.count.toLocaleString("en")}${flow.per_s === null ? "" : `, ${rate(flow.per_s)}`}`);
    sums.set(key, sum);
  }
  for (const flow of sums.values()) {
    const one = places.get(flow.from), other = places.get(flow.to);
    const same = one.column === other.column, right = one.column < other.column;
    const x0 = same || right ? one.x + COLUMN : one.x, x1 = same || !right ? other.x + COLUMN : other.x;
    const bend = same ? 40 : (x1 - x0) / 2;
    const path = same ? `M${x0} ${one.y} C${x0 + bend} ${one.y} ${x1 + bend} ${other.y} ${x1} ${other.y}`
      : `M${x0} ${one.y} C${x0 + bend} ${one.y} ${x1 - bend} ${other.y} ${x1} ${other.y}`;
    const line = make("path", { d: path, class: flow.rate ? "flow" : "flow idle", "stroke-width": 1 + Math.min(Math.log2(1 + flow.rate), 7) }, flows);
    make("title", {}, line, `${flow.from} → ${flow.to}\n${flow.types.join("\n")}`);
  }
  element.replaceChildren(svg);
}
