/* All is set up: draw. */
const redraw = () => view.redraw.forEach((draw) => draw());
redraw();
let resized = 0;
window.addEventListener('resize', () => {
  cancelAnimationFrame(resized);
  resized = requestAnimationFrame(redraw);
});
document.documentElement.dataset.ready = 'yes';
