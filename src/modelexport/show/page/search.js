// Search over modules (path, class, tag) and nodes (name, operator, role). Every word has to occur; of a node, all but
// one may occur in what its module is called: `layer.3 softmax`.

const MOST_FOUND = 40;

class Search {
  constructor(model, onOpen) {
    this.model = model;
    this.onOpen = onOpen;
    this.field = document.getElementById("search");
    this.list = document.getElementById("results");
    this.found = [];
    this.chosen = 0;
    this.field.addEventListener("input", () => this._find());
    this.field.addEventListener("focus", () => this._find());
    this.field.addEventListener("keydown", (event) => this._onKey(event));
    this.list.addEventListener("mousedown", (event) => this._onPick(event));
    this.field.addEventListener("blur", () => this._close());
  }

  focus() {
    this.field.focus();
    this.field.select();
  }

  /** What is searched, in lower case, made when it is first needed. */
  _texts() {
    if (!this._known) {
      const { model } = this;
      const modules = Array.from({ length: model.count }, (_, place) =>
        [model.paths[place], model.text(model.modules.class[place]), model.text(model.modules.tag[place])].join(" ").toLowerCase(),
      );
      const nodes = model.hasNodes ? model.data.nodes.name.map((_, node) => this._nodeText(node)) : [];
      this._known = { modules, nodes };
    }
    return this._known;
  }

  _nodeText(node) {
    const { model } = this;
    const { nodes, answers } = model.data;
    const role = model.text(answers.role[nodes.answer[node]]);
    return `${model.text(nodes.name[node])} ${model.text(nodes.key[node])} ${model.text(nodes.op[node])} ${role}`.toLowerCase();
  }

  _find() {
    const words = this.field.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return this._close();
    const { modules, nodes } = this._texts();
    const fits = (text, around = "") => words.every((word) => text.includes(word) || around.includes(word));
    const touches = (text) => words.some((word) => text.includes(word));
    const found = [];
    const counts = { modules: 0, nodes: 0 };
    modules.forEach((text, place) => {
      if (fits(text) && (counts.modules += 1) <= MOST_FOUND) found.push({ place, node: null });
    });
    // The shortest path that has the words is most likely the one that is meant.
    found.sort((one, other) => this.model.paths[one.place].length - this.model.paths[other.place].length);
    const { nodes: columns, answers } = this.model.data;
    nodes.forEach((text, node) => {
      const place = answers.module[columns.answer[node]];
      if (touches(text) && fits(text, modules[place]) && (counts.nodes += 1) <= MOST_FOUND) found.push({ place, node });
    });
    this.found = found;
    this.chosen = 0;
    this._draw(counts);
  }

  _draw(counts) {
    const items = this.found.map((item, number) => this._item(item, number));
    const words = `${counted(counts.modules, "module")}, ${counted(counts.nodes, "node")}`;
    const cut = counts.modules > MOST_FOUND || counts.nodes > MOST_FOUND ? `: the first ${MOST_FOUND} of each` : "";
    items.push(element("li", { class: "sum", role: "presentation" }, this.found.length ? words + cut : "nothing found"));
    this.list.replaceChildren(...items);
    this.list.hidden = false;
    this.field.setAttribute("aria-expanded", "true");
    this._mark();
  }

  _item({ place, node }, number) {
    const { model } = this;
    const [kind, name, beside] =
      node === null
        ? ["module", model.pathLabel(place), model.className(place)]
        : [model.operator(node), model.nodeName(node), model.pathLabel(place)];
    return element(
      "li",
      { id: `found-${number}`, role: "option", "data-number": number, "aria-selected": "false" },
      element("span", { class: node === null ? "kind" : "kind op" }, kind),
      element("span", { class: "name" }, name),
      element("span", { class: "beside" }, beside),
    );
  }

  _mark() {
    for (const item of this.list.querySelectorAll("[role=option]")) {
      item.setAttribute("aria-selected", String(Number(item.dataset.number) === this.chosen));
    }
    this.field.setAttribute("aria-activedescendant", this.found.length ? `found-${this.chosen}` : "");
    this.list.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  }

  _onKey(event) {
    if (event.key === "Escape") {
      this.field.value = "";
      this._close();
      this.field.blur();
    } else if (event.key === "Enter") {
      this._open(this.chosen);
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      const step = event.key === "ArrowDown" ? 1 : -1;
      this.chosen = Math.min(Math.max(this.chosen + step, 0), this.found.length - 1);
      this._mark();
    }
  }

  _onPick(event) {
    event.preventDefault();
    const item = event.target.closest("[role=option]");
    if (item) this._open(Number(item.dataset.number));
  }

  _open(number) {
    const item = this.found[number];
    if (!item) return;
    this._close();
    this.field.blur();
    this.onOpen(item.place, { node: item.node });
  }

  _close() {
    this.found = [];
    this.list.hidden = true;
    this.field.setAttribute("aria-expanded", "false");
    this.field.removeAttribute("aria-activedescendant");
  }
}
