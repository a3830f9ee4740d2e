// What flows between the parts of the opened module: which drawing is shown, and where its boxes lead.

class Flow {
  constructor(model, onOpen) {
    this.model = model;
    this.onOpen = onOpen;
    this.host = document.getElementById("flow");
    this.note = document.getElementById("flow-note");
    this.calls = document.getElementById("flow-calls");
    this.plot = element("div");
    this.keys = new FlowKeys(this.host, (number) => this._click(number));
    this.canvas = element("div", { class: "canvas" }, this.plot, this.keys.ring);
    this.words = element("p", { class: "nothing", hidden: true });
    this.host.append(this.canvas, this.words);
    this.host.after(this.keys.words);
    this.listens = false;
  }

  draw(place, call, node, mode) {
    if (!window.Plotly || !this.host.clientWidth) return;
    const flow = this.model.flow(place, call);
    this._choices(place, flow);
    if (!flow || !flow.boxes) return this._say(place, flow);
    this.note.textContent = this._remarks(place, flow);
    const drawing = new FlowDrawing(this.model, flow, node, mode, this.host.clientWidth);
    this.drawing = drawing;
    this.canvas.hidden = false;
    this.words.hidden = true;
    Plotly.react(this.plot, drawing.traces(), drawing.layout(), { displayModeBar: false });
    if (!this.listens) this.plot.on("plotly_click", (event) => this._click(event.points[0].customdata));
    this.listens = true;
    this.keys.follow(drawing);
    this.host.scrollTo(drawing.start.x - this.host.clientWidth / 2, drawing.start.y);
  }

  _click(number) {
    const target = this.drawing.targets[number];
    if (target) this.onOpen(target.place, target);
  }

  _say(place, flow) {
    this.note.textContent = "";
    const { model } = this;
    const label = model.label(place);
    const words = place === model.nobody
      ? "These nodes belong to no module."
      : flow && model.measures.nodes.total[place]
        ? `${label} is a single step: nothing flows inside of it.`
        : `${label} has no nodes of its own in this file.`;
    this.keys.follow(null);
    this.canvas.hidden = true;
    this.words.hidden = false;
    this.words.textContent = words;
  }

  _remarks(place, flow) {
    const said = [];
    if (flow.module !== place) said.push(`of ${this.model.label(flow.module)}, which calls what is in ${this.model.label(place)}`);
    if (flow.folded) said.push("too many parts: some share a box");
    if (flow.cut.length) said.push(`${counted(flow.cut.length, "long line")} not drawn, but said by boxes`);
    if (flow.hidden) said.push(`${counted(flow.hidden, "node")} of constants and shapes not drawn`);
    return said.join(" · ");
  }

  /** A module that ran several times has a flow for each time. */
  _choices(place, flow) {
    const flows = flow && flow.module === place ? this.model.flowsOf[place] : [];
    if (flows.length < 2) return this.calls.replaceChildren();
    const options = flows.map((one, at) =>
      element("option", { value: one.call, selected: one === flow }, `#${one.call}, ${plainText(at + 1)} of ${plainText(flows.length)}`),
    );
    const onChange = (event) => this.onOpen(place, { call: Number(event.target.value) });
    this.calls.replaceChildren(element("label", {}, "Call ", element("select", { on: { change: onChange } }, options)));
  }
}
