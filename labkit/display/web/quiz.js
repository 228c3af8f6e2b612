// A question with radio buttons. Everything it needs is in the trait `spec` {question, options, answer, why}: it
// works while the kernel is busy, and without one.

function write(parent, text) {  // `code` and **bold**; everything else as it is
  for (const part of text.split(/(`[^`]+`|\*\*[^*]+\*\*)/)) {
    const tag = part.startsWith("`") && part.length > 2 ? "code" : part.startsWith("**") && part.length > 4 ? "b" : null;
    if (!tag) { parent.append(part); continue; }
    parent.appendChild(document.createElement(tag)).textContent = tag === "code" ? part.slice(1, -1) : part.slice(2, -2);
  }
}

let count = 0;

export default () => ({
  initialize() {},
  render({ model, el }) {
    const { question, options, answer, why } = model.get("spec"), name = `labkit-quiz-${++count}`;
    const make = (tag, parent, props = {}) => {
      const node = parent.appendChild(Object.assign(document.createElement(tag), props));
      if (tag === "button" || tag === "input") node.dataset.lmSuppressShortcuts = "true";  // else JupyterLab takes its keys
      return node;
    };
    const form = make("form", el, { className: "labkit quiz" });
    const group = make("fieldset", form), legend = make("legend", group);
    make("b", legend, { textContent: "Predict first. " });
    write(legend, question);
    const rows = options.map((option, i) => {
      const row = make("label", group), input = make("input", row, { type: "radio", name, value: i });
      input.onchange = () => { check.disabled = false; rows.forEach((r) => r.removeAttribute("data-mark")); result.textContent = ""; };
      write(make("span", row), option);
      return row;
    });
    const bar = make("div", form, { className: "bar" });
    const check = make("button", bar, { type: "submit", textContent: "Check", disabled: true });
    const result = make("span", bar, { className: "result" });
    result.setAttribute("role", "status");
    form.onsubmit = (event) => {
      event.preventDefault();
      const chosen = Number(new FormData(form).get(name)), right = chosen === answer;
      rows.forEach((row, i) => { if (i === chosen) row.dataset.mark = right ? "right" : "wrong"; });
      result.textContent = "";
      make("b", result, { textContent: right ? "✓ Right. " : "✗ Not this one. " });
      if (right) write(result, why);
      else result.append("Choose again, or run the next cell and see.");
    };
  },
});
