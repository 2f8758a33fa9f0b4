import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

/** The same page as one script and one style sheet: `wherefrom export` writes them into a file. */
export default defineConfig({
  plugins: [svelte()],
  publicDir: false,
  build: {
    outDir: "../src/wherefrom/views/web/page",
    emptyOutDir: true,
    target: "es2022",
    cssCodeSplit: false,
    modulePreload: false,
    rollupOptions: {
      input: "src/page.ts",
      output: { format: "iife", inlineDynamicImports: true, entryFileNames: "page.js", assetFileNames: "page[extname]" },
    },
  },
});
