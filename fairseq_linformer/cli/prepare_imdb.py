"""The IMDB reviews, as officially downloaded, into a folder that fairseq's sentence_prediction task trains on.

examples:
  python scripts/prepare_imdb.py --source aclImdb_v1.tar.gz --tokenizer data/books --out data/tasks/IMDB
  python scripts/prepare_imdb.py --source http://ai.stanford.edu/~amaas/data/sentiment --tokenizer runs/books \\
      --out data/tasks/IMDB

The source is the folder aclImdb or its parent, an archive of either (zip, tar.*), or the address of the folder with
the official archive, or of a mirror (checked by checksum, kept in the user's cache). There is no official dev set: as
in the papers, the test set becomes the split valid. Texts are encoded like those that the model was pretrained on. They
are not shortened: training does that.

The tokenizer is that of a prepared corpus, a checkpoint (runs/x/checkpoint_best.pt) or a run's folder (runs/x): the one
beside the checkpoint where there is a dict.txt, else that of the data that it was trained on. Or it is a sentencepiece
model, with the dict.txt beside it if there is one.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..checkpoints.reading import find_tokenizer
from ..data.prepare.imdb import ADDRESS, imdb_folder, read_imdb
from ..data.prepare.labelled_folder import write_labelled
from ..data.tasks import TASKS
from ..data.tokenizer import load_tokenizer
from ..data.unknown_pieces import GIVEN_REMEDY
from ..system.files import check_data_path
from ..training.commands import fine_tuning_command
from .arguments import make_parser
from .program import program


def parse_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--source", metavar="DIR|ARCHIVE|URL", required=True, help=f"where the reviews are; officially, {ADDRESS}")
    from_where = "the corpus that the model was pretrained on, the model (checkpoint or run's folder), or a .model file"
    add("--tokenizer", metavar="DIR|FILE", type=Path, required=True, help=from_where)
    add("--out", metavar="DIR", type=Path, required=True, help="folder to make; must not exist, or be empty")
    return parser.parse_args(words)


def prepare_imdb(source: str, tokenizer: Path, out: Path) -> None:
    check_data_path(out)  # before anything is downloaded
    loaded = load_tokenizer(find_tokenizer(tokenizer))
    with imdb_folder(source) as folder:
        splits = read_imdb(folder)
        rows = {split: read.examples for split, read in splits.items()}
        summary = write_labelled(out, TASKS["IMDB"], rows, loaded)
    print(*summary.lines(), *(read.report(split) for split, read in splits.items()), sep="\n")
    for line in summary.unknown.warning(GIVEN_REMEDY):
        print(line)
    print("next:", fine_tuning_command("IMDB", out))


def main(words: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(words)
    with program():
        prepare_imdb(**vars(arguments))
