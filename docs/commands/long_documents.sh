# What measured docs/long-documents.md, from the root of a clone with .venv activated. books/*.txt.xz are novels, a blank
# line after each book and none within one; they are not in the repository. data-bin/books is a corpus of them with 4,000
# pieces: for the tables without bytes among them (attention.sh says how it was made), for heads on the mean with them.
set -euo pipefail

BOOKS="--corpus books/train.txt.xz --tokenizer data-bin/books"
ALL="--only softmax-residual control linformer near_and_far near_and_far-class-token longformer performer"
FIVE="--only softmax-residual control linformer near_and_far near_and_far-class-token"
CPU="--device cpu --threads 1 --out runs/long"
STUDY="linformer study long-documents"

$STUDY --task books $BOOKS --lengths 512 2048 --learning-rates 0.0005 0.001 0.002 0.004 $ALL $CPU
$STUDY --task books $BOOKS --lengths 2048 --learning-rates 0.0005 0.001 0.002 0.004 --only fetch-class-token $CPU
$STUDY --task needles $BOOKS --lengths 512 $FIVE $CPU
$STUDY --task needles $BOOKS --lengths 1024 --updates 4000 $FIVE $CPU
$STUDY --task needles $BOOKS --lengths 1024 --updates 4000 --learning-rates 0.00075 --only fetch-class-token $CPU

# Heads that read the mean over the passage
MEAN=model.classifier_pooling=mean
NEAR="model.projection=split-pool model.linformer_window=128 model.projected_length=128 model.value_residual=true $MEAN"
$STUDY --task books $BOOKS --lengths 2048 --learning-rates 0.0005 0.001 0.002 0.004 $CPU \
    --variant near-mean $NEAR --variant longformer-mean model.attention=longformer model.longformer_window=128 $MEAN \
    --variant control-mean model.projection=mean-pool model.projected_length=1 $MEAN
$STUDY --task books $BOOKS --lengths 2048 --learning-rates 0.0005 0.001 0.002 $CPU \
    --variant softmax-mean model.attention=softmax model.value_residual=true $MEAN
$STUDY --task needles $BOOKS --lengths 512 $CPU --variant near-mean $NEAR
