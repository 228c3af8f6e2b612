// Live panels on canvases. The kernel sends what is new; this file keeps it and draws. It decides nothing about a run.
//
// From the kernel: the trait `spec` {title, panels, runs, names, variants, sliders}, and messages
//   {kind: "rows", run, from} + float32 buffer (row-major: step, then one value for each of spec.names)
//   {kind: "state", running, text, marks}      {kind: "clear", run}
// To the kernel: {kind: "hello" | "stop" | "reset"} and {kind: "run", variant, values}.

export const TONES = {
  bug: ["#C44E00", "#F08A30"], fix: ["#1B55AE", "#9CC6FF"], healthy: ["#2A9D78", "#8FF5DA"],
  without: ["#2E0F45", "#E060BE"], far: ["#7A0014", "#E5284F"], one: ["#009E73", "#2CC79A"],
  two: ["#AA4499", "#DD88BB"], three: ["#6B5D00", "#E6B93C"], four: ["#4400AA", "#7766FF"],
  five: ["#771100", "#FFFFAA"], six: ["#000000", "#CCFFFF"], grey: ["#767676", "#9E9E9E"],
};
export const DASHES = { without: [4, 2], healthy: [7, 2, 1.5, 2] };
const GHOST = 0.55;
const LEFT = 52, RIGHT = 6, TOP = 6, BOTTOM = 16;

// ---------------------------------------------------------------- numbers

// The same rules as `labkit.common.number` and `format_size(short=True)`.
const digits = (v, n) => String(Number(v.toPrecision(n)));

export function short(v, unit) {
  if (Number.isNaN(v)) return "NaN";
  if (!Number.isFinite(v)) return v > 0 ? "inf" : "-inf";
  const three = (v) => (Math.abs(v) >= 999.5 ? v.toFixed(0) : digits(v, 3)), size = Math.abs(v);
  if (unit === "bytes") {
    const power = [0, 1, 2].find((p) => size <= 1023.5 * 1024 ** p) ?? 3;
    return `${three(v / 1024 ** power)} ${["bytes", "KiB", "MiB", "GiB"][power]}`;
  }
  if (v && (size < 1e-3 || size >= 1e5)) return v.toExponential(1).replace("e+", "e").replace(".0e", "e");
  return three(v);
}

const LEAST = 1e-290;  // what lies below counts as this on a logarithmic axis: the edges must not round to 0

// The y axis of a panel: [logarithmic?, low, high]. The same rule as `y_limits` in figure.py.
export function limits(panel, least, most, leastPositive) {
  const lines = panel.threshold === null ? [] : [panel.threshold], positive = lines.filter((l) => l > 0);
  if (panel.log || most > panel.log_above) {
    let low = Math.min(leastPositive, ...positive), high = Math.max(most > 0 ? most : 0, ...positive);
    if (!(high > 0)) [low, high] = [0.1, 10];
    [low, high] = [Math.max(low, LEAST), Math.max(high, LEAST)];
    const floor = Math.min(high, ...positive) * 1e-6;
    [low, high] = [Math.max(low / 1.3, floor), high * 1.3];
    if (high / low < 10) { const m = Math.sqrt(high) * Math.sqrt(low); low = m / Math.sqrt(10); high = m * Math.sqrt(10); }
    if (least <= 0) low /= 20;  // the bottom edge stands for zero, well below what is positive
    return [true, low, high];
  }
  const low = Math.min(least, 0, ...lines), high = Math.max(most, 0, ...lines) || (low < 0 ? 0 : 1);
  const gap = 0.06 * (high - low);
  return [false, low - gap, high + gap];
}

function ticks(log, low, high, unit, least) {
  if (log) {
    const out = least <= 0 ? [[low, least < 0 ? "≤ 0" : "0"]] : [], lowest = least <= 0 ? low * (high / low) ** 0.15 : low;
    const from = Math.ceil(Math.log10(lowest) - 1e-9), to = Math.floor(Math.log10(high) + 1e-9);
    if (to - from >= 1) {
      const every = Math.ceil((to - from + 1) / 5);
      for (let e = from; e <= to; e += every) out.push([10 ** e, short(10 ** e, unit)]);
    } else
      for (let e = from - 1; e <= to + 1; e++)
        for (const v of [1, 2, 5].map((m) => m * 10 ** e)) if (v >= lowest && v <= high) out.push([v, short(v, unit)]);
    return out;
  }
  const power = unit === "bytes" ? Math.min(3, Math.floor(Math.log2(Math.max(high, 1)) / 10)) : 0;
  const scale = 1024 ** power;
  const raw = (high - low) / scale / 3, base = 10 ** Math.floor(Math.log10(raw));
  const step = base * [1, 2, 5, 10].find((m) => m * base >= raw * 0.999), out = [];
  for (let i = Math.ceil(low / scale / step); i * step <= high / scale; i++)
    out.push([i * step * scale, i ? short(i * step * scale, unit) : "0"]);
  return out;
}

