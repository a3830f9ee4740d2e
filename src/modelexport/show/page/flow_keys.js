// The dataflow without a mouse: arrows go from box to box, Enter opens what a box stands for, and each is said in words.

const STEPS = { ArrowDown: [0, 1], ArrowUp: [0, -1], ArrowRight: [1, 0], ArrowLeft: [-1, 0] };

class FlowKeys {
  constructor(host, onOpen) {
    this.onOpen = onOpen;
    this.ring = element("div", { class: "ring", hidden: true });
    this.words = element("p", { class: "unseen", role: "status" });
    host.addEventListener("keydown", (event) => this._onKey(event));
    host.addEventListener("blur", () => this.leave());
  }

  follow(drawing) {
    this.drawing = drawing;
    this.leave();
  }

  leave() {
    this.at = null;
    this.ring.hidden = true;
    this.words.textContent = "";
  }

  _onKey(event) {
    if (!this.drawing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" && this.at !== null) this.onOpen(this.at);
    else if (STEPS[event.key]) this._show(this.at === null ? this.drawing.first : this._next(STEPS[event.key]));
    else return;
    event.preventDefault();
  }

  /** The nearest box of the nearest row that way, or the next one of the same row. */
  _next([across, down]) {
    const { boxes } = this.drawing.places;
    const [column, row] = boxes[this.at];
    const far = ([x, y]) => (down ? [(y - row) * down, Math.abs(x - column)] : [y === row ? (x - column) * across : 0, 0]);
    const nearer = (one, other) => one[0] - other[0] || one[1] - other[1];
    const that = boxes.map((point, number) => ({ number, far: far(point) })).filter((box) => box.far[0] > 0);
    return that.sort((one, other) => nearer(one.far, other.far))[0]?.number ?? this.at;
  }

  _show(number) {
    this.at = number;
    const { left, top, width, height } = this.drawing.frame(number);
    Object.assign(this.ring.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
    this.ring.hidden = false;
    this.ring.scrollIntoView({ block: "nearest", inline: "nearest" });
    this.words.textContent = this.drawing.words(number);
  }
}
