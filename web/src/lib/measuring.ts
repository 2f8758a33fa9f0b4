/** How far a measurement is (floor lib): what may happen next, and what of it is told. */

import type { Job } from "../wire/api";

export type Stage =
  /** It is being asked whether this was measured, or what was found. */
  | { readonly at: "looking" }
  | { readonly at: "unmeasured" | "cancelled" | "measured" }
  /** It was asked for; there is no answer yet. */
  | { readonly at: "asked" }
  | { readonly at: "working"; readonly job: Job; readonly ending: boolean }
  /** Nothing of this recording can be measured. */
  | { readonly at: "impossible"; readonly why: string }
  /** This question cannot be asked; or the work could not be begun, or failed. */
  | { readonly at: "refused" | "failed"; readonly why: string };

export type Happened =
  /** Whether it was measured; and if it never can be, why. */
  | { readonly is: "answer"; readonly measured: boolean; readonly why?: string | null }
  | { readonly is: "asked" | "cancel" }
  | { readonly is: "job"; readonly job: Job }
  | { readonly is: "refusal"; readonly why: string };

export const LOOKING: Stage = { at: "looking" };
const NO_REASON = "The measurement failed and gave no reason.";

/** Whether "measure" does something. */
export function mayAsk({ at }: Stage): boolean {
  return at === "unmeasured" || at === "cancelled" || at === "failed";
}

/** The stage after what happened; what does not belong to it changes nothing. */
export function after(stage: Stage, happened: Happened): Stage {
  switch (happened.is) {
    case "asked":
      return mayAsk(stage) ? { at: "asked" } : stage;
    case "answer":
      if (stage.at !== "looking") return stage;
      if (happened.measured) return { at: "measured" };
      return happened.why ? { at: "impossible", why: happened.why } : { at: "unmeasured" };
    case "cancel":
      return stage.at === "working" ? { ...stage, ending: true } : stage;
    case "refusal":
      if (stage.at === "looking") return { at: "refused", why: happened.why };
      return stage.at === "asked" || stage.at === "working" ? { at: "failed", why: happened.why } : stage;
    case "job":
      return stage.at === "asked" || stage.at === "working" || stage.at === "looking" ? withJob(stage, happened.job) : stage;
  }
}

function withJob(stage: Stage, job: Job): Stage {
  if (job.state === "done") return LOOKING;
  if (job.state === "cancelled") return { at: "cancelled" };
  if (job.state === "failed") return { at: "failed", why: job.error ?? NO_REASON };
  return { at: "working", job, ending: stage.at === "working" && stage.ending };
}
