"""What was typed before there was one command, and what it is now."""

_MODEL = "the first word: {} MODEL"
_FOLDER = "the folder to make is named by a flag now: --out"

# By verb, the flags; "" stands for a second word without a flag, with what an error says of it.
OLD_FLAGS: dict[str, dict[str, str]] = {
    "prepare corpus": {"--spm": "--tokenizer", "--gpt2-bpe": "--tokenizer"},
    "finetune": {"--checkpoint": _MODEL.format("linformer finetune")},
    "predict": {"--checkpoint": _MODEL.format("linformer predict"), "--submission": "--out"},
    "export": {"": _FOLDER},
    "import": {"": _FOLDER},
    "convert": {"": _FOLDER},
    "analyze": {"--text": "--input", "--data": "--tokenizer"},
}
OLD_VERBS = {
    "prepare-corpus": "prepare corpus",
    "prepare-glue": "prepare glue",
    "prepare-imdb": "prepare imdb",
    "prepare-table": "prepare table",
    "export-hf": "export",
    "export-onnx": "export MODEL --format onnx",
    "import-hf": "import",
    "convert-roberta": "convert",
}
