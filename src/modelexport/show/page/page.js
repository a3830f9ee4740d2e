// The page: what is shown follows from the address, and everything that is clicked changes the address.

class Page {
  constructor(model) {
    this.model = model;
    this.modes = colourModes(model);
    this.size = model.measures.nodes;
    this.mode = this.modes[startMode(model)];
    this.shown = { place: ROOT, call: 0, node: null };
    const open = (place, more) => this.open(place, more);
    this.tree = new Tree(model, open);
    this.search = new Search(model, open);
    this.map = new ModuleMap(model, open);
    this.flow = new Flow(model, open);
    this.details = new Details(model);
    this._head();
    this._choices();
    this._panes();
    startKeys({ search: this.search, onUp: () => this._up() });
    startTheme(() => this.drawCharts());
    window.addEventListener("hashchange", () => this.follow());
    window.addEventListener("resize", later(() => this.drawCharts(), 120));
    this.follow();
  }

  /** Go to a module or node; the address changes, and with it what is shown. */
  open(place, { call = 0, node = null } = {}) {
    const next = address(this.model, place, { call: node === null ? call : 0, node });
    if (location.hash === next) this.follow();
    else location.hash = next;
    if (node !== null) this._pane("details");
  }

  follow() {
    // Another file of the package is another model: the page starts again with it.
    const asked = readRoute(location.hash).component;
    if (asked !== null && asked !== this.model.component && this.model.components.includes(asked)) {
      location.reload();
      return;
    }
    const route = resolveRoute(this.model, location.hash);
    this.shown = route;
    this.tree.open(route.place);
    this.details.draw(route.place, route.call, route.node);
    this._trail();
    this._notes(route.missing);
    document.title = `${this.model.pathLabel(route.place)} · ${printable(this.model.data.file.name)}`;
    this.drawCharts();
  }

  drawCharts() {
    const { place, call, node } = this.shown;
    this.mode.focus?.(place);
    this._drawMap();
    this.flow.draw(place, call, node, this.mode);
    document.getElementById("legend").replaceChildren(this.mode.legend());
  }

  _drawMap() {
    this.map.draw(this.shown.place, this.size, this.mode);
  }

  _up() {
    const above = this.model.parent(this.shown.place);
    if (above >= 0) this.open(above);
  }

  _head() {
    const { model } = this;
    document.getElementById("title").textContent = printable(model.data.file.name);
    const { parameters, bytes } = model.measures;
    const words = [
      counted(model.data.file.nodes, "node"),
      counted(model.count, "module"),
      `${parameters.words(parameters.total[ROOT])} parameters`,
      bytes.words(bytes.total[ROOT]),
    ];
    document.getElementById("summary").textContent = words.join(" · ");
    document.getElementById("tree-count").textContent = plainText(model.count);
    if (model.components.length) document.getElementById("title").append(" ", this._switch());
  }

  /** The files of a package. What is opened stays opened where the other file has it too. */
  _switch() {
    const { model } = this;
    const names = model.components.map((name) => element("option", { value: name, selected: name === model.component }, printable(name)));
    const files = element("select", { id: "component", "aria-label": "File of the package" }, names);
    files.addEventListener("change", () => {
      location.hash = address(model, this.shown.place, { component: files.value });
    });
    return files;
  }

  _choices() {
    const size = document.getElementById("size");
    size.append(...Object.values(this.model.measures).map((measure) => element("option", { value: measure.key }, measure.label)));
    size.addEventListener("change", () => {
      this.size = this.model.measures[size.value];
      this._drawMap();
    });
    const colour = document.getElementById("colour");
    colour.append(...Object.values(this.modes).map((mode) => element("option", { value: mode.key, selected: mode === this.mode }, mode.label)));
    colour.addEventListener("change", () => {
      this.mode = this.modes[colour.value];
      this.drawCharts();
    });
    const kinds = document.querySelectorAll("[data-chart]");
    for (const button of kinds) {
      button.addEventListener("click", () => {
        for (const other of kinds) other.setAttribute("aria-pressed", String(other === button));
        this.map.kind = button.dataset.chart;
        this._drawMap();
      });
    }
  }

  /** On a narrow screen one part of the page is shown at a time. */
  _panes() {
    for (const button of document.querySelectorAll(".panes button")) {
      button.addEventListener("click", () => this._pane(button.dataset.pane));
    }
    this._pane("tree");
    document.getElementById("skip").addEventListener("click", (event) => {
      event.preventDefault();
      this._pane("details");
      this.details.host.focus();
    });
  }

  _pane(name) {
    document.body.dataset.pane = name;
    for (const button of document.querySelectorAll(".panes button")) {
      button.setAttribute("aria-pressed", String(button.dataset.pane === name));
    }
    if (window.matchMedia("(max-width: 820px)").matches) this.drawCharts();
  }

  _trail() {
    const { model } = this;
    const steps = model.lineage(this.shown.place).map((place) => element("li", {}, link(address(model, place), model.label(place))));
    document.getElementById("trail").replaceChildren(element("ol", {}, steps));
  }

  _notes(missing) {
    const lines = [...this.model.data.notes];
    if (missing) lines.unshift(`There is no ${missing} in this model; the nearest module is shown.`);
    const items = lines.map((line) => element("p", {}, printable(line)));
    document.getElementById("notes").replaceChildren(...items);
  }
}

/** What was laid over the page is what it was opened for. */
function startMode(model) {
  if (model.data.difference) return "difference";
  if (model.data.verification) return "error";
  return model.data.profile ? "time" : "class";
}

function later(action, milliseconds) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(action, milliseconds);
  };
}

async function start() {
  const ready = new Promise((resolve) => document.addEventListener("DOMContentLoaded", resolve, { once: true }));
  const content = await unpacked(document.getElementById("data").textContent);
  const page = new Page(new Model(chooseComponent(content, readRoute(location.hash).component)));
  if (!window.Plotly) await ready;
  page.drawCharts();
  document.body.dataset.ready = "true";
}

start().catch((error) => {
  document.getElementById("notes").textContent = `This page cannot be shown: ${error.message}`;
  throw error;
});
