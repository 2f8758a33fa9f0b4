/** Light or dark (floor state): a matter of whoever looks, kept in their browser and in no address. */

export const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];
const KEY = "wherefrom colours";

export class Colours {
  chosen = $state<Theme>("system");
  private systemDark = $state(false);

  constructor(private readonly place: Window) {
    this.chosen = THEMES.find((theme) => theme === this.kept()) ?? "system";
    const dark = place.matchMedia("(prefers-color-scheme: dark)");
    this.systemDark = dark.matches;
    dark.addEventListener("change", (event) => (this.systemDark = event.matches));
  }

  get now(): "light" | "dark" {
    return this.chosen === "system" ? (this.systemDark ? "dark" : "light") : this.chosen;
  }

  choose(theme: Theme): void {
    this.chosen = theme;
    try {
      this.place.localStorage.setItem(KEY, theme);
    } catch {
      // A browser may keep nothing: then it lasts as long as the page.
    }
  }

  private kept(): string | null {
    try {
      return this.place.localStorage.getItem(KEY);
    } catch {
      return null;
    }
  }
}
