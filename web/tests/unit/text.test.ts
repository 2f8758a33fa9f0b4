import { describe, expect, it } from "vitest";

import { glowOf, grouped, strongestOf, withoutFirst } from "../../src/lib/glow";
import { linesOf } from "../../src/lib/lines";
import { directionOf, fragmentsOf, inline, RETURN, short } from "../../src/lib/token";
import type { Token } from "../../src/wire/api";

const own = (text: string): Token => [text, text];
const width = ({ text }: { text: string }): number => [...text].length;

describe("fragmentsOf", () => {
  it("counts the blanks that a token begins with", () => {
    expect(fragmentsOf(own("  Mary"), 3)).toEqual([{ token: 3, text: "  Mary", look: "text", blanks: 2, ends: false }]);
    expect(fragmentsOf(own(" "), 3)[0]).toMatchObject({ look: "text", blanks: 1 });
  });

  it("shows line ends as return signs and ends the line there", () => {
    expect(fragmentsOf(own(".\r\n\nNext"), 0).map(({ text, ends }) => [text, ends])).toEqual([
      [`.${RETURN}`, true],
      [RETURN, true],
      ["Next", false],
    ]);
  });

  it("boxes what adds no characters, or none that can be seen", () => {
    expect(fragmentsOf(["0x9f", ""], 5)).toEqual([{ token: 5, text: "0x9f", look: "boxed", blanks: 0, ends: false }]);
    for (const text of ["\u200b", "\u202e", "\u00ad", "\ufeff", "\u3164"]) {
      expect(fragmentsOf(["\\u", text], 0)[0]).toMatchObject({ text: "\\u", look: "boxed" });
    }
  });

  it("leaves hostile text as the text that it is", () => {
    const text = "</script><img src=x onerror=alert(1)>";
    expect(fragmentsOf(own(text), 0).map((one) => one.text)).toEqual([text]);
  });
});

describe("linesOf", () => {
  const tokens = ["The", " council", " met", ".", "\n", " Mary", " gave", " it"].map(own);

  it("breaks before blanks only, and where lines end", () => {
    const lines = linesOf(tokens, 10, 12, width);
    expect(lines.map(({ fragments }) => fragments.map(({ text }) => text).join(""))).toEqual(["The council", ` met.${RETURN}`, " Mary gave", " it"]);
    expect(lines.map(({ soft }) => soft)).toEqual([false, true, false, true]);
    expect(lines[1]?.fragments[0]?.token).toBe(12);
  });

  it("keeps the pieces of a word together unless the word is wider than the line", () => {
    const pieces = [" in", "di", "vis", "ible"].map(own);
    expect(linesOf([own("ab"), ...pieces], 0, 12, width).map(({ fragments }) => fragments.length)).toEqual([1, 4]);
    expect(linesOf(pieces, 0, 6, width).map(({ fragments }) => fragments.map(({ text }) => text).join(""))).toEqual([" indi", "vis", "ible"]);
  });

  it("breaks scripts without blanks anywhere", () => {
    const lines = linesOf(["\u4e2d", "\u6587", "\u5b57", "\u7b26"].map(own), 0, 2, width);
    expect(lines.map(({ fragments }) => fragments.length)).toEqual([2, 2]);
  });

  it("holds every token's characters, in order, in lines that are no wider than asked, at any width", () => {
    const all = [...tokens, own("x".repeat(50)), own("\n\n"), ["<mark>", ""] as Token, own("\u0645\u0631\u062d\u0628\u0627"), own(" \u{1f469}\u200d\u{1f467}")];
    const whole = all.flatMap((token, at) => fragmentsOf(token, at)).map(({ text }) => text).join("");
    for (let wide = 8; wide < 60; wide += 1) {
      const lines = linesOf(all, 0, wide, width);
      expect(lines.flatMap(({ fragments }) => fragments.map(({ text }) => text)).join("")).toBe(whole);
      for (const { fragments } of lines) {
        expect(fragments.length).toBeGreaterThan(0);
        expect(fragments.reduce((sum, one) => sum + width(one), 0)).toBeLessThanOrEqual(wide);
      }
      const order = lines.flatMap(({ fragments }) => fragments.map(({ token }) => token));
      expect(order).toEqual([...order].sort((a, b) => a - b));
      expect(new Set(order).size).toBe(all.length);
    }
  });

  it("gives a line the direction of its first letter", () => {
    expect(directionOf("  12 \u05e9\u05dc\u05d5\u05dd abc")).toBe("rtl");
    expect(directionOf("abc \u05e9")).toBe("ltr");
    expect(directionOf("123")).toBeNull();
  });

  it("keeps letters of one direction together, whatever stands between them", () => {
    const runs = (...texts: string[]): unknown =>
      linesOf(texts.map(own), 0, 99, width)[0]?.runs.map(({ direction, fragments }) => [direction, fragments.map(({ token }) => token)]);
    expect(runs("says", " \u05e9", "\u05dc", " ", "\u05dd", ",", " he")).toEqual([["ltr", [0]], ["rtl", [1, 2, 3, 4]], ["ltr", [5, 6]]]);
    expect(runs("\u05e9", " -", " abc", ".", "de", "!")).toEqual([["rtl", [0, 1]], ["ltr", [2, 3, 4]], ["rtl", [5]]]);
    expect(runs("1", "+", "2")).toEqual([["ltr", [0, 1, 2]]]);
  });
});

