# What measured docs/own-data.md, from a clone with .venv activated; runs/books is the pretrained model, the tables are your own.
set -euo pipefail

TABLE="linformer prepare table" TO="--tokenizer runs/books --out data-bin/own"
$TABLE books.csv --text paragraph --label book $TO/books
$TABLE raises.jsonl --text text --label raises --group file $TO/raises
$TABLE stars.train.jsonl --test stars.test.jsonl --text review --label stars --kind regression $TO/stars
$TABLE punctuation.conll --text 0 --label -1 $TO/punctuation
tune() {
    linformer finetune runs/books --data data-bin/own --tasks $1 --seeds 1 --epochs $2 --learning-rates 3e-4 \
        optimization.clip_norm=1.0
}
tune books 3
tune raises 3
tune stars 2
tune punctuation 2
