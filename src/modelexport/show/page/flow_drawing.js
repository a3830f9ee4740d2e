// One drawing of a flow. Where boxes stand was worked out when the page was written; here they get a size, and plotly
// draws them, one unit being one pixel.

const BOX = { module: 0, node: 1, enters: 2, leaves: 3, group: 4 };
const BOX_HEIGHT = 40;
const LETTER = 6.7;
const GAP = { x: 22, y: 30 };
const MARGIN = 14;
const MOST_LETTERS = 24;
const COLUMN_PARTS = 20;
const FONT = 12;
// Pixels beside a spot that still count as being on it.
const NEAR = 20;
// A drawing that is too wide is made smaller, but not so small that it cannot be read.
const LEAST_SCALE = 0.75;

class FlowDrawing {
  constructor(model, flow, node, mode, room) {
    Object.assign(this, { model, flow, node, mode });
    this.places = model.data.layouts[flow.layout];
    this.boxes = flow.boxes.map((box) => this._box(box));
    this._sayCut();
    const letters = Math.max(...this.boxes.map((box) => Math.max(box.name.length, box.beside.length * 0.86)));
    this.boxWidth = Math.round(Math.min(Math.max(letters, 8), MOST_LETTERS) * LETTER + 20);
    this.width = this._across(Math.max(...this._points().map((point) => point[0]))) + this.boxWidth / 2 + MARGIN;
    this.height = this._down(Math.max(...this._points().map((point) => point[1]))) + BOX_HEIGHT / 2 + MARGIN;
    this.scale = Math.min(1, Math.max(LEAST_SCALE, (room - 16) / this.width));
    this.targets = this.boxes.map((box) => box.target);
    const marked = flow.boxes.findIndex(([kind, ref]) => kind === BOX.node && ref === node);
    this.first = this.places.boxes.findIndex((point) => point[1] === Math.min(...this.places.boxes.map(([, row]) => row)));
    const at = marked < 0 ? this.first : marked;
    this.start = { x: this._x(at) * this.scale, y: marked < 0 ? 0 : this._y(at) * this.scale - 120 };
  }

  /** Lines that are not drawn are said by the boxes at their ends. */
  _sayCut() {
    const { boxes, flow } = this;
    const names = boxes.map((box) => box.name);
    const far = new Map();
    for (const [source, target] of flow.cut) {
      far.set(source, (far.get(source) || 0) + 1);
      boxes[target].hover.push(`also reads from ${names[source]}`);
    }
    for (const [source, count] of far) boxes[source].hover.push(`also leads to ${counted(count, "part")} farther on`);
  }

  _points() {
    return [...this.places.boxes, ...this.places.bends.flat()];
  }

  _across(column) {
    return MARGIN + this.boxWidth / 2 + (column / COLUMN_PARTS) * (this.boxWidth + GAP.x);
  }

  _down(row) {
    return MARGIN + BOX_HEIGHT / 2 + row * (BOX_HEIGHT + GAP.y);
  }

  /** What a box says, how it looks and where it leads. */
  _box([kind, ref, extra]) {
    const { model, flow, mode } = this;
    if (kind === BOX.module) {
      const above = model.paths[flow.module];
      const path = model.paths[ref];
      const inside = above && path.startsWith(`${above}.`) ? path.slice(above.length + 1) : path;
      const name = printable(inside) + (model.modules.calls[ref] > 1 ? ` #${extra}` : "");
      const hover = [model.callLabel(ref, extra), model.className(ref), counted(model.measures.nodes.total[ref], "node"), mode.words(ref)];
      return { style: mode.colour(ref), name, beside: model.className(ref), hover: [...new Set(hover)], target: { place: ref, call: extra } };
    }
    if (kind === BOX.node) {
      const answer = model.answer(ref);
      const shared = answer.owners.length > 1 ? `shared by ${answer.owners.map(([place, call]) => model.callLabel(place, call)).join(", ")}` : "";
      const time = model.data.profile?.nodes[ref];
      const hover = [model.nodeName(ref), model.operator(ref), answer.role, CONFIDENCES[answer.confidence], shared, time === undefined ? "" : timeText(time)];
      const style = ref === this.node ? "marked" : mode.node?.(ref) || "node";
      return { style, name: model.operator(ref), beside: answer.role, hover, target: { place: answer.module, node: ref } };
    }
    if (kind === BOX.group) return { style: "group", name: counted(extra, "part"), beside: printable(model.text(ref)), hover: [printable(model.text(ref))], target: null };
    const value = model.value(ref);
    const hover = [value.name, `${value.dtype} ${value.shape}`, kind === BOX.enters ? "comes in" : "goes out"];
    return { style: "end", name: value.name, beside: value.shape, hover, target: null };
  }

