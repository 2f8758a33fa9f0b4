/** The map's tiles (floor draw): Leaflet says where they are, the server what is in them. */

import { type Coords, type DoneCallback, GridLayer, type GridLayerOptions } from "leaflet";

import { CLOSEST } from "../lib/window";
import { type Cells, type Cut, drawCells, type Look } from "./tile";

/** Cells of the server's tile, and pixels of Leaflet's. */
export const SIDE = 256;
export type Fetch = (level: number, row: number, column: number, signal: AbortSignal) => Promise<Cells>;

interface Live {
  readonly coords: Coords;
  readonly done: DoneCallback;
  stop: AbortController;
}

/** The zoom whose tiles are shown at a zoom: coarser ones larger, never finer ones smaller, which would lose cells. */
export function levelOf(zoom: number, coarsest: number): number {
  return Math.max(coarsest, Math.min(CLOSEST, Math.floor(zoom)));
}

/** Which of the server's tiles a tile of the page is cut from. */
export function placeOf(coords: { readonly x: number; readonly y: number; readonly z: number }): {
  level: number;
  row: number;
  column: number;
  cut: Cut;
} {
  if (coords.z <= 0) {
    return { level: -coords.z + 0, row: coords.y, column: coords.x, cut: { row: 0, column: 0, count: SIDE, cell: 1 } };
  }
  const cell = 2 ** coords.z;
  const count = SIDE / cell;
  const [row, column] = [coords.y * count, coords.x * count];
  return {
    level: 0,
    row: Math.floor(row / SIDE),
    column: Math.floor(column / SIDE),
    cut: { row: row % SIDE, column: column % SIDE, count, cell },
  };
}

export class MapLayer extends GridLayer {
  private readonly coarsest: number;
  private readonly live = new Map<HTMLElement, Live>();

  constructor(
    private fetch: Fetch,
    private look: Look,
    private readonly failed: (error: unknown) => void,
    options: GridLayerOptions,
  ) {
    super({ tileSize: SIDE, updateWhenZooming: false, keepBuffer: 1, ...options });
    this.coarsest = options.minNativeZoom ?? 0;
    this.on("tileunload", ({ tile }) => {
      this.live.get(tile)?.stop.abort();
      this.live.delete(tile);
    });
  }

  /** Show other data or another look: tiles are painted over where they are, so that nothing flickers. */
  show(fetch: Fetch, look: Look): void {
    this.fetch = fetch;
    this.look = look;
    for (const [tile, live] of this.live) {
      live.stop.abort();
      live.stop = new AbortController();
      tile.classList.add("stale");
      void this.paint(tile as HTMLCanvasElement, live);
    }
  }

  /** Leaflet asks this of every zoom, rounded to the nearest. */
  protected _clampZoom(): number {
    return levelOf(this._map.getZoom(), this.coarsest);
  }

  protected override createTile(coords: Coords, done: DoneCallback): HTMLElement {
    const tile = document.createElement("canvas");
    const live: Live = { coords, done, stop: new AbortController() };
    this.live.set(tile, live);
    void this.paint(tile, live);
    return tile;
  }

  private async paint(tile: HTMLCanvasElement, live: Live): Promise<void> {
    const { level, row, column, cut } = placeOf(live.coords);
    const { signal } = live.stop;
    try {
      const cells = await this.fetch(level, row, column, signal);
      if (signal.aborted) return;
      drawCells(tile, cells, cut, this.look, Math.max(1, Math.round(window.devicePixelRatio)));
      tile.classList.remove("stale");
      live.done(undefined, tile);
    } catch (error) {
      // One that was given up is out of sight, or asked for anew.
      if (!signal.aborted) this.failed(error);
    }
  }
}
