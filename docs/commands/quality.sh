# What measured docs/quality.md, from the root of a clone with .venv activated. Each study takes minutes to hours on two cores;
# what is complete is not trained again.
set -euo pipefail

# The text: the sources of Python's standard library, 4,000 pieces
python scripts/python_sources.py --out data/python
linformer prepare corpus --train data/python/train.txt --valid data/python/valid.txt --out data-bin/python --vocab-size 4000

ONE="model.projection=mean-pool model.projected_length=1"
SPLIT=model.projection=split-pool
C=model.projection_multiplier=0.015625 # 1/64
V=model.value_residual=true
PERPLEXITY="linformer study perplexity --data data-bin/python"

# Without value residuals; --seeds 1 2 3 for the rows with three seeds
$PERPLEXITY --out runs/n512 --updates 3000 --seeds 1 --learning-rates 0.0025 0.005 0.01 \
    --variant softmax model.attention=softmax --variant control $ONE \
    --variant learned-layerwise $C --variant learned-key-value $C model.sharing=key-value \
    --variant mean-pool model.projection=mean-pool --variant attention-pool model.projection=attention-pool \
    --variant split-pool $SPLIT \
    --variant window64-one $ONE model.linformer_window=64 \
    --variant window64-32 $SPLIT model.projected_length=32 model.linformer_window=64 \
    --variant window64-128 $SPLIT model.linformer_window=64 \
    --variant window128-one $ONE model.linformer_window=128 \
    --variant window128-32 $SPLIT model.projected_length=32 model.linformer_window=128 \
    --variant window128-128 $SPLIT model.linformer_window=128

# With value residuals
$PERPLEXITY --out runs/residuals --updates 3000 --seeds 1 2 3 --learning-rates 0.0025 0.005 0.01 \
    --variant softmax model.attention=softmax $V --variant control $ONE $V \
    --variant window128-32 $SPLIT model.projected_length=32 model.linformer_window=128 $V \
    --variant window128-128 $SPLIT model.linformer_window=128 $V
$PERPLEXITY --out runs/residuals --updates 3000 --seeds 1 2 3 \
    --variant learned-layerwise $C $V --variant mean-pool model.projection=mean-pool $V --variant split-pool $SPLIT $V \
    --variant window128-one $ONE model.linformer_window=128 $V
$PERPLEXITY --out runs/residuals6000 --updates 6000 --seeds 1 --variant softmax model.attention=softmax \
    --variant softmax-residual model.attention=softmax $V \
    --variant window128-128 $SPLIT model.linformer_window=128 \
    --variant window128-128-residual $SPLIT model.linformer_window=128 $V

# n = 512 first, then 2,048; with seed 1 also lr 1e-3 and 5e-3
for S in 1 2 3; do
    FROM=runs/residuals TO=runs/longer$S
    longer() { linformer convert $FROM/$1/lr0.005/seed$S --out $TO/$2 model.max_positions=2048 ${@:3}; }
    longer softmax softmax
    longer control control
    longer window128-128 near model.projected_length=128
    longer window128-128 near512 model.projected_length=512
    THEN="$PERPLEXITY --seeds $S --all model.max_positions=2048 task.tokens_per_sample=2048 dataset.batch_size=1"
    START=checkpoint.finetune_from_model=$TO WINDOW="$SPLIT model.linformer_window=128 $V"
    $THEN --out runs/then$S --updates 1500 --learning-rates 0.0025 \
        --variant softmax $START/softmax/checkpoint.pt model.attention=softmax $V \
        --variant control $START/control/checkpoint.pt $ONE $V \
        --variant near $START/near/checkpoint.pt $WINDOW model.projected_length=128 \
        --variant near512 $START/near512/checkpoint.pt $WINDOW model.projected_length=512
done

# What is far, in rows of 2,048: rows are short first, in one run
WINDOW="model.linformer_window=128 model.linformer_block=32 model.linformer_sinks=1 $V"
ROWS="$SPLIT model.projected_length=128 model.adaptive_length=true $WINDOW"
FAR="$PERPLEXITY --updates 4500 --all model.max_positions=2048 task.tokens_per_sample=2048 dataset.batch_size=1
    task.lengths=[512:0.6666667,2048:0.3333333]"
$FAR --out runs/far --seeds 1 2 3 --learning-rates 0.0025 0.005 \
    --variant softmax model.attention=softmax $V \
    --variant fetch $ROWS model.linformer_fetch=8 \
    --variant alternating model.attention=alternating model.alternating_every=2 model.alternating_first=1 \
        model.alternating_window=256 $V \
    --variant longformer model.attention=longformer model.longformer_window=256 $V \
    --variant window-and-mean $ONE $WINDOW
$FAR --out runs/far1 --seeds 1 --learning-rates 0.005 \
    --variant rows $ROWS --variant softmax-rotary model.attention=softmax model.positions=rotary $V