  /** Where a box is on the screen, in pixels. */
  frame(number) {
    const { scale } = this;
    return {
      left: (this._x(number) - this.boxWidth / 2) * scale,
      top: (this._y(number) - BOX_HEIGHT / 2) * scale,
      width: this.boxWidth * scale,
      height: BOX_HEIGHT * scale,
    };
  }

  /** What a box is, and what it is connected with. */
  words(number) {
    const names = (end, other) => [...this.flow.edges, ...this.flow.cut].filter((edge) => edge[end] === number).map((edge) => this.boxes[edge[other]].name);
    const [from, to] = [names(1, 0), names(0, 1)];
    const { name, beside } = this.boxes[number];
    return [`${name} ${beside}`, from.length ? `reads from ${from.join(", ")}` : "", to.length ? `leads to ${to.join(", ")}` : ""].filter(Boolean).join("; ");
  }

  /** One line through all edges; from box to box it leaves and arrives straight. */
  _edgePath() {
    const lines = this.flow.edges.map(([source, target], number) => {
      const [from, to] = [this.places.boxes[source], this.places.boxes[target]];
      const way = [from, ...this.places.bends[number], to].map(([column, row]) => [this._across(column), this._down(row)]);
      const turn = to[1] > from[1] ? 1 : -1;
      way[0][1] += (turn * BOX_HEIGHT) / 2;
      way[way.length - 1][1] -= turn * (BOX_HEIGHT / 2 + 5);
      return curve(way, turn);
    });
    return lines.join("");
  }

