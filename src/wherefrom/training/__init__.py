"""Training (floor 5): a decoder of the model room trained from nothing, or further, on a user's own text."""
