// The attention view: draws the data in the page. Texts are untrusted: they only become text nodes.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const element = (id) => document.getElementById(id);
const LINE_LIMIT = 4; // Lines from each token while no token is selected.
const MAX_NAMES = 48; // Larger heat maps have no token names.

const maps = data.maps.map((map) => ({ ...map, values: decoded(map.weights) }));
const hasMaps = maps.length > 0; // A model without an encoder has none.
const state = { map: 0, layer: hasMaps ? maps[0].layers - 1 : 0, head: hasMaps ? maps[0].heads : 0, view: "lines", token: null, cell: [0, 0] };

function decoded(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const steps = new Uint16Array(bytes.buffer);
  return Float32Array.from(steps, (step) => step / 65535);
}

function create(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

function attributes(node, values) {
  for (const [name, value] of Object.entries(values)) node.setAttribute(name, value);
  return node;
}

const percent = (value, digits = 1) => `${(100 * value).toFixed(digits)} %`;
const amount = (value) => (data.unit === "score" ? value.toFixed(3) : percent(value));
const change = (value) => {
  const digits = data.unit === "score" ? value.toFixed(3) : (100 * value).toFixed(1);
  return `${Number(digits) > 0 ? "+" : Number(digits) < 0 ? "−" : ""}${digits.replace("-", "")}`;
};
// Not Math.max(...): the weights of a long text are too many arguments.
const largest = (values) => values.reduce((most, value) => Math.max(most, value), 0);
const smallest = (values) => values.reduce((least, value) => Math.min(least, value), Infinity);
// From 0 for the least value to 1 for the most.
const scaled = (value, least, most) => Math.max(0, Math.min(1, (value - least) / (most - least || 1)));
const small = (value) => value.toPrecision(2);
const signedNumber = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;
const quoted = (text) => `“${text}”`;

// Roving tabindex: arrow keys move the focus in a group that is one tab stop. `columns` is the width of a grid, 0 for a row.
function roving(group, items, columns, onFocus = () => {}) {
  items.forEach((item, index) => (item.tabIndex = index ? -1 : 0));
  group.addEventListener("keydown", (event) => {
    const at = items.indexOf(event.target);
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const last = items.length - 1;
    const start = columns ? at - (at % columns) : 0;
    const targets = {
      ArrowRight: columns ? Math.min(at + 1, start + columns - 1) : at + 1,
      ArrowLeft: columns ? Math.max(at - 1, start) : at - 1,
      ArrowDown: columns ? at + columns : at + 1,
      ArrowUp: columns ? at - columns : at - 1,
      Home: event.shiftKey ? 0 : start,
      End: columns ? start + columns - 1 : last,
    };
    const target = items[targets[event.key]];
    if (event.key in targets) event.preventDefault();
    if (!target) return;
    stop(items, target);
    target.focus();
    onFocus(target);
  });
}

function stop(items, target) {
  for (const item of items) item.tabIndex = item === target ? 0 : -1;
}

// A group of radio buttons.
function choice(group, names, isOn, choose) {
  const buttons = names.map((name) => attributes(create("button", { type: "button", textContent: name }), { role: "radio" }));
  const show = () => buttons.forEach((button, index) => button.setAttribute("aria-checked", String(isOn(index))));
  const pick = (button) => {
    choose(buttons.indexOf(button));
    stop(buttons, button);
    show();
  };
  group.replaceChildren(...buttons);
  roving(group, buttons, 0, pick);
  stop(buttons, buttons[names.findIndex((_, index) => isOn(index))]);
  for (const button of buttons) button.addEventListener("click", () => pick(button));
  show();
}

function tokenButton(sequence, index, label = "") {
  const { tokens, words } = data.sequences[sequence];
  const button = create("button", { type: "button", className: "token", textContent: tokens[index] || " " });
  button.classList.toggle("special", words[index] < 0);
  button.dataset.token = `${sequence} ${index}`;
  if (label) {
    button.title = label;
    button.setAttribute("aria-label", `${tokens[index]}, ${label}`);
  }
  button.addEventListener("click", () => {
    const same = state.token && state.token[0] === sequence && state.token[1] === index;
    chooseToken(same ? null : [sequence, index]);
  });
  return button;
}

function chooseToken(token) {
  state.token = token;
  showPressed();
  if (!hasMaps) return;
  const map = maps[state.map];
  if (token && token[0] === map.rows) state.cell[0] = token[1];
  if (token && token[0] === map.columns && map.rows !== map.columns) state.cell[1] = token[1];
  showPicture();
}

function showPressed() {
  const name = state.token ? state.token.join(" ") : null;
  for (const button of document.querySelectorAll("[data-token]")) {
    button.setAttribute("aria-pressed", String(button.dataset.token === name));
  }
}

function showHeader() {
  element("where").textContent = data.where;
  element("explained").replaceChildren(`${data.explained} `, create("span", { textContent: amount(data.value) }));
  const most = data.unit === "score" ? largest(data.predictions.map(([, value]) => Math.abs(value))) || 1 : 1;
  element("predictions").replaceChildren(
    ...data.predictions.map(([name, value]) => {
      const bar = create("span", { className: "bar" });
      bar.style.setProperty("--share", Math.abs(value) / most);
      const row = create("li", {}, create("span", { textContent: name }), bar, create("span", { textContent: amount(value) }));
      row.classList.toggle("best", name === data.best);
      return row;
    }),
  );
  element("summary").textContent = data.summary;
  element("caution").textContent = data.caution;
  element("notes").replaceChildren(...data.notes.map((note) => create("li", { textContent: note })));
}

function showPanels() {
  element("panels").replaceChildren(
    ...data.methods.map(({ key, name, hint, signed }, place) => {
      // The first view is the one that the deletion test supports best.
      const panel = create("div", { className: "panel" }, create("h3", { textContent: name }), create("p", { className: "hint", textContent: place ? hint : `${hint} ${data.best_hint}` }));
      // Scaled to the words: [CLS] may have most of a rollout. Shares of attention differ little, so their scale starts at the least.
      const all = data.sequences.flatMap(({ words, [key]: values }) => values.filter((_, index) => words[index] >= 0));
      const most = largest(all.map(Math.abs));
      const least = signed ? 0 : smallest(all);
      data.sequences.forEach((sequence, number) => {
        if (data.sequences.length > 1) panel.append(create("h4", { textContent: sequence.name }));
        const strip = attributes(create("div", { className: "strip" }), { role: "group", "aria-label": `${name}, ${sequence.name}` });
        const buttons = sequence.tokens.map((_, index) => {
          const value = sequence[key][index];
          const button = tokenButton(number, index, key === "rollout" ? percent(value) : key === "left_out" ? change(value) : small(value));
          button.style.setProperty("--share", scaled(Math.abs(value), least, most));
          button.classList.toggle("against", signed && value < 0);
          return button;
        });
        strip.append(...buttons);
        roving(strip, buttons, 0);
        panel.append(strip);
      });
      panel.append(legend(key, signed, least, most, data.sequences.some((sequence) => sequence[key].some((value) => Math.abs(value) > most))));
      return panel;
    }),
  );
}

function legend(key, signed, least, most, isMore) {
  const top = key === "rollout" ? percent(most) : key === "left_out" ? change(most) : small(most);
  const parts = [signed ? "0" : percent(least), create("i"), isMore ? `${top} and more` : top];
  if (signed) parts.push(" · negative: ", create("i", { className: "under" }));
  return create("div", { className: "legend" }, ...parts);
}

function weight(map, layer, head, row, column) {
  const { heads, values } = map;
  const [height, width] = size(map);
  const at = (n) => values[((layer * heads + n) * height + row) * width + column];
  if (head < heads) return at(head);
  let sum = 0;
  for (let n = 0; n < map.there[layer]; n++) sum += at(n);
  return sum / map.there[layer];
}

const size = (map) => [data.sequences[map.rows].tokens.length, data.sequences[map.columns].tokens.length];

function matrix(map, layer, head) {
  const [height, width] = size(map);
  const found = new Float32Array(height * width);
  for (let row = 0; row < height; row++) {
    for (let column = 0; column < width; column++) found[row * width + column] = weight(map, layer, head, row, column);
  }
  return found;
}

// A color of the style sheet as [red, green, blue].
function color(name) {
  const probe = create("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const context = create("canvas", { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  context.fillStyle = getComputedStyle(probe).color;
  context.fillRect(0, 0, 1, 1);
  probe.remove();
  return [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)];
}

function paint(canvas, values, height, width) {
  const [low, high, most, least] = [color("--track"), color("--accent"), largest(values), smallest(values)];
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  values.forEach((value, index) => {
    for (let part = 0; part < 3; part++) image.data[4 * index + part] = low[part] + (high[part] - low[part]) * scaled(value, least, most);
    image.data[4 * index + 3] = 255;
  });
  context.putImageData(image, 0, 0);
}

const headName = (map, head) => (head < map.heads ? `head ${head + 1}` : "mean of heads");
const isPruned = (map, layer, head) => head < map.heads && head >= map.there[layer];
const layerName = (map, layer) => `${map.unit} ${layer + 1}`;
let cells = [];

function showGrid() {
  const map = maps[state.map];
  const [height, width] = size(map);
  state.layer = Math.min(state.layer, map.layers - 1);
  state.head = Math.min(state.head, map.heads);
  const header = attributes(create("div"), { role: "row" });
  header.append(attributes(create("span", { className: "corner" }), { role: "columnheader", "aria-label": map.unit }));
  for (let head = 0; head <= map.heads; head++) {
    header.append(attributes(create("span", { textContent: head < map.heads ? String(head + 1) : "mean" }), { role: "columnheader" }));
  }
  cells = [];
  const rows = Array.from({ length: map.layers }, (_, layer) => {
    const row = attributes(create("div"), { role: "row" });
    row.append(attributes(create("span", { textContent: layerName(map, layer) }), { role: "rowheader" }));
    for (let head = 0; head <= map.heads; head++) {
      const cell = attributes(create("button", { type: "button", className: "cell" }), { role: "gridcell" });
      cell.title = `${layerName(map, layer)}, ${headName(map, head)}${isPruned(map, layer, head) ? ", pruned" : ""}`;
      cell.setAttribute("aria-label", cell.title);
      Object.assign(cell.dataset, { layer, head });
      const canvas = create("canvas");
      paint(canvas, matrix(map, layer, head), height, width);
      cell.append(canvas);
      cell.addEventListener("click", () => chooseHead(cell));
      cells.push(cell);
      row.append(cell);
    }
    return row;
  });
  // A new element, which drops the key listeners of the previous map.
  const grid = attributes(create("div", { className: "grid", id: "grid" }, header, ...rows), { role: "grid", "aria-label": "Layers and heads" });
  grid.classList.toggle("many", map.heads > 8);
  element("grid").replaceWith(grid);
  roving(grid, cells, map.heads + 1, chooseHead);
  chooseHead(cells[state.layer * (map.heads + 1) + state.head]);
}

function chooseHead(cell) {
  state.layer = Number(cell.dataset.layer);
  state.head = Number(cell.dataset.head);
  for (const each of cells) each.setAttribute("aria-selected", String(each === cell));
  stop(cells, cell);
  const box = element("grid").parentElement;
  const [own, frame] = [cell.getBoundingClientRect(), box.getBoundingClientRect()];
  if (own.left < frame.left || own.right > frame.right) box.scrollLeft += own.right - frame.right + 4;
  const map = maps[state.map];
  element("chosen").textContent = `${map.name}: ${layerName(map, state.layer)}, ${headName(map, state.head)}`;
  showPicture();
}

function showPicture() {
  const map = maps[state.map];
  const values = matrix(map, state.layer, state.head);
  element("lines").hidden = state.view !== "lines";
  element("heat").hidden = state.view !== "heat";
  const [least, most] = [smallest(values), largest(values)];
  element("scale").replaceChildren(percent(least), create("i", { className: "full" }), `${percent(most)} of a token's attention`);
  if (state.view === "lines") showLines(map, values);
  else showHeat(map, values);
}

function chosenIn(sequence) {
  return state.token && state.token[0] === sequence ? state.token[1] : null;
}

function showLines(map, values) {
  const [height, width] = size(map);
  const focused = document.activeElement?.dataset?.token;
  const focusedSide = document.activeElement?.parentElement?.id;
  const row = chosenIn(map.rows);
  const column = row === null ? chosenIn(map.columns) : null;
  const rowShare = (r) => (column === null ? 0 : values[r * width + column]);
  const columnShare = (c) => {
    if (row !== null) return values[row * width + c];
    if (column !== null) return 0;
    let sum = 0;
    for (let r = 0; r < height; r++) sum += values[r * width + c];
    return sum / height;
  };
  for (const [id, sequence, count, share] of [["from", map.rows, height, rowShare], ["to", map.columns, width, columnShare]]) {
    const shares = Array.from({ length: count }, (_, index) => share(index));
    const [least, most] = [smallest(shares), largest(shares)];
    const buttons = shares.map((value, index) => {
      const button = tokenButton(sequence, index, value ? percent(value) : "");
      button.style.setProperty("--share", scaled(value, least, most));
      return button;
    });
    const side = attributes(create("div", { className: id === "from" ? "side from" : "side", id }, ...buttons), { role: "group", "aria-label": id === "from" ? "Attending tokens" : "Attended tokens" });
    element(id).replaceWith(side);
    roving(side, buttons, 0);
    const same = buttons.find((button) => focusedSide === id && button.dataset.token === focused);
    if (same) {
      stop(buttons, same);
      same.focus();
    }
  }
  showPressed();
  drawLines(values, height, width, row, column);
  element("details").textContent =
    row !== null
      ? `Attention from ${quoted(data.sequences[map.rows].tokens[row])}.`
      : column !== null
        ? `Attention to ${quoted(data.sequences[map.columns].tokens[column])}.`
        : `The ${LINE_LIMIT} largest weights of each token; shading: mean attention to a token, from the least to the most.`;
}

function drawLines(values, height, width, row, column) {
  const canvas = element("arcs");
  const step = element("from").firstElementChild.offsetHeight;
  const across = canvas.clientWidth;
  const scale = window.devicePixelRatio || 1;
  canvas.style.height = `${Math.max(height, width) * step}px`;
  Object.assign(canvas, { width: across * scale, height: Math.max(height, width) * step * scale });
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  const [red, green, blue] = color("--accent");
  // The lines of the selected token are scaled to its largest weight.
  const counts = (_, place) => (row === null || Math.floor(place / width) === row) && (column === null || place % width === column);
  const most = largest(values.filter(counts)) || 1;
  for (let r = 0; r < height; r++) {
    if (row !== null && r !== row) continue;
    const own = Array.from({ length: width }, (_, c) => [values[r * width + c], c]);
    const shown = row === null && column === null ? own.sort((a, b) => b[0] - a[0]).slice(0, LINE_LIMIT) : own;
    for (const [value, c] of shown) {
      if (value < most / 50 || (column !== null && c !== column)) continue;
      const [from, to] = [(r + 0.5) * step, (c + 0.5) * step];
      context.strokeStyle = `rgba(${red}, ${green}, ${blue}, ${0.05 + 0.95 * (value / Math.sqrt(most))})`;
      context.lineWidth = 1 + 2 * (value / Math.sqrt(most));
      context.beginPath();
      context.moveTo(3, from);
      context.bezierCurveTo(across * 0.45, from, across * 0.55, to, across - 3, to);
      context.stroke();
    }
  }
}

function showHeat(map, values) {
  const [height, width] = size(map);
  const canvas = element("map");
  paint(canvas, values, height, width);
  const side = Math.max(3, Math.min(22, Math.floor(560 / Math.max(height, width))));
  Object.assign(canvas.style, { width: `${width * side}px`, height: `${height * side}px` });
  state.cell = [Math.min(state.cell[0], height - 1), Math.min(state.cell[1], width - 1)];
  for (const [id, sequence, count, length] of [["row-names", map.rows, height, "height"], ["column-names", map.columns, width, "width"]]) {
    const fits = Math.max(height, width) <= MAX_NAMES && side >= 11;
    element(id).replaceChildren(
      ...(fits ? data.sequences[sequence].tokens : []).map((token) => {
        const name = create("span", { textContent: token });
        name.style[length] = `${side}px`;
        return name;
      }),
    );
    element(id).dataset.count = count;
  }
  showCell(map, values);
}

function showCell(map, values) {
  const [row, column] = state.cell;
  const [rows, columns] = [data.sequences[map.rows].tokens, data.sequences[map.columns].tokens];
  [...element("row-names").children].forEach((name, index) => name.classList.toggle("on", index === row));
  [...element("column-names").children].forEach((name, index) => name.classList.toggle("on", index === column));
  element("details").textContent = `${quoted(rows[row])} attends to ${quoted(columns[column])}: ${percent(values[row * columns.length + column])}`;
}

function listenToHeat() {
  const canvas = element("map");
  const move = (row, column) => {
    const map = maps[state.map];
    const [height, width] = size(map);
    state.cell = [Math.max(0, Math.min(height - 1, row)), Math.max(0, Math.min(width - 1, column))];
    showCell(map, matrix(map, state.layer, state.head));
  };
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    move(state.cell[0] + step[0], state.cell[1] + step[1]);
  });
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const [height, width] = size(maps[state.map]);
    move(Math.floor(((event.clientY - box.top) / box.height) * height), Math.floor(((event.clientX - box.left) / box.width) * width));
  });
}

