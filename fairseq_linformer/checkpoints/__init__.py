"""Checkpoints: written whole, read without running code from them, refused where they are damaged or do not fit."""
