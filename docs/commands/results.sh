# What measured docs/results.md, from the root of a clone with .venv activated. books/*.txt.xz are 61 M characters of English
# novels, which are not in the repository; data-bin/tasks holds GLUE and a sample of IMDB (docs/tasks.md).
set -euo pipefail

linformer prepare corpus --train books/train.txt.xz --valid books/valid.txt.xz --out data-bin/books --vocab-size 4000

# Books: Linformer with c = 1; full attention with model.attention=softmax and another save_dir
fairseq-hydra-train --config-dir configs/pretrain --config-name tiny_512 task.data=data-bin/books \
    model.attention=linformer model.projection_multiplier=1 model.encoder_embed_dim=128 \
    model.encoder_ffn_embed_dim=512 dataset.batch_size=4 optimization.lr=[0.002] optimization.max_update=12000 \
    lr_scheduler.warmup_updates=600 checkpoint.save_interval_updates=1000 dataset.validate_interval_updates=2000 \
    dataset.max_valid_steps=50 checkpoint.save_dir=runs/books

tune() { # MODEL NAME [OVERRIDE...]
    TUNE="linformer finetune $1 --data data-bin/tasks --out runs/finetuned/$2 --seeds 1 2 3 --learning-rates 3e-4"
    $TUNE --tasks cola --epochs 5 optimization.clip_norm=1.0 ${@:3}
    $TUNE --tasks rte mrpc sts_b --epochs 3 optimization.clip_norm=1.0 ${@:3}
    $TUNE --tasks sst_2 imdb --epochs 1 optimization.clip_norm=1.0 ${@:3}
}
tune runs/books books

# With value residuals (the pretraining of preset, residual and softmax: docs/commands/quality.sh at commit 05efffa)
for RUN in preset residual softmax; do tune runs/$RUN $RUN; done
tune runs/preset preset_adaptive model.adaptive_length=true
tune runs/preset preset_class_token model.linformer_class_token=true

# Without a window (the pretraining of runs/source: docs/commands/conversion.sh at commit 05efffa)
linformer convert runs/source --out start/linformer model.attention=linformer model.projected_length=128
fairseq-hydra-train --config-dir configs/pretrain --config-name continue recipe=tiny task.data=data-bin/books \
    checkpoint.finetune_from_model=start/linformer/checkpoint.pt checkpoint.save_dir=runs/linformer dataset.batch_size=4 \
    optimization.max_update=500 lr_scheduler.warmup_updates=50 dataset.max_valid_steps=50
tune runs/source source
tune runs/linformer linformer
tune runs/linformer adaptive model.adaptive_length=true
tune runs/linformer both model.adaptive_length=true model.linformer_class_token=true

# The quickstart's classifiers by other optimizers and learning rates, after make quickstart
classify() { # NAME OPTION...
    for SEED in 1 2 3; do
        for START in ${STARTS:-quickstart/pretrained/checkpoint_best.pt null}; do
            fairseq-hydra-train --config-dir configs/finetune --config-name finetune recipe=docstrings model=tiny_512 \
                model.encoder_layers=2 model.encoder_embed_dim=128 model.encoder_ffn_embed_dim=512 \
                model.classifier_pooling=mean task.data=quickstart/data-classification \
                checkpoint.finetune_from_model=$START common.seed=$SEED \
                checkpoint.save_dir=runs/quick/$1-$(basename $START)-$SEED "${@:2}"
        done
    done
}
pretrain() { # NAME OPTION...
    fairseq-hydra-train --config-dir configs/pretrain --config-name tiny_512 +preset=fast model.encoder_layers=2 \
        model.encoder_embed_dim=128 model.encoder_ffn_embed_dim=512 task.data=quickstart/data optimization.lr=[0.005] \
        lr_scheduler.warmup_updates=150 optimization.max_update=2500 checkpoint.save_dir=runs/quick/$1 "${@:2}"
    STARTS=runs/quick/$1/checkpoint_best.pt classify $1 optimizer=muon
}
pretrain documents task.sample_break_mode=complete_doc dataset.batch_size=null dataset.max_tokens=2048
pretrain spans dataset.batch_size=4 task.mask_multiple_length=3
pretrain words dataset.batch_size=4 task.mask_whole_words=true
for LR in 0.0005 0.002 0.005; do classify adam$LR optimization.lr=[$LR]; done
