"""A folder of transformers as a checkpoint: --help says how."""

from fairseq_linformer.cli.import_hf import main  # no such module: run `make install`, then .venv/bin/python

if __name__ == "__main__":
    main()
