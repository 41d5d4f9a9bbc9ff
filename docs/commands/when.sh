# What measured docs/when.md, from the root of a clone with .venv activated. data has books (novels, a blank line after each)
# and glue, aclImdb is the folder of IMDB or of a sample of it, all-MiniLM-L6-v2 its folder.
set -euo pipefail

python docs/commands/when_texts.py data/books data/glue aclImdb when/text
linformer prepare corpus --train when/text/train.txt --valid when/text/valid.txt --out data-bin/when --vocab-size 8000

# From scratch: the same model, after one update that changes hardly anything
RECIPE="+preset=fast optimizer.weight_decay=0.01 optimizer.embedding_lr_multiplier=1"
pretrain() { # NAME UPDATES LEARNING-RATE WARMUP [D]
    fairseq-hydra-train --config-dir configs/pretrain --config-name tiny_512 task.data=${CORPUS:-data-bin/when} $RECIPE \
        dataset.batch_size=4 \
        model.attention=softmax model.encoder_embed_dim=${5:-128} model.encoder_ffn_embed_dim=$((4 * ${5:-128})) \
        optimization.max_update=$2 optimization.lr=[$3] lr_scheduler.warmup_updates=$4 dataset.max_valid_steps=50 \
        checkpoint.save_interval_updates=2000 checkpoint.save_dir=runs/when/$1
}
pretrain pretrained 5000 0.005 250
pretrain scratch 1 1e-9 0
linformer import all-MiniLM-L6-v2 --out runs/when/published

for MODEL in pretrained scratch published; do
    TO="--tokenizer runs/when/$MODEL --out data-bin/when-$MODEL"
    linformer prepare table data/glue/SST-2/train.tsv --test data/glue/SST-2/dev.tsv --text sentence --split 0.98 0.02 \
        $TO/phrases
    for TASK in reviews novels; do
        linformer prepare table when/text/$TASK.train.jsonl --valid when/text/$TASK.valid.jsonl \
            --test when/text/$TASK.test.jsonl $TO/$TASK
    done
done
tune() { # MODEL TASK [OPTION...]
    linformer finetune runs/when/$1 --data data-bin/when-$1 --tasks $2 --out runs/when/finetuned-$1 "${@:3}" \
        optimization.clip_norm=1.0
}
for MODEL in pretrained scratch; do
    RATES="--learning-rates 5e-4 2e-3" ONE="--seeds 1 --learning-rates 1e-3 --batch-sizes 16"
    MEAN="task.truncate_to=256 model.classifier_pooling=mean" # without it: the rows with the head on <s>
    tune $MODEL phrases --train-rows 50 500 $RATES
    tune $MODEL phrases --train-rows 4000 $RATES --epochs 3
    tune $MODEL phrases --learning-rates 7e-4 2e-3 --epochs 2
    tune $MODEL reviews --train-rows 500 $ONE $MEAN
    tune $MODEL reviews --train-rows 4000 $ONE --epochs 3 $MEAN
    tune $MODEL novels --out runs/when/novels500-$MODEL --train-rows 500 $ONE $MEAN
    tune $MODEL novels --out runs/when/novels-$MODEL --train-rows 4000 $ONE --epochs 3 $MEAN
done
tune published phrases --train-rows 500 --seeds 1 --learning-rates 1e-4
tune published phrases --train-rows 4000 --seeds 1 --learning-rates 1e-4 --epochs 3

# Reviews: less pretraining of three sizes, what stands at the end, all of them, and the published encoder
REVIEWS="--epochs 3 $ONE $MEAN" ENDS=task.truncation=head-tail
for D in 64 128 256; do
    pretrain short$D 1250 0.005 62 $D
    tune short$D reviews --data data-bin/when-pretrained --train-rows 4000 $REVIEWS
done
tune pretrained reviews --out runs/when/ends --train-rows 4000 $REVIEWS $ENDS
tune scratch reviews --out runs/when/scratch-ends --train-rows 4000 $REVIEWS $ENDS
linformer prepare table when/text/reviews.all.jsonl --valid when/text/reviews.valid.jsonl \
    --test when/text/reviews.test.jsonl --tokenizer runs/when/pretrained --out data-bin/when-all/reviews
tune pretrained reviews --data data-bin/when-all --out runs/when/all $REVIEWS $ENDS
PUBLISHED="--epochs 1 --seeds 1 --batch-sizes 16 --learning-rates 1e-4 $MEAN"
tune published reviews --out runs/when/published-reviews --train-rows 4000 $PUBLISHED
tune published reviews --out runs/when/published-ends --train-rows 4000 $PUBLISHED $ENDS
linformer prepare table when/text/reviews.all.jsonl --valid when/text/reviews.valid.jsonl \
    --test when/text/reviews.test.jsonl --tokenizer runs/when/published --out data-bin/when-published-all/reviews
