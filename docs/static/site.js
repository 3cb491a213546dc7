// Pages that are opened as files may not read one another, so the search shows titles without excerpts there.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// What scrolls can be reached by the keyboard.
function reachScrolling() {
  for (const box of document.querySelectorAll("pre, .table-wrapper, div.math, p:has(> img)")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}
addEventListener("load", reachScrolling);
addEventListener("resize", reachScrolling);
