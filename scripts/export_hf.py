"""A checkpoint as a folder of transformers: --help says how."""

from fairseq_linformer.cli.export_hf import main  # no such module: run `make install`, then .venv/bin/python

if __name__ == "__main__":
    main()
