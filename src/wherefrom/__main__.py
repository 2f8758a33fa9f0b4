"""`python -m wherefrom` is the command `wherefrom`."""

from wherefrom.cli import main

if __name__ == "__main__":
    main()
