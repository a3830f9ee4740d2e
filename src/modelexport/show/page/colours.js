// What modules are coloured by. All scales can be told apart by people who see fewer colours: the kinds are those of
// Paul Tol's light scheme, amounts go from the colour of the sheet to a dark or bright orange.

const KINDS = ["#77aadd", "#ee8866", "#eedd88", "#44bb99", "#ffaabb", "#99ddff", "#bbcc33", "#aaaa00"];
const OTHERS = { light: "#c9ced6", dark: "#4b5665" };
const LIGHT_STEPS = ["#fffbe8", "#feebb0", "#fed675", "#fdb13f", "#f28a1c", "#d9620a", "#ad4304", "#7d2c05"];
const DARK_STEPS = ["#26303b", "#463a2f", "#6e4a24", "#99591b", "#c56d14", "#ea8a22", "#ffb052", "#ffdd9e"];
const STATES = { inside: "#eedd88", changed: "#ee8866", added: "#44bb99" };
const STATE_WORDS = { inside: "change inside" };

/** Of everything that has no colour of its own. */
const otherColour = () => (isDark() ? OTHERS.dark : OTHERS.light);

/** Modes by key. Some have a colour for what is in none of the modules inside of a module (`own`), and for single nodes
 * (`node`, null where it is not known); and some depend on the module that is opened (`focus`). */
function colourModes(model) {
  const modes = [classMode(model), confidenceMode(model)];
  if (model.data.profile) modes.push(timeMode(model));
  if (model.data.verification) modes.push(errorMode(model));
  if (model.data.difference) modes.push(differenceMode(model));
  return Object.fromEntries(modes.map((mode) => [mode.key, mode]));
}

function classMode(model) {
  const amounts = new Map();
  for (let place = 1; place < model.count; place += 1) {
    const name = model.className(place);
    amounts.set(name, (amounts.get(name) || 0) + model.measures.nodes.total[place]);
  }
  const ranked = [...amounts].filter(([, amount]) => amount > 0).sort((one, other) => other[1] - one[1]);
  const colours = new Map(ranked.slice(0, KINDS.length).map(([name], rank) => [name, KINDS[rank]]));
  const rest = ranked.length - colours.size;
  return {
    key: "class",
    label: "Class",
    colour: (place) => colours.get(model.className(place)) || otherColour(),
    words: (place) => model.className(place),
    legend: () => swatches([...colours, ...(rest > 0 ? [[counted(rest, "other class").replace("classs", "classes"), otherColour()]] : [])]),
  };
}

function confidenceMode(model) {
  const share = (levels) => {
    const all = levels.reduce((sum, level) => sum + level, 0);
    return all ? (levels[0] + levels[1] + levels[2]) / all : null;
  };
  const words = (weak) => (weak === null ? "no nodes" : `${shareText(1 - weak)} exact or strong`);
  const weak = (place) => share(model.confidences(place));
  const ownWeak = (place) => share(model.modules.confidence.map((level) => level[place]));
  return {
    key: "confidence",
    label: "Confidence",
    colour: (place) => amountColour(weak(place)),
    words: (place) => words(weak(place)),
    own: (place) => amountColour(ownWeak(place)),
    ownWords: (place) => words(ownWeak(place)),
    node: (node) => amountColour(model.answer(node).confidence < CONFIDENCES.indexOf("strong") ? 1 : 0),
    legend: () => scale("nodes that are less than strong", ["0 %", "50 %", "100 %"]),
  };
}

