import { describe, expect, it } from "vitest";

import { format, misread, parse } from "../../src/state/address";
import { BLOCKS, changed, COMPARED_LENSES, GROUPS, kindsOf, LENSES, MODES, ONE_BY_ONE, PAGES, SCALES, type Selection, SIDES, SORTINGS, START } from "../../src/state/selection";
import { windowOf } from "../../src/lib/window";
import { KINDS } from "../../src/wire/api";
import { type Dice, dice } from "./dice";

function any(roll: Dice): Selection {
  const one = <Word>(of: readonly Word[]): Word => of[roll(of.length)] as Word;
  const maybe = (below: number): number | null => (roll(3) ? roll(below) : null);
  const keys = ["council-minutes", "a b & c=d?#", "</script><img src=x onerror=alert(1)>", "\u0645\u0631\u062d\u0628\u0627 \u4e2d\u6587 \u{1f389}", "%2F", "null"];
  const page = one(PAGES);
  return {
    page,
    step: 1 + roll(6),
    run: roll(4) ? one(keys) : null,
    beside: roll(3) ? null : one(keys),
    call: maybe(40),
    every: roll(2) === 1,
    head: maybe(64),
    destination: maybe(32768),
    source: maybe(32768),
    lens: page === "compare" ? one(COMPARED_LENSES) : one(LENSES),
    mode: one(MODES),
    group: one(GROUPS),
    rest: roll(2) === 1,
    block: one(BLOCKS),
    scale: one(SCALES),
    window: roll(2) ? windowOf(roll(3276800) / 97, -roll(3276800) / 89, roll(1400) / 97 - 7) : null,
    side: one(SIDES),
    oneByOne: one(ONE_BY_ONE),
    target: roll(3) ? one([" Mary", "\n", "a b & c=d?#", "\u4e2d", "</script>", "%2F", "null", "  "]) : null,
    sorting: one(SORTINGS),
    plot: one(SCALES),
    rank: roll(3) ? null : one([...keys, "token before"]),
    kinds: kindsOf(KINDS.filter(() => roll(4) === 0)),
  };
}

describe("the address", () => {
  it("holds every selection exactly", () => {
    const roll = dice(1);
    for (let turn = 0; turn < 1000; turn += 1) {
      const selection = any(roll);
      const address = format(selection);
      expect(parse(address)).toEqual(selection);
      // And through a browser's own reading of it.
      expect(parse(new URL(address, "http://127.0.0.1/").hash)).toEqual(selection);
      expect(format(parse(address))).toBe(address);
      expect(misread(address)).toEqual([]);
    }
  });

  it("leaves out what is as usual", () => {
    expect(format(START)).toBe("#/");
    expect(format({ ...START, run: "minutes", destination: 733 })).toBe("#/?run=minutes&to=733");
    expect(format({ ...START, side: "numbers", oneByOne: 16 })).toBe("#/?side=numbers&each=16");
    expect(format({ ...START, side: "evidence", target: " Mary", sorting: "weight", plot: "linear" })).toBe("#/?side=evidence&for=+Mary&sort=weight&plot=linear");
  });

  it.each(["", "#", "#/", "#/nowhere", "#/?lens=colour&call=-1&head=1.5&to=1e9&window=1_2", "#/?window=a_b_c", "#/?window=1_2_999", "#/?to=99999999999", "#/?side=back&each=5", "#/?for=&sort=colour&plot=round"])(
    "reads %s as usual",
    (address) => expect(parse(address)).toEqual(START),
  );

  it("holds kinds of heads in the order of their list, each once, and none that there is not", () => {
    expect(format({ ...START, rank: "entropy", kinds: ["sink", "local"] })).toBe("#/?rank=entropy&kinds=sink_local");
    expect(parse("#/?kinds=local_sink_local").kinds).toEqual(["sink", "local"]);
    expect(parse("#/?kinds=local_colour").kinds).toEqual([]);
  });

  it.each([
    ["#/?lens=colour", "The address says lens=colour; expected was weight, moved, attribution or knockout: it is left out."],
    ["#/?to=-1", "The address says to=-1; expected was a whole number: it is left out."],
    ["#/?each=5", "The address says each=5; expected was 4, 8 or 16: it is left out."],
    ["#/?every=no", "The address says every=no; expected was \u201cyes\u201d: it is left out."],
    ["#/?window=1_2_999", "The address says window=1_2_999; expected was a row, a column and a zoom, such as 120_80_-2: it is left out."],
    ["#/?kinds=local_colour", "The address says kinds=local_colour; expected was kinds of heads, such as sink_previous: it is left out."],
    ["#/?layer=3", "The address says layer=3, a word that this page does not know: it is left out."],
    ["#/nowhere?run=a", "The address names a page \u201cnowhere\u201d; expected was explore, lesson or compare: it opens the first of them."],
    [`#/?lens=\u202e${"x".repeat(99)}`, `The address says lens=\ufffd${"x".repeat(30)}\u2026; expected was weight, moved, attribution or knockout: it is left out.`],
  ])("tells what of %s it does not understand", (address, sentence) => expect(misread(address)).toEqual([sentence]));

  it("tells a few of many words that it does not understand, and how many more", () => {
    const five = [..."abcde"].map((word) => `${word}=1`).join("&");
    expect(misread(`#/?${five}`)).toHaveLength(5);
    expect(misread(`#/?${five}`).at(-1)).toBe("And 1 more of its words is left out.");
    expect(misread(`#/?${five}&f=1`).at(-1)).toBe("And 2 more of its words are left out.");
    expect(misread("")).toEqual([]);
    expect(misread("#/?lens=weight&run=&for=")).toEqual([]);
  });

  it("compares by lenses that files answer", () => {
    expect(parse("#/compare?lens=knockout").lens).toBe("weight");
    expect(parse("#/compare?lens=moved").lens).toBe("moved");
    expect(changed({ ...START, lens: "attribution" }, { page: "compare" }).lens).toBe("weight");
    expect(changed({ ...START, lens: "attribution" }, { step: 2 }).lens).toBe("attribution");
  });

  it("cuts a window to what an address can hold", () => {
    expect(windowOf(1 / 3, 2 / 3, -2 / 3)).toEqual({ row: 85 / 256, column: 171 / 256, zoom: -171 / 256 });
    expect(Object.is(windowOf(-0.0001, 0, -0).row, 0)).toBe(true);
  });
});
