"""Own labelled data into a folder to fine-tune on: --help says how."""

from fairseq_linformer.cli.prepare_table import main  # no such module: run `make install`, then .venv/bin/python

if __name__ == "__main__":
    main()
