// Runs before anything is painted: that there are scripts, and the theme that the reader chose, so that no page is first
// shown in another one or without the room for what scripts add.
"use strict";

(() => {
  const root = document.documentElement;
  root.classList.add("scripted");
  try {
    const theme = localStorage.getItem("kernelforge-theme"); // which other pages may have set, too
    if (["light", "dark"].includes(theme)) root.dataset.theme = theme;
  } catch {
    // storage is switched off: as the reader's system has it
  }
})();
