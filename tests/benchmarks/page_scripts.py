"""JavaScript that measures a report from within its page."""

FIRST_PAINT = """() => {
  window.painted = null;
  const look = () => {
    const row = document.querySelector('.mm-live:not(.mm-root) [role=row] + [role=row]')
      ?? document.querySelector('.mm-live:not(.mm-root) [role=gridcell]');
    if (!row) return requestAnimationFrame(look);
    requestAnimationFrame(() => setTimeout(() => { window.painted = Date.now(); }));
  };
  look();
}"""
"""Notes when a row of the live report was painted: the task after its frame."""

TIME = """const timed = (act) => new Promise((resolve) => {
  const start = performance.now();
  act();
  requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - start)));
});
const live = document.querySelector('.mm-live:not(.mm-root)');
const show = (name) => [...live.querySelectorAll('[role=tab]')]
  .find((tab) => tab.textContent === name).click();
const settle = () => new Promise((resolve) => setTimeout(resolve, 300));
"""

OPEN_ROWS = (
    "async () => {"
    + TIME
    + """const opened = [];
  for (let i = 0; i < 12; i += 1) {
    const closed = live.querySelector('[role=treegrid] [aria-expanded=false] i');
    if (!closed) break;
    opened.push(await timed(() => closed.click()));
  }
  return opened;
}"""
)
"""Opens rows of the module tree one after the other; milliseconds to the next paint."""

OPEN_BOXES = (
    "async () => {"
    + TIME
    + """const mounted = await timed(() => show('Flow'));
  await settle();
  const svg = live.querySelector('svg[role=tree]');
  const press = (key) => svg.dispatchEvent(
    new KeyboardEvent('keydown', { key, bubbles: true }));
  const opened = [];
  press('Home');
  for (let i = 0; i < 40; i += 1) {
    const active = svg.querySelector('.mm-active');
    const is_closed = active?.getAttribute('aria-expanded') === 'false';
    const ms = await timed(() => press('ArrowRight'));
    if (is_closed) opened.push(ms);
  }
  return { mounted, opened };
}"""
)
"""Walks down the flow by its keys, and opens what it comes by."""

PAN = (
    "async () => {"
    + TIME
    + """const svg = live.querySelector('svg[role=tree]');
  const { left, top, width, height } = svg.getBoundingClientRect();
  const [x, y] = [left + width / 2, top + height / 2];
  const fire = (type, dx, dy) => svg.dispatchEvent(new PointerEvent(type, {
    clientX: x + dx, clientY: y + dy, buttons: 1, pointerId: 1, bubbles: true }));
  svg.setPointerCapture = () => {};
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  const frames = [];
  fire('pointerdown', 0, 0);
  let before = await frame();
  for (let i = 1; i <= 240; i += 1) {
    fire('pointermove', 60 * Math.sin(i / 20), -15 * i);
    const now = await frame();
    frames.push(now - before);
    before = now;
  }
  fire('pointerup', 0, 0);
  return frames;
}"""
)
"""Drags the flow by 15 pixels a frame; milliseconds of each frame."""
