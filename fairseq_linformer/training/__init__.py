"""Training: tasks, losses, optimizers, options, and the start, checkpoints and fingerprints of runs."""
