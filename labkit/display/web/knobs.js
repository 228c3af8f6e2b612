// One figure with knobs, in the page itself. `spec` is {knobs: [{name, kind, labels, at}], frames}: every position was
// drawn before, in the order in which the last knob turns fastest. `root` holds a picture for readers without script.
(root, spec) => {
  const make = (tag, parent, props = {}) => parent.appendChild(Object.assign(document.createElement(tag), props));
  [...root.children].forEach((child) => { child.hidden = true; });
  const bar = make("div", root, { className: "knobs" }), picture = make("img", root);
  const places = spec.knobs.map((knob) => knob.at);

  const turn = () => {
    const at = spec.knobs.reduce((sum, knob, i) => sum * knob.labels.length + places[i], 0);
    picture.src = "data:image/webp;base64," + spec.frames[at];
    picture.alt = spec.title + " " + spec.knobs.map((knob, i) => `${knob.name}: ${knob.labels[places[i]]}`).join(", ");
    shows.forEach((show) => show());
  };
  const set = (i, place) => {
    places[i] = Math.min(spec.knobs[i].labels.length - 1, Math.max(0, place));
    turn();
  };

  const shows = spec.knobs.map((knob, i) => {
    const box = make("label", bar, { className: "knob" }), last = knob.labels.length - 1;
    if (knob.kind === "check") {
      const input = make("input", box, { type: "checkbox" });
      box.append(" " + knob.name);
      input.onchange = () => set(i, Number(input.checked));
      return () => { input.checked = places[i] === 1; };
    }
    make("span", box, { textContent: knob.name, className: "name" });
    if (knob.kind === "slider") {
      const input = make("input", box, { type: "range", min: 0, max: last, step: 1 });
      const value = make("output", box);
      input.setAttribute("aria-label", knob.name);
      input.oninput = () => set(i, Number(input.value));
      return () => {
        input.value = places[i];
        value.value = knob.labels[places[i]];
        input.setAttribute("aria-valuetext", knob.labels[places[i]]);
      };
    }
    const group = make("span", box, { className: "group" });
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", knob.name);
    const button = (text, act) => { const b = make("button", group, { type: "button", textContent: text }); b.onclick = act; return b; };
    if (knob.kind === "stepper") {
      const less = button("−", () => set(i, places[i] - 1)), value = make("output", group), more = button("+", () => set(i, places[i] + 1));
      less.setAttribute("aria-label", `${knob.name}: one less`);
      more.setAttribute("aria-label", `${knob.name}: one more`);
      group.onkeydown = (event) => {
        const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
        if (by) { event.preventDefault(); set(i, places[i] + by); }
      };
      return () => { value.value = knob.labels[places[i]]; less.disabled = places[i] === 0; more.disabled = places[i] === last; };
    }
    const buttons = knob.labels.map((label, place) => button(label, () => set(i, place)));
    return () => buttons.forEach((b, place) => b.setAttribute("aria-pressed", String(place === places[i])));
  });
  turn();
}
