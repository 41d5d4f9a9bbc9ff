"""A trained model as the start of another: --help says how."""

from fairseq_linformer.cli.convert_roberta import main  # no such module: run `make install`, then .venv/bin/python

if __name__ == "__main__":
    main()
