// Keys that work everywhere but in fields.

function startKeys({ search, onUp }) {
  const dialog = document.getElementById("keys");
  document.getElementById("help").addEventListener("click", () => dialog.showModal());
  const actions = {
    "/": () => search.focus(),
    "?": () => dialog.showModal(),
    u: onUp,
    t: () => document.getElementById("theme").click(),
  };
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, select, textarea");
    if (typing || dialog.open || event.ctrlKey || event.metaKey || event.altKey || !actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  });
}
