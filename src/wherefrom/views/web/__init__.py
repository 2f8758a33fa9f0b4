"""The explorer's server (floor 6): recordings in, bytes for the page out, on this machine alone."""
