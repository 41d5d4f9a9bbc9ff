"""Fine-tunes a checkpoint over seeds: --help says how."""

from fairseq_linformer.cli.finetune import main  # no such module: run `make install`, then .venv/bin/python

if __name__ == "__main__":
    main()
