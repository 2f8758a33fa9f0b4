"""The explorer's server (floor 6): recordings in, bytes for the page out, on this machine alone.

Nothing heavy is imported here, so that a command can name its defaults.
"""

HOST, PORT = "127.0.0.1", 8017
"""Where it listens unless it is told otherwise."""
