// The visible part of the flow: position and zoom.

/** Pixels around the content. */
export const EDGE = 10;
/** The least zoom at which text can be read. */
export const READABLE = 0.65;
const MOST_ZOOM = 1.5; // of what is zoomed to
const IN_SIGHT = 60; // pixels that cannot be moved out of sight

export class Viewport {
  x = 0;
  y = 0;
  w = 0;
  h = 0;
  zoom = 1;
  /** Size of what there is to be seen. */ extent = { w: 0, h: 0 };

  /** @param {SVGSVGElement} svg @param {() => void} paint what is in sight */
  constructor(svg, paint) {
    this.svg = svg;
    this.paint = paint;
  }

  /** Show what is right of and below a point. @param {number} left @param {number} top */
  move(left, top, zoom = this.zoom) {
    const { svg, extent } = this;
    const [w, h] = [svg.clientWidth / zoom, svg.clientHeight / zoom];
    // A part of the flow stays in sight.
    const clamp = (start, size, room) =>
      Math.max(IN_SIGHT / zoom - room, Math.min(size - IN_SIGHT / zoom, start));
    const [x, y] = [clamp(left, extent.w, w), clamp(top, extent.h, h)];
    Object.assign(this, { x, y, w, h, zoom });
    svg.setAttribute("viewBox", `${x} ${y} ${w} ${h}`);
    this.paint();
  }

  /** Move by as much. @param {number} right @param {number} down */
  shift(right, down) {
    this.move(this.x + right, this.y + down);
  }

  /** Show all; at least at a given size, from the top. */
  fit(least = 0) {
    const { svg, extent: { w, h } } = this;
    const zoom = Math.max(least, Math.min(1, this.#find_fit(w, h))) || 1;
    this.move(Math.min(-EDGE, (w - svg.clientWidth / zoom) / 2),
      least ? -EDGE : (h - svg.clientHeight / zoom) / 2, zoom);
  }

  /** Show the beginning, so large that it can be read. */
  go_home() {
    this.fit(READABLE);
  }

  /**
   * How much of something is in sight, from 0 to 1, if it is as large as can be read, and the
   * view higher by the pixels to spare.
   */
  find_share = (/** @type {{w: number, h: number}} */ { w, h }, spare = 0) => {
    const { clientWidth, clientHeight } = this.svg;
    const share = (size, room) => Math.min(1, room / ((size + 2 * EDGE) * READABLE));
    return share(w, clientWidth) * share(h, clientHeight + spare);
  };

  /** The height at which all of something is as large as its width allows. */
  find_height = (/** @type {{w: number, h: number}} */ { w, h }) =>
    Math.ceil((h + 2 * EDGE) * Math.min(1, this.svg.clientWidth / (w + 2 * EDGE)));

  /** Whether all of something fits, and can be read then. */
  can_show = (/** @type {{w: number, h: number}} */ size) => this.find_share(size) === 1;

  /** Zoom; a point of the viewport stays in place. @param {number} factor */
  zoom_by(factor, x = this.w / 2, y = this.h / 2) {
    const zoom = Math.min(4, Math.max(0.005, this.zoom * factor));
    const part = 1 - this.zoom / zoom;
    this.move(this.x + x * part, this.y + y * part, zoom);
  }

  /** The zoom at which something fits. */
  #find_fit(w, h) {
    const { clientWidth, clientHeight } = this.svg;
    return Math.min(clientWidth / (w + 2 * EDGE), clientHeight / (h + 2 * EDGE));
  }

  /** Show something in the middle, as large as it fits. @param {number[]} box x, y, w and h */
  zoom_to([x, y, w, h]) {
    const zoom = Math.min(MOST_ZOOM, this.#find_fit(w, h));
    const { clientWidth, clientHeight } = this.svg;
    this.move(x + (w - clientWidth / zoom) / 2, y + (h - clientHeight / zoom) / 2, zoom);
  }

  /**
   * Show all of something, zoomed out as far as it can be read, else its beginning; what
   * stands at its corner moves as little as it can.
   * @param {number[]} box x, y, w and h
   */
  take_in([x, y, w, h]) {
    const { svg, zoom: before } = this;
    const zoom = Math.min(before, Math.max(READABLE, this.#find_fit(w, h)));
    const edge = EDGE / zoom;
    const find_start = (start, size, seen, room) => {
      const stays = start - ((start - seen) * before) / zoom;
      return Math.min(start - edge, Math.max(stays, start + size + edge - room));
    };
    this.move(find_start(x, w, this.x, svg.clientWidth / zoom),
      find_start(y, h, this.y, svg.clientHeight / zoom), zoom);
  }

  /** Move as little as brings something into sight. @param {number[]} box x, y, w and h */
  reach([x, y, w, h]) {
    const edge = EDGE / Math.max(1, this.zoom); // no more than where all begins
    const find_shift = (start, size, room) => {
      if (start >= edge && start + size <= room - edge) return 0;
      return start - Math.max(edge, (room - size) / 2);
    };
    this.shift(find_shift(x - this.x, w, this.w), find_shift(y - this.y, h, this.h));
  }
}
