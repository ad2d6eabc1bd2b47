"use strict";
const VERDICTS = ["first", "repeat", "unsure", "reject"];
const RATE_MS = 10000;
const QUIET_MS = 300000;
const BARS_MAX = 120;
const SVG = "http://www.w3.org/2000/svg";
const $ = id => document.getElementById(id);
const views = new Map();
let clockOff = 0, lost = false;
const now = () => Date.now() + clockOff;

// All foreign values become text nodes here; nothing is parsed as markup.
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.map(child => child instanceof Node ? child : document.createTextNode(String(child))));
  return node;
}

function draw(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.map(child => child instanceof Node ? child : document.createTextNode(String(child))));
  return node;
}

const whole = new Intl.NumberFormat("en", {maximumFractionDigits: 0});
const some = new Intl.NumberFormat("en", {maximumSignificantDigits: 3});

function rated(number) { return `${whole.format(number)}/s`; }

function sized(bytes) {
  const unit = ["B", "kB", "MB", "GB", "TB"], i = bytes < 1 ? 0 : Math.min(4, Math.floor(Math.log10(bytes) / 3));
  return `${some.format(bytes / 1000 ** i)} ${unit[i]}`;
}

function figure(value, unit) {
  if (unit === "bytes") return sized(value);
  if (unit === "seconds") return `${value >= 100 ? whole.format(value) : value.toFixed(1)} s`;
  return unit === "rate" ? rated(value) : whole.format(value);
}

function ago(ms) {
  const seconds = Math.max(0, Math.round((now() - ms) / 1000));
  if (seconds < 2) return "now";
  if (seconds < 120) return `${seconds} s ago`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min ago`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86400)} d ago`;
}

// --- rates ---

function rates(view) {
  const points = view.points;
  if (view.state !== "running" || points.length < 2) return null;
  const last = points[points.length - 1], before = points[points.length - 2];
  // The rate of an old batch says nothing about now.
  if (now() - last[0] > 3 * Math.max(RATE_MS, last[0] - before[0])) return VERDICTS.map(() => 0);
  let from = points.length - 2;
  while (from > 0 && last[0] - points[from - 1][0] <= RATE_MS) from--;
  const seconds = Math.max(0.001, (last[0] - points[from][0]) / 1000);
  return VERDICTS.map((_, i) => Math.max(0, last[i + 1] - points[from][i + 1]) / seconds);
}

const sum = numbers => numbers.reduce((a, b) => a + b, 0);

// --- the chart: a bar from each point to the next, with the rate as its height ---

function chart(svg, view) {
  const points = view.points.slice(-BARS_MAX - 1), height = 150, floor = 124, top = 18;
  svg.replaceChildren();
  svg.toggleAttribute("hidden", points.length < 2);
  if (points.length < 2) return;
  const width = svg.clientWidth || 1000;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const from = points[0][0], span = Math.max(1, points[points.length - 1][0] - from);
  const bars = points.slice(1).map((point, i) => {
    const seconds = Math.max(0.001, (point[0] - points[i][0]) / 1000);
    return VERDICTS.map((_, k) => Math.max(0, point[k + 1] - points[i][k + 1]) / seconds);
  });
  const most = Math.max(...bars.map(sum), 1e-9);
  const x = ms => (ms - from) / span * width;
  VERDICTS.forEach((name, k) => {
    let d = "";
    bars.forEach((bar, i) => {
      const below = sum(bar.slice(0, k)), left = x(points[i][0]), right = x(points[i + 1][0]);
      const y0 = floor - below / most * (floor - top), y1 = floor - (below + bar[k]) / most * (floor - top);
      if (bar[k] > 0) d += `M${left.toFixed(1)} ${y0.toFixed(1)}V${y1.toFixed(1)}H${Math.max(left + .5, right - 1).toFixed(1)}V${y0.toFixed(1)}Z`;
    });
    svg.append(draw("path", {class: name, d}));
  });
  const clock = ms => new Date(ms).toLocaleTimeString("en-GB");
  svg.append(
    draw("path", {class: "axis", d: `M0 ${floor}H${width}`}),
    draw("text", {x: 0, y: 12}, `${rated(most)} at most`),
    draw("text", {x: 0, y: height - 8}, clock(from)),
    draw("text", {x: width, y: height - 8, class: "end"}, clock(points[points.length - 1][0])),
  );
  svg.setAttribute("aria-label", `Messages per second by verdict, from ${clock(from)} to ${clock(points[points.length - 1][0])}; at most ${rated(most)}`);
}