describe("short", () => {
  it("never cuts a character in two", () => {
    expect(short("\u{1f389}\u{1f389}\u{1f389}\u{1f389}", 3)).toBe("\u{1f389}\u{1f389}\u2026");
    expect(short("abc", 3)).toBe("abc");
    expect(short("  ", 3)).toBe("\u00b7\u00b7");
    expect(short(" a", 3)).toBe(" a");
  });

  it("keeps a name within a sentence from turning it round", () => {
    expect(inline("a\u202egpj.exe\nx \u05e9")).toBe("a\ufffdgpj.exe x \u05e9");
  });
});

describe("what glows", () => {
  it("leaves out the first token and says shares of the rest", () => {
    const shares = withoutFirst(Float32Array.of(0.5, 0.25, 0.25, 0));
    expect([...shares]).toEqual([Number.NaN, 0.5, 0.5, 0]);
    expect([...withoutFirst(Float32Array.of(1, 0))]).toEqual([Number.NaN, Number.NaN]);
  });

  it("adds up weights of a unit, and takes the largest of what was moved", () => {
    const values = Float32Array.of(0.5, 0.25, 0.125, Number.NaN);
    const owners = Int32Array.of(-1, 0, 0, 0);
    expect([...grouped(values, owners, "weight", "sources")]).toEqual([0.5, 0.375, 0.375, Number.NaN]);
    expect([...grouped(values, owners, "moved", "sources")]).toEqual([0.5, 0.25, 0.25, Number.NaN]);
    // What readers have of a source are shares of as many rows: they never add up.
    expect([...grouped(values, owners, "weight", "readers")]).toEqual([0.5, 0.25, 0.25, Number.NaN]);
  });

  it("names what is largest by size, a unit once", () => {
    const glow = glowOf(Float32Array.of(0.5, Number.NaN, -0.75, 0, 0.25, 0.5));
    expect(strongestOf(glow, null, 3)).toEqual([2, 0, 5]);
    expect(strongestOf(glow, null, 9)).toEqual([2, 0, 5, 4]);
    expect(strongestOf(glowOf(Float32Array.of(0.5, 0.5, 0.25, 0.25)), Int32Array.of(0, 0, 1, -1), 9)).toEqual([0, 2, 3]);
    expect(strongestOf(glowOf(Float32Array.of(0, Number.NaN)), null, 3)).toEqual([]);
  });

  it("has its largest, and none where there is nothing", () => {
    expect(glowOf(Float32Array.of(Number.NaN, 0.25, 0.5)).largest).toBe(0.5);
    expect(glowOf(Float32Array.of(Number.NaN)).largest).toBe(0);
  });
});
