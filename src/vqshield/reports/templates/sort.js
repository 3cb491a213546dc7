"use strict";
// A click on a heading sorts its table by that column, a second click the other way round. Cells without a
// value stay below in either direction. Where headings have no room, a list sorts; boxes hide marked rows.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => heading.querySelector("button").addEventListener("click", () => {
    const first = heading.dataset.first;
    const other = first === "ascending" ? "descending" : "ascending";
    const order = heading.getAttribute("aria-sort") === first ? other : first;
    headings.forEach(each => each.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const value = row => row.cells[column].dataset.value;
    const rows = [...body.rows].sort((one, two) => {
      const a = value(one), b = value(two);
      if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
      return sign * (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b);
    });
    body.append(...rows);
  }));
  const tools = document.querySelector(".tools");
  if (!tools) continue;
  const list = tools.querySelector("select"), boxes = [...tools.querySelectorAll("[data-badge]")];
  headings.forEach((heading, column) => list.add(new Option(heading.querySelector("button").innerText, column)));
  list.value = headings.findIndex(heading => heading.hasAttribute("aria-sort"));
  list.addEventListener("change", () => headings[list.value].querySelector("button").click());
  const badges = row => [...row.querySelectorAll(".badge")].map(badge => badge.innerText);
  tools.addEventListener("change", () => {
    const off = boxes.filter(box => !box.checked).map(box => box.dataset.badge);
    for (const row of body.rows) row.hidden = badges(row).some(badge => off.includes(badge));
    for (const dot of document.querySelectorAll(".dot")) dot.hidden = dot.dataset.badges.split("|").some(badge => off.includes(badge));
  });
  tools.hidden = false;
}
