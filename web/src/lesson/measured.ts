/**
 * A prompt as measured: SmolLM2-135M-Instruct reads fourteen tokens and expects " Mary" (92.3 %).
 *
 * `wherefrom trace "When Mary and John went to the store, John gave a drink to" --json` prints these numbers.
 */

export interface Source {
  readonly position: number; // from 0
  readonly token: string;
  readonly weight: number; // share of the last position's row, mean over the 270 heads
  readonly nats: number; // log p(" Mary") before minus after cutting this edge in all 270 heads
}

export const MARY = {
  model: "SmolLM2-135M-Instruct",
  text: "When Mary and John went to the store, John gave a drink to",
  target: " Mary",
  probability: 0.923,
  heads: 270,
  layers: 30,
  reader: { position: 13, token: " to" },
  sources: [
    { position: 0, token: "When", weight: 0.378501, nats: -0.0612569 },
    { position: 1, token: " Mary", weight: 0.0326345, nats: 1.4019231 },
    { position: 2, token: " and", weight: 0.0275376, nats: 0.0616545 },
    { position: 3, token: " John", weight: 0.0283851, nats: 0.0285639 },
    { position: 4, token: " went", weight: 0.01041, nats: -0.005239 },
    { position: 5, token: " to", weight: 0.0138174, nats: -0.003534 },
    { position: 6, token: " the", weight: 0.1405498, nats: 0.0051947 },
    { position: 7, token: " store", weight: 0.0240952, nats: -0.0098511 },
    { position: 8, token: ",", weight: 0.0524455, nats: 0.0056624 },
    { position: 9, token: " John", weight: 0.0490849, nats: 0.5142957 },
    { position: 10, token: " gave", weight: 0.0596661, nats: 0.1645107 },
    { position: 11, token: " a", weight: 0.031304, nats: -0.0014214 },
    { position: 12, token: " drink", weight: 0.0802558, nats: 0.0095717 },
    { position: 13, token: " to", weight: 0.0713129, nats: 0.0151414 },
  ],
} as const satisfies {
  model: string;
  text: string;
  target: string;
  probability: number;
  heads: number;
  layers: number;
  reader: { position: number; token: string };
  sources: readonly Source[];
};
