/** Light or dark: as the system has it, or as it was chosen here. */

const NAME = "mlx-cluster-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

/** Apply what was chosen before, and let `button` change it. */
export function initTheme(button) {
  let chosen = stored();
  const isDark = () => (chosen ?? (dark.matches ? "dark" : "light")) === "dark";
  const show = () => {
    if (chosen) document.documentElement.dataset.theme = chosen;
    button.setAttribute("aria-pressed", String(isDark()));
  };
  button.addEventListener("click", () => {
    chosen = isDark() ? "light" : "dark";
    store(chosen);
    show();
  });
  dark.addEventListener("change", show);
  show();
}

function stored() {
  try {
    const theme = localStorage.getItem(NAME);
    return ["light", "dark"].includes(theme) ? theme : null;
  } catch {
    return null;
  }
}

function store(theme) {
  try {
    localStorage.setItem(NAME, theme);
  } catch {
    // until the page is closed, then
  }
}
