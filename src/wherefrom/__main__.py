"""The command `wherefrom`, and `python -m wherefrom`: as little as possible before Ctrl-C ends it with one sentence."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line and end the process."""
    try:
        from wherefrom.cli import main as run  # half a second, in which one may think better of it

        run()
    except KeyboardInterrupt:
        print("wherefrom: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
