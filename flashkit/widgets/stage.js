// Draws one step of an explorer. What is shown follows from (steps, index, error) alone; the view
// keeps nothing of its own but the width of the page and the timer of Play.

const CHAR = 7; // width of a character of 12 px text, on the safe side
const BOLD = 7.8; // of a bold one
const MONO = 7.9; // of a 13 px monospace character
const SENTENCE = 7.9; // of the sentence's 15 px
const PLAY_MS = 900;

function tag(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

// Strings become text nodes, so nothing a reader typed is ever read as markup.
function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const sum = (values) => values.reduce((a, b) => a + b, 0);
const widest = (texts) => Math.max(0, ...texts.map((text) => text.length));
const words = (x, y, text, more = {}) => svg("text", { x, y, ...more }, text);

// Bars ---------------------------------------------------------------------------------------

function barsNeed({ labels = [], texts = [], values = [], line, line_text = "", low, high, log }) {
  const seen = [...values, line].filter((v) => Number.isFinite(v) && (v > 0 || !log));
  // Whole decades, with some height left for the smallest bar.
  const ends = log ? (seen.length ? seen : [1, 10]).map(Math.log10) : [0, ...seen];
  const [least, most] = [Math.min(...ends), Math.max(...ends)];
  const slots = labels.length * Math.max(26, CHAR * widest([...labels, ...texts]) + 8);
  const right = line_text.length * BOLD;
  return {
    width: Math.min(620, slots + right + (log || !texts.some((text) => text) ? 52 : 2) + 14),
    right,
    low: low ?? (log ? 10 ** Math.floor(least - 0.2) : least),
    high: high ?? (log ? 10 ** Math.ceil(most) : most),
  };
}

function drawBars(panel, width, need) {
  const { title, labels = [], values = [], kinds = [], texts = [], line, line_text = "", log } = panel;
  const scale = scaleOf(need, log, texts);
  const { y, base, ticks, height } = scale;
  const left = ticks.length ? 52 : 2;
  const slot = Math.min(104, (width - left - need.right - 10) / Math.max(1, labels.length));
  const end = left + slot * labels.length;
  const picture = frame(width, height, title);
  for (const [value, text] of ticks) {
    picture.append(svg("line", { x1: left, x2: end, y1: y(value), y2: y(value), class: "fk-grid" }));
    picture.append(words(left - 6, y(value) + 4, text, { "text-anchor": "end", class: "fk-soft" }));
  }
  const every = Math.ceil((CHAR * widest(labels) + 4) / slot);
  labels.forEach((label, i) => {
    const x = left + slot * (i + 0.5);
    if (Number.isFinite(values[i]) && (values[i] > 0 || !log)) picture.append(bar(x, slot, y(values[i]), base, kinds[i]));
    if (i % every === 0) picture.append(words(x, height - 5, label, { class: "fk-soft fk-mid" }));
    if (texts[i]) picture.append(barText(panel, i, x, slot, scale));
  });
  picture.append(svg("line", { x1: left, x2: end, y1: base, y2: base, class: "fk-axis" }));
  if (Number.isFinite(line)) {
    picture.append(svg("line", { x1: left, x2: end, y1: y(line), y2: y(line), class: "fk-line" }));
    picture.append(words(end + 5, y(line) + 4, line_text, { class: "fk-strong" }));
  }
  return picture;
}

function scaleOf({ low, high }, log, texts) {
  if (log) [low, high] = [Math.log10(low), Math.log10(high)];
  if (high <= low) high = low + 1;
  const [top, bottom] = [24, low < 0 && !log ? 172 : 190];
  const place = (v) => bottom - ((Math.min(high, Math.max(low, v)) - low) / (high - low)) * (bottom - top);
  const y = (v) => place(log ? Math.log10(v) : v);
  const base = log ? bottom : y(0);
  return { y, base, height: 214, ticks: ticksOf(low, high, log, texts) };
}

// Ticks only where the bars do not carry their own numbers.
function ticksOf(low, high, log, texts) {
  if (log) {
    const first = Math.ceil(low - 1e-9);
    const step = Math.max(1, Math.ceil((high - first) / 5));
    const count = Math.max(0, Math.floor((high - first) / step + 1e-9) + 1);
    return Array.from({ length: count }, (_, i) => 10 ** (first + i * step)).map((v) => [v, short(v)]);
  }
  if (texts.some((text) => text)) return [];
  return [low, (low + high) / 2, high].map((v) => [v, short(v)]);
}

function short(value) {
  const plain = Math.abs(value) < 1e5 && (Math.abs(value) >= 1e-3 || value === 0);
  return plain ? String(+value.toPrecision(3)) : value.toExponential(0).replace("e+", "e");
}

function bar(x, slot, tip, base, kind) {
  const width = Math.min(46, slot * 0.64);
  const height = Math.max(1, Math.abs(tip - base));
  const place = { x: x - width / 2, y: Math.min(tip, base), width, height };
  return svg("rect", { ...place, class: `fk-${kind}`, rx: 2 });
}

function barText({ title, labels, values, kinds, texts }, i, x, slot, { y, base }) {
  const value = values[i];
  const tip = Number.isFinite(value) && Number.isFinite(y(value)) ? y(value) : base;
  const turned = texts[i].length * (CHAR - 0.6) > slot && labels.length > 1;
  const place = value < 0 ? [x, tip + 15] : [x, tip - 6];
  const more = { "data-bar": `${title}/${labels[i]}`, class: "fk-halo fk-mid" };
  if (kinds[i] === "lit" || kinds[i] === "wrong") more.class += " fk-strong";
  if (turned) {
    // Too long for its slot: written upwards, or left out of the picture where not even that fits.
    more.class = slot < 13 ? "fk-hidden" : "fk-halo";
    more.transform = `rotate(-90 ${x + 4} ${tip - 5})`;
    return words(x + 4, tip - 5, texts[i], more);
  }
  return words(...place, texts[i], more);
}

// Cells --------------------------------------------------------------------------------------

function cellsNeed({ rows = [], columns = [], texts = [] }) {
  const text = Math.max(widest(columns), ...texts.map(widest));
  const written = texts.some((row) => row.some((entry) => entry.length > 1));
  const cell = written ? Math.max(24, CHAR * text + 8) : columns.length > 24 ? 8 : 22;
  const left = CHAR * widest(rows) + 10;
  return { width: Math.min(620, left + cell * columns.length + 4), cell, left };
}

function drawCells(panel, width, { cell, left }) {
  const { title, rows = [], columns = [], texts = [], shades = [], border = [0, 0] } = panel;
  const most = cell < 12 ? 10 : Math.max(cell, 34); // a matrix of many columns stays a strip
  const w = Math.min(most, (width - left - 3) / Math.max(1, columns.length));
  const h = Math.min(w, 30);
  const picture = frame(width, 22 + h * rows.length + 3, title);
  const every = [Math.ceil((CHAR * widest(columns) + 3) / w), Math.ceil(13 / h)];
  columns.forEach((label, j) => {
    if (j % every[0] === 0) picture.append(words(left + w * (j + 0.5), 14, label, { class: "fk-soft fk-mid" }));
  });
  if (shades.length) picture.append(...shadedCells(panel, left, w, h));
  rows.forEach((label, i) => {
    const y = 22 + h * i;
    const end = { class: "fk-soft", "text-anchor": "end" };
    if (i % every[1] === 0) picture.append(words(left - 6, y + h / 2 + 4, label, end));
    columns.forEach((_, j) => {
      const drawn = shades.length && panel.kinds[i][j] === "plain";
      if (!drawn) picture.append(cellBox(panel, i, j, left + w * j, y, w, h));
      if (texts[i][j]) picture.append(cellText(panel, i, j, left + w * (j + 0.5), y + h / 2 + 4, w, h));
    });
  });
  const size = [h * rows.length, w * columns.length];
  const grid = (x1, y1, x2, y2) => picture.append(svg("line", { x1, y1, x2, y2, class: "fk-border" }));
  if (border[0]) for (let i = 0; i <= rows.length; i += border[0]) grid(left, 22 + h * i, left + size[1], 22 + h * i);
  if (border[1]) for (let j = 0; j <= columns.length; j += border[1]) grid(left + w * j, 22, left + w * j, 22 + size[0]);
  return picture;
}

// One path for all plain cells of a shade: an element for each entry of a matrix is slow to paint.
function shadedCells({ kinds, shades }, left, w, h) {
  const inset = w > 12 ? 1 : 0.25;
  const cell = `h${w - 2 * inset}v${h - 2 * inset}h${2 * inset - w}z`;
  const paths = new Map();
  shades.forEach((row, i) => {
    row.forEach((value, j) => {
      if (kinds[i][j] !== "plain") return;
      const shade = Math.round(14 * Math.min(1, Math.max(0, value))) * 5;
      paths.set(shade, `${paths.get(shade) ?? ""}M${left + w * j + inset} ${22 + h * i + inset}${cell}`);
    });
  });
  const style = (shade) => `--fk-shade: ${shade}%`;
  const drawn = (d, shade) => svg("path", { d, class: "fk-cell fk-plain fk-shaded", style: style(shade) });
  return [...paths].map(([shade, d]) => drawn(d, shade));
}

function cellBox({ kinds, shades = [] }, i, j, x, y, w, h) {
  const inset = w > 12 ? 1 : 0.25; // the gap between cells; the outline of a lit one lies in it
  const box = svg("rect", { x: x + inset, y: y + inset, width: w - 2 * inset, height: h - 2 * inset });
  box.setAttribute("class", `fk-cell fk-${kinds[i][j]}`);
  if (shades.length) {
    box.classList.add("fk-shaded");
    box.style.setProperty("--fk-shade", `${Math.round(70 * Math.min(1, Math.max(0, shades[i][j])))}%`);
  }
  return box;
}

function cellText({ title, rows, columns, texts }, i, j, x, y, w, h) {
  const fits = texts[i][j].length * (CHAR - 0.6) <= w && h >= 12;
  const name = `${title}/${rows[i]}/${columns[j]}`;
  return words(x, y, texts[i][j], { "data-cell": name, class: fits ? "fk-mid" : "fk-hidden" });
}

// Lines and Tree -----------------------------------------------------------------------------

function linesNeed({ lines = [] }) {
  return { width: Math.min(620, MONO * widest(lines) + 24), lines: lines.length };
}

function drawLines({ title, lines = [], kinds = [] }, width, need) {
  const box = tag("div", { class: "fk-lines", style: `min-height: ${need.lines * 1.55}em` });
  lines.forEach((line, i) => {
    const kind = kinds[i] ?? "plain";
    box.append(tag("div", { class: `fk-text-${kind}`, "data-line": `${title}/${i}` }, line || "\u00a0"));
  });
  return box;
}

const parts = (node) => node[2].split("\n");
const boxWidth = (node) => CHAR * widest(parts(node)) + 18;

function treeNeed({ nodes = [] }) {
  const levels = new Map();
  for (const node of nodes) levels.set(node[1], [...(levels.get(node[1]) ?? []), boxWidth(node) + 10]);
  const lines = Math.max(1, ...nodes.map((node) => parts(node).length));
  return { width: Math.max(240, ...[...levels.values()].map(sum)), levels: levels.size, lines };
}

function drawTree({ title, nodes = [], edges = [] }, width, need) {
  const wide = Math.max(width, need.width);
  const box = need.lines * 16 + 12;
  const height = need.levels * box + (need.levels - 1) * 34 + 8;
  const side = Math.max(0, ...nodes.map(boxWidth)) / 2 + 4;
  const place = ([x, y]) => [side + x * (wide - 2 * side), 4 + box / 2 + y * (height - box - 8)];
  const picture = frame(wide, height, title);
  for (const [from, to] of edges) {
    const [[x1, y1], [x2, y2]] = [place(nodes[from]), place(nodes[to])];
    picture.append(svg("line", { x1, y1, x2, y2, class: "fk-edge" }));
  }
  for (const node of nodes) {
    const [[x, y], w, texts] = [place(node), boxWidth(node), parts(node)];
    const high = texts.length * 16 + 10;
    const shape = { x: x - w / 2, y: y - high / 2, width: w, height: high, rx: 5 };
    picture.append(svg("rect", { ...shape, class: "fk-under" }));
    picture.append(svg("rect", { ...shape, class: `fk-cell fk-node fk-${node[3]}` }));
    texts.forEach((text, i) => {
      picture.append(words(x, y - high / 2 + 17 + 16 * i, text, { class: "fk-mid" }));
    });
  }
  return picture;
}

// The stage ----------------------------------------------------------------------------------

const DRAW = {
  Bars: [barsNeed, drawBars],
  Cells: [cellsNeed, drawCells],
  Lines: [linesNeed, drawLines],
  Tree: [treeNeed, drawTree],
};

function frame(width, height, title) {
  const size = { viewBox: `0 0 ${width} ${height}`, style: `max-width: ${width}px` };
  return svg("svg", { ...size, role: "img", "aria-label": title });
}

const nameOf = (panel, i) => `${i}/${panel.type}/${panel.title}`;

// What each panel needs over all steps, so that nothing jumps when the slider moves. Panels that
// say the same get the same key, and are not drawn again.
function measure(steps) {
  const needs = new Map();
  const keys = new Map();
  for (const step of steps) {
    step.panels.forEach((panel, i) => {
      const name = nameOf(panel, i);
      keys.set(panel, JSON.stringify(panel));
      const need = DRAW[panel.type][0](panel);
      const old = needs.get(name) ?? need;
      for (const key of Object.keys(need)) {
        need[key] = (key === "low" ? Math.min : Math.max)(need[key], old[key]);
      }
      needs.set(name, need);
    });
  }
  return { needs, keys };
}

function render({ model, el }) {
  const view = skeleton(model, el);
  let measured, needs, keys, layout;

  const lay = (step) => {
    const names = step.panels.map(nameOf);
    if (layout.names === names.join("|")) return;
    const slots = step.panels.map((panel, i) => {
      const caption = tag("figcaption", {}, panel.title);
      return tag("figure", { style: `flex-basis: ${needs.get(names[i]).width}px` }, caption);
    });
    view.panels.replaceChildren(...slots);
    view.reserve(model.get("steps"));
    const widths = slots.map((slot) => Math.max(200, Math.floor(slot.clientWidth) || 640));
    layout = { names: names.join("|"), slots, widths, drawn: [] };
  };
  const renew = (steps) => {
    [measured, layout] = [steps, { names: "", slots: [] }];
    ({ needs, keys } = measure(steps));
  };
  const paint = () => {
    const [steps, error] = [model.get("steps"), model.get("error")];
    // One message brings several changes in any order: the index may call before the steps do.
    if (steps !== measured) renew(steps);
    const index = Math.max(0, Math.min(model.get("index"), steps.length - 1));
    view.say(error, steps, index);
    if (!steps.length) return;
    lay(steps[index]);
    steps[index].panels.forEach((panel, i) => {
      if (layout.drawn[i] === keys.get(panel)) return;
      layout.drawn[i] = keys.get(panel);
      const { slots, widths } = layout;
      const picture = DRAW[panel.type][1](panel, widths[i], needs.get(nameOf(panel, i)));
      slots[i].replaceChildren(slots[i].firstChild, picture);
      // A panel that has to scroll must be within reach of the keyboard.
      if (picture.viewBox?.baseVal.width > widths[i]) slots[i].setAttribute("tabindex", "0");
    });
  };
  const draw = () => {
    try {
      paint();
    } catch (error) {
      view.fail(error);
    }
  };
  let width = 0;
  const resized = new ResizeObserver(() => {
    if (Math.abs(el.clientWidth - width) < 2 || !el.clientWidth) return;
    width = el.clientWidth;
    renew(model.get("steps"));
    draw();
  });
  const changes = "change:steps change:index change:error change:busy change:revision";
  model.on(changes, draw);
  draw();
  resized.observe(el);
  return () => {
    view.stop();
    resized.disconnect();
    model.off(changes, draw);
  };
}

// The fixed parts: buttons, sentence, facts. `say` writes them for one step.
function skeleton(model, el) {
  const keys = { "data-lm-suppress-shortcuts": "true" }; // JupyterLab takes the arrow keys otherwise
  const last = () => model.get("steps").length - 1;
  const go = (index) => {
    model.set("index", Math.max(0, Math.min(index, last())));
    model.save_changes();
  };
  let timer = null;
  const stop = () => {
    clearInterval(timer);
    timer = null;
    buttons.Play.textContent = "Play";
  };
  const tick = () => {
    if (model.get("index") < last()) go(model.get("index") + 1);
    if (model.get("index") >= last()) stop();
  };
  const play = () => {
    if (timer) return stop();
    if (model.get("index") >= last()) go(0);
    buttons.Play.textContent = "Pause";
    timer = setInterval(tick, PLAY_MS);
  };
  const step = (index) => () => {
    stop();
    go(index());
  };
  const back = step(() => model.get("index") - 1);
  const next = step(() => model.get("index") + 1);
  const press = { First: step(() => 0), Back: back, Play: play, Next: next };
  const buttons = {};
  for (const [name, pressed] of Object.entries(press)) {
    buttons[name] = tag("button", { type: "button", ...keys }, name);
    buttons[name].addEventListener("click", pressed);
  }
  const moves = { ArrowLeft: back, ArrowRight: next, Home: press.First, End: step(last) };
  el.addEventListener("keydown", (event) => {
    if (!moves[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    moves[event.key]();
  });

  const alert = tag("div", { class: "flashkit-alert", role: "alert" });
  const readout = tag("span", { class: "flashkit-readout" });
  const sentence = tag("p", { class: "flashkit-sentence", "aria-live": "polite" });
  const panels = tag("div", { class: "flashkit-panels" });
  const facts = tag("dl", { class: "flashkit-facts" });
  const bar = tag("div", { class: "flashkit-buttons" }, ...Object.values(buttons), readout);
  fill(el, { role: "group", tabindex: "0", "aria-label": model.get("name"), ...keys }, []);
  el.classList.add("flashkit-stage");
  el.append(alert, bar, sentence, panels, facts);

  const say = (error, steps, index) => {
    const kept = steps.length ? " The picture below is of the last values that worked." : "";
    alert.textContent = error ? error.replace(/([^.!?])$/, "$1.") + kept : "";
    const step = steps[index];
    sentence.textContent = step?.sentence ?? "";
    readout.textContent = step ? `${model.get("label")} ${index + 1} of ${steps.length}` : "";
    readout.textContent += model.get("busy") ? " · computing …" : "";
    fill(el, { "aria-busy": model.get("busy"), "data-revision": model.get("revision") }, []);
    facts.replaceChildren(...factList(step?.facts ?? [], steps[index - 1]?.facts));
    for (const name of ["First", "Back"]) buttons[name].setAttribute("aria-disabled", index <= 0);
    buttons.Next.setAttribute("aria-disabled", index >= steps.length - 1);
    nameSlider(el, model.get("label"), 20);
  };
  const fail = (error) => {
    console.error(error);
    alert.textContent = `This step could not be drawn: ${error.message}`;
  };
  // Room for the longest sentence, so that the picture below it stays where it is.
  const reserve = (steps) => {
    const line = Math.max(20, Math.min(el.clientWidth || 640, 855) / SENTENCE);
    const lines = Math.ceil(Math.max(...steps.map((step) => step.sentence.length)) / line);
    sentence.style.minHeight = `${1.5 * lines}em`;
  };
  return { panels, say, fail, stop, reserve };
}

// A fact that differs from the step before is set in bold.
function factList(facts, before) {
  const old = new Map(before ?? facts);
  return facts.map(([name, value]) => {
    const entry = tag("div", old.get(name) === value ? {} : { class: "fk-changed" });
    entry.append(tag("dt", {}, name), tag("dd", { "data-fact": name }, value));
    return entry;
  });
}

// The handle of the slider beside this stage has no accessible name of its own, and it may be
// attached after the stage.
function nameSlider(el, label, tries) {
  const handle = el.parentElement?.querySelector(":scope > .widget-slider .noUi-handle");
  if (handle) handle.setAttribute("aria-label", label);
  else if (tries) setTimeout(nameSlider, 100, el, label, tries - 1);
}

export default { render };
