// Text for people. Names come from the model, and are never markup: not for the browser, and not for plotly.

// Controls, marks that cannot be seen or turn text around, line ends, halves of characters; and letters without a shape.
const CONTROLS = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\u115f\u1160\u3164\uffa0]/gu;

/** The text with everything that cannot be seen, or turns text around, written as an escape. */
function printable(text) {
  return text.replace(CONTROLS, (mark) => {
    const number = mark.codePointAt(0).toString(16);
    return number.length > 4 ? `\\u{${number}}` : `\\u${number.padStart(4, "0")}`;
  });
}

/** Text for plotly, which understands a few tags, entities and formulas between dollars, and none that is escaped so. */
function plotlyText(text) {
  const escaped = printable(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  return escaped.replace(/\$/g, "&#36;");
}

/** Long text without its middle, which tells least: names differ at their ends. */
function shortened(text, most) {
  if (text.length <= most) return text;
  const end = Math.ceil((most - 1) / 2);
  return text.slice(0, most - 1 - end) + "…" + text.slice(text.length - end);
}

/** An element with attributes and children; texts become text nodes. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "on") for (const [event, handler] of Object.entries(value)) made.addEventListener(event, handler);
    else if (key === "style") Object.assign(made.style, value);
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

function scaled(number, units, gap) {
  let value = number;
  let place = 0;
  while (Math.abs(value) >= 999.5 && place < units.length - 1) {
    value /= 1000;
    place += 1;
  }
  const whole = Math.abs(value) >= 99.95 || (place === 0 && Number.isInteger(value));
  return value.toFixed(whole ? 0 : 1) + (units[place] ? gap + units[place] : "");
}

const countText = (number) => scaled(number, ["", "K", "M", "B", "T"], "");
const bytesText = (number) => scaled(number, ["B", "KB", "MB", "GB", "TB"], " ");
const flopsText = (number) => scaled(number, ["", "K", "M", "G", "T", "P"], " ");
const timeText = (microseconds) => scaled(microseconds, ["µs", "ms", "s"], " ");
const NUMBERS = new Intl.NumberFormat("en-US");
const plainText = (number) => NUMBERS.format(number);

/** A percentage that says 100 % only of everything and 0 % only of nothing. */
function shareText(share) {
  const percent = 100 * share;
  if (percent >= 99.95 && percent < 100) return ">99.9 %";
  if (percent > 0 && percent < 0.05) return "<0.1 %";
  return percent.toFixed(1) + " %";
}

const counted = (number, noun) => `${plainText(number)} ${noun}${number === 1 ? "" : "s"}`;
const smallText = (number) => (number === 0 ? "0" : number.toExponential(1));
const decibelText = (number) => `${number.toFixed(0)} dB`;
