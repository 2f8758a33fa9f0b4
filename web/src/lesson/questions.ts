/** One question a step. Its right answer is computed from the numbers on the screen, by the equations themselves. */

import {
  at,
  attend,
  changeByCut,
  largest,
  norm,
  times,
  toggled,
  weightedSum,
  type Attended,
  type Matrix,
  type Permitted,
} from "../lib/attention";
import { block, changed, nudged, type Order } from "./block";
import type { Example, Label } from "./examples";
import type { Source } from "./measured";

export interface Choice {
  readonly kind: "choice";
  readonly ask: string;
  readonly options: readonly string[];
  readonly right: readonly number[]; // more than one where options are equally right
  readonly why: string;
}

export interface Quantity {
  readonly kind: "quantity";
  readonly ask: string;
  readonly right: number;
  readonly digits: number;
  readonly why: string;
}

export type Question = Choice | Quantity;

/** Whether an answer is right: a quantity to within one of its last asked digit, since people round on the way. */
export const isRight = (question: Question, answer: number): boolean =>
  question.kind === "choice"
    ? question.right.includes(answer)
    : Math.abs(answer - question.right) <= 1.01 * 10 ** -question.digits;

/** A number as people read it: fixed digits, a true minus sign, no "-0.00". */
export function shown(value: number, digits = 3): string {
  const text = value.toFixed(digits);
  return /^-0(\.0*)?$/.test(text) ? text.slice(1) : text.replace("-", "−");
}

/** A share of 1 to a tenth of a per cent, never broken over a line. */
export const percent = (share: number): string => `${shown(100 * share, 1)}\u00a0%`;

/** A token inside a sentence. */
export const quoted = (label: Label | string): string => `“${(typeof label === "string" ? label : label.text).trim()}”`;

const plain = (label: Label): string =>
  label.position === null ? quoted(label) : `${quoted(label)} at ${label.position}`;

/** Vectors up to this length are shown as numbers, longer ones as bars. */
export const WRITTEN_OUT = 4;

/** What y becomes when one value is doubled: the weights stay, since no value enters them. */
export function aboutValues(example: Example, destination: number): Question {
  const { head, permitted, rules, sources, destinations } = example;
  const row = at(attend(head, permitted, rules).rows, destination);
  const reader = plain(at(destinations, destination));
  if (row === null) {
    const options = ["A vector of zeros", "The mean of all values", "Nothing: there is no row and no output"];
    return {
      kind: "choice",
      ask: `${reader} may read no source now. What does this head give it?`,
      options,
      right: [2],
      why: "A softmax over nothing has no answer: weights that sum to one cannot be shared among no sources.",
    };
  }
  // A source other than the reader where there is one: two roles of one token make a sentence hard to read.
  const weighed = row.weights.map((a, j) => a * Math.abs(at(at(head.v, j), 0)));
  const others = weighed.map((size, j) => (sources[j] === destinations[destination] ? 0 : size));
  const source = largest(others.some((size) => size > 0) ? others : weighed);
  const doubled = head.v.map((value, j) => (j === source ? times(2, value) : value));
  const before = at(weightedSum(row.weights, head.v), 0);
  const after = at(at(attend({ ...head, v: doubled }, permitted, rules).outputs, destination) ?? [], 0);
  const [a, v] = [at(row.weights, source), at(at(head.v, source), 0)];
  // Long vectors are drawn, not written out: then the two numbers that are needed are said.
  const given =
    at(head.v, 0).length <= WRITTEN_OUT ? "" : ` Now it is ${shown(before)}, and the first number of that value is ${shown(v)}.`;
  return {
    kind: "quantity",
    ask: `Suppose the value of ${plain(at(sources, source))} were twice as long, and nothing else were changed. What would the first number of y at ${reader} be?${given}`,
    right: after,
    digits: 2,
    why: `No value enters a score, so the weights stay. The source adds ${shown(a)} · ${shown(v)} once more: ${shown(before)} becomes ${shown(after)}.`,
  };
}

/** What another source's weight becomes when the strongest edge of a row is forbidden. */
export function aboutMask(example: Example, preferred: number): Question {
  const { head, permitted, rules, sources, destinations } = example;
  const { rows } = attend(head, permitted, rules);
  const reads = permitted.map((row) => row.filter(Boolean).length);
  const order = [preferred, ...destinations.map((_, i) => destinations.length - 1 - i)];
  const destination = order.find((i) => at(reads, i) >= 2);
  if (destination === undefined) {
    const empty = rows.filter((row) => row === null).length;
    return {
      kind: "quantity",
      ask: "Under this mask, how many destinations have no row of weights at all?",
      right: empty,
      digits: 0,
      why: `A destination has no row where no source is permitted; that is so for ${empty} of ${rows.length} here.`,
    };
  }
  const weights = at(rows, destination)?.weights ?? [];
  const cut = largest(weights);
  const kept = largest(weights.map((a, j) => (j === cut || !at(at(permitted, destination), j) ? -1 : a)));
  const after = attend(head, toggled(permitted, destination, cut), rules);
  const right = at(at(after.rows, destination)?.weights ?? [], kept);
  return {
    kind: "quantity",
    ask: `Forbid ${plain(at(destinations, destination))} to read ${plain(at(sources, cut))}. What does its weight on ${plain(at(sources, kept))} become?`,
    right,
    digits: 2,
    why: `The rest keeps its proportions and grows to one again: ${shown(at(weights, kept))} / (1 − ${shown(at(weights, cut))}) = ${shown(right)}.`,
  };
}

