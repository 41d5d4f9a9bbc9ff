"""A trained model as the start of another: with Linformer's attention, or for longer texts.

    linformer convert runs/roberta --out converted model.attention=linformer
    linformer convert sentence-transformers/all-MiniLM-L6-v2 --out longer --long 4096
    linformer convert roberta-base --out converted model.attention=linformer model.linformer_window=128 \\
        model.projection=split-pool model.max_positions=4096
    fairseq-hydra-train --config-dir configs/pretrain --config-name continue task.data=data-bin/corpus \\
        checkpoint.finetune_from_model=converted/checkpoint.pt checkpoint.save_dir=runs/converted

The source is a checkpoint or a run's folder, of this package or of fairseq's RoBERTa, or a folder of transformers; a
name on the Hub of Hugging Face is fetched. What both models have is copied. E and F start at the means of segments or,
with --fit-on, where they keep each layer's attention output best on sample text. The new model needs some training
before it is used: the last command above.

--long N chooses what reads up to N tokens at a cost that is linear in their number, and with learned positions loses
nothing on texts that the source could read: configs/pretrain/preset/long.yaml, with as many rows as the source reads
tokens. Options at the end of the command win over it.
"""

from pathlib import Path

from .arguments import EXTENSIONS, Parser, number


def add_arguments(parser: Parser) -> None:
    parser.share("model", help="checkpoint, run's folder (the best), transformers' folder, or name on the Hub")
    parser.take_overrides("model.NAME=VALUE", "what the new model has other than the source, after all flags")
    parser.share("--out")
    long = "in place of full attention, what reads this many tokens at linear cost; a multiple of what the source reads"
    parser.add_argument("--long", metavar="N", type=number(int, least=1), help=long)
    longer = "how positions beyond the source's longest start: as copies of the others, or all between them"
    parser.add_argument("--positions", choices=EXTENSIONS, default="tile", help=longer)
    parser.add_argument(
        "--fit-on", metavar="DIR", type=Path, help="prepared corpus to fit E and F, or Hedgehog's feature map, on"
    )
