"""The IMDB reviews, as officially downloaded, into a folder to fine-tune on.

examples:
  linformer prepare imdb --source aclImdb_v1.tar.gz --tokenizer data/books --out data/tasks/IMDB
  linformer prepare imdb --source http://ai.stanford.edu/~amaas/data/sentiment --tokenizer runs/books \\
      --out data/tasks/IMDB

The source is the folder aclImdb or its parent, an archive of either (zip, tar.*), or the address of the folder with
the official archive, or of a mirror (checked by checksum, kept in the user's cache). There is no official dev set: as
in the papers, the test set becomes the split valid. Texts are encoded like those that the model was pretrained on. They
are not shortened: training does that.
"""

from .arguments import IMDB_ADDRESS, Parser


def add_arguments(parser: Parser) -> None:
    parser.share("--source", help=f"where the reviews are; officially, {IMDB_ADDRESS}")
    parser.share("--tokenizer")
    parser.share("--out")
