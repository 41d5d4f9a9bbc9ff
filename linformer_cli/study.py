"""Run a comparison or a benchmark of the documentation, from a clone."""
