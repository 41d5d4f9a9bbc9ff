# What measured the preparation of a corpus in docs/results.md, from the root of a clone with .venv activated: linformer prepare
# corpus against sentencepiece to text plus fairseq-preprocess, with one vocabulary and as many processes. Training the
# vocabulary is not timed, starting each program is. Ends with an error where the datasets are not byte for byte the same.
#
#     bash docs/commands/corpus_speed.sh books.txt 2
set -euo pipefail

TEXT=$1 WORKERS=$2 OUT=$(mktemp -d)
trap 'rm -rf "$OUT"' EXIT
prepare() { linformer prepare corpus --train "$TEXT" --valid "$OUT/valid.txt" --workers "$WORKERS" --out "$OUT/$1" "${@:2}"; }
encode() { # pieces as text
    python -c 'import sys, sentencepiece
print(*map(" ".join, sentencepiece.SentencePieceProcessor(model_file=sys.argv[1]).Encode(
    sys.stdin.read().removesuffix("\n").split("\n"), out_type=str, num_threads=int(sys.argv[2]))), sep="\n")' \
        "$OUT/vocabulary/sentencepiece.bpe.model" "$WORKERS" < "$1" > "$2"
}
theirs() {
    encode "$TEXT" "$OUT/train.pieces"
    encode "$OUT/valid.txt" "$OUT/valid.pieces"
    fairseq-preprocess --only-source --srcdict "$OUT/vocabulary/dict.txt" --trainpref "$OUT/train.pieces" \
        --validpref "$OUT/valid.pieces" --destdir "$OUT/theirs" --workers "$WORKERS" > "$OUT/log"
}
head -n 1000 "$TEXT" > "$OUT/valid.txt"
prepare vocabulary --vocab-size "${VOCAB_SIZE:-8000}"
time prepare ours --tokenizer "$OUT/vocabulary"
time theirs
for FILE in train.bin train.idx valid.bin valid.idx; do
    cmp "$OUT/ours/$FILE" "$OUT/theirs/$FILE"
done
