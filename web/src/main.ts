import { mount } from "svelte";

import "./views/page.css";
import Page from "./views/Page.svelte";

const target = document.getElementById("page");
if (target) mount(Page, { target });
