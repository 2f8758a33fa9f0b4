/** Two recordings beside one another (floor lib): what both have, and in what they differ, in sentences. */

import type { Call, Run } from "../wire/api";
import { counted, whole } from "./format";

/** What can be chosen of a call. */
export interface Offered {
  readonly heads: readonly number[];
  readonly destinations: number;
  readonly sources: number;
}

/** The call of another recording that is the same execution: by part, kind, layer and repeat. */
export function partnerOf(call: Call, calls: readonly Call[]): Call | null {
  const same = (other: Call): boolean =>
    other.layer === call.layer && other.part === call.part && other.kind === call.kind && other.repeat === call.repeat;
  return calls.find(same) ?? null;
}

/** What a call offers, or where there is another beside it: what both have. */
export function offeredBy(call: Call, other: Call | null): Offered {
  if (!other) return call;
  return {
    heads: call.heads.filter((head) => other.heads.includes(head)),
    destinations: Math.min(call.destinations, other.destinations),
    sources: Math.min(call.sources, other.sources),
  };
}

/** A call in a list of calls: its layer, and what else tells it from the others of that layer. */
export function nameOf(call: Call, among: readonly Call[]): string {
  const alike = among.filter((other) => other.layer === call.layer);
  const words = [
    ...(alike.some((other) => other.part !== call.part) ? [call.part] : []),
    String(call.layer),
    ...(alike.some((other) => other.part === call.part && other.kind !== call.kind) ? [call.kind] : []),
    ...(alike.some((other) => other.part === call.part && other.kind === call.kind && other.repeat !== call.repeat) ? [`pass ${call.repeat + 1}`] : []),
  ];
  return words.join(" ");
}

/** In what two recordings differ, apart from their tokens; nothing where they do not. */
export function differences(a: Run, b: Run, call: Call, partner: Call): string[] {
  const found: string[] = [];
  if (a.model.fingerprint !== b.model.fingerprint) {
    const names = a.model.name === b.model.name ? `both are called ${a.model.name}` : `${a.model.name} in A, ${b.model.name} in B`;
    found.push(`The models differ (${names}): heads of the same number need not do the same.`);
  }
  const lengths = (which: "destinations" | "sources", token: string, tokens: string): void => {
    const [one, two] = [call[which], partner[which]];
    if (one !== two) found.push(`${counted(one, token, tokens)} in A, ${whole(two)} in B: the first ${Math.min(one, two) === 1 ? "" : `${whole(Math.min(one, two))} `}can be compared.`);
  };
  if (call.of[0] === call.of[1]) lengths("destinations", "token", "tokens");
  else {
    lengths("destinations", "token that reads", "tokens that read");
    lengths("sources", "token that is read", "tokens that are read");
  }
  const [onlyA, onlyB] = [lacking(a, b), lacking(b, a)];
  if (onlyA.length || onlyB.length) {
    const said = [...(onlyA.length ? [`A alone has ${listed(onlyA)}`] : []), ...(onlyB.length ? [`B alone has ${listed(onlyB)}`] : [])];
    found.push(`${said.join("; ")}: only the layers that both have are offered.`);
  }
  const shared = offeredBy(call, partner).heads;
  if (shared.length < Math.max(call.heads.length, partner.heads.length)) {
    found.push(`This layer has ${counted(call.heads.length, "head")} in A and ${whole(partner.heads.length)} in B: ${shared.length === 1 ? "the one" : `the ${whole(shared.length)}`} that both have can be chosen.`);
  }
  return found;
}

/** What is said where a position was asked for that is not there. */
export function beyondWords({ wanted, chosen }: { readonly wanted: number; readonly chosen: number }, both: boolean): string {
  return `There is no position ${whole(wanted)} ${both ? "in both" : "here"}: ${whole(chosen)}, the last${both ? " that both have" : ""}, is chosen instead.`;
}

/** What an address asks for and is not there: a call, a head. */
export function absentWords({ call, head }: { readonly call: number | null; readonly head: number | null }, chosen: Call, among: readonly Call[], both: boolean): string[] {
  const where = both ? "in both" : "here";
  const layer = `layer ${nameOf(chosen, among)}`;
  return [
    ...(call === null ? [] : [`There is no call ${whole(call)} ${where}: ${layer} is chosen instead.`]),
    ...(head === null ? [] : [`There is no head ${whole(head)} of ${layer} ${where}: all its heads are chosen instead.`]),
  ];
}

function lacking(a: Run, b: Run): string[] {
  return a.calls.filter((call) => !partnerOf(call, b.calls)).map((call) => nameOf(call, a.calls));
}

const NAMED = 6;

function listed(layers: readonly string[]): string {
  const named = layers.slice(0, NAMED).join(", ");
  return `layer ${named}${layers.length > NAMED ? ` and ${whole(layers.length - NAMED)} more` : ""}`;
}

/** Where tokens differ, as far as they were looked at. */
export interface Unlike {
  readonly first: { readonly position: number; readonly a: string; readonly b: string } | null;
  readonly count: number;
  readonly compared: number;
}

/** Compare labels of the same positions, going on from what was found before them. */
export function unlike(before: Unlike, a: readonly string[], b: readonly string[]): Unlike {
  let { first, count } = before;
  const many = Math.min(a.length, b.length);
  for (let at = 0; at < many; at += 1) {
    const [one = "", two = ""] = [a[at], b[at]];
    if (one === two) continue;
    count += 1;
    first ??= { position: before.compared + at, a: one, b: two };
  }
  return { first, count, compared: before.compared + many };
}
