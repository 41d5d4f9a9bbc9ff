"""Text files into a folder to pretrain on: --help says how."""

from fairseq_linformer.cli.prepare_corpus import main  # no such module: run `make install`, then .venv/bin/python

if __name__ == "__main__":
    main()