/** The slowest part of the opened module has the strongest colour: of the whole, what is deep inside is always little. */
function timeMode(model) {
  const { total, own } = model.measures.time;
  const { nodes } = model.data.profile;
  let opened = ROOT;
  let most = 0;
  const colour = (time) => amountColour(most ? Math.min(1, time / most) : 0);
  return {
    key: "time",
    label: "Time",
    focus: (place) => {
      const [first, end] = model.within(place);
      opened = place;
      most = own[place];
      for (let at = first + 1; at < end; at += 1) most = Math.max(most, total[at]);
    },
    colour: (place) => (place === opened ? otherColour() : colour(total[place])),
    words: (place) => timeText(total[place]),
    own: (place) => colour(own[place]),
    ownWords: (place) => timeText(own[place]),
    node: (node) => (node in nodes ? colour(nodes[node]) : null),
    legend: () => scale("time of one run", ["0", timeText(most / 2), timeText(most)]),
  };
}

// Decibels: from here on numbers are as good as equal, and from there on they have little in common.
const GOOD_SQNR = 100;
const BAD_SQNR = 10;

function errorMode(model) {
  const worst = worstCalls(model);
  const share = (call) => Math.min(1, Math.max(0, (GOOD_SQNR - call.sqnr) / (GOOD_SQNR - BAD_SQNR)));
  return {
    key: "error",
    label: "Error",
    colour: (place) => (worst.has(place) ? amountColour(share(worst.get(place))) : otherColour()),
    words: (place) => (worst.has(place) ? `${worst.get(place).status}, ${sqnrText(worst.get(place))}` : "not compared"),
    legend: () =>
      scale("signal to noise of what it returns", [`≥ ${GOOD_SQNR} dB`, "55 dB", `≤ ${BAD_SQNR} dB`], [["not compared", otherColour()]]),
  };
}

const sqnrText = (call) => (call.sqnr >= 999 ? "equal" : decibelText(call.sqnr));

/** Of every module that was compared, the call with the most noise. */
function worstCalls(model) {
  const { calls } = model.data.verification;
  const found = new Map();
  calls.module.forEach((place, row) => {
    if (calls.sqnr[row] === null) return;
    const call = { sqnr: calls.sqnr[row], status: calls.status[row], call: calls.call[row] };
    if (!found.has(place) || found.get(place).sqnr > call.sqnr) found.set(place, call);
  });
  return found;
}

function differenceMode(model) {
  const { state } = model.data.difference;
  return {
    key: "difference",
    label: "Difference",
    colour: (place) => STATES[state[place]] || otherColour(),
    words: (place) => STATE_WORDS[state[place]] || state[place],
    legend: () => swatches(Object.entries({ same: otherColour(), ...STATES }).map(([name, colour]) => [STATE_WORDS[name] || name, colour])),
  };
}

function amountColour(share) {
  if (share === null) return otherColour();
  const steps = isDark() ? DARK_STEPS : LIGHT_STEPS;
  const at = share * (steps.length - 1);
  const low = Math.floor(at);
  return mixed(steps[low], steps[Math.min(low + 1, steps.length - 1)], at - low);
}

const channels = (colour) => [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16));

function mixed(one, other, share) {
  const [from, to] = [channels(one), channels(other)];
  const blend = from.map((channel, place) => Math.round(channel + (to[place] - channel) * share));
  return "#" + blend.map((channel) => channel.toString(16).padStart(2, "0")).join("");
}

/** Dark or white: what can be read on a colour. */
function inkOn(colour) {
  const [red, green, blue] = channels(colour).map((channel) => (channel / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.3 ? "#16202c" : "#ffffff";
}

function swatches(pairs) {
  const items = pairs.map(([name, colour]) =>
    element("li", {}, element("i", { style: { background: colour }, "aria-hidden": "true" }), name || "(none)"),
  );
  return element("ul", { class: "swatches" }, items);
}

function scale(title, marks, others = []) {
  const steps = isDark() ? DARK_STEPS : LIGHT_STEPS;
  const bar = element("i", { class: "ramp", style: { background: `linear-gradient(90deg, ${steps.join(", ")})` } });
  const ends = element("span", { class: "marks" }, marks.map((mark) => element("span", {}, mark)));
  return element(
    "div",
    { class: "scale" },
    element("span", {}, title),
    element("span", { class: "ruler" }, bar, ends),
    others.length ? swatches(others) : null,
  );
}
