# What measured the starts of E and F in docs/linformer.md, from a clone with .venv activated; books/*.txt.xz are English novels.
set -euo pipefail

linformer prepare corpus --train books/train.txt.xz --valid books/valid.txt.xz --out data-bin/books300 --vocab-size 556  # 256 are bytes
ONE=model.projection_multiplier=1
STARTS="--variant segment-mean model.projection_init=segment-mean $ONE --variant normal model.projection_init=normal $ONE
    --variant johnson-lindenstrauss model.projection_init=johnson-lindenstrauss $ONE
    --variant softmax model.attention=softmax"
PERPLEXITY="linformer study perplexity --data data-bin/books300"
$PERPLEXITY --out runs/conv --updates 1500 $STARTS
$PERPLEXITY --out runs/plain32 --updates 3000 $STARTS \
    --all model.local_conv=0 model.max_positions=32 model.projected_length=8 dataset.batch_size=64
$PERPLEXITY --out runs/plain512 --updates 1500 --seeds 1 $STARTS --all model.local_conv=0
