// The opened module and what is inside of it, as an icicle or a treemap by plotly.

const MAP_LEVELS = 4;
const MOST_SECTORS = 140;
// Of a module, so many are drawn; and a share of the whole below this cannot be seen. Strips get thin before tiles do.
const MAP_LIMITS = { icicle: { siblings: 64, share: 0.01 }, treemap: { siblings: MOST_SECTORS, share: 0.002 } };
// Pixels that a letter and a line take.
const MAP_LETTER = 7;
const MAP_LINE = 16;

/** What is drawn: modules; what is left of their siblings, where there are too many or they are too small; and what
 * a module has itself beside the modules inside of it. */
function sectors(model, root, { own, area: total }, { siblings, share }) {
  const least = total[root] * share;
  const found = [{ id: String(root), parent: "", place: root, value: total[root], kind: "module" }];
  for (let at = 0; at < found.length && found.length < MOST_SECTORS; at += 1) {
    const above = found[at];
    const { id, place } = above;
    const inside = model.children[place].filter((child) => total[child] > 0);
    if (above.kind !== "module" || !inside.length || model.depth[place] - model.depth[root] >= MAP_LEVELS) continue;
    const shown = worthDrawing(inside, total, least, Math.min(siblings, MOST_SECTORS - found.length));
    const seen = new Set(shown);
    const rest = inside.filter((child) => !seen.has(child));
    const left = rest.reduce((sum, child) => sum + total[child], 0);
    for (const child of shown) found.push({ id: String(child), parent: id, place: child, value: total[child], kind: "module" });
    if (left >= least) found.push({ id: `${id} rest`, parent: id, place, value: left, kind: "rest", count: rest.length, all: !shown.length });
    if (own[place] >= least) found.push({ id: `${id} own`, parent: id, place, value: own[place], kind: "own" });
  }
  return found;
}

/** Of siblings, those that are large enough, and no more than there is room for: the largest, in their own order. */
function worthDrawing(places, total, least, room) {
  const large = places.filter((place) => total[place] >= least);
  if (large.length <= room) return large;
  const kept = new Set(large.slice().sort((one, other) => total[other] - total[one]).slice(0, Math.max(room, 1)));
  return large.filter((place) => kept.has(place));
}

class ModuleMap {
  constructor(model, onOpen) {
    this.model = model;
    this.onOpen = onOpen;
    this.host = document.getElementById("map");
    this.plot = element("div");
    this.words = element("p", { class: "nothing", hidden: true });
    this.host.append(this.plot, this.words);
    this.kind = "icicle";
    this.listens = false;
  }

  draw(place, measure, mode) {
    if (!window.Plotly || !this.host.clientWidth) return;
    const whole = measure.area[place];
    this.plot.hidden = !whole;
    this.words.hidden = Boolean(whole);
    this.words.textContent = `${this.model.label(place)} has no ${measure.noun} to show.`;
    if (!whole) return;
    const shown = sectors(this.model, place, measure, MAP_LIMITS[this.kind]);
    Plotly.react(this.plot, [this._trace(shown, measure, mode, whole)], this._layout(), MAP_OPTIONS);
    if (!this.listens) this._listen();
  }

  _listen() {
    this.listens = true;
    for (const kind of ["icicle", "treemap"]) {
      this.plot.on(`plotly_${kind}click`, (event) => {
        this._click(event.points[0]);
        return false; // plotly would zoom by itself
      });
    }
  }

  _click(point) {
    const sector = this.shown[point.pointNumber];
    if (!sector || sector.kind !== "module") return;
    const up = point.pointNumber === 0 && this.model.parent(sector.place) >= 0;
    this.onOpen(up ? this.model.parent(sector.place) : sector.place);
  }

  _trace(shown, measure, mode, whole) {
    this.shown = shown;
    const { model } = this;
    const plain = styleColour("--box");
    const colours = shown.map(({ kind, place }) => (kind === "module" ? mode.colour(place) : (kind === "own" && mode.own?.(place)) || plain));
    const name = (sector) => plotlyText(shortened(this._name(sector), 40));
    const hover = ({ kind, place, value, count }) =>
      [
        { module: "", own: "what is in none of the modules inside of<br>", rest: `${counted(count, "module")} too small to draw, of<br>` }[kind],
        `<b>${plotlyText(shortened(model.pathLabel(place), 80))}</b>`,
        `<br>${measure.words(value)} · ${shareText(value / whole)}`,
        kind === "module" ? `<br>${plotlyText(shortened(mode.words(place), 80))}` : "",
        kind === "own" && mode.own ? `<br>${plotlyText(mode.ownWords(place))}` : "",
      ].join("");
    const trace = {
      type: this.kind,
      ids: shown.map((sector) => sector.id),
      parents: shown.map((sector) => sector.parent),
      labels: shown.map(name),
      text: this.kind === "icicle" ? this._fitted(shown, whole) : undefined,
      values: shown.map((sector) => sector.value),
      hovertext: shown.map(hover),
      hoverinfo: "text",
      branchvalues: "total",
      sort: this.kind === "treemap",
      textinfo: this.kind === "icicle" ? "text" : "label",
      textfont: { size: 11.5, color: shown.map((sector, at) => (colours[at] === plain ? styleColour("--muted") : inkOn(colours[at]))) },
      leaf: { opacity: 1 },
      marker: { colors: colours, line: { width: 1.5, color: styleColour("--sheet") } },
      pathbar: { visible: false },
      tiling: this.kind === "icicle" ? { orientation: "h", pad: 0 } : { pad: 2 },
    };
    if (this.kind === "treemap") trace.marker.pad = { t: 20, l: 3, r: 3, b: 3 };
    return trace;
  }

  /** In an icicle, plotly would shrink a name until it fits; a name that is too small to read is left out instead. */
  _fitted(shown, whole) {
    const levels = new Map(shown.map((sector) => [sector.id, 0]));
    for (const { id, parent } of shown) if (parent) levels.set(id, levels.get(parent) + 1);
    const width = this.host.clientWidth / (Math.max(...levels.values()) + 1);
    const letters = Math.max(3, Math.floor((width - 8) / MAP_LETTER));
    const fits = (sector) => (sector.value / whole) * this.host.clientHeight >= MAP_LINE;
    return shown.map((sector) => (fits(sector) ? plotlyText(shortened(this._name(sector), letters)) : ""));
  }

  _name({ kind, place, count, all }) {
    if (kind === "module") return this.model.label(place);
    return kind === "own" ? "its own" : all ? counted(count, "module") : `${plainText(count)} more`;
  }

  _layout() {
    return {
      margin: { l: 0, r: 0, t: 0, b: 0 },
      width: this.host.clientWidth,
      height: this.host.clientHeight,
      paper_bgcolor: "rgba(0,0,0,0)",
      uniformtext: this.kind === "treemap" ? { minsize: 10, mode: "hide" } : {},
      font: { family: styleColour("--font"), color: styleColour("--ink") },
      hoverlabel: hoverStyle(),
    };
  }
}

const MAP_OPTIONS = { displayModeBar: false, responsive: false };

const hoverStyle = () => ({
  bgcolor: styleColour("--sheet"),
  bordercolor: styleColour("--line-solid"),
  font: { family: styleColour("--font"), size: 12, color: styleColour("--ink") },
  align: "left",
});
