// Every text that is seen: its contrast with what is painted behind it, if that is less than `arguments[0]`.
const channels = text => (text.match(/[\d.]+/g) || []).map(Number);
const light = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = node => {
  for (; node; node = node.parentElement) {
    const colour = channels(getComputedStyle(node).backgroundColor);
    if (colour.length === 3 || colour[3] === 1) return colour;
  }
  throw Error('nothing opaque behind');
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
let looked = 0;
for (let text; (text = walker.nextNode());) {
  const node = text.parentElement, box = node.getBoundingClientRect();
  if (!text.data.trim() || box.width < 2 || node.closest('script, style, noscript, title, :disabled, .hidden, .skip, option')) continue;
  const style = getComputedStyle(node), inBar = node.matches('.inside') && node.parentElement.querySelector('.box');
  const ink = light(channels(node.namespaceURI.endsWith('svg') ? style.fill : style.color));
  const paper = light(inBar ? channels(getComputedStyle(inBar).fill) : behind(node));
  const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  looked++;
  if (ratio < arguments[0]) found.push(`${ratio.toFixed(2)}: ${text.data.trim().slice(0, 40)} (${node.className.baseVal ?? node.className})`);
}
return {looked, found};
