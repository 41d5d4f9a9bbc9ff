# What measured docs/sentence-encoders.md, from the root of a clone with .venv activated. all-MiniLM-L6-v2 is its
# folder, data has books and glue, and aclImdb_v1.tar.gz is the official archive.
set -euo pipefail

linformer import all-MiniLM-L6-v2 --out start/original
linformer convert start/original --out start/long --long 4096
linformer convert start/original --out start/control --long 4096 model.projected_length=1
linformer convert start/original --out start/full model.max_positions=4096

# To train on: 60 novels, and the half of Python's library that no reported query is from
PYTHONPATH=scripts python - <<'PY'
import lzma
from python_sources import source_files
novels = lzma.open("data/books/train.txt.xz", "rt").read().split("\n\n")[:60]
files = source_files()
modules = [file.read_text(errors="replace") for file in files[: len(files) // 2]]
texts = [text.strip() for text in novels] + ["\n".join(line for line in text.split("\n") if line.strip()) for text in modules]
with open("train.txt", "w") as out:
    out.write("\n\n".join(texts) + "\n")
PY
xz --decompress --stdout data/books/valid.txt.xz > valid.txt
linformer prepare corpus --train train.txt --valid valid.txt --tokenizer start/original --out data-bin/texts
LEARN="fairseq-hydra-train --config-dir configs/pretrain --config-name continue recipe=encoder task.data=data-bin/texts
    criterion.teacher=start/original"
$LEARN checkpoint.finetune_from_model=start/long/checkpoint.pt checkpoint.save_dir=runs/trained
$LEARN checkpoint.finetune_from_model=start/control/checkpoint.pt checkpoint.save_dir=runs/control
$LEARN checkpoint.finetune_from_model=start/long/checkpoint.pt checkpoint.save_dir=runs/all task.only_positions_from=null \
    task.shortest_text=8 optimizer.weight_decay=0.01 optimization.lr=[0.00005] optimization.max_update=1000 \
    lr_scheduler.warmup_updates=100 checkpoint.save_interval_updates=250

MODELS="--model original=start/original control=start/control control-trained=runs/control full=start/full
    long=start/long trained=runs/trained all=runs/all"
study() { linformer study sentences --out runs/sentences/$1 $MODELS ${@:2}; }
study short --glue data/glue --imdb aclImdb_v1.tar.gz
study passages --books data/books/valid.txt.xz data/books/test.txt.xz --python
MODELS="--model original=start/original full=start/full long=start/long"
study cost --cost 1 2 --transformers all-MiniLM-L6-v2