tune published reviews --data data-bin/when-published-all --out runs/when/published-all $PUBLISHED $ENDS
tune published reviews --data data-bin/when-published-all --out runs/when/published-512 --epochs 2 --seeds 1 \
    --batch-sizes 16 --learning-rates 5e-5 1e-4 task.truncate_to=512 model.classifier_pooling=mean $ENDS

# docs/quality.md: as many updates of Adam
RECIPE="" pretrain adam 1250 0.0025 62
linformer prepare glue --source data/glue --tasks STS-B --tokenizer runs/when/pretrained --out data-bin/when-pretrained
STS="--seeds 1 --learning-rates 5e-4 2e-3 --batch-sizes 16 --epochs 4 model.classifier_pooling=mean"
for MODEL in short128 adam; do
    HERE="--data data-bin/when-pretrained"
    tune $MODEL STS-B $HERE --out runs/when/sts-$MODEL $STS
    tune $MODEL reviews $HERE --out runs/when/reviews-$MODEL --train-rows 4000 $REVIEWS
    tune $MODEL phrases $HERE --out runs/when/phrases-$MODEL --train-rows 4000 --seeds 1 --learning-rates 5e-4 2e-3 \
        --epochs 3
done

# The same with the embeddings' own learning rate
RECIPE=+preset=fast pretrain fast 1250 0.005 62
tune fast phrases --data data-bin/when-pretrained --train-rows 4000 --learning-rates 5e-4 2e-3 --epochs 3
tune fast reviews --data data-bin/when-pretrained --train-rows 4000 $REVIEWS

# What a function does: source code, pretrained on other files of the same packages
PYTHONPATH=scripts python docs/commands/when_functions.py when/functions
linformer prepare corpus --train when/functions/train.txt --valid when/functions/valid.txt --out data-bin/when-code \
    --vocab-size 8000
CORPUS=data-bin/when-code pretrain code 5000 0.005 250
CORPUS=data-bin/when-code pretrain code-scratch 1 1e-9 0
for MODEL in code code-scratch published; do
    linformer prepare table when/functions/functions.train.jsonl --valid when/functions/functions.valid.jsonl \
        --test when/functions/functions.test.jsonl --tokenizer runs/when/$MODEL --out data-bin/functions-$MODEL/functions
done
for MODEL in code code-scratch; do
    FUNCTIONS="functions --data data-bin/functions-$MODEL --batch-sizes 16 $MEAN"
    tune $MODEL $FUNCTIONS --train-rows 50 500 $RATES
    tune $MODEL $FUNCTIONS --train-rows 4000 $RATES --epochs 3
    tune $MODEL $FUNCTIONS --train-rows 10000 --seeds 1 --learning-rates 2e-3 --epochs 3
done

# Adam or Muon in fine-tuning
MUON="optimizer=muon optimizer.weight_decay=0.1" EMBEDDINGS=optimizer.embedding_lr_multiplier=10
SOME="--train-rows 4000 --epochs 3" ONCE="--seeds 1 --batch-sizes 16"
for MODEL in pretrained scratch; do
    tune $MODEL phrases --out runs/when/muon-$MODEL $SOME --learning-rates 2e-3 5e-3 1e-2 $MUON
    tune $MODEL reviews --out runs/when/muon-reviews-$MODEL $SOME $ONCE --learning-rates 1e-3 2e-3 3e-3 $MUON $MEAN $ENDS
    tune $MODEL novels --out runs/when/adam-novels-$MODEL $SOME $ONCE --learning-rates 1e-3 2e-3 $MEAN
    tune $MODEL novels --out runs/when/muon-novels-$MODEL $SOME $ONCE --learning-rates 2e-3 5e-3 $MUON $MEAN
    tune $MODEL novels --out runs/when/muon-novels500-$MODEL --train-rows 500 $ONCE --learning-rates 2e-3 $MUON $MEAN
done
for MODEL in code code-scratch; do
    tune $MODEL functions --data data-bin/functions-$MODEL --out runs/when/muon-$MODEL $SOME $ONCE --learning-rates 2e-3 \
        $MUON $MEAN
done
tune pretrained novels --out runs/when/embeddings $SOME $ONCE --learning-rates 2e-3 $MUON $EMBEDDINGS $MEAN
tune pretrained phrases --out runs/when/embeddings $SOME --seeds 1 --learning-rates 5e-4 2e-3 5e-3 $MUON $EMBEDDINGS
tune fast phrases --data data-bin/when-pretrained --out runs/when/fast-muon $SOME --learning-rates 2e-3 5e-3 $MUON

# The vectors of the published encoder, and the picture
vectors() { # DATA OUT RESULTS...
    PYTHONPATH=scripts python docs/commands/when.py runs/when/published/checkpoint.pt "$@"
}
vectors data-bin/when-published runs/when/vectors \
    runs/when/finetuned-pretrained runs/when/finetuned-scratch runs/when/finetuned-published
vectors data-bin/functions-published runs/when/vectors runs/when/finetuned-code runs/when/finetuned-code-scratch
PYTHONPATH=scripts python docs/commands/when_picture.py docs/when.md docs/when/when.png
