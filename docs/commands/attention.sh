# What measured docs/attention.md, from the root of a clone with .venv activated. data-bin/python is a prepared corpus of
# Python's sources, data-bin/books of novels, both with 4,000 pieces. data-bin/books-no-bytes has no bytes among them, as
# made at commit 49d33e8: python scripts/prepare_corpus.py --train books/train.txt.xz --valid books/valid.txt.xz \
#     --out data-bin/books-no-bytes --vocab-size 4000
set -euo pipefail

# What they reach and cost
STUDY="linformer study mechanisms --updates 1500"
MUON="optimizer=muon model.value_residual=true"
ONE="--seeds 1 --learning-rates 0.01"
$STUDY --data data-bin/python --out runs/attention --learning-rates 0.005 0.01 0.02 --all $MUON
$STUDY --data data-bin/python --out runs/attention $ONE --all optimizer=muon model.value_residual=false
LONG="dataset.batch_size=1 task.tokens_per_sample=2048 model.max_positions=2048"
$STUDY --data data-bin/python --out runs/attention-2048 $ONE --all $MUON $LONG 'task.lengths=[512:0.6666667,2048:0.3333333]'

# Novels
$STUDY --data data-bin/books --out runs/attention-books $ONE --all $MUON
$STUDY --data data-bin/books --out runs/attention-books --learning-rates 0.01 --all $MUON --only softmax lion long-short control

# n = 4,096, and the other mechanisms
linformer study speed --suites models --layers 2 --embed-dim 64 --heads 4 --vocab-size 4000 --dropout 0 --tokens 2048 \
    --lengths 512 4096 --models softmax bigbird longformer reformer --out runs/attention-speed

# docs/long-documents.md: the needle
NEEDLES="linformer study long-documents --task needles --corpus books/train.txt.xz --lengths 512 --learning-rates 0.00075"
NEEDLES+=" --device cpu --threads 1"
SOFTMAX="--variant softmax model.attention=softmax"
$NEEDLES --tokenizer data-bin/books-no-bytes --seeds 1 --out runs/needles \
    --all model.value_residual=true $SOFTMAX \
    --variant control model.projection=mean-pool model.projected_length=1 \
    --variant near_and_far-class-token preset=near_and_far model.linformer_class_token=true \
    --variant fetch-class-token preset=fetch model.linformer_class_token=true \
    --variant window-and-mean-class-token preset=near_and_far model.projection=mean-pool model.projected_length=1 \
        model.linformer_class_token=true \
    --variant split-pool model.projection=split-pool \
    --variant linformer model.attention=linformer \
    --variant longformer model.attention=longformer model.longformer_window=128 \
    --variant bigbird model.attention=bigbird model.bigbird_block=16 \
    --variant sparse model.attention=sparse model.sparse_stride=32 model.sparse_expressivity=6 \
    --variant reformer model.attention=reformer model.reformer_chunk_length=16 model.reformer_hashes=3 \
    --variant alternating model.attention=alternating model.alternating_every=2 model.alternating_first=1 \
    --variant long-short-class-token model.attention=long-short model.long_short_window=48 model.long_short_class_token=true \
    --variant quasiseparable model.attention=quasiseparable \
    --variant lion model.attention=lion \
    --variant lion-d model.attention=lion model.lion_decay=learned \
    --variant lion-lit model.attention=lion model.lion_decay=none \
    --variant efficient model.attention=efficient \
    --variant linear model.attention=linear \
    --variant hedgehog model.attention=linear model.linear_feature_map=hedgehog \
    --variant nystrom model.attention=nystrom model.nystrom_landmarks=128 \
    --variant performer model.attention=performer model.performer_features=128 \
    --variant rfa model.attention=rfa \
    --variant revisited-linformer model.attention=revisited-linformer \
    --variant none model.attention=none
$NEEDLES --tokenizer data-bin/books --seeds 2 3 --out runs/needles-bytes --all model.value_residual=true $SOFTMAX
BYTES="$NEEDLES --tokenizer data-bin/books --seeds 1 --all model.value_residual=true $SOFTMAX --learning-rates 0.0015"
$BYTES --out runs/needles-bytes-1
$BYTES --updates 4000 --out runs/needles-bytes-4000
