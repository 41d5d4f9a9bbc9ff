"""Training: tasks, losses and optimizers, how a run begins, is saved and started, and what it is made of."""
