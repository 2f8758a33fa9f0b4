/** A pane with a head's map, on Leaflet (floor draw): it shows a window exactly, and says what is in sight and where moves by hand end. */

import { CRS, extend, latLng, latLngBounds, Map as LeafletMap, transformation, type LeafletMouseEvent, type ZoomPanOptions } from "leaflet";

import { CLOSEST, fitting, type MapWindow, namesAt, settled, shows, type Size } from "../lib/window";
import { type Fetch, MapLayer } from "./mapLayer";
import type { Look } from "./tile";

export interface Extent extends Size {
  readonly levels: number;
}

/** What is in sight, in pixels and cells, from below and beside the room for names on. */
export interface View {
  readonly row: number;
  readonly column: number;
  readonly zoom: number;
  readonly width: number;
  readonly height: number;
  readonly names: number;
}

export interface Shown {
  /** The map's own. */
  readonly size: Extent;
  /** The larger of two beside one another, beyond which nothing is to be seen. */
  readonly extent: Extent;
  /** Whether another map moves with it: then at once, without a glide. */
  readonly together: boolean;
  readonly fetch: Fetch;
  readonly look: Look;
}

/** Whom it asks and tells. */
export interface Owner {
  /** The window that is wanted; null: what is shown first. */
  wanted(): MapWindow | null;
  /** What has to be in sight first. */
  first(): Size;
  seen(view: View): void;
  zooming(now: boolean): void;
  /** By hand; where it ends it is at rest. */
  moved(to: MapWindow, ended: boolean): void;
  /** The pointer is over a row and column, parts of which count; null: it left. */
  pointed(at: { readonly row: number; readonly column: number } | null): void;
  clicked(row: number, column: number): void;
  failed(error: unknown): void;
}

export const NOTHING: View = { row: 0, column: 0, zoom: 0, width: 0, height: 0, names: 0 };
const SIMPLE = extend({}, CRS.Simple, { transformation: transformation(1, 0, 1, 0) });
const LINGERS_MS = 1000;

export class Pane {
  private readonly node = document.createElement("div");
  private readonly map: LeafletMap;
  private readonly layer: MapLayer;
  private readonly resized: ResizeObserver;
  private view = NOTHING;
  private moving = false;
  private zoomed = false;

  constructor(
    private readonly outer: HTMLElement,
    private readonly shown: Shown,
    private readonly owner: Owner,
  ) {
    const { size, extent, together } = shown;
    this.node.setAttribute("role", "application");
    this.node.setAttribute("aria-label", `Map of weights: ${size.destinations} destinations by ${size.sources} sources. Arrow keys pan, plus and minus zoom.`);
    outer.append(this.node);
    const calm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.map = new LeafletMap(this.node, {
      crs: SIMPLE,
      maxZoom: CLOSEST,
      zoomControl: false,
      attributionControl: false,
      zoomAnimation: !calm && !together,
      fadeAnimation: false,
      inertia: !calm,
      doubleClickZoom: false,
      wheelPxPerZoomLevel: 90,
    });
    this.layer = new MapLayer(shown.fetch, shown.look, (error) => owner.failed(error), {
      bounds: latLngBounds([0, 0], [size.destinations, size.sources]),
      minZoom: 1 - extent.levels,
      maxZoom: CLOSEST,
      minNativeZoom: 1 - size.levels,
    });
    this.turnTo(owner.wanted());
    this.layer.addTo(this.map);
    this.listen();
    this.resized = new ResizeObserver(() => {
      this.byItself(() => this.map.invalidateSize({ animate: false, pan: true }));
      this.turnTo(owner.wanted());
    });
    this.resized.observe(outer, { box: "border-box" });
  }

  remove(): void {
    this.resized.disconnect();
    this.layer.remove();
    this.node.remove();
    this.outer.style.padding = "";
    this.map.off();
    // Leaflet's own timers, of a zoom that is under way, must still find their map.
    setTimeout(() => this.map.remove(), LINGERS_MS);
  }

  /** Show other data or another look. */
  show(fetch: Fetch, look: Look): void {
    this.layer.show(fetch, look);
  }

  /** What is shown first: all of the map, or of two beside one another what both have. */
  opening(): MapWindow {
    return this.fitting(this.owner.first());
  }

  /** Show a window, or what is shown first; nothing is further out than the whole. */
  turnTo(wanted: MapWindow | null): void {
    const whole = this.fitting(this.shown.extent);
    this.map.options.minZoom = whole.zoom;
    this.put(!wanted ? this.opening() : wanted.zoom < whole.zoom ? whole : wanted);
  }

  /** Show a part of the map, exactly: whoever zooms goes by whole levels, an address and the whole need not. */
  put({ row, column, zoom }: MapWindow, exactly = true): void {
    this.byItself(() => {
      const names = namesAt(zoom);
      if (names !== this.view.names) {
        this.view = { ...this.view, names };
        this.outer.style.padding = `${names}px 0 0 ${names}px`;
        this.map.invalidateSize({ animate: false, pan: false });
      }
      this.map.options.zoomSnap = 0;
      // To the pixel costs new tiles: not while it is dragged.
      this.map.setView(latLng(row, column), zoom, { animate: false, reset: exactly } as ZoomPanOptions);
      this.map.options.zoomSnap = 1;
    });
    this.see();
  }

  /** Whether it shows a window already: what it has itself just written differs by less than half a pixel. */
  stands(wanted: MapWindow): boolean {
    return shows(this.part(), this.view.names, wanted);
  }

  zoomIn(): void {
    this.map.zoomIn();
  }

  zoomOut(): void {
    this.map.zoomOut();
  }

  /** Whether it can be zoomed out no further. */
  get farthest(): boolean {
    return this.map.getZoom() <= this.map.getMinZoom();
  }

  focus(): void {
    this.node.focus({ preventScroll: true });
  }

  private listen(): void {
    const { map, owner } = this;
    map.on("move", () => {
      this.see();
      if (!this.moving) owner.moved(this.part(), false);
    });
    map.on("zoomstart", () => owner.zooming(true));
    map.on("zoomend", () => {
      owner.zooming(false);
      this.zoomed = !this.moving;
    });
    map.on("moveend", () => {
      this.see();
      if (this.moving) return;
      const to = settled(this.part(), this.view.names, this.zoomed, this.fitting(this.shown.extent), this.shown.extent);
      this.zoomed = false;
      if (this.shown.together || !this.stands(to)) this.put(to);
      owner.moved(to, true);
    });
    map.on("mousemove", ({ latlng }: LeafletMouseEvent) => owner.pointed({ row: latlng.lat, column: latlng.lng }));
    map.on("mouseout", () => owner.pointed(null));
    map.on("click", ({ latlng }: LeafletMouseEvent) => owner.clicked(latlng.lat, latlng.lng));
  }

  /** Do what Leaflet tells as a move, and nobody made by hand. */
  private byItself(act: () => void): void {
    this.moving = true;
    act();
    this.moving = false;
  }

  private part(): MapWindow {
    const { lat, lng } = this.map.getCenter();
    return { row: lat, column: lng, zoom: this.map.getZoom() };
  }

  private fitting(size: Size): MapWindow {
    return fitting(this.outer.clientWidth, this.outer.clientHeight, size, 1 - this.shown.extent.levels);
  }

  private see(): void {
    const { names } = this.view;
    const [corner, size] = [this.map.containerPointToLatLng([-names, -names]), this.map.getSize()];
    this.view = { row: corner.lat, column: corner.lng, zoom: this.map.getZoom(), width: size.x + names, height: size.y + names, names };
    this.owner.seen(this.view);
  }
}
