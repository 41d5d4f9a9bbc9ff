"""Write configs/model/options.yaml from the model's options, including those of every attention mechanism.

example:
  python scripts/write_model_options.py

Hydra overrides on the command line only the names in a YAML (model.dropout=0.2), and reads the YAML before anything
imports the package. Run this after adding or changing an option; a test fails otherwise.
"""

from pathlib import Path

import yaml

from fairseq_linformer.cli.arguments import Parser
from fairseq_linformer.cli.program import program
from fairseq_linformer.files import write_whole
from fairseq_linformer.model.options import OPTIONS

FILE = Path(__file__).resolve().parents[1] / "configs" / "model" / "options.yaml"
HEADER = """\
# Written by scripts/write_model_options.py: every option of the model at its default, so that each can be overridden on
# the command line (model.dropout=0.2). fairseq_linformer/model/options.py explains them. Null is the default of the
# architecture, `_name`, and for an option of one mechanism that mechanism's default.
"""


def main() -> None:
    Parser(None, __doc__).parse_args()
    with program():
        write_whole(FILE, options_yaml())
        print(f"{len(OPTIONS)} options: {FILE}")


def options_yaml() -> str:
    """Return the content of the file."""
    defaults = {name: option.default for name, option in OPTIONS.items()}
    return HEADER + yaml.safe_dump({"_name": "linformer_roberta", **defaults}, sort_keys=False)


if __name__ == "__main__":
    main()
