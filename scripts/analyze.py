"""What a trained model's attention does on real text, in pictures and numbers: --help says how."""

from fairseq_linformer.cli.analyze import main  # no such module: run `make install`, then .venv/bin/python

if __name__ == "__main__":
    main()
