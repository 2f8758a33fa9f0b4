/** The page of a file that holds its answers: the same page, asking the file instead of a server. */
import { mount } from "svelte";

import { format } from "./state/address";
import { type About, bytesOf, Held } from "./state/held";
import { START } from "./state/selection";
import "./views/page.css";
import Page from "./views/Page.svelte";

const target = document.getElementById("page");
const told = document.getElementById("about");
if (target && told) {
  const about = JSON.parse(new TextDecoder().decode(bytesOf(told.textContent ?? ""))) as About;
  const blocks = new Map([...document.querySelectorAll<HTMLElement>("script[data-block]")].map((block) => [block.dataset["block"], block]));
  const held = new Held(about, (name) => blocks.get(name)?.textContent ?? null);
  if (!location.hash) history.replaceState(null, "", format({ ...START, run: about.run, call: about.first.call, head: about.first.head }));
  target.textContent = "";
  mount(Page, { target, props: { held, bytes: Number(told.dataset["size"]) } });
}
