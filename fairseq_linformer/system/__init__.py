"""Files, processes and messages: what has nothing to do with models."""