// ---------------------------------------------------------------- what was measured

class Rows {
  constructor(width) { this.width = width; this.n = 0; this.data = new Float32Array(64 * width); }
  add(from, part) {
    const w = this.width, count = part.length / w;
    if (from > this.n) this.reserve(from), this.data.fill(NaN, this.n * w, from * w);  // a gap: the rest is on its way
    this.reserve(from + count);
    this.data.set(part, from * w);
    this.n = Math.max(this.n, from + count);
  }
  reserve(n) {
    if (n * this.width <= this.data.length) return;
    const more = new Float32Array(Math.max(n * this.width, 2 * this.data.length));
    more.set(this.data.subarray(0, this.n * this.width));
    this.data = more;
  }
  at(row, column) { return this.data[row * this.width + column]; }
  from(x) {  // the first row whose step is x or more, or the last row
    let low = 0, high = this.n - 1;
    while (low < high) { const mid = (low + high) >> 1; this.at(mid, 0) < x ? (low = mid + 1) : (high = mid); }
    return low;
  }
  nearest(x) {  // the row whose step is nearest
    const row = this.from(x);
    return row > 0 && x - this.at(row - 1, 0) < this.at(row, 0) - x ? row - 1 : row;
  }
}

// ---------------------------------------------------------------- drawing

// One series. Above two points a pixel: first, least, most and last of each pixel column, so that spikes survive.
// Few points, or one without neighbours, get a dot each.
function trace(ctx, rows, column, X, Y, width) {
  const n = rows.n, dense = n > 2 * width, dots = n <= 40 && X(rows.at(n - 1, 0)) - X(rows.at(0, 0)) > 8 * n, at = [];
  let pen = false, pixel = -1, first, last, least, most;
  const flush = () => {
    if (pixel < 0) return;
    const x = pixel + 0.5;
    pen ? ctx.lineTo(x, first) : ctx.moveTo(x, first);
    ctx.lineTo(x, least); ctx.lineTo(x, most); ctx.lineTo(x, last);
    pen = true; pixel = -1;
  };
  ctx.beginPath();
  for (let i = 0; i < n; i++) {
    const v = rows.at(i, column);
    if (!Number.isFinite(v)) { flush(); pen = false; continue; }
    const x = X(rows.at(i, 0)), y = Y(v);
    if (!dense) {
      pen ? ctx.lineTo(x, y) : ctx.moveTo(x, y);
      pen = true;
      const lonely = !Number.isFinite(i ? rows.at(i - 1, column) : NaN) && !Number.isFinite(i + 1 < n ? rows.at(i + 1, column) : NaN);
      if (dots || lonely) at.push([x, y]);
      continue;
    }
    const p = Math.floor(x);
    if (p !== pixel) { flush(); pixel = p; first = least = most = y; }
    least = Math.min(least, y); most = Math.max(most, y); last = y;
  }
  flush();
  ctx.stroke();
  for (const [x, y] of at) { ctx.beginPath(); ctx.arc(x, y, 2, 0, 7); ctx.fill(); }
}

function reach(runs, column) {  // least, most and least positive finite value
  let least = Infinity, most = -Infinity, positive = Infinity;
  for (const rows of runs)
    for (let i = 0; i < rows.n; i++) {
      const v = rows.at(i, column);
      if (!Number.isFinite(v)) continue;
      if (v < least) least = v;
      if (v > most) most = v;
      if (v > 0 && v < positive) positive = v;
    }
  return [least, most, positive];
}

// The line of text for each [left, right], so that no two on one line touch. The same rule as `stacked` in figure.py.
function stacked(spans) {
  const ends = [], lines = [];
  for (const [at, [left, right]] of [...spans.entries()].sort((a, b) => a[1][0] - b[1][0])) {
    const free = ends.findIndex((end) => end < left);
    lines[at] = free < 0 ? ends.length : free;
    ends[lines[at]] = right;
  }
  return lines;
}

