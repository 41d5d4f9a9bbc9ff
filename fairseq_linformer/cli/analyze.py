"""Measure and draw a trained model's attention: spectrum, low-rank error, maps.

    linformer analyze runs/books --input books/valid.txt --out analysis/books

MODEL is a checkpoint of this package or of fairseq's RoBERTa, the folder of its run, or a folder of transformers. Each
head must multiply its values by an attention matrix, unlike long-short, quasiseparable and the projections conv and
max-pool.

The text is cut into blocks of n tokens as in pretraining. The folder will contain

    spectrum.png        cumulative singular values of the attention matrices, by layer and head
    spectrum_heat.png   share of the 128 largest ones (the paper's figure 1)
    low_rank.png        relative error of rank-k approximations of softmax attention, and of the model
    attention_maps.png  attention between the first tokens of the text (fine-tuned models: of its first line)
    analysis.json       the numbers of all four

A block takes about the time of three singular value decompositions of n x n per layer and head (4 layers of 4 heads,
n = 512: about 10 seconds on one core). Memory is a few matrices of n x n per head.
"""

from pathlib import Path

from ..errors import UserError
from .arguments import Parser, number
from .program import quieten_transformers


def add_arguments(parser: Parser) -> None:
    parser.add_shared("model", help="checkpoint, folder of a run (its best checkpoint), or folder of transformers")
    add = parser.add_argument
    add("--input", metavar="FILE", type=Path, required=True, help="text file, plain, .gz or .xz; all of it is read")
    parser.add_shared("--out", help="folder to make")
    vocabulary = (
        "vocabulary: a prepared folder, a run, or a .model file of sentencepiece (default: the data of the model's "
        "training)"
    )
    parser.add_shared("--tokenizer", required=False, help=vocabulary)
    rows = "number of blocks of n tokens to average over, evenly spaced in the text"
    add("--rows", metavar="R", type=number(int, minimum=1), default=8, help=rows)
    tokens = "number of first tokens to draw maps of, at most 64; up to 48 have labels"
    add("--tokens", metavar="T", type=number(int, minimum=1, maximum=64), default=32, help=tokens)


def run(model: Path, input: Path, out: Path, tokenizer: Path | None, rows: int, tokens: int) -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UserError(f"matplotlib is needed ({error}): pip install 'fairseq-linformer[analysis]'") from error
    from ..analysis import analyze
    from ..sentence_modules import is_of_transformers

    if is_of_transformers(model):
        quieten_transformers()
    print(f"{out}: {', '.join(analyze(model, input, out, rows, tokens, tokenizer))}")
