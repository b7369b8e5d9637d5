"use strict";
// Draws the figures of the page in the colours of its theme, and again when that changes.
const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");

function template() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  const axis = { gridcolor: of("--line"), linecolor: of("--line"), zerolinecolor: of("--line"), title: { font: { size: 13 } } };
  const font = { color: of("--ink"), size: 12, family: style.fontFamily || "sans-serif" };
  return {
    layout: {
      font, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", xaxis: axis, yaxis: axis,
      hoverlabel: { bgcolor: of("--raised"), bordercolor: of("--line"), font: { color: of("--ink") }, align: "left" },
    },
    data: { parcoords: [{ type: "parcoords", labelfont: font, tickfont: font, rangefont: { ...font, size: 1, color: "rgba(0,0,0,0)" } }] },
  };
}

// On a phone a legend takes a line for each of its entries.
function height(figure) {
  const named = figure.data.filter((trace) => trace.name && trace.showlegend !== false).length;
  const rows = figure.layout.showlegend === false || innerWidth > 480 ? 0 : Math.max(0, named - 2);
  return figure.layout.height + 21 * rows;
}

function draw(id, theme = template()) {
  const figure = figures[id];
  document.getElementById(id).dataset.drawn = "yes";
  return Plotly.react(id, figure.data, { ...figure.layout, height: height(figure), template: theme }, { responsive: true, displayModeBar: false });
}

function drawAll() {
  return Promise.all(Object.keys(figures).map((id) => draw(id)));
}

// What is near the window is drawn at once, the rest when it comes near.
const near = new IntersectionObserver((seen) => {
  for (const { isIntersecting, target } of seen) {
    if (isIntersecting) { near.unobserve(target); draw(target.id); }
  }
}, { rootMargin: "600px" });

for (const id of Object.keys(figures)) {
  const frame = document.getElementById(id);
  frame.style.height = `${height(figures[id])}px`;
  near.observe(frame);
}
for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    const code = button.closest(".command").querySelector("code");
    getSelection().selectAllChildren(code); // where the clipboard is refused, the words are marked to be copied by hand
    await navigator.clipboard.writeText(code.textContent).then(() => { button.textContent = "Copied"; }, () => { button.textContent = "Ctrl-C"; });
  });
}
dark.addEventListener("change", () => {
  const theme = template();
  for (const frame of document.querySelectorAll("[data-drawn]")) draw(frame.id, theme);
});
addEventListener("beforeprint", drawAll);
