// What can be seen to be wrong with a page, as sentences. Runs in the page, after all figures were drawn.
const wrong = [];
const own = document.querySelector("main > header, main.alone");  // not the documentation's theme, whose layout is not ours
const shown = e => { const r = e.getBoundingClientRect(); return r.width > 0 && r.height > 0 && getComputedStyle(e).visibility !== "hidden" && !e.closest("details:not([open]) > :not(summary)"); };
const name = e => `${e.tagName.toLowerCase()}${e.className && e.className.baseVal === undefined ? "." + e.className : ""} "${(e.textContent || "").trim().slice(0, 40)}"`;
const rgba = c => { const m = c.match(/[\d.]+/g).map(Number); return m.length > 3 ? m : [...m, 1]; };
const luminance = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
const contrast = (a, b) => { const [x, y] = [luminance(a), luminance(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
function behind(e) { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] > 0.95) return c; } return [255, 255, 255, 1]; }

// the page itself is as wide as the window
if (document.documentElement.scrollWidth > innerWidth + 1) {
  wrong.push(`the page is ${document.documentElement.scrollWidth} px wide, the window ${innerWidth}`);
  for (const e of document.querySelectorAll("main *")) { if (shown(e) && !e.closest(".scroll, pre") && e.getBoundingClientRect().right > innerWidth + 1) { wrong.push(`sticks out: ${name(e)}`); break; } }
}
// figures: drawn, described, no text cut or over another
for (const box of document.querySelectorAll(".plot")) {
  if (!box.getAttribute("aria-label")) wrong.push("a figure without alternative text");
  const svg = box.querySelector("svg.main-svg");
  if (!svg || !box.querySelector(".trace, .point, .bars")) { wrong.push(`not drawn: ${box.getAttribute("aria-label")}`); continue; }
  const frame = box.getBoundingClientRect();
  const texts = [...box.querySelectorAll("svg text")].filter(t => shown(t) && t.textContent.trim() && !t.closest(".modebar, .hoverlayer"));
  const bar = box.querySelector(".modebar");
  if (bar && shown(bar)) texts.push(bar);
  const rects = texts.map(t => t.getBoundingClientRect());
  texts.forEach((t, i) => {
    const r = rects[i];
    if (r.left < frame.left - 2 || r.right > frame.right + 2 || r.top < frame.top - 2 || r.bottom > frame.bottom + 2) wrong.push(`cut: "${t.textContent}" in ${box.getAttribute("aria-label")}`);
    for (let j = 0; j < i; j++) {
      const q = rects[j], w = Math.min(r.right, q.right) - Math.max(r.left, q.left), h = Math.min(r.bottom, q.bottom) - Math.max(r.top, q.top);
      if (w > 3 && h > 4) wrong.push(`"${t.textContent}" over "${texts[j].textContent}" in ${box.getAttribute("aria-label")}`);
    }
    if (t !== bar && !t.closest(".textpoint")) {
      const c = contrast(rgba(getComputedStyle(t).fill), behind(box));
      if (c < 4.5) wrong.push(`contrast ${c.toFixed(1)}: "${t.textContent}" in ${box.getAttribute("aria-label")}`);
    }
  });
}
// texts: readable, and not cut by a box that does not scroll
if (own) for (const e of document.querySelectorAll("body *:not(svg *, .plot *, script, style)")) {
  if (!shown(e) || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
  const c = contrast(rgba(getComputedStyle(e).color), behind(e));
  if (c < 4.5) wrong.push(`contrast ${c.toFixed(1)}: ${name(e)}`);
  if (e.scrollWidth > e.clientWidth + 2 && e.clientWidth && getComputedStyle(e).display !== "inline" && getComputedStyle(e).overflowX === "hidden") wrong.push(`cut: ${name(e)}`);
}
// blocks below one another
const blocks = !own ? [] : [...document.querySelectorAll("main > *, section > *")].filter(shown);
for (const e of blocks) {
  const next = e.nextElementSibling;
  if (next && shown(next) && e.getBoundingClientRect().bottom > next.getBoundingClientRect().top + 2 && blocks.includes(next)) wrong.push(`${name(e)} over ${name(next)}`);
}
if (!document.documentElement.lang || !document.title) wrong.push("no language or no title");
if (window.hostile) wrong.push(`a text was run: ${window.hostile}`);
if (own && document.querySelector("main img, main iframe, main script:not([type])")) wrong.push("a text became an element");
return [...new Set(wrong)];
