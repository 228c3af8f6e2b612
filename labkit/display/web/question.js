// A question with radio buttons, in the page itself: `root` holds the text for readers without script, and `spec` is
// {question, options, answer, why, reasons, told}. The browser keeps which option was chosen, and `tell` says where the
// learner's progress is noted whether it was right.
(root, spec, tell) => {
  const write = (parent, text) => {  // `code` and **bold**; everything else as it is
    for (const part of text.split(/(`[^`]+`|\*\*[^*]+\*\*)/)) {
      const tag = part.startsWith("`") && part.length > 2 ? "code" : part.startsWith("**") && part.length > 4 ? "b" : null;
      if (!tag) { parent.append(part); continue; }
      parent.appendChild(document.createElement(tag)).textContent = tag === "code" ? part.slice(1, -1) : part.slice(2, -2);
    }
  };
  const make = (tag, parent, props = {}) => parent.appendChild(Object.assign(document.createElement(tag), props));
  const key = "labkit:" + spec.question;
  const remembered = () => { try { return localStorage.getItem(key); } catch { return null; } };
  const remember = (choice) => { try { localStorage.setItem(key, choice); } catch { /* private windows */ } };

  const form = make("form", root), group = make("fieldset", form), legend = make("legend", group);
  make("b", legend, { textContent: "Predict first. " });
  write(legend, spec.question);
  const name = "labkit-" + Math.random().toString(36).slice(2);
  const inputs = spec.options.map((option, i) => {
    const row = make("label", group), input = make("input", row, { type: "radio", name, value: i });
    write(make("span", row), option);
    input.onchange = () => { check.disabled = false; clear(); };
    return input;
  });
  const bar = make("div", form, { className: "bar" });
  const check = make("button", bar, { type: "submit", textContent: "Check", disabled: true });
  const result = make("span", bar, { className: "result" });
  result.setAttribute("role", "status");
  const clear = () => { inputs.forEach((input) => input.parentElement.removeAttribute("data-mark")); result.textContent = ""; };
  const judge = (chosen) => {
    clear();
    const right = chosen === spec.answer;
    inputs[chosen].parentElement.dataset.mark = right ? "right" : "wrong";
    make("b", result, { textContent: right ? "✓ Right. " : "✗ Not this one. " });
    write(result, right ? spec.why : spec.reasons[chosen] || "Choose again, or run the next cell and see.");
  };
  form.onsubmit = (event) => {
    event.preventDefault();
    const chosen = inputs.findIndex((input) => input.checked);
    remember(chosen);
    judge(chosen);
    if (tell) tell({ ...spec.told, kind: "question", right: chosen === spec.answer });
  };
  [...root.children].forEach((child) => { if (child !== form) child.hidden = true; });
  const before = remembered();
  if (before !== null && inputs[before]) { inputs[before].checked = true; check.disabled = false; judge(Number(before)); }
}