// --- a pipeline or a server ---

function tile(name) {
  const count = make("dd", {class: "count"}), more = make("dd", {class: "more"});
  const chip = name === "in" ? [] : [make("i", {class: `chip ${name}`})];
  return {node: make("div", {class: `tile-${name}`}, make("dt", {}, ...chip, name), count, more), count, more};
}

function table(caption, heads) {
  const body = make("tbody");
  const node = make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, ...heads.map(head => make("th", {scope: "col"}, head)))), body);
  return {node, body};
}

function room(number) {
  const parts = {
    name: make("h2", {id: `view-${number}`}), state: make("span", {class: "state"}), told: make("span", {class: "told"}),
    report: make("a", {href: `/reports/${number}`, target: "_blank", rel: "noopener"}, "report"),
    tiles: VERDICTS.map(tile), facts: make("ul", {class: "facts"}),
    chart: draw("svg", {class: "chart", role: "img"}),
    rejects: table("Rejected, the newest first", ["reason", "rows", "where", "example"]),
  };
  parts.books = make("dl", {class: "tiles"}, ...parts.tiles.map(each => each.node));
  parts.scroll = make("div", {class: "scroll"}, parts.rejects.node);
  parts.node = make("section", {class: "view", "aria-labelledby": `view-${number}`},
    make("header", {}, parts.name, parts.state, parts.told, parts.report),
    parts.books, parts.chart, parts.facts, parts.scroll);
  const after = [...views.keys()].filter(other => other > number).sort((a, b) => a - b)[0];
  $("views").insertBefore(parts.node, after === undefined ? null : views.get(after).room.node);
  return parts;
}

function show(view) {
  const known = views.get(view.number) || {room: room(view.number)};
  views.set(view.number, {...known, view});
  const parts = known.room;
  parts.name.textContent = view.name;
  parts.state.className = `state ${view.state}`;
  parts.state.textContent = `${view.kind} ${view.state === "trouble" ? "in trouble" : view.state}`;
  parts.report.toggleAttribute("hidden", !view.report);
  parts.node.classList.toggle("wrong", view.state === "trouble");
  parts.books.toggleAttribute("hidden", !view.counts);
  parts.tiles.forEach((each, i) => {
    each.count.textContent = view.counts ? whole.format(view.counts[i]) : "";
  });
  chart(parts.chart, view);
  parts.facts.replaceChildren(...view.facts.map(([label, value, unit]) => make("li", {}, make("span", {}, label), make("b", {}, figure(value, unit)))));
  parts.scroll.toggleAttribute("hidden", !view.rejects.length);
  parts.rejects.body.replaceChildren(...view.rejects.map(each => make("tr", {},
    make("td", {class: "word"}, make("i", {class: "chip reject"}), each.reason), make("td", {class: "n"}, whole.format(each.count)),
    make("td", {class: "word"}, each.where), make("td", {class: "row"}, each.row))));
  aged();
  choices();
}

function silent(view) {
  return view.kind !== "server" && view.state === "running" && now() - view.at_ms > QUIET_MS;
}

// Ages and rates, which change without new data.
function aged() {
  for (const {room, view} of views.values()) {
    const speed = rates(view);
    room.told.textContent = view.at_ms === null ? view.told : `${view.told}, ${ago(view.at_ms)}`;
    room.state.classList.toggle("silent", silent(view));
    room.tiles.forEach((each, i) => { each.more.textContent = speed ? rated(speed[i]) : ""; });
  }
  summary();
}

// --- all together ---

const sums = ["in", ...VERDICTS].map(tile);
$("sums").append(...sums.map(each => each.node));

function summary() {
  const all = [...views.values()].map(each => each.view);
  const unbalanced = all.filter(view => !view.balanced), wrong = all.filter(view => view.state === "trouble");
  const running = all.filter(view => view.state === "running").length;
  const speed = VERDICTS.map((_, i) => sum(all.map(view => (rates(view) || [0, 0, 0, 0])[i])));
  const books = all.some(view => view.kind !== "server" && view.counts);
  const quiet = all.filter(silent);
  const unclear = lost || quiet.length || !(running || all.some(view => view.state === "complete"));
  const level = wrong.length ? "bad" : unclear ? "note" : "ok";
  $("head").className = `head ${level}`;
  $("headline").textContent = unbalanced.length ? "The books do not balance" : wrong.length ? "Something is wrong"
    : lost ? "Connection lost" : quiet.length ? "Nothing was heard for long" : running ? "All is well" : level === "ok" ? "All is done" : "Nothing is running";
  $("sub").textContent = wrong.length ? wrong.map(view => view.name).join(", ") : lost ? "The data below is not current."
    : quiet.length ? `${quiet.map(view => view.name).join(", ")}: there is nothing to read, or the process is gone.`
    : `${running} of ${all.length} running.${books ? " Every message has its verdict, and the books balance." : ""}${open(all)}`;
  [sum(speed), ...speed].forEach((rate, i) => { sums[i].count.textContent = rated(rate); });
  document.title = `${level === "bad" ? "! " : ""}onefold console`;
}

