"""A soak: commands are killed at random moments, and readers are fed mutated input, until something breaks.

``make soak``, or ``python -m tests.soak --help``; docs/reliability.md says what is promised and what was found.

The mutations are our own and not hypothesis's: it draws values and changes no file that is there; of an input that ends
its process it keeps nothing to repeat; and an input with one to three changes has little to shrink.
"""
