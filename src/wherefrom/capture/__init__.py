"""Capture (floor 3): from a running model to a recording."""
