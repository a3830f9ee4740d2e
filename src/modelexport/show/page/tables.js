// Tables that start short, and facts in pairs.

const FIRST_ROWS = 60;
const MORE_ROWS = 200;

/** A table that shows its first rows, and more of them when asked. `rows` are functions that make cells. */
function table(columns, count, row) {
  const body = element("tbody");
  const head = element("tr", {}, columns.map((name) => element("th", { scope: "col" }, name)));
  const made = element("table", {}, element("thead", {}, head), body);
  const more = element("button", { type: "button", class: "more" });
  let shown = 0;
  const grow = (amount) => {
    const end = Math.min(count, shown + amount);
    for (; shown < end; shown += 1) body.append(row(shown));
    more.textContent = `${plainText(count - shown)} more`;
    more.hidden = shown >= count;
  };
  more.addEventListener("click", () => grow(MORE_ROWS));
  grow(FIRST_ROWS);
  return element("div", { class: "table" }, made, more);
}

const cells = (...contents) => element("tr", {}, contents.map((content) => element("td", {}, content)));

/** Pairs of a word and what it stands for; those that have nothing to say are left out. */
function facts(pairs) {
  const shown = pairs.filter(([, content]) => content !== "" && content !== null && content !== undefined);
  return element("dl", { class: "facts" }, shown.flatMap(([name, content]) => [element("dt", {}, name), element("dd", {}, content)]));
}

/** A part of the details with a heading that opens and closes it. What takes long to make is a function, called when it
 * is first opened. */
function section(title, aside, content, open = true) {
  const heading = element("summary", {}, element("h3", {}, title), aside ? element("span", { class: "aside" }, aside) : null);
  if (typeof content !== "function") return element("details", { open }, heading, content);
  const made = element("details", { open }, heading);
  made.addEventListener("toggle", () => made.append(content()), { once: true });
  return made;
}

const below = (text) => (text ? element("span", { class: "below" }, text) : null);

/** A button that copies what is shown. A page that may not write to the clipboard leaves the text to be selected. */
function copier(text, what) {
  const button = element("button", { type: "button", class: "copy", title: `Copy the ${what}`, "aria-label": `Copy the ${what}` }, "copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(button.parentElement);
    }
  });
  return button;
}

/** A heading, with a button if it is something to copy. */
const named = (text, what) => element("div", { class: "named" }, element("h2", {}, text), what ? copier(text, what) : null);

const code = (text) => element("code", {}, text);
const link = (href, ...content) => element("a", { href }, ...content);
const badge = (level) => element("span", { class: `badge ${CONFIDENCES[level]}` }, CONFIDENCES[level]);
