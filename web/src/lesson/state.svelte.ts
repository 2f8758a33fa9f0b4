/** What people have changed in the lesson: kept while they go from step to step. */

import { causal, mask, type Permitted } from "../lib/attention";
import type { Order } from "./block";
import { exampleOf, type Carried } from "./carried";
import { drawnHead, SENTENCE, WORKED, type Example } from "./examples";

export type MaskRule = "causal" | "window" | "bidirectional" | "earlier" | "own";

export class LessonState {
  /** What "back to the example" returns to: a carried head, or the worked example. */
  readonly start: Example;
  example: Example = $state.raw(WORKED);
  destination = $state(0);

  rule: MaskRule = $state("causal");
  keys = $state(3);
  permitted: Permitted = $state.raw(mask(SENTENCE.length, causal));
  readonly maskHead = drawnHead(SENTENCE.length, 4, 3);

  size = $state(64); // d_k of the step about the scale
  scale = $state(1 / 8);
  scaleSeed = $state(22); // a row that scale 1 decides

  heads = $state(3);
  headSeed = $state(1);
  reader = $state(SENTENCE.length - 1);

  order: Order = $state("before");
  nudged = $state(0);
  pointed = $state("attention");

  measuredShown = $state(false);

  constructor(carried?: Carried) {
    this.start = carried ? exampleOf(carried) : WORKED;
    this.restart();
  }

  restart(): void {
    this.example = this.start;
    this.destination = this.start.destinations.length - 1;
  }
}
