/* All is set up: draw. */
const redraw = () => view.redraw.forEach((draw) => draw());
redraw();
/* An A4 page without margins has some 700 pixels. */
const onPaper = (width) => () => { view.paper = width; redraw(); };
window.addEventListener('beforeprint', onPaper(700));
window.addEventListener('afterprint', onPaper(undefined));
let resized = 0;
window.addEventListener('resize', () => {
  cancelAnimationFrame(resized);
  resized = requestAnimationFrame(redraw);
});
document.documentElement.dataset.ready = 'yes';
