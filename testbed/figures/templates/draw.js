// Figures are drawn when they come near the window, in the page's colours; on narrow pages panels stand below one another.
const isDark = matchMedia("(prefers-color-scheme: dark)");
// "Share chart" would upload the figure's data: nothing of a report leaves the reader's computer
const CONFIG = {displaylogo: false, responsive: false, modeBarButtonsToRemove: ["sendChartToCloud", "lasso2d", "select2d"]};
const MARGIN = 130;

function stacked(layout) {
  const panels = Object.keys(layout).filter(k => /^yaxis\d*$/.test(k))
    .map(k => ({y: layout[k], x: layout[(layout[k].anchor || "x").replace("x", "xaxis")]}));
  if (panels.every(p => !p.x.domain || p.x.domain[1] - p.x.domain[0] > 0.9)) return;
  panels.sort((a, b) => b.y.domain[1] - a.y.domain[1] || a.x.domain[0] - b.x.domain[0]);
  const inside = layout.height - MARGIN, gap = 70;
  const heights = panels.map(p => Math.max(70, (p.y.domain[1] - p.y.domain[0]) * inside));
  const total = heights.reduce((sum, h) => sum + h + gap, -gap);
  let top = total;
  panels.forEach((p, i) => {
    p.y.domain = [Math.max(0, (top - heights[i]) / total), top / total];
    p.x.domain = [0, 1];
    top -= heights[i] + gap;
  });
  layout.height = total + MARGIN;
}

function draw(box) {
  const source = box.querySelector("script").textContent;
  const figure = JSON.parse(source, (key, value) => isDark.matches && typeof value === "string" ? DARK[value] || value : value);
  const narrow = box.clientWidth < 640;
  if (narrow) {
    stacked(figure.layout);
    figure.layout.margin.l = 48;
    figure.data = figure.data.filter(trace => trace.mode !== "text");  // there is no room for labels within boxes
  }
  figure.layout.width = box.clientWidth;
  let target = box.querySelector(".drawing");
  if (!target) { target = box.appendChild(document.createElement("div")); target.className = "drawing"; }
  box.style.minHeight = figure.layout.height + "px";
  box.drawnWidth = box.clientWidth;
  return Plotly.newPlot(target, figure.data, figure.layout, {...CONFIG, displayModeBar: narrow ? false : "hover"});
}

const boxes = [...document.querySelectorAll(".plot")];
const near = new IntersectionObserver(entries => entries.forEach(e => {
  if (e.isIntersecting && !e.target.drawnWidth) draw(e.target);
}), {rootMargin: "600px"});
boxes.forEach(box => near.observe(box));
isDark.addEventListener("change", () => boxes.filter(b => b.drawnWidth).forEach(draw));
let later;
addEventListener("resize", () => {
  clearTimeout(later);
  later = setTimeout(() => boxes.filter(b => b.drawnWidth && b.drawnWidth !== b.clientWidth).forEach(draw), 150);
});
addEventListener("beforeprint", () => boxes.filter(b => !b.drawnWidth).forEach(draw));
