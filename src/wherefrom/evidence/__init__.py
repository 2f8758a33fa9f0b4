"""Evidence (floor 5): runs the model again to test what a recording shows."""
