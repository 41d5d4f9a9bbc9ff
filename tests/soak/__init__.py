"""A soak: commands are killed at random moments, and readers are fed mutated input, until something breaks.

``make soak``, or ``python -m tests.soak --help``; docs/reliability.md says what is promised and what was found.
"""
