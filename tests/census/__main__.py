"""Run the census: `python -m tests.census [--shard 0/2] [--only llama] [--table]`.

Without options all types are built, run, recorded and compared, in as many processes as there are cores, and a summary
is printed; `--table` writes docs/architectures.md too. About 10 minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

ROOT = Path(__file__).parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.census", description=__doc__)
    parser.add_argument("--shard", help="a share of the types, such as 0/2")
    parser.add_argument("--only", help="config types, with commas between them")
    parser.add_argument("--seconds", type=int, default=60, help="time limit of a type")
    parser.add_argument("--json", action="store_true", help="one line of JSON a result")
    parser.add_argument("--table", action="store_true", help="write docs/architectures.md")
    chosen = parser.parse_args()
    results = _here(chosen) if chosen.shard or chosen.only else in_processes(chosen.seconds)
    if not chosen.json:
        from .table import summary

        print(summary(results))
    if chosen.table:
        from .table import PAGE, page

        (ROOT / PAGE).write_text(page(results), encoding="utf-8")


def _here(chosen: argparse.Namespace) -> list:
    """Return the results of a share of the types, and print each when it is there."""
    import torch

    from .cases import cases, examine, types
    from .table import line

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    names = chosen.only.split(",") if chosen.only else types()
    if chosen.shard:
        share, shares = map(int, chosen.shard.split("/"))
        names = names[share::shares]
    results = []
    for case in cases(names):
        results.append(examine(case, seconds=chosen.seconds))
        print(json.dumps(asdict(results[-1])) if chosen.json else line(results[-1]), flush=True)
    return results


def in_processes(seconds: int = 60, processes: int | None = None) -> list:
    """Return the results of all types, in as many processes as there are cores unless given."""
    from .cases import Result

    shares = processes or os.cpu_count() or 1
    command = [sys.executable, "-m", "tests.census", "--json", "--seconds", str(seconds), "--shard"]
    running = [
        subprocess.Popen(
            [*command, f"{share}/{shares}"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        for share in range(shares)
    ]
    texts = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise SystemExit("a process of the census ended early")
    lines = [text for one in texts for text in one.splitlines() if text.startswith("{")]
    return sorted((Result(**json.loads(text)) for text in lines), key=lambda result: (result.type_name, result.part))


if __name__ == "__main__":
    main()
