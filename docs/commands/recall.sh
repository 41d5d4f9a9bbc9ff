# What measured docs/recall.md, from the root of a clone with .venv activated.
set -euo pipefail

STUDY="linformer study recall --learning-rates 0.00215 --seeds 1 --threads 1 --device cpu"
ALL="softmax control near_and_far fetch longformer window-and-mean split-pool mean-pool learned alternating-8 bigbird efficient
    linear lion long-short nystrom performer quasiseparable reformer revisited-linformer rfa sparse"
$STUDY --lengths 64 --updates 1000 --out runs/recall --only $ALL
$STUDY --lengths 128 --updates 1500 --out runs/recall-128 --only softmax fetch reformer sparse

# On a GPU, with Zoology's number of tokens: not run yet
linformer study recall --lengths 64 128 256 512 --tokens 65536 --updates 12500 --device cuda --out runs/recall-gpu
