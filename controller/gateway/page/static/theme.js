/** Light or dark: as the system has it, or as it was chosen here. */

import { setText } from "./dom.js";
import { read, write } from "./storage.js";

const NAME = "mlx-cluster-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

/** Apply what was chosen before, and let `button` change it. */
export function initTheme(button) {
  const theme = () => read("localStorage", NAME) ?? (system.matches ? "dark" : "light");
  const other = () => (theme() === "dark" ? "light" : "dark");
  const show = () => {
    document.documentElement.dataset.theme = theme() === "dark" ? "dark" : "light";
    setText(button, other() === "dark" ? "Dark theme" : "Light theme");
  };
  button.addEventListener("click", () => {
    write("localStorage", NAME, other());
    show();
  });
  system.addEventListener("change", show);
  show();
}
