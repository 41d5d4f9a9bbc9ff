"""What `linformer prepare imdb` does: the reviews into a folder."""

from pathlib import Path

from ..checkpoints.reading import find_tokenizer
from ..data.dictionaries import unknown_warning
from ..data.prepare.imdb import imdb_folder, read_imdb
from ..data.prepare.labelled_folder import write_labelled
from ..data.tasks import TASKS
from ..data.tokenizer import load_tokenizer
from ..system.files import check_data_path
from .program import print_next


def run(source: str, tokenizer: Path, out: Path) -> None:
    check_data_path(out)  # before anything is downloaded
    loaded = load_tokenizer(find_tokenizer(tokenizer))
    with imdb_folder(source) as folder:
        splits = read_imdb(folder)
        rows = {split: read.examples for split, read in splits.items()}
        summary = write_labelled(out, TASKS["IMDB"], rows, loaded)
    print(*summary.lines(), *(read.report(split) for split, read in splits.items()), sep="\n")
    for line in unknown_warning(summary.unknown_shares):
        print(line)
    print_next(out.parent, [out.name], tokenizer)
