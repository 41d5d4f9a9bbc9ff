"""What a trained model's attention does on real text: pictures, numbers, and a page to look around in.

    linformer analyze runs/books --input books/valid.txt --out analysis/books
    linformer analyze runs/books/checkpoint_1_*.pt --input books/valid.txt --out analysis/training
    linformer analyze runs/books --beside runs/softmax --input books/valid.txt --out analysis/both

A checkpoint is one of this package or of fairseq's RoBERTa, the folder of its run, or a folder of transformers; its
attention is softmax, linformer or revisited-linformer. Several of one run are also drawn against their updates.

The folder will hold how low the rank of attention is (spectrum), what approximations of rank k lose of it (low_rank),
what the rows of E and F look at and which are used (projections), and where each token looks (looks.html opens in a
browser, without network). The text is cut into rows of n tokens as in pretraining; a checkpoint that was fine-tuned
looks at the first line.

A row takes about as long as two singular value decompositions of n x n per layer and head (with 4 layers of 4 heads at
n = 512 some 10 seconds on one core), and memory for a few matrices of n x n.
"""

from pathlib import Path

from .arguments import Parser, number


def add_arguments(parser: Parser) -> None:
    several = "checkpoint, run's folder (the best), or transformers' folder; several are of one run"
    parser.share("model", nargs="+", help=several)
    add = parser.add_argument
    add("--input", metavar="FILE", type=Path, required=True, help="text file, plain, .gz or .xz; it is read whole")
    parser.share("--out", help="folder to make")
    add("--beside", metavar="MODEL", type=Path, help="another model, whose maps stand beside the first one's")
    vocabulary = (
        "the vocabulary: a prepared folder (of a fine-tuned model its labels, too), a run, or a .model file of "
        "sentencepiece (default: the data that the model was trained on)"
    )
    parser.share("--tokenizer", required=False, help=vocabulary)
    rows = "rows of n tokens to average over, from all over the text"
    add("--rows", metavar="R", type=number(int, least=1), default=8, help=rows)
    tokens = "first tokens whose maps are shown, at most 256; pictures name up to 48"
    add("--tokens", metavar="T", type=number(int, least=1, most=256), default=32, help=tokens)
