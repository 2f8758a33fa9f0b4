"""Run the benchmarks and print their table: python -m benchmarks [carriers] [evidence] [explorer] [files] [forward]
[generation] [gradients] [others] [process] [scans] [training], all of these unless some are named; [longest], 32,768
tokens to a file and the gradients of 8,192, for which 12 GB must be free, only when named.

Each checks the result that it times. The exit code is 1 if a bound is exceeded, as other work on the machine can do.
"""

from __future__ import annotations

import sys
from itertools import chain

from benchmarks import (
    carriers,
    evidence,
    explorer,
    files,
    forward,
    generation,
    gradients,
    others,
    process,
    scans,
    training,
)
from benchmarks.measure import machine

SUITES = {
    "carriers": carriers.run,
    "evidence": evidence.run,
    "explorer": explorer.run,
    "files": files.run,
    "forward": forward.run,
    "generation": generation.run,
    "gradients": gradients.run,
    "others": others.run,
    "process": process.run,
    "scans": scans.run,
    "training": training.run,
}
LONG = {"longest": lambda: chain(files.longest(), gradients.longest())}
"""Those that take half an hour alone."""


def main() -> int:
    wanted, known = sys.argv[1:] or list(SUITES), SUITES | LONG
    unknown = [name for name in wanted if name not in known]
    if unknown:
        print(f"unknown benchmark {unknown[0]!r}: choose among {', '.join(known)}", file=sys.stderr)
        return 2
    print(f"Measured on: {machine()}\n")
    print("| what | measured: median (range) | bound | holds | checked by |\n| --- | --- | --- | --- | --- |")
    failed = False
    for name in wanted:
        for line in known[name]():
            print(f"| {line.what} | {line.figure} | {line.bound} | {'yes' if line.holds else 'NO'} | {line.checked} |")
            sys.stdout.flush()
            failed |= not line.holds
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
