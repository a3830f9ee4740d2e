// The opened module and what is inside of it, as an icicle or a treemap by plotly.

const MAP_LEVELS = 4;
const MOST_SECTORS = 220;
const MOST_SIBLINGS = 40;
// A sector below this share of the whole cannot be seen.
const LEAST_SHARE = 0.002;

/** What is drawn: modules, and what is left of their siblings where there are too many or they are too small. */
function sectors(model, root, own) {
  const found = [{ id: String(root), parent: "", place: root, value: own[root], rest: 0 }];
  for (let at = 0; at < found.length && found.length < MOST_SECTORS; at += 1) {
    const above = found[at];
    if (above.rest || model.depth[above.place] - model.depth[root] >= MAP_LEVELS) continue;
    const inside = model.children[above.place].filter((place) => own[place] > 0);
    const room = Math.min(MOST_SIBLINGS, MOST_SECTORS - found.length);
    const shown = worthDrawing(inside, own, own[root] * LEAST_SHARE, room);
    for (const place of shown) found.push({ id: String(place), parent: above.id, place, value: own[place], rest: 0 });
    const rest = inside.filter((place) => !shown.includes(place));
    if (rest.length) {
      const value = rest.reduce((sum, place) => sum + own[place], 0);
      found.push({ id: `${above.id} rest`, parent: above.id, place: above.place, value, rest: rest.length });
    }
  }
  return found;
}

/** Of siblings, those that are large enough, and no more than there is room for: the largest, in their own order. */
function worthDrawing(places, own, least, room) {
  const large = places.filter((place) => own[place] >= least);
  if (large.length <= room) return large;
  const kept = new Set(large.slice().sort((one, other) => own[other] - own[one]).slice(0, Math.max(room, 1)));
  return large.filter((place) => kept.has(place));
}

class ModuleMap {
  constructor(model, onOpen) {
    this.model = model;
    this.onOpen = onOpen;
    this.host = document.getElementById("map");
    this.kind = "icicle";
    this.drawn = "";
  }

  draw(place, measure, mode) {
    if (!window.Plotly || !this.host.clientWidth) return;
    const own = measure.total;
    if (!own[place]) return this._say(place, measure);
    const shown = sectors(this.model, place, own);
    if (this.drawn !== this.kind) this._start();
    Plotly.react(this.host, [this._trace(shown, measure, mode, own[place])], this._layout(), MAP_OPTIONS);
    if (this.drawn !== this.kind) this._listen();
    this.drawn = this.kind;
  }

  _start() {
    Plotly.purge(this.host);
    this.host.replaceChildren();
  }

  _say(place, measure) {
    if (this.drawn) this._start();
    this.drawn = "";
    const words = `${this.model.label(place)} has nothing to show by ${measure.label.toLowerCase()}.`;
    this.host.replaceChildren(element("p", { class: "nothing" }, words));
  }

  _listen() {
    this.host.on(`plotly_${this.kind}click`, (event) => {
      this._click(event.points[0]);
      return false; // plotly would zoom by itself
    });
  }

  _click(point) {
    const sector = this.shown[point.pointNumber];
    if (!sector || sector.rest) return;
    const up = point.pointNumber === 0 && this.model.parent(sector.place) >= 0;
    this.onOpen(up ? this.model.parent(sector.place) : sector.place);
  }

  _trace(shown, measure, mode, whole) {
    this.shown = shown;
    const { model } = this;
    const colours = shown.map((sector) => (sector.rest ? styleColour("--line-solid") : mode.colour(sector.place)));
    const name = (sector) => (sector.rest ? `${sector.rest} more` : plotlyText(shortened(model.label(sector.place), 40)));
    const hover = (sector) =>
      [
        sector.rest ? `${sector.rest} smaller modules of ` : "",
        `<b>${plotlyText(shortened(model.pathLabel(sector.place), 80))}</b>`,
        `<br>${measure.words(sector.value)} · ${shareText(sector.value / whole)}`,
        sector.rest ? "" : `<br>${plotlyText(shortened(mode.words(sector.place), 80))}`,
      ].join("");
    const trace = {
      type: this.kind,
      ids: shown.map((sector) => sector.id),
      parents: shown.map((sector) => sector.parent),
      labels: shown.map(name),
      values: shown.map((sector) => sector.value),
      hovertext: shown.map(hover),
      hoverinfo: "text",
      branchvalues: "total",
      sort: this.kind === "treemap",
      textinfo: "label",
      textfont: { size: 12, color: colours.map(inkOn) },
      marker: { colors: colours, line: { width: 1.5, color: styleColour("--sheet") } },
      pathbar: { visible: false },
      tiling: this.kind === "icicle" ? { orientation: "h", pad: 0 } : { pad: 2 },
    };
    if (this.kind === "treemap") trace.marker.pad = { t: 20, l: 3, r: 3, b: 3 };
    return trace;
  }

  _layout() {
    return {
      margin: { l: 0, r: 0, t: 0, b: 0 },
      width: this.host.clientWidth,
      height: this.host.clientHeight,
      paper_bgcolor: "rgba(0,0,0,0)",
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
