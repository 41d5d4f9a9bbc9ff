"""The model: options, encoder, and loading of checkpoints."""
