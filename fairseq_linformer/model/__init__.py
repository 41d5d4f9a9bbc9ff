"""The model: from its options to the encoder, and what checkpoints have of it."""