function open(all) {
  const [unsure, reject] = [2, 3].map(i => sum(all.map(view => view.counts ? view.counts[i] : 0)));
  const parts = [reject && `${whole.format(reject)} rejected`, unsure && `${whole.format(unsure)} unsure`].filter(Boolean);
  return parts.length ? ` Look at ${parts.join(" and ")}.` : "";
}

// --- questions ---

function choices() {
  const able = [...views.values()].map(each => each.view).filter(view => view.explains);
  $("asking").toggleAttribute("hidden", !able.length);
  const wanted = able.map(view => `${view.number} ${view.name}`).join("\n"), select = $("run");
  if (select.dataset.shown === wanted) return;
  const before = select.value;
  select.dataset.shown = wanted;
  select.replaceChildren(...able.map(view => make("option", {value: view.number}, view.name)));
  if (able.some(view => String(view.number) === before)) select.value = before;
}

function told(value) { return value === null || value === undefined ? "" : value; }

function explained(found) {
  const parts = [make("p", {}, found.rows || found.missing_ranges ? found.sentence : `Nothing matches. Words are compared with ${found.columns.join(", ")}.`)];
  if (found.shown.length) {
    const rows = table(found.rows > found.shown.length ? `The first ${found.shown.length} of ${whole.format(found.rows)}` : "Every copy", ["message", "arrived", "through", "verdict", "reason", "because"]);
    rows.body.append(...found.shown.map(row => make("tr", {},
      make("td", {class: "row"}, Object.values({...row.key, ...row.message}).map(told).join(" ")), make("td", {class: "word"}, row.arrived), make("td", {}, told(row.source)),
      make("td", {class: "word"}, make("i", {class: `chip ${VERDICTS.includes(row.verdict.toLowerCase()) ? row.verdict.toLowerCase() : ""}`}), row.verdict), make("td", {class: "word"}, row.reason), make("td", {class: "row"}, row.rule))));
    parts.push(make("div", {class: "scroll"}, rows.node));
  }
  if (found.missing_ranges_shown.length) {
    const names = Object.keys(found.missing_ranges_shown[0]), rows = table("Never arrived", names);
    rows.body.append(...found.missing_ranges_shown.map(range => make("tr", {}, ...names.map(name => make("td", {}, told(range[name]))))));
    parts.push(make("div", {class: "scroll"}, rows.node));
  }
  return parts;
}

$("ask").addEventListener("submit", async event => {
  event.preventDefault();
  $("go").disabled = true;
  $("answer").replaceChildren(make("p", {}, "Searching; the first question takes a few seconds longer."));
  try {
    const response = await fetch(`/explain?${new URLSearchParams({run: $("run").value, words: $("words").value})}`);
    const found = await response.json();
    $("answer").replaceChildren(...(response.ok ? explained(found) : [make("p", {class: "wrong"}, found.error)]));
  } catch (error) {
    $("answer").replaceChildren(make("p", {class: "wrong"}, `No answer: ${error.message}`));
  } finally {
    $("go").disabled = false;
  }
});

// --- events ---

function linked(state, words) {
  lost = state === "lost";
  $("link").className = state;
  $("link").textContent = words;
  if (views.size) summary();
}

const events = new EventSource("/events");
events.addEventListener("open", () => linked("live", "live"));
events.addEventListener("error", () => linked("lost", events.readyState === EventSource.CLOSED ? "ended: load the page again" : "connection lost, trying again"));
events.addEventListener("view", event => {
  const view = JSON.parse(event.data);
  clockOff = view.now_ms - Date.now();
  show(view);
});
setInterval(() => { if (views.size) aged(); }, 1000);
addEventListener("resize", () => { for (const {room, view} of views.values()) chart(room.chart, view); });
