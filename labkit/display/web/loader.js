// The code of a widget lies once in the notebook, in a model of its own; every widget carries only these lines.
export default () => {
  let widget;
  return {
    async initialize({ model }) {
      const code = await model.widget_manager.get_model(model.get("_code").replace("IPY_MODEL_", ""));
      const style = document.getElementById("labkit-style") ?? document.head.appendChild(document.createElement("style"));
      style.id = "labkit-style";
      style.textContent = code.get("css");
      const url = URL.createObjectURL(new Blob([code.get("js")], { type: "text/javascript" }));
      widget = (await import(url)).default();
      URL.revokeObjectURL(url);
      widget.initialize({ model });
    },
    render: (view) => widget.render(view),
  };
};