export default () => {
  // Of the model, shared by all its views.
  const state = { alive: false, running: "", text: "", marks: [], rows: [] }, views = new Set();
  const redraw = () => views.forEach((v) => v.soon());

  function initialize({ model }) {
    const spec = () => model.get("spec");
    const rows = (run) => (state.rows[run] ??= new Rows(1 + spec().names.length));
    model.on("msg:custom", (msg, buffers) => {
      if (msg.kind === "rows") {
        const view = buffers[0], bytes = new Uint8Array(view.byteLength);  // copied: the offset may be odd
        bytes.set(new Uint8Array(view.buffer ?? view, view.byteOffset ?? 0, view.byteLength));
        rows(msg.run).add(msg.from, new Float32Array(bytes.buffer));
      } else if (msg.kind === "clear") state.rows[msg.run] = undefined;
      if (msg.text !== undefined) Object.assign(state, { text: msg.text, running: msg.running, marks: msg.marks });
      state.alive = true;
      redraw();
    });
    model.on("change:spec", () => views.forEach((v) => v.build()));
    model.send({ kind: "hello" });  // a restored notebook has nobody to answer: then nothing shows but the picture
  }

  function render({ model, el }) {
    const root = document.createElement("div");
    root.className = "labkit";
    root.hidden = true;
    el.appendChild(root);
    const make = (tag, parent, props = {}) => {
      const node = parent.appendChild(Object.assign(document.createElement(tag), props));
      if (tag === "button" || tag === "input") node.dataset.lmSuppressShortcuts = "true";  // else JupyterLab takes its keys
      return node;
    };
    const bar = make("div", root, { className: "bar" }), sliders = make("div", root, { className: "sliders" });
    const grid = make("div", root, { className: "panels" });
    const heard = make("div", root, { className: "heard" });
    heard.setAttribute("role", "status");
    const values = {};
    let spec, panels = [], buttons = [], stop, reset, status, hover = null, waiting = false, built = "", drawn = "";
    const dark = () => {
      const [r, g, b] = (getComputedStyle(root).color.match(/[\d.]+/g) ?? [0, 0, 0]).map(Number);
      return r * 0.3 + g * 0.6 + b * 0.1 > 128;
    };
    const tone = (name) => TONES[name][dark() ? 1 : 0];

    function build() {  // only what changed: a rebuilt button would lose the focus
      spec = model.get("spec");
      const controls = JSON.stringify([spec.title, spec.variants, spec.sliders]), charts = JSON.stringify([spec.panels, spec.names]);
      if (controls !== built) buildControls();
      if (charts !== drawn) buildPanels();
      [built, drawn] = [controls, charts];
      soon();
    }

    function buildControls() {
      bar.replaceChildren();
      if (spec.title) make("span", bar, { className: "name", textContent: spec.title });
      buttons = spec.variants.map(([name, colour]) => {
        const b = make("button", bar, { type: "button", textContent: `▶ Run ${name}` });
        b.setAttribute("aria-label", `Run ${name}`);
        b.dataset.tone = colour;
        b.onclick = () => model.send({ kind: "run", variant: name, values: { ...values } });
        return b;
      });
      stop = make("button", bar, { type: "button", textContent: "■ Stop", disabled: true });
      stop.setAttribute("aria-label", "Stop the run");
      stop.onclick = () => { stop.disabled = true; model.send({ kind: "stop" }); };
      reset = null;
      if (spec.variants.length) {
        reset = make("button", bar, { type: "button", textContent: "↺ Reset" });
        reset.setAttribute("aria-label", "Clear the runs and reset the sliders");
        reset.onclick = () => { spec.sliders.forEach((s) => delete values[s.name]); slide(); model.send({ kind: "reset" }); };
      }
      status = make("span", bar, { className: "status" });
      slide();
    }

    function buildPanels() {
      grid.replaceChildren();
      grid.classList.toggle("odd", spec.panels.length % 2 === 1 && spec.panels.length > 1);
      panels = spec.panels.map((panel) => {
        const figure = make("figure", grid), caption = make("figcaption", figure), canvas = make("canvas", figure);
        canvas.setAttribute("role", "img");
        canvas.onmousemove = (e) => { hover = (e.offsetX - LEFT) / (canvas.clientWidth - LEFT - RIGHT); soon(); };
        canvas.onmouseleave = () => { hover = null; soon(); };
        make("b", caption);
        make("span", caption, { className: "legend", textContent: panel.legend });
        return { ...panel, column: 1 + spec.names.indexOf(panel.series), caption, canvas };
      });
      sizes.disconnect();
      panels.forEach((p) => sizes.observe(p.canvas));
    }

    function slide() {
      sliders.replaceChildren();
      for (const s of spec.sliders) {
        const label = make("label", sliders), value = () => values[s.name] ?? s.value;
        make("span", label, { textContent: s.name });
        const to = s.log ? Math.log : Number, from = s.log ? Math.exp : Number;
        const input = make("input", label, { type: "range", min: 0, max: 100, step: 1 });
        if (s.whole && !s.log) Object.assign(input, { min: s.low, max: s.high });
        const place = (v) => (s.whole && !s.log ? v : (100 * (to(v) - to(s.low))) / (to(s.high) - to(s.low)));
        input.value = place(value());
        const out = make("output", label, { textContent: short(value()) });
        input.setAttribute("aria-label", s.name);
        input.setAttribute("aria-valuetext", out.textContent);
        input.oninput = () => {
          const p = Number(input.value);
          let v = s.whole && !s.log ? p : from(to(s.low) + (p / 100) * (to(s.high) - to(s.low)));
          v = s.whole ? Math.round(v) : Number(v.toPrecision(2));
          values[s.name] = Math.min(s.high, Math.max(s.low, v));
          out.textContent = short(values[s.name]);
          input.setAttribute("aria-valuetext", out.textContent);
        };
      }
      sliders.hidden = !spec.sliders.length;
    }

    function draw() {
      waiting = false;
      root.hidden = !state.alive;
      if (root.hidden || !root.isConnected) return;
      buttons.forEach((b) => { b.disabled = !!state.running; b.style.setProperty("--tone", tone(b.dataset.tone)); });
      if (reset) reset.disabled = !!state.running;
      if (!state.running) stop.disabled = true; else if (stop.dataset.run !== state.running) stop.disabled = false;
      stop.dataset.run = state.running;
      if (status.textContent !== state.text) status.textContent = state.text;
      if (!state.running && heard.textContent !== state.text) heard.textContent = state.text;
      const all = spec.runs.map((run, index) => ({ ...run, index, rows: state.rows[index] })).filter((r) => r.rows?.n);
      let from = Infinity, to = -Infinity;
      for (const { rows } of all) { from = Math.min(from, rows.at(0, 0) || 1); to = Math.max(to, rows.at(rows.n - 1, 0)); }
      if (!(to >= from)) [from, to] = [0, 1];
      if (to === from) [from, to] = [from - 1, to + 1];
      panels.forEach((p) => paint(p, all, from, to));
    }

    function paint(panel, all, from, to) {
      const { canvas } = panel, ratio = devicePixelRatio || 1, w = canvas.clientWidth, h = canvas.clientHeight;
      if (!w || !h) return;
      const wide = Math.round(w * ratio), high = Math.round(h * ratio);
      if (canvas.width !== wide || canvas.height !== high) { canvas.width = wide; canvas.height = high; }
      const ctx = canvas.getContext("2d"), ink = getComputedStyle(root).color;
      ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
      ctx.clearRect(0, 0, w, h);
      ctx.font = "11px " + getComputedStyle(root).fontFamily;
      if (!all.length) {
        ctx.textAlign = "center"; ctx.globalAlpha = 0.5; ctx.fillStyle = ink;
        ctx.fillText("no data yet", (LEFT + w) / 2, h / 2 - 4);
      }
      const X = (x) => LEFT + ((x - from) / (to - from)) * (w - LEFT - RIGHT);
      const marks = state.marks.filter((m) => (m.series ?? panel.series) === panel.series && state.rows[m.run]?.n)
        .map((m) => {
          const wide = ctx.measureText(m.text).width, x = X(m.step), fits = x + 4 + wide <= w - RIGHT;
          return { ...m, at: fits ? x + 4 : Math.max(LEFT, x - 4 - wide), wide, colour: tone(spec.runs[m.run].tone) };
        });
      const captions = marks.filter((m) => m.text), lines = stacked(captions.map((m) => [m.at - 4, m.at + m.wide + 4]));
      const above = Math.min(TOP + 14 * Math.max(0, ...lines.map((line) => line + 1)), 0.6 * h);
      const range = reach(all.map((r) => r.rows), panel.column), [log, low, top] = limits(panel, ...range);
      const f = log ? Math.log : Number, span = f(top) - f(low), floor = h - BOTTOM;
      const Y = (y) => floor - ((f(log ? Math.max(y, low) : y) - f(low)) / span) * (floor - above);
      ctx.lineWidth = 1; ctx.textBaseline = "middle"; ctx.textAlign = "right"; ctx.strokeStyle = ctx.fillStyle = ink;
      for (const [value, text] of all.length ? ticks(log, low, top, panel.unit, range[0]) : []) {
        const y = Math.round(Y(value)) + 0.5;
        ctx.globalAlpha = 0.14; ctx.beginPath(); ctx.moveTo(LEFT, y); ctx.lineTo(w - RIGHT, y); ctx.stroke();
        ctx.globalAlpha = 0.75; ctx.fillText(text, LEFT - 5, y);
      }
      ctx.textBaseline = "alphabetic";
      if (all.length && hover === null) {
        ctx.fillText(`step ${Math.round(to)}`, w - RIGHT, h - 3);
        ctx.textAlign = "left"; ctx.fillText(String(Math.round(from)), LEFT, h - 3);
      }
      for (const m of marks) {
        const x = Math.round(X(m.step)) + 0.5;
        ctx.strokeStyle = m.colour; ctx.globalAlpha = 0.6; ctx.setLineDash([1, 2]);
        ctx.beginPath(); ctx.moveTo(x, TOP); ctx.lineTo(x, floor); ctx.stroke();
      }
      ctx.setLineDash([]);
      for (const run of all) {
        ctx.strokeStyle = ctx.fillStyle = tone(run.tone);
        ctx.globalAlpha = run.ghost ? GHOST : 1; ctx.lineWidth = 1.5; ctx.lineJoin = "round";
        ctx.setLineDash(DASHES[run.tone] ?? []);
        trace(ctx, run.rows, panel.column, X, Y, w);
      }
      ctx.lineWidth = 1; ctx.textAlign = "left"; ctx.strokeStyle = ink; ctx.globalAlpha = 0.6; ctx.setLineDash([5, 4]);
      if (all.length && panel.threshold !== null) {  // its value stands in the legend
        const y = Math.round(Y(panel.threshold)) + 0.5;
        ctx.beginPath(); ctx.moveTo(LEFT, y); ctx.lineTo(w - RIGHT, y); ctx.stroke();
      }
      ctx.setLineDash([]); ctx.globalAlpha = 1;
      captions.forEach((m, i) => { ctx.fillStyle = m.colour; ctx.fillText(m.text, m.at, TOP + 8 + 14 * lines[i]); });
      let step = null;
      if (hover !== null && hover >= 0 && hover <= 1 && all.length) {
        step = Math.round(from + hover * (to - from));
        ctx.strokeStyle = ink; ctx.globalAlpha = 0.4;
        ctx.beginPath(); ctx.moveTo(X(step), above); ctx.lineTo(X(step), floor); ctx.stroke();
        ctx.globalAlpha = 0.9; ctx.textAlign = "center"; ctx.fillStyle = ink;
        ctx.fillText(String(step), Math.min(Math.max(X(step), LEFT + 12), w - RIGHT - 12), h - 3);
      }
      title(panel, log, all, step);
    }

    function title(panel, log, all, step) {
      const parts = [], name = panel.title + (log ? " (log)" : "");
      const broken = state.marks.filter((m) => m.series === panel.series);
      for (const { label, tone: colour, rows, index } of all) {
        if (step !== null && step > rows.at(rows.n - 1, 0)) continue;
        let i = step === null ? rows.n - 1 : rows.nearest(step);
        const gone = broken.some((m) => m.run === index);
        if (step === null && !gone) while (i > 0 && Number.isNaN(rows.at(i, panel.column))) i--;  // not measured at this step
        const value = rows.at(i, panel.column);
        if (Number.isNaN(value) && !broken.length) continue;
        parts.push([`${label} ${short(value, panel.unit)}`, tone(colour)]);
      }
      const nodes = panel.caption.children;  // the name, the threshold, and a value for each run
      while (nodes.length > parts.length + 2) panel.caption.lastChild.remove();
      while (nodes.length < parts.length + 2) make("span", panel.caption);
      if (nodes[0].textContent !== name) nodes[0].textContent = name;
      parts.forEach(([text, colour], i) => {
        if (nodes[i + 2].textContent !== text) nodes[i + 2].textContent = text;
        nodes[i + 2].style.color = colour;
      });
      const where = all.length ? `, step ${Math.max(...all.map((r) => r.rows.at(r.rows.n - 1, 0)))}` : "";
      const events = broken.map((m) => `; ${m.text}`);
      const newest = parts.map((p) => p[0]).join(", ") || "no data yet";
      panel.canvas.setAttribute("aria-label", `Chart of ${name}${where}: ${newest}${events.join("")}`);
    }

    const soon = () => { if (!waiting) { waiting = true; requestAnimationFrame(draw); } };
    const sizes = new ResizeObserver(soon);
    const later = () => { soon(); setTimeout(soon, 400); };  // a theme's style sheet arrives late
    const themes = new MutationObserver(later);
    themes.observe(document.body, { attributes: true, attributeFilter: ["class", "data-jp-theme-light", "data-jp-theme-name"] });
    const view = { soon, build };
    views.add(view);
    build();
    later();
    return () => { views.delete(view); sizes.disconnect(); themes.disconnect(); };
  }
  return { initialize, render };
};
