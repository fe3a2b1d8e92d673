// Once all is loaded, of every text: whether it stays within its picture, and whether it stands out from what is behind it (WCAG 2, level AA).
const numbers = (colour) => (colour.match(/[\d.]+/g) || []).map(Number);
const luminance = (colour) => {
  const linear = (c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = numbers(colour).slice(0, 3).map(linear);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (one, other) => {
  const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
};
const opaque = (colour) => numbers(colour).length === 3 || numbers(colour)[3] === 1;
const ground = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const colour = getComputedStyle(e).backgroundColor;
    if (opaque(colour)) return colour;
  }
  return 'rgb(255, 255, 255)';
};
const within = (a, b) => a.left >= b.left - 1 && a.right <= b.right + 1 && a.top >= b.top - 1 && a.bottom <= b.bottom + 1;
const meets = (a, b) => a.left < b.right && a.right > b.left && a.top < b.bottom && a.bottom > b.top;
const judge = (text, ink, behind) => {
  const found = contrast(ink, behind);
  if (found < 4.5) wrong.push(`cannot be read: ${text}: ${ink} on ${behind}, ${found.toFixed(1)}`);
};

// What is found is left in the outermost document.
const found = (window.frameElement ? parent.document : document).documentElement.dataset;

addEventListener('load', () => {
  for (const data of document.querySelectorAll('details.data')) data.open = true;
  for (const picture of document.querySelectorAll('figure svg, .chart svg, .dag')) {
    const frame = picture.getBoundingClientRect();
    const boxes = [...picture.querySelectorAll('rect')].filter((r) => !/^(none|url)/.test(getComputedStyle(r).fill) && r.getAttribute('opacity') !== '0');
    const seen = [];
    for (const element of picture.querySelectorAll('text')) {
      const place = element.getBoundingClientRect();
      const text = element.textContent.trim();
      if (!within(place, frame)) wrong.push(`leaves its picture: ${text}`);
      for (const [other, its] of seen) if (meets(place, its)) wrong.push(`meets another: ${text}, ${other}`);
      seen.push([text, place]);
      // What was drawn before it and where it is.
      const before = boxes.filter((b) => b.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_FOLLOWING);
      const middle = { left: (place.left + place.right) / 2, top: (place.top + place.bottom) / 2 };
      Object.assign(middle, { right: middle.left, bottom: middle.top });
      for (const box of before.filter((b) => within(middle, b.getBoundingClientRect())).slice(-1)) {
        judge(text, getComputedStyle(element).fill, getComputedStyle(box).fill);
      }
    }
  }
  for (const element of document.querySelectorAll('header *, main *, footer *')) {
    const own = [...element.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.textContent.trim());
    if (own && !element.closest('svg, script')) judge(element.textContent.trim().slice(0, 60), getComputedStyle(element).color, ground(element));
  }
  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth > clientWidth) wrong.push(`the page is wider than its window: ${scrollWidth}, ${clientWidth}`);
  // Nothing is cut inside the page either.
  for (const element of document.querySelectorAll('table, td, pre, .tail, .card, section, figure')) {
    if (element.scrollWidth > element.clientWidth + 1) wrong.push(`is cut: ${element.textContent.trim().slice(0, 60)}`);
  }
  found.width = String(innerWidth);
  found.dark = String(matchMedia('(prefers-color-scheme: dark)').matches);
  found.wrong = JSON.stringify(wrong);
  found.ready = 'yes';
});
