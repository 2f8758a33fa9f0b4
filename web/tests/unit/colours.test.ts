import { describe, expect, it } from "vitest";

import { Colours } from "../../src/state/colours.svelte";

function place(dark: boolean, storage?: Map<string, string>): Window {
  const localStorage = storage && { getItem: (key: string) => storage.get(key) ?? null, setItem: (key: string, value: string) => void storage.set(key, value) };
  return { matchMedia: () => ({ matches: dark, addEventListener: () => undefined }), localStorage } as unknown as Window;
}

describe("Colours", () => {
  it("are the system's until others are chosen, which the browser keeps", () => {
    const storage = new Map<string, string>();
    const colours = new Colours(place(true, storage));
    expect([colours.chosen, colours.now]).toEqual(["system", "dark"]);
    colours.choose("light");
    expect(colours.now).toBe("light");
    const again = new Colours(place(true, storage));
    expect([again.chosen, again.now]).toEqual(["light", "light"]);
    again.choose("system");
    expect(new Colours(place(false, storage)).now).toBe("light");
    expect(new Colours(place(true, storage)).now).toBe("dark");
  });

  it("are chosen for the page alone in a browser that keeps nothing, and are the system's where it kept nonsense", () => {
    const colours = new Colours(place(false));
    colours.choose("dark");
    expect(colours.now).toBe("dark");
    expect(new Colours(place(true, new Map([["wherefrom colours", "blue"]]))).chosen).toBe("system");
  });
});
