"""Labels and probabilities from a fine-tuned checkpoint: --help says how."""

from fairseq_linformer.cli.predict import main  # no such module: run `make install`, then .venv/bin/python

if __name__ == "__main__":
    main()
