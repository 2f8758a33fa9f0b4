"""Views (floor 6): an answer made into something seen."""
