import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

/** The built page is committed under the Python package, so that installing it needs no Node. */
export default defineConfig({
  plugins: [svelte()],
  base: "./",
  build: {
    outDir: "../src/wherefrom/views/web/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    // A data: address inside a style sheet is allowed for images only; files are simpler to reason about.
    assetsInlineLimit: 0,
    rollupOptions: {
      output: {
        // Names by content: the same source always gives the same files.
        entryFileNames: "assets/[name]-[hash].js",
        chunkFileNames: "assets/[name]-[hash].js",
        assetFileNames: "assets/[name]-[hash][extname]",
      },
    },
  },
  server: { proxy: { "/api": "http://127.0.0.1:8931" } },
  // State is tested as the browser runs it: compiled for a page, not for a server.
  resolve: process.env["VITEST"] ? { conditions: ["browser"] } : {},
  test: {
    include: ["tests/unit/**/*.test.ts"],
    testTransformMode: { web: ["**/*.svelte.test.ts"] },
    server: { deps: { inline: [/svelte/] } },
  },
});
