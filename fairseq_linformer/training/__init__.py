"""Around the learning of a run: how it begins, how it is saved and started, what it is made of."""
