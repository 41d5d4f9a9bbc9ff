#!/usr/bin/env python3
"""Measures and compares models: ``python scripts/study.py NAME [options]``."""

import sys

from benchmarking.command import main

if __name__ == "__main__":
    main(sys.argv[1:])
