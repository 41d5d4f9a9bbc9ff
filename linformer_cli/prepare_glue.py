"""GLUE's tasks, from the official files, into folders to fine-tune on.

examples:
  linformer prepare glue --source glue_data --tasks SST-2 MRPC --tokenizer data/books --out data/tasks
  linformer prepare glue --source https://dl.fbaipublicfiles.com --tokenizer runs/books --out data/tasks

The source is a folder with one folder per task, an archive of such a folder (zip, tar.*), or the address of the
official downloads or of a mirror with the same paths (checked by checksum, kept in the user's cache). The official
train set becomes the split train, the dev set valid (MNLI: matched valid, mismatched valid1), the test set test
(without labels). Texts are encoded like those that the model was pretrained on. They are not shortened: training does
that. Tasks that the folder already holds, with the same vocabulary, are left as they are.
"""

from .arguments import Parser


def add_arguments(parser: Parser) -> None:
    parser.share("--source", help="where the official files are")
    parser.share("--tasks", help="small letters will do (default: all that the source holds)")
    parser.share("--tokenizer")
    parser.share("--out", help="folder for one folder per task")
