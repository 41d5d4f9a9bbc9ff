"""A model in transformers' format as an ONNX file: --help says how."""

from fairseq_linformer.cli.export_onnx import main  # no such module: run `make install`, then .venv/bin/python

if __name__ == "__main__":
    main()
