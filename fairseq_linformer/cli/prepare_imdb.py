"""Prepare the IMDB reviews, from the official download, for fine-tuning.

examples:
  linformer prepare imdb --source aclImdb_v1.tar.gz --tokenizer data/books --out data/tasks/IMDB
  linformer prepare imdb --source http://ai.stanford.edu/~amaas/data/sentiment --tokenizer runs/books \\
      --out data/tasks/IMDB

The source is the folder aclImdb or its parent, an archive of either (zip, tar.*), or the address of the folder with the
official archive, or of a mirror. A downloaded archive is checked by its checksum and kept in the user's cache. There is
no official dev set: as in papers, the test set becomes the split valid. Texts are encoded with the model's vocabulary;
only training truncates them.
"""

from pathlib import Path

from .arguments import Parser
from .program import print_next


def add_arguments(parser: Parser) -> None:
    parser.add_shared("--source", help="folder, archive or address with the reviews")
    parser.add_shared("--tokenizer")
    parser.add_shared("--out")


def run(source: str, tokenizer: Path, out: Path) -> None:
    from ..checkpoint import find_tokenizer
    from ..data.dictionaries import unknown_warning
    from ..data.prepare.imdb import OFFICIAL_ROWS, imdb_folder, read_imdb
    from ..data.prepare.labelled_folder import write_labelled
    from ..data.subword_models import load_tokenizer
    from ..data.tasks import TASKS
    from ..files import check_data_path

    check_data_path(out)  # before anything is downloaded
    loaded = load_tokenizer(find_tokenizer(tokenizer))
    with imdb_folder(source) as folder:
        summary = write_labelled(out, TASKS["IMDB"], read_imdb(folder), loaded)
    print(*summary.lines(OFFICIAL_ROWS), *unknown_warning(summary.unknown_shares), sep="\n")
    print_next(out.parent, [out.name], tokenizer)
