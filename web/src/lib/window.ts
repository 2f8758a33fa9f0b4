/** Which part of a map a pane shows (floor lib): the cell in its middle, and a zoom. */

/** Row, column and zoom; parts of a cell count. A cell has 2^zoom pixels. */
export interface MapWindow {
  readonly row: number;
  readonly column: number;
  readonly zoom: number;
}

export interface Size {
  readonly destinations: number;
  readonly sources: number;
}

/** Cells and zooms are told apart to 1/256, which is exact in binary: writing a window and reading it changes nothing. */
export const STEPS = 256;
/** A cell's side at the closest zoom: 2^6 pixels. */
export const CLOSEST = 6;
/** Room for the tokens' names above the map and on its left, in pixels. */
export const NAMES = 84;
/** Pixels of a cell from which on it has its names. */
const NAMED_FROM = 16;

export function windowOf(row: number, column: number, zoom: number): MapWindow {
  // Adding 0 turns -0, which no address can hold, into 0.
  const step = (part: number): number => Math.round(part * STEPS) / STEPS + 0;
  return { row: step(row), column: step(column), zoom: step(zoom) };
}

export function same(one: MapWindow, other: MapWindow): boolean {
  return one.row === other.row && one.column === other.column && one.zoom === other.zoom;
}

/** The room that names take at a zoom. */
export function namesAt(zoom: number): number {
  return 2 ** zoom >= NAMED_FROM ? NAMES : 0;
}

/** Where so many rows and columns fit a pane of so many pixels, to the pixel; no further out than the farthest zoom. */
export function fitting(wide: number, high: number, { destinations, sources }: Size, farthest: number): MapWindow {
  const closest = (names: number): number =>
    Math.floor(STEPS * Math.log2(Math.max(1, Math.min((wide - names) / sources, (high - names) / destinations) * STEPS) / STEPS)) / STEPS;
  // Cells that are large enough for names leave room for them, if they are still large enough then.
  const named = closest(NAMES) >= Math.log2(NAMED_FROM);
  const zoom = named ? closest(NAMES) : Math.min(closest(0), Math.log2(NAMED_FROM) - 1 / STEPS);
  return windowOf(destinations / 2, sources / 2, Math.max(farthest, Math.min(CLOSEST, zoom)));
}

/** Whether a pane that shows a part, with so much room for names, shows a window: to half a pixel. */
export function shows(part: MapWindow, names: number, { row, column, zoom }: MapWindow): boolean {
  const close = 0.51 / 2 ** zoom;
  return names === namesAt(zoom) && part.zoom === zoom && Math.abs(part.row - row) < close && Math.abs(part.column - column) < close;
}

/**
 * Where a move by hand comes to rest: no further out than all of the map, and with the middle of the view on it.
 *
 * @param part what is in sight where the hand left it, with so much room for names.
 * @param zoomed whether it was zoomed by hand, not moved alone.
 * @param whole all of the map.
 * @param size of the map.
 */
export function settled(part: MapWindow, names: number, zoomed: boolean, whole: MapWindow, size: Size): MapWindow {
  // Leaflet goes by whole zooms, of which the nearest to that of the whole is none of its own.
  if (zoomed && part.zoom <= Math.max(whole.zoom, Math.round(whole.zoom))) return whole;
  // Names come or go above and on the left: the cells stay where they were.
  const shift = (namesAt(part.zoom) - names) / 2 / 2 ** part.zoom;
  return windowOf(within(part.row + shift, size.destinations), within(part.column + shift, size.sources), part.zoom);
}

function within(at: number, count: number): number {
  return Math.max(0, Math.min(count, at));
}
