# What measures docs/sentence-encoders.md, from the root of a clone with .venv activated. all-MiniLM-L6-v2 is its
# folder, data has books and glue, and aclImdb_v1.tar.gz is the official archive.
set -euo pipefail

linformer import all-MiniLM-L6-v2 --out start/original
linformer convert start/original --out start/full model.max_positions=4096
near() {
    linformer convert start/original --out start/$1 model.attention=linformer model.max_positions=4096 \
        model.adaptive_length=true model.linformer_window=128 model.linformer_block=32 model.linformer_sinks=1 ${@:2}
}
near control model.projection=mean-pool model.projected_length=1
near rows model.projection=split-pool model.projected_length=128
near fetch model.projection=split-pool model.projected_length=128 model.linformer_fetch=8

MODELS="--model original=start/original control=start/control rows=start/rows fetch=start/fetch"
study() { linformer study sentences --out runs/sentences/$1 $MODELS ${@:2}; }
study short --glue data/glue --imdb aclImdb_v1.tar.gz
MODELS="$MODELS full=start/full"
study passages --books data/books/valid.txt.xz data/books/test.txt.xz --python
study cost --cost 1 2 --transformers all-MiniLM-L6-v2
