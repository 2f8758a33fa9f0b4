"""The command line (floor 7): one function a command; each parses, calls the public verb of its name, and prints."""

from wherefrom.cli import ask, asking, carriers, explore, export, figure, learn, recorded, routes, train, watch
from wherefrom.cli.app import main

__all__ = [
    "ask",
    "asking",
    "carriers",
    "explore",
    "export",
    "figure",
    "learn",
    "main",
    "recorded",
    "routes",
    "train",
    "watch",
]
