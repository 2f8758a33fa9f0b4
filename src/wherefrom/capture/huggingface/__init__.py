"""Models of the transformers library, recorded through its attention interface (floor 3)."""