function showLinear() {
  const linear = data.linear;
  element("linear").hidden = !linear;
  if (!linear) return;
  element("linear-hint").textContent = linear.hint;
  const most = largest([...linear.parts, ...linear.ngrams].map(([, value]) => Math.abs(value))) || 1;
  const table = (id, name, rows) => {
    const header = create("tr", {}, create("th", { textContent: name, scope: "col" }), create("th", { textContent: "logit", scope: "col" }), create("td"));
    const body = rows.map(([text, value]) => {
      const bar = create("span", { className: value < 0 ? "bar against" : "bar" });
      bar.style.setProperty("--share", Math.abs(value) / most);
      return create("tr", {}, create("td", { textContent: text }), create("td", { textContent: signedNumber(value) }), create("td", {}, bar));
    });
    element(id).replaceChildren(create("thead", {}, header), create("tbody", {}, ...body));
  };
  table("parts", "part", linear.parts);
  table("ngrams", "n-gram", linear.ngrams);
}

function showDeletion() {
  const test = data.deletion;
  element("evidence").textContent = data.evidence;
  element("deletion").hidden = !test;
  element("deletion-hint").textContent = data.deletion_hint;
  if (!test) return;
  const header = create("tr", {}, create("th", { textContent: "words dropped", scope: "col" }));
  for (const { name } of data.deletion_columns) header.append(create("th", { textContent: name, scope: "col" }));
  const rows = test.steps.map((step) => {
    const row = create("tr", {}, create("td", { textContent: `${step.dropped} of ${test.words}` }));
    for (const { key } of data.deletion_columns) {
      const cell = create("td", { textContent: change(-step[key]) });
      if (key === "random") cell.append(create("small", { textContent: ` (${change(-step.random_high)} to ${change(-step.random_low)})` }));
      row.append(cell);
    }
    return row;
  });
  element("deletion").replaceChildren(create("thead", {}, header), create("tbody", {}, ...rows));
}

function showMaps() {
  choice(element("maps"), maps.map((map) => map.name), (index) => index === state.map, (index) => {
    state.map = index;
    showGrid();
  });
  element("maps").hidden = maps.length < 2;
  choice(element("views"), ["Lines", "Heat map"], (index) => index === (state.view === "heat" ? 1 : 0), (index) => {
    state.view = index ? "heat" : "lines";
    showPicture();
  });
  listenToHeat();
  showGrid();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showGrid);
  let resizing;
  addEventListener("resize", () => {
    cancelAnimationFrame(resizing);
    resizing = requestAnimationFrame(showPicture);
  });
}

showHeader();
showPanels();
showLinear();
element("attention").hidden = element("select-hint").hidden = !hasMaps;
if (hasMaps) showMaps();
showDeletion();

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && state.token) chooseToken(null);
});
