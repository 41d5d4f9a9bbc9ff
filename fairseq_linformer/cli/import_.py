"""Import a folder of transformers as a checkpoint of fairseq, for training.

    linformer import exported --out imported
    linformer import sentence-transformers/all-MiniLM-L6-v2 --out imported
    linformer finetune imported --data data-bin/tasks --tasks rte --out runs/finetune

The folder is one that `linformer export` wrote, one that transformers saved after it, or a published encoder: BERT,
DistilBERT, RoBERTa, XLM-RoBERTa or CamemBERT, which becomes attention=softmax, or ModernBERT, which becomes
attention=alternating. A name on the Hub of Hugging Face is downloaded. The checkpoint has the same weights; dictionary
and subword model are in the same folder.
"""

from pathlib import Path

from .arguments import Parser
from .program import quieten_transformers, resolve_model


def add_arguments(parser: Parser) -> None:
    parser.add_shared("model", metavar="FOLDER", help="model of transformers, or its name on the Hub")
    parser.add_shared("--out")


def run(model: Path, out: Path) -> None:
    quieten_transformers()
    from ..checkpoint import UNTRAINED
    from ..hf.importing import import_folder

    for remark in import_folder(resolve_model(model), out):
        print(f"note: {remark}")
    print(f"{out / UNTRAINED}: written")
