/** Numbers that look random and are the same every time: each call gives one from 0 to below. */
export type Dice = (below: number) => number;

export function dice(seed: number): Dice {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 4294967296) * below);
  };
}