# Novels (data-bin/books: docs/commands/results.sh)
NOVELS="fairseq-hydra-train --config-dir configs/pretrain --config-name tiny_512 task.data=data-bin/books
    model.encoder_embed_dim=128 model.encoder_ffn_embed_dim=512 dataset.batch_size=4 optimization.lr=[0.002]
    optimization.max_update=8000 lr_scheduler.warmup_updates=600 dataset.validate_interval_updates=2000
    dataset.max_valid_steps=50"
$NOVELS checkpoint.save_dir=runs/softmax model.attention=softmax
$NOVELS checkpoint.save_dir=runs/residual model.attention=softmax $V
$NOVELS checkpoint.save_dir=runs/preset +preset=near_and_far

# The multiplier of a learned matrix
C=model.projection_multiplier
for N in 512 2048 4096; do
    $PERPLEXITY --out runs/multipliers/n$N --updates 1500 --seeds 1 --all model.projected_length=128 \
            model.max_positions=$N task.tokens_per_sample=$N dataset.batch_size=$((N < 2048 ? 2048 / N : 1)) \
        --variant mean-pool model.projection=mean-pool --variant control $ONE --variant c1 $C=1 --variant c8 $C=0.125 \
        --variant c32 $C=0.03125 --variant c128 $C=0.0078125 --variant c1024 $C=0.0009765625
done

# The fast preset: Muon
FAST="--updates 2000 --all model.value_residual=true model.encoder_embed_dim=128 model.encoder_ffn_embed_dim=512"
$PERPLEXITY --out runs/muon --learning-rates 0.0025 0.005 0.01 $FAST +preset=near_and_far \
    --variant adam --variant muon optimizer=muon
$PERPLEXITY --out runs/muon --seeds 1 --learning-rates 0.00125 $FAST +preset=near_and_far --variant adam
$PERPLEXITY --out runs/muon --seeds 1 --learning-rates 0.005 $FAST optimizer=muon \
    --variant muon-softmax model.attention=softmax --variant muon-control $ONE
$PERPLEXITY --out runs/muon --seeds 1 --learning-rates 0.005 $FAST +preset=near_and_far optimizer=muon \
    --variant muon-masks task.mask_prob=0.3 task.mask_prob_end=0.15 \
    --variant muon-trapezoidal lr_scheduler=trapezoidal --variant muon-words task.mask_whole_words=true
$PERPLEXITY --out runs/decay $FAST +preset=near_and_far optimizer=muon --variant muon \
    --variant decay0.1 optimizer.weight_decay=0.1 # and decay0.5 with seed 1
$PERPLEXITY --out runs/parts --learning-rates 0.0025 0.005 --updates 2000 \
    --all model.encoder_embed_dim=128 model.encoder_ffn_embed_dim=512 +preset=near_and_far \
    --variant whole optimizer=muon optimizer.weight_decay=0.1 \
    --variant no-residual optimizer=muon optimizer.weight_decay=0.1 model.value_residual=false \
    --variant paper optimizer=fused_adam model.value_residual=false
$PERPLEXITY --out runs/third --learning-rates 0.005 --updates 667 \
    --all model.encoder_embed_dim=128 model.encoder_ffn_embed_dim=512 +preset=near_and_far \
    --variant whole optimizer=muon optimizer.weight_decay=0.1

# The whole preset, with the embeddings' learning rate; against Adam in turns
S="model.encoder_embed_dim=128 model.encoder_ffn_embed_dim=512"
$PERPLEXITY --out runs/fast-third --updates 667 --learning-rates 0.01 --all $S --variant fast +preset=[fast,near_and_far]
$PERPLEXITY --out runs/fast --updates 2000 --learning-rates 0.0025 0.005 --all $S \
    --variant adam +preset=near_and_far --variant fast +preset=[fast,near_and_far]
$PERPLEXITY --out runs/embeddings --updates 667 --seeds 1 --learning-rates 0.005 0.01 --all $S +preset=[fast,near_and_far] \
    --variant three optimizer.embedding_lr_multiplier=3 --variant ten

# At n = 2,048 fewer updates, short rows first, against Adam in rows of 2,048. Minutes are updates of either length by
# their milliseconds, which all three variants had in turns, in studies of two updates in rows of 512 and of 2,048.
LONG="$PERPLEXITY --seeds 1 --all model.max_positions=2048 task.tokens_per_sample=2048 dataset.batch_size=1"
for U in 1500 3000; do
    $LONG task.lengths=[512:0.6666667,2048:0.3333333] +preset=fast optimizer.embedding_lr_multiplier=1 \
        --out runs/race-fast$U --updates $U \
        --variant softmax model.attention=softmax --variant fetch $ROWS model.linformer_fetch=8
done
$LONG --out runs/race --updates 4500 --learning-rates 0.0025 0.005 --variant softmax model.attention=softmax

$FAR +preset=fast --out runs/far-fast --seeds 1 \
    --variant softmax model.attention=softmax --variant fetch $ROWS model.linformer_fetch=8
$FAR optimizer=muon --out runs/far-muon --seeds 1 \
    --variant softmax model.attention=softmax $V --variant fetch $ROWS model.linformer_fetch=8 \
    --variant window-and-mean $ONE $WINDOW
