// Before the first paint, so that nothing flashes in other colours; a module would be late.
(() => {
  try {
    const theme = localStorage.getItem("headrace.theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // Storage is off: the system's colours.
  }
})();