  layout() {
    const edge = styleColour("--edge");
    const shapes = [
      { type: "path", path: this._edgePath() || "M0,0", line: { color: edge, width: 1.4 }, layer: "below" },
      { type: "path", path: this._headPath() || "M0,0", fillcolor: edge, fillrule: "nonzero", line: { width: 0 }, layer: "below" },
    ];
    for (const style of new Set(this.boxes.map((box) => box.style))) shapes.push(this._boxShape(style));
    return {
      width: this.width * this.scale,
      height: this.height * this.scale,
      margin: { l: 0, r: 0, t: 0, b: 0 },
      xaxis: { range: [0, this.width], visible: false, fixedrange: true },
      yaxis: { range: [this.height, 0], visible: false, fixedrange: true },
      shapes,
      showlegend: false,
      dragmode: false,
      hovermode: "closest",
      hoverdistance: NEAR,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: styleColour("--font") },
      hoverlabel: hoverStyle(),
    };
  }

  _boxShape(style) {
    const looks = {
      node: [styleColour("--box"), styleColour("--line-solid"), "solid", 6],
      marked: [styleColour("--accent-soft"), styleColour("--accent"), "solid", 6],
      end: [styleColour("--ground"), styleColour("--line-solid"), "solid", BOX_HEIGHT / 2],
      group: [styleColour("--box"), styleColour("--muted"), "dash", 6],
    };
    const [fill, line, dash, corner] = looks[style] || [style, styleColour("--line-solid"), "solid", 6];
    const paths = this.boxes.map((box, number) => (box.style === style ? this._outline(number, corner) : ""));
    return { type: "path", path: paths.join(""), fillcolor: fill, line: { color: line, width: style === "marked" ? 2 : 1, dash }, layer: "below" };
  }

  _outline(number, corner) {
    const [left, top] = [this._x(number) - this.boxWidth / 2, this._y(number) - BOX_HEIGHT / 2];
    const [right, bottom] = [left + this.boxWidth, top + BOX_HEIGHT];
    return (
      `M${left + corner},${top}L${right - corner},${top}Q${right},${top} ${right},${top + corner}` +
      `L${right},${bottom - corner}Q${right},${bottom} ${right - corner},${bottom}` +
      `L${left + corner},${bottom}Q${left},${bottom} ${left},${bottom - corner}L${left},${top + corner}Q${left},${top} ${left + corner},${top}Z`
    );
  }

  _x(number) {
    return this._across(this.places.boxes[number][0]);
  }

  _y(number) {
    return this._down(this.places.boxes[number][1]);
  }

  traces() {
    return [this._texts(), this._edgeSpots(), this._boxSpots()];
  }

  _texts() {
    const most = Math.floor((this.boxWidth - 14) / LETTER);
    const ink = (box) => (box.style.startsWith("#") ? inkOn(box.style) : styleColour("--ink"));
    const words = (box) => {
      const name = plotlyText(shortened(box.name, most));
      const beside = plotlyText(shortened(box.beside, Math.floor(most * 1.15)));
      return beside ? `${name}<br><span style="font-size:${10 * this.scale}px">${beside}</span>` : name;
    };
    return {
      type: "scatter",
      mode: "text",
      x: this.boxes.map((_, number) => this._x(number)),
      y: this.boxes.map((_, number) => this._y(number)),
      text: this.boxes.map(words),
      textfont: { size: FONT * this.scale, color: this.boxes.map(ink) },
      hoverinfo: "skip",
    };
  }

  /** The heads of all arrows as one shape. */
  _headPath() {
    const heads = this.flow.edges.map(([source, target]) => {
      const turn = this.places.boxes[target][1] > this.places.boxes[source][1] ? 1 : -1;
      const [x, tip] = [this._x(target), this._y(target) - (turn * BOX_HEIGHT) / 2];
      return `M${x},${tip}L${x - 4.5},${tip - turn * 7}L${x + 4.5},${tip - turn * 7}Z`;
    });
    return heads.join("");
  }

  /** Invisible spots in the middle of edges, which say what passes there. */
  _edgeSpots() {
    const spots = this.flow.edges.map(([source, target, count, ...values], number) => {
      const way = [this.places.boxes[source], ...this.places.bends[number], this.places.boxes[target]];
      const [one, other] = [way[Math.floor((way.length - 1) / 2)], way[Math.floor((way.length - 1) / 2) + 1]];
      const names = values.map((place) => this.model.value(place)).map((value) => `${value.name}  ${value.dtype} ${value.shape}`);
      if (count > values.length) names.push(`and ${count - values.length} more`);
      return [(this._across(one[0]) + this._across(other[0])) / 2, (this._down(one[1]) + this._down(other[1])) / 2, hoverLines(names)];
    });
    return {
      type: "scatter",
      mode: "markers",
      x: spots.map((spot) => spot[0]),
      y: spots.map((spot) => spot[1]),
      hovertext: spots.map((spot) => spot[2]),
      hoverinfo: "text",
      marker: { size: 14, opacity: 0 },
    };
  }

  /** Invisible squares on every box, as close as plotly looks for them: it knows where points are, not where shapes are. */
  _boxSpots() {
    const across = Math.ceil(this.boxWidth / (BOX_HEIGHT + NEAR));
    const step = (this.boxWidth - BOX_HEIGHT) / Math.max(1, across - 1);
    const spots = this.boxes.flatMap((box, number) =>
      Array.from({ length: across }, (_, place) => ({
        x: this._x(number) - this.boxWidth / 2 + BOX_HEIGHT / 2 + place * step,
        y: this._y(number),
        hover: hoverLines(box.hover.filter(Boolean)),
        number,
      })),
    );
    return {
      type: "scatter",
      mode: "markers",
      x: spots.map((spot) => spot.x),
      y: spots.map((spot) => spot.y),
      hovertext: spots.map((spot) => spot.hover),
      customdata: spots.map((spot) => spot.number),
      hoverinfo: "text",
      marker: { size: BOX_HEIGHT * this.scale, symbol: "square", opacity: 0 },
    };
  }
}

const hoverLines = (lines) => lines.map((line) => plotlyText(shortened(line, 90))).join("<br>");

/** A smooth way through points, upright at each of them. */
function curve(points, turn) {
  let path = `M${points[0][0]},${points[0][1]}`;
  for (let at = 1; at < points.length; at += 1) {
    const [[fromX, fromY], [toX, toY]] = [points[at - 1], points[at]];
    const bow = Math.max(Math.abs(toY - fromY) / 2, 12) * turn;
    path += `C${fromX},${fromY + bow} ${toX},${toY - bow} ${toX},${toY}`;
  }
  return path;
}
