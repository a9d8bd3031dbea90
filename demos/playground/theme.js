/* Runs before the first paint: take the colours that the visitor chose, if any; the system's otherwise. */
(function applyChosenColours() {
  let chosen = null;
  try {
    chosen = localStorage.getItem("physis.colours");
  } catch {
    chosen = null;
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