/** What the ratio of two weights becomes at half the scale: its square root. */
export function aboutScale(example: Example): Choice {
  const { head, permitted, rules } = example;
  const scale = rules.scale ?? 1;
  const weights = (factor: number): readonly number[] =>
    at(attend(head, permitted, { ...rules, scale: scale * factor }).rows, 0)?.weights ?? [];
  // From the scores, since a weight may be too small to divide by.
  const scores = at(attend(head, permitted, rules).scores, 0);
  const [most, least] = [largest(scores), largest(times(-1, scores))];
  const gap = at(scores, most) - at(scores, least);
  const name = (value: number): string => (value < 1e4 ? shown(value, 2) : value.toExponential(1));
  const candidates = [Math.exp(gap) / 2, Math.exp(gap / 2), Math.exp(gap), 1].sort((a, b) => a - b);
  const halved = weights(0.5);
  const right = at(halved, most) / at(halved, least);
  const options = [...new Set(candidates.map(name))];
  return {
    kind: "choice",
    ask: `The largest weight of the row is ${name(Math.exp(gap))} times the smallest. If the scale were half of what it is, how many times would it be?`,
    options,
    right: options.flatMap((option, o) => (option === name(right) ? [o] : [])),
    why: `Two weights differ by exp of the difference of their scores. Half the scale is half the difference: exp(${shown(gap)} / 2) = ${name(right)}, the square root.`,
  };
}

/** How many comparisons a layer makes. */
export function aboutHeads(heads: number, permitted: Permitted): Quantity {
  const pairs = permitted.reduce((sum, row) => sum + row.filter(Boolean).length, 0);
  const n = permitted.length;
  return {
    kind: "quantity",
    ask: `How many dot products of a query and a key go into the weights of all ${heads} ${heads === 1 ? "head" : "heads"} for these ${n} tokens, each of which reads itself and what came before?`,
    right: heads * pairs,
    digits: 0,
    why: `One for each permitted pair and head: ${heads} · ${pairs} = ${heads * pairs}. Under this mask ${n} tokens have ${n} · ${n + 1} / 2 pairs, so twice the text is about four times the work.`,
  };
}

/** Where a change of one position first shows at another. */
export function aboutBlock(x: Matrix, order: Order, position: number, by: number, names: readonly string[]): Choice {
  const one = block(x, order);
  const places = changed(one, block(nudged(x, position, by), order));
  const first = places.findIndex((positions) => positions.some((i) => i !== position));
  const options = [...one.map((stage, s) => `${s + 1}. ${stage.name}`), "At none of them"];
  const reached = first < 0 ? [] : at(places, first).filter((i) => i !== position);
  return {
    kind: "choice",
    ask: `One number of what arrives at ${quoted(at(names, position))} is changed. At which stage does another position first change?`,
    options,
    right: [first < 0 ? options.length - 1 : first],
    why:
      first < 0
        ? `No later position is there to read ${quoted(at(names, position))}, and the mask lets no earlier one read it. Its own numbers change, nobody else's.`
        : `Only attention mixes positions: it changes ${reached.map((i) => quoted(at(names, i))).join(" and ")} there. Every other part works on each position by itself.`,
  };
}

/** Which source the answer loses most without, by the measured knock-outs and not by the weights. */
export function aboutWeights(sources: readonly Source[], offered: readonly number[], target: string): Choice {
  const chosen = offered.map((j) => at(sources, j));
  const costs = chosen.map((source) => source.nats);
  const most = largest(costs);
  const heaviest = largest(chosen.map((source) => source.weight));
  const [lost, held] = [at(chosen, most), at(chosen, heaviest)];
  const name = (source: Source): string => `${quoted(source.token)} at ${source.position}`;
  return {
    kind: "choice",
    ask: `One of these edges is cut in every head. Without which of them does ${quoted(target)} lose most?`,
    options: chosen.map((source) => `${name(source)}, weight ${percent(source.weight)}`),
    right: costs.flatMap((cost, o) => (cost === costs[most] ? [o] : [])),
    why:
      most === heaviest
        ? `Here the largest weight, ${percent(held.weight)} on ${name(held)}, is also what is missed most: ${shown(held.nats, 2)} nats.`
        : `Measured: ${shown(lost.nats, 2)} nats without ${name(lost)}, which holds ${percent(lost.weight)}; ${shown(held.nats, 2)} nats without ${name(held)}, which holds ${percent(held.weight)}.`,
  };
}

/** For every source of a row: its weight, the length of what it moves, and by how much y changes without it. */
export function sideBySide(attended: Attended, v: Matrix, destination: number): { weight: number; moved: number; change: number | null }[] {
  const row = at(attended.rows, destination);
  if (row === null) return [];
  return row.weights.map((weight, j) => {
    const change = changeByCut(row, v, j);
    return { weight, moved: norm(times(weight, at(v, j))), change: change && norm(change) };
  });
}
