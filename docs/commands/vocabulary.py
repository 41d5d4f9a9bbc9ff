"""What pieces of bytes do to a vocabulary: unknown pieces and tokens per character of docs/pretraining.md.

    python docs/commands/vocabulary.py TRAIN VALID VOCAB_SIZE ...

TRAIN and VALID are text files or folders of them: /usr/share/man/man1 and /usr/share/man/man8, books/train.txt.xz and
/usr/share/man/man8. Of TRAIN at most two million characters are learned from, of VALID a million and a half encoded.
"""

import io
import sys
from pathlib import Path

import numpy as np
import sentencepiece

from fairseq_linformer.data.prepare.text_files import find_files, read_chunks
from fairseq_linformer.data.prepare.vocabulary_training import LineSample


def sampled(place: str, characters: int) -> list[str]:
    sample = LineSample(characters, seed=1)
    for chunk in read_chunks(find_files([Path(place)])):
        sample.add(chunk.lines)
    return sample.lines()


train, valid = sampled(sys.argv[1], 2_000_000), sampled(sys.argv[2], 1_500_000)
print("| pieces | bytes among them | unknown, % | bytes, % | tokens per character |\n|---|---|---|---|---|")
for size in map(int, sys.argv[3:]):
    for with_bytes in (False, True):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(train),
            model_writer=model,
            vocab_size=size,
            byte_fallback=with_bytes,
            max_sentence_length=2**30,
            shuffle_input_sentence=False,
            minloglevel=2,
        )
        pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        ids = np.concatenate([np.array(row, dtype=int) for row in pieces.Encode(valid)])
        unknown, are_bytes = ids == pieces.unk_id(), [pieces.IsByte(number) for number in range(size)]
        shares = f"{100 * unknown.mean():.3f} | {100 * np.array(are_bytes)[ids].mean():.3f}"
        print(f"| {size} | {with_bytes} | {shares} | {ids.size / sum(map(len, valid)):.4f} |", flush=True)
