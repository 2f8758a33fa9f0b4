import { describe, expect, it } from "vitest";

import { Api, ApiError, said } from "../../src/state/api";
import { dice } from "./dice";

interface Asked {
  readonly address: string;
  readonly signal: AbortSignal;
  readonly sent: RequestInit;
  answer: (status: number, value: unknown) => void;
}

/** A server whose answers are given by hand. */
function server(): { asked: Asked[]; ask: typeof fetch } {
  const asked: Asked[] = [];
  const ask: typeof fetch = (input, init) =>
    new Promise((resolve, reject) => {
      const signal = init?.signal ?? new AbortController().signal;
      signal.addEventListener("abort", () => reject(signal.reason));
      const answer = (status: number, value: unknown): void =>
        resolve(new Response(JSON.stringify(value), { status, headers: { "content-type": "application/json" } }));
      asked.push({ address: String(input), signal, sent: init ?? {}, answer });
    });
  return { asked, ask };
}

const never = new AbortController().signal;
const settle = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 0));

describe("Api", () => {
  it("asks once for what several wait for, and keeps it", async () => {
    const { asked, ask } = server();
    const api = new Api(ask);
    const both = [api.get("run", { run: "a b" }, never), api.get("run", { run: "a b" }, never)];
    await settle();
    expect(asked.map(({ address }) => address)).toEqual(["api/run?run=a+b"]);
    asked[0]?.answer(200, { key: "a b" });
    expect((await Promise.all(both)).map(({ facts }) => facts)).toEqual([{ key: "a b" }, { key: "a b" }]);
    await api.get("run", { run: "a b" }, never);
    expect(asked).toHaveLength(1);
    expect(api.peek("run", { run: "a b" })?.facts).toEqual({ key: "a b" });
  });

  it("has at most four requests in flight", async () => {
    const { asked, ask } = server();
    const api = new Api(ask);
    const all = Array.from({ length: 7 }, (_, at) => api.get("row", { at }, never));
    await settle();
    expect(asked).toHaveLength(4);
    asked[1]?.answer(200, 1);
    await all[1];
    await settle();
    expect(asked).toHaveLength(5);
    for (let at = 0; at < 7; at += 1) {
      asked[at]?.answer(200, at);
      await settle();
    }
    expect((await Promise.all(all)).map(({ facts }) => facts)).toEqual([0, 1, 2, 3, 4, 5, 6]);
  });

  it("gives up a request when nobody waits for it any more", async () => {
    const { asked, ask } = server();
    const api = new Api(ask);
    const [one, two] = [new AbortController(), new AbortController()];
    const first = api.get("row", {}, one.signal);
    const second = api.get("row", {}, two.signal);
    await settle();
    one.abort();
    await expect(first).rejects.toThrow();
    expect(asked[0]?.signal.aborted).toBe(false);
    two.abort();
    await expect(second).rejects.toThrow();
    expect(asked[0]?.signal.aborted).toBe(true);
    const again = api.get("row", {}, never);
    await settle();
    asked[1]?.answer(200, "again");
    expect((await again).facts).toBe("again");
  });

  it("never sends what was given up while it waited for its turn", async () => {
    const { asked, ask } = server();
    const api = new Api(ask);
    const held = Array.from({ length: 4 }, (_, at) => api.get("row", { at }, never));
    const stop = new AbortController();
    const gone = api.get("row", { at: 9 }, stop.signal);
    stop.abort();
    await expect(gone).rejects.toThrow();
    await settle();
    asked.forEach((one) => one.answer(200, 0));
    await Promise.all(held);
    await settle();
    expect(asked).toHaveLength(4);
  });

  it("passes on the server's own sentence, and has one where the server has none", async () => {
    const { asked, ask } = server();
    const api = new Api(ask);
    const refused = api.get("row", { at: 1 }, never);
    const broken = api.get("row", { at: 2 }, never);
    await settle();
    asked[0]?.answer(400, { error: "destination: expected a number below 734, given 900." });
    asked[1]?.answer(500, "oh");
    await expect(refused).rejects.toThrow(new ApiError("destination: expected a number below 734, given 900."));
    await expect(broken).rejects.toThrow("500");
    const gone = new Api(() => Promise.reject(new TypeError("fetch failed")));
    await expect(gone.get("row", {}, never)).rejects.toThrow("does not answer");
  });

  it("does not keep errors", async () => {
    const { asked, ask } = server();
    const api = new Api(ask);
    const refused = api.get("row", {}, never);
    await settle();
    asked[0]?.answer(500, {});
    await expect(refused).rejects.toThrow();
    const again = api.get("row", {}, never);
    await settle();
    asked[1]?.answer(200, "now");
    expect((await again).facts).toBe("now");
  });

  it("sends what is to be done, in its turn, and keeps nothing of the answer", async () => {
    const { asked, ask } = server();
    const api = new Api(ask);
    const wish = api.send("POST", "jobs", {}, never, { destination: 3, target: null });
    await settle();
    expect(asked[0]).toMatchObject({ address: "api/jobs", sent: { method: "POST", body: '{"destination":3,"target":null}', headers: { "content-type": "application/json" } } });
    asked[0]?.answer(200, { job: "a" });
    expect((await wish).facts).toEqual({ job: "a" });
    for (const state of ["running", "done"]) {
      const told = api.send("GET", "job", { job: "a" }, never);
      await settle();
      asked.at(-1)?.answer(200, { state });
      expect((await told).facts).toEqual({ state });
    }
    expect([asked.length, api.size, asked[1]?.sent.body]).toEqual([3, 0, undefined]);
    const refused = api.send("DELETE", "job", { job: "b" }, never);
    await settle();
    asked.at(-1)?.answer(400, { error: "There is no such work." });
    await expect(refused).rejects.toThrow("There is no such work.");
    const many = Array.from({ length: 5 }, (_, at) => api.send("GET", "job", { job: at }, never));
    await settle();
    expect(asked).toHaveLength(8);
    for (let at = 4; at < 9; at += 1) {
      asked[at]?.answer(200, at);
      await settle();
    }
    expect((await Promise.all(many)).map(({ facts }) => facts)).toEqual([4, 5, 6, 7, 8]);
  });

  it("asks about the very writing of a recording that it opened, and takes no other", async () => {
    const { asked, ask } = server();
    const api = new Api(ask);
    const ended = async (promise: Promise<unknown>, answer: unknown): Promise<string> => {
      await settle();
      asked.at(-1)?.answer(200, answer);
      return promise.then(() => "taken", (error: Error) => error.message);
    };
    expect(await ended(api.get("run", { run: "a b" }, never), { key: "a b", version: "1f" })).toBe("taken");
    void api.get("row", { run: "a b", destination: 3 }, never);
    void api.get("row", { run: "other", destination: 3 }, never);
    void api.send("POST", "jobs", {}, never, { run: "a b", destination: 3 });
    await settle();
    expect(asked.slice(1).map(({ address }) => address)).toEqual(["api/row?run=a+b&destination=3&version=1f", "api/row?run=other&destination=3", "api/jobs"]);
    expect(JSON.parse(String(asked[3]?.sent.body))).toEqual({ run: "a b", destination: 3, version: "1f" });
    asked.slice(1).forEach(({ answer }) => answer(200, {}));
    expect(await ended(api.send("GET", "run", { run: "a b" }, never), { key: "a b", version: "20" })).toContain("written anew since this page opened it");
    expect(await ended(api.send("GET", "run", { run: "a b" }, never), { key: "a b", version: "1f" })).toBe("taken");
  });

  it("stays below its bound, and drops what was asked for longest ago", async () => {
    const bound = 6000;
    const api = new Api(() => Promise.resolve(new Response(JSON.stringify("x".repeat(200)))), bound);
    for (let at = 0; at < 40; at += 1) {
      await api.get("row", { at }, never);
      await api.get("row", { at: 0 }, never);
      expect(api.size).toBeLessThanOrEqual(bound);
    }
    expect(api.peek("row", { at: 0 })).toBeDefined();
    expect(api.peek("row", { at: 1 })).toBeUndefined();
    expect(api.peek("row", { at: 39 })).toBeDefined();
  });

  it("agrees with a slow obvious twin over random sequences", async () => {
    const roll = dice(5);
    for (let turn = 0; turn < 100; turn += 1) {
      let sent = 0;
      const api = new Api((input) => {
        sent += 1;
        return Promise.resolve(new Response(JSON.stringify(String(input)), { headers: { "content-type": "application/json" } }));
      }, 6 * 700);
      // The twin: what was asked for, longest ago first, with its cost.
      let twin: { at: number; cost: number }[] = [];
      let expected = 0;
      for (let step = 0; step < 20; step += 1) {
        const at = roll(9);
        const text = `api/row?at=${at}`;
        expect((await api.get("row", { at }, never)).facts).toBe(text);
        const known = twin.find((one) => one.at === at);
        if (!known) expected += 1;
        twin = [...twin.filter((one) => one.at !== at), { at, cost: 4 * JSON.stringify(text).length + 512 }];
        while (twin.reduce((sum, one) => sum + one.cost, 0) > 6 * 700) twin.shift();
        expect(sent).toBe(expected);
        for (let other = 0; other < 9; other += 1) {
          expect(api.peek("row", { at: other }) !== undefined).toBe(twin.some((one) => one.at === other));
        }
      }
    }
  });
});

describe("said", () => {
  it("says nothing of what was merely given up", () => {
    expect(said(new DOMException("x", "AbortError"))).toBeNull();
    expect(said(new ApiError("A sentence."))).toBe("A sentence.");
    expect(said("x")).toMatch(/no words/);
  });
});
