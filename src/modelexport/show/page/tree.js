// The module tree. Only the rows that can be seen are in the document, so that ten thousand modules cost no more than ten.

const ROW = 28;
const SPARE_ROWS = 8;

class Tree {
  constructor(model, onOpen) {
    this.model = model;
    this.onOpen = onOpen;
    this.host = document.getElementById("tree");
    this.expanded = new Set([ROOT]);
    this.opened = ROOT;
    this.active = ROOT;
    this.body = element("div", { class: "rows", role: "presentation" });
    this.host.append(this.body);
    this.host.addEventListener("scroll", () => this._draw(), { passive: true });
    this.host.addEventListener("keydown", (event) => this._onKey(event));
    this.host.addEventListener("click", (event) => this._onClick(event));
    new ResizeObserver(() => this._draw()).observe(this.host);
    this._flatten();
  }

  /** Show a module as the opened one, and everything around it expanded. */
  open(place) {
    this.opened = place;
    this.active = place;
    for (const above of this.model.lineage(place).slice(0, -1)) this.expanded.add(above);
    this._flatten();
    this._reveal();
  }

  redraw() {
    this._draw();
  }

  _flatten() {
    const rows = [];
    const waiting = [ROOT];
    while (waiting.length) {
      const place = waiting.pop();
      rows.push(place);
      if (this.expanded.has(place)) waiting.push(...this.model.children[place].slice().reverse());
    }
    this.rows = rows;
    this.numbers = new Map(rows.map((place, number) => [place, number]));
    this.body.style.height = `${rows.length * ROW}px`;
    this._draw();
  }

  _draw() {
    const first = Math.max(0, Math.floor(this.host.scrollTop / ROW) - SPARE_ROWS);
    const seen = Math.ceil((this.host.clientHeight || 600) / ROW) + 2 * SPARE_ROWS;
    const shown = this.rows.slice(first, first + seen);
    this.body.replaceChildren(...shown.map((place, offset) => this._row(place, first + offset)));
    this.host.setAttribute("aria-activedescendant", `row-${this.active}`);
  }

  _row(place, number) {
    const { model } = this;
    const inside = model.children[place].length;
    const around = place === ROOT ? [] : model.children[model.parent(place)];
    const open = this.expanded.has(place);
    const nodes = model.measures.nodes.total[place];
    return element(
      "div",
      {
        id: `row-${place}`,
        class: `row${place === this.opened ? " opened" : ""}${place === this.active ? " active" : ""}${nodes ? "" : " empty"}`,
        role: "treeitem",
        "data-place": place,
        "aria-level": model.depth[place] + 1,
        "aria-setsize": around.length || 1,
        "aria-posinset": around.indexOf(place) + 1 || 1,
        "aria-expanded": inside ? String(open) : null,
        "aria-selected": String(place === this.opened),
        title: `${model.pathLabel(place)} · ${model.className(place)}`,
        style: { top: `${number * ROW}px`, paddingLeft: `${8 + Math.min(model.depth[place], 14) * 14}px` },
      },
      element("span", { class: inside ? "twist" : "twist leaf", "aria-hidden": "true" }, inside ? (open ? "▾" : "▸") : ""),
      element("span", { class: "name" }, model.label(place)),
      element("span", { class: "class" }, place === ROOT ? "" : model.className(place)),
      element("span", { class: "amount" }, nodes ? countText(nodes) : "–"),
    );
  }

  _reveal() {
    const top = this.numbers.get(this.active) * ROW;
    const { scrollTop, clientHeight } = this.host;
    if (top < scrollTop || top + ROW > scrollTop + clientHeight) {
      this.host.scrollTop = Math.max(0, top - clientHeight / 2);
    }
    this._draw();
  }

  _move(number) {
    this.active = this.rows[Math.min(Math.max(number, 0), this.rows.length - 1)];
    const top = this.numbers.get(this.active) * ROW;
    if (top < this.host.scrollTop) this.host.scrollTop = top;
    if (top + ROW > this.host.scrollTop + this.host.clientHeight) this.host.scrollTop = top + ROW - this.host.clientHeight;
    this._draw();
  }

  _toggle(place, open) {
    if (!this.model.children[place].length || this.expanded.has(place) === open) return;
    if (open) this.expanded.add(place);
    else this.expanded.delete(place);
    this._flatten();
  }

  _onClick(event) {
    const row = event.target.closest(".row");
    if (!row) return;
    const place = Number(row.dataset.place);
    this.active = place;
    if (event.target.closest(".twist:not(.leaf)")) this._toggle(place, !this.expanded.has(place));
    else this.onOpen(place);
  }

  _onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const number = this.numbers.get(this.active) ?? 0;
    const page = Math.max(1, Math.floor(this.host.clientHeight / ROW) - 1);
    const actions = {
      ArrowDown: () => this._move(number + 1),
      ArrowUp: () => this._move(number - 1),
      PageDown: () => this._move(number + page),
      PageUp: () => this._move(number - page),
      Home: () => this._move(0),
      End: () => this._move(this.rows.length - 1),
      ArrowRight: () => this._into(number),
      ArrowLeft: () => this._out(),
      Enter: () => this.onOpen(this.active),
      " ": () => this.onOpen(this.active),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }

  _into(number) {
    if (!this.model.children[this.active].length) return;
    if (this.expanded.has(this.active)) this._move(number + 1);
    else this._toggle(this.active, true);
  }

  _out() {
    if (this.expanded.has(this.active) && this.model.children[this.active].length) this._toggle(this.active, false);
    else if (this.active !== ROOT) this._move(this.numbers.get(this.model.parent(this.active)));
  }
}
