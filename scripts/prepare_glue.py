"""GLUE's official files into folders to fine-tune on: --help says how."""

from fairseq_linformer.cli.prepare_glue import main  # no such module: run `make install`, then .venv/bin/python

if __name__ == "__main__":
    main()
