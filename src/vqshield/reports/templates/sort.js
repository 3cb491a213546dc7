"use strict";
// A click on a heading sorts its table by that column, a second click the other way round. Cells without a
// value stay below in either direction.
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
}
