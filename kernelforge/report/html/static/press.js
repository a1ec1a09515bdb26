// Whether the reader is pressing something that has not become a click yet. Nothing may move it or take it away before:
// who would asks `document.pressed`, and waits for the event "kernelforge:released" on the document.
"use strict";

(() => {
  const TAP_MS = 300; // by then a finger that was lifted has clicked
  let ending = 0;
  document.pressed = false;

  function begin() {
    clearTimeout(ending);
    document.pressed = true;
  }

  function end(after = 0) {
    if (!document.pressed) return;
    clearTimeout(ending);
    ending = setTimeout(() => {
      document.pressed = false;
      document.dispatchEvent(new Event("kernelforge:released"));
    }, after);
  }

  // The bar that scrolls the page is no part of it.
  addEventListener("pointerdown", (event) => event.target !== document.documentElement && begin(), true);
  addEventListener("pointerup", (event) => end(event.pointerType === "touch" ? TAP_MS : 0), true);
  addEventListener("pointermove", (event) => event.buttons || end(), true); // the press ended where nobody heard of it
  addEventListener("keydown", (event) => event.key === " " && begin(), true); // which clicks when it is let go
  for (const over of ["keyup", "click", "pointercancel"]) addEventListener(over, () => end(), true);
  addEventListener("blur", () => end()); // of the window, not of what is in it
})();
