"""What a trained model's attention does on real text: pictures, their numbers as JSON, and a page to look around in.

    python scripts/analyze.py runs/books --text books/valid.txt --out analysis/books
    python scripts/analyze.py runs/books/checkpoint_1_*.pt --text books/valid.txt --out analysis/training
    python scripts/analyze.py runs/books --beside runs/softmax --text books/valid.txt --out analysis/both

A checkpoint is one of this package or of fairseq's RoBERTa, the folder of its run, or a folder of transformers; its
attention is softmax, linformer or revisited-linformer. Several of one run are also drawn against their updates.

The folder will hold how low the rank of attention is (spectrum), what approximations of rank k lose of it (low_rank),
what the rows of E and F look at and which are used (projections), and where each token looks (looks.html opens in a
browser, without network). The text is cut into rows of n tokens as in pretraining; a checkpoint that was fine-tuned
looks at the first line.

A row takes about as long as two singular value decompositions of n x n per layer and head (with 4 layers of 4 heads at
n = 512 some 10 seconds on one core), and memory for a few matrices of n x n.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..conversion.convert import is_of_transformers
from .arguments import make_parser, number
from .program import program, quieten_transformers


def parse_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    text = "checkpoint, run's folder (the best), or transformers' folder; several are of one run"
    add("checkpoints", metavar="CHECKPOINT", nargs="+", type=Path, help=text)
    add("--text", metavar="FILE", type=Path, required=True, help="text file, plain, .gz or .xz; it is read whole")
    add("--out", metavar="DIR", type=Path, required=True, help="folder to make")
    add("--beside", metavar="CHECKPOINT", type=Path, help="another model, whose maps stand beside the first one's")
    text = "prepared folder with the vocabulary (default: the one that the checkpoint was trained on)"
    add("--data", metavar="DIR", type=Path, help=text)
    text = "rows of n tokens to average over, from all over the text (default 8)"
    add("--rows", metavar="R", type=number(int, least=1), default=8, help=text)
    text = "first tokens whose maps are shown (default 32, at most 256; pictures name up to 48)"
    add("--tokens", metavar="T", type=number(int, least=1, most=256), default=32, help=text)
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(words)
    with program():
        if any(map(is_of_transformers, filter(None, [*arguments.checkpoints, arguments.beside]))):
            quieten_transformers()
        from ..analysis.analyze import analyze  # here, so that --help is quick

        analysis = analyze(**vars(arguments))
        print(f"{arguments.out}: {', '.join(analysis.files)}")
        print(*analysis.found, sep="\n")
