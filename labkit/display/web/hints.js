// Tell which hints of an exercise are opened: they stand in the output beside this one.
(root, spec, tell) => {
  const area = root.closest(".jp-OutputArea");
  if (!area) return;
  const listens = area.labkitTold;
  area.labkitTold = spec.told;  // of the newest run of the cell
  if (listens) return;
  const opened = (event) => {  // `toggle` does not bubble: it is caught on its way down
    const words = event.target.querySelector(":scope > summary")?.textContent.trim() ?? "";
    const hint = words.match(/^Hint(?: (\d+) of \d+)?$/);
    if (hint && event.target.open) tell({ ...area.labkitTold, kind: "hint", hint: Number(hint[1] || 1) });
  };
  area.addEventListener("toggle", opened, true);
}
