"""The model (floor 2): the readable transformer, its weights and its text generation."""
