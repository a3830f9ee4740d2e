// Light and dark: what the system prefers, until the reader chooses.

const THEME_KEY = "modelexport-theme";

const prefersDark = () => window.matchMedia("(prefers-color-scheme: dark)").matches;

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : prefersDark();
}

/** A page that was opened from a file may not be allowed to remember anything. */
function remembered() {
  try {
    return localStorage.getItem(THEME_KEY);
  } catch {
    return null;
  }
}

function remember(theme) {
  try {
    localStorage.setItem(THEME_KEY, theme);
  } catch {
    // Then the choice lasts as long as the page.
  }
}

function startTheme(onChange) {
  const button = document.getElementById("theme");
  const show = () => {
    button.textContent = isDark() ? "☾" : "☀";
  };
  const kept = remembered();
  if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    remember(document.documentElement.dataset.theme);
    show();
    onChange();
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    show();
    onChange();
  });
  show();
}

/** A colour of the style sheet, for plotly. */
const styleColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
