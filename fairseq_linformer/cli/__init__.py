"""One command line per module: `main` parses what is typed and calls the package. scripts/ and setup.py name them."""
