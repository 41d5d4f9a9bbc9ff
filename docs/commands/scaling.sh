# What measured the speeds in docs/scaling.md, from the root of a clone with .venv activated: tokens per second of a pretraining
# on so many processes, in turns, each with as many rows per update. Prints the rates that fairseq logs, three
# rounds; the first of them read the data and warm up.
#
#     bash docs/commands/scaling.sh data-bin/books 1 2 4
#     CONFIG=base_512 UPDATES=60 OWN= bash docs/commands/scaling.sh data-bin/books 1 2 4 8     # on GPUs
set -euo pipefail

OUT=$(mktemp -d)
trap 'rm -rf "$OUT"' EXIT
for ROUND in 1 2 3; do
    for RANKS in "${@:2}"; do
        OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} torchrun --standalone --nproc-per-node "$RANKS" --no-python \
            fairseq-hydra-train --config-dir configs/pretrain --config-name "${CONFIG:-tiny_512}" +distributed=torchrun \
            task.data="$(realpath "$1")" optimization.max_update="${UPDATES:-25}" checkpoint.save_dir="$OUT" \
            checkpoint.no_save=true dataset.disable_validation=true common.log_format=json common.log_interval=5 \
            ${OWN-dataset.batch_size=4 dataset.num_workers=0} > "$OUT/log" 2>&1 || { tail -n 15 "$OUT/log"; exit 1; }
        echo "$RANKS processes: $(grep -o '"wps": "[0-9.]*"' "$OUT/log" | tr -dc '0-9.\n' | xargs)"
    done
done
