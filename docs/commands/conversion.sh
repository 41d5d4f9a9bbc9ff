# What measured docs/conversion.md, from the root of a clone with .venv activated, after docs/commands/quality.sh, whose first study
# trains the source.
set -euo pipefail

SOURCE=runs/n512/softmax/lr0.005/seed1/checkpoint_last.pt
C=model.projection_multiplier=0.015625 SPLIT=model.projection=split-pool W64=model.linformer_window=64
TO="model.attention=linformer model.projected_length=128"
convert() { linformer convert $SOURCE --out start/$1 $TO ${@:2}; }
convert normal $C model.projection_init=normal
convert mean $C
linformer convert $SOURCE --out start/fitted --fit-on data-bin/python $TO $C
convert split $SPLIT
convert window64 $SPLIT $W64

FROM=checkpoint.finetune_from_model=start L="model.sharing=headwise $C" P="model.sharing=key-value $SPLIT"
TEACHER="criterion=masked_lm_distillation criterion.teacher=$SOURCE"
PERPLEXITY="linformer study perplexity --data data-bin/python"
CURVE="dataset.disable_validation=false dataset.validate_interval_updates=100 dataset.max_valid_steps=25"
VARIANTS="--variant normal $FROM/normal/checkpoint.pt $L model.projection_init=normal
    --variant mean $FROM/mean/checkpoint.pt $L --variant fitted $FROM/fitted/checkpoint.pt $L
    --variant split $FROM/split/checkpoint.pt $P --variant window64 $FROM/window64/checkpoint.pt $P $W64
    --variant softmax checkpoint.finetune_from_model=$SOURCE model.attention=softmax"
# Figures are at the best of these rates: 2.5e-3; with the teacher 5e-3, where a higher one may be better still (fitted and normal
# with the teacher: 2.5e-3); from scratch 5e-3. All seeds have one source and one conversion. By the first table's measure the rows
# without a teacher are 5.2, 20, 42, 43 and 57 % behind after 500 updates. In percent behind after 0, 100, 200, 300, 400 and 500
# updates, in the validation during training: window 64 and split-pool 5.2, 3.4, 4.1, 4.4, 4.7, 4.8, with the teacher 5.2, 6.0, 5.9,
# 3.2, 1.9, 0.9; split-pool 26, 17, 17, 17, 18, 18, with the teacher 26, 18, 17, 12, 11, 9; segment means 59, 35, 35, 35, 36, 36, with
# the teacher 59, 37, 37, 35, 33, 32; fitted 57, 35, 35, 36, 36, 37; normal 96, 50, 45, 47, 48, 49.
RATES="--learning-rates 0.001 0.0025 0.005"
$PERPLEXITY --out runs/converted --seeds 1 --updates 1 --learning-rates 1e-9 $VARIANTS # right after
$PERPLEXITY --out runs/healed --seeds 1 2 3 --updates 500 $RATES $VARIANTS --all $CURVE
$PERPLEXITY --out runs/taught --seeds 1 2 3 --updates 500 $RATES $VARIANTS --all $TEACHER $CURVE
$PERPLEXITY --out runs/scratch --seeds 1 --updates 3500 --variant softmax model.attention=softmax --variant window64 $P $W64 \
    --variant split $P --variant learned $L

# For longer texts
for N in 2048 4096; do
    WINDOW="model.projected_length=$((N / 4)) $SPLIT $W64" FROM=checkpoint.finetune_from_model=longer$N
    linformer convert $SOURCE --out longer$N/tile model.max_positions=$N
    linformer convert $SOURCE --out longer$N/interpolate --positions interpolate model.max_positions=$N
    linformer convert $SOURCE --out longer$N/window64 model.max_positions=$N model.attention=linformer $WINDOW
    VARIANTS="--variant tile $FROM/tile/checkpoint.pt model.attention=softmax
        --variant interpolate $FROM/interpolate/checkpoint.pt model.attention=softmax
        --variant window64 $FROM/window64/checkpoint.pt model.sharing=key-value $WINDOW
        --all model.max_positions=$N task.tokens_per_sample=$N dataset.batch_size=1"
    $PERPLEXITY --out runs/longer$N/start --seeds 1 --updates 1 --learning-rates 1e-9 $VARIANTS # right after
    $PERPLEXITY --out runs/longer$N/healed --seeds 1 --updates 500 --learning-rates 0.0025 $VARIANTS
done

# On novels (data-bin/books, data-bin/tasks: docs/commands/results.sh). The page's perplexities are with 25 % of the tokens
# masked, as in the studies; these trainings mask and log 15 %, and no command here measures the others. With another source
# SST-2 was 78.8 ± 0.2, with a window 78.7 ± 0.8, with learned E and F 78.6 ± 0.1, IMDB of the source 76.6 ± 1.1; SST-2 by
# Trainer and by linformer finetune (docs/export.md) 80.6 ± 0.4 and 78.8 ± 0.2.
fairseq-hydra-train --config-dir configs/pretrain --config-name tiny_512 task.data=data-bin/books \
    model.attention=softmax model.encoder_embed_dim=128 model.encoder_ffn_embed_dim=512 dataset.batch_size=4 \
    optimization.lr=[0.002] optimization.max_update=8000 lr_scheduler.warmup_updates=600 \
    dataset.validate_interval_updates=2000 dataset.max_valid_steps=50 checkpoint.save_dir=runs/source
linformer convert runs/source --out start/novels model.attention=linformer model.projected_length=128 $SPLIT $W64
fairseq-hydra-train --config-dir configs/pretrain --config-name continue recipe=tiny task.data=data-bin/books \
    checkpoint.finetune_from_model=start/novels/checkpoint.pt checkpoint.save_dir=runs/window64 dataset.batch_size=4 \
    optimization.max_update=500 lr_scheduler.warmup_updates=50 dataset.max_valid_steps=50
for RUN in source window64; do
    linformer finetune runs/$RUN --data data-bin/tasks --out runs/finetuned/$RUN --tasks sst_2 imdb \
        --seeds 1 2 3 --learning-rates 3e-4 --epochs 1 optimization.clip_norm=1.0
done
