"""Write an export of every mechanism, projection and type of label into a folder, for check_exported.py."""

import sys
import tempfile
from pathlib import Path

from tests.helpers.exports import (
    LABELS,
    VARIANTS,
    write_fine_tuned,
    write_pretrained,
    write_reference,
    write_vocabulary,
)


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as work:
        vocabulary = Path(work, "vocabulary")
        vocabulary.mkdir()
        write_vocabulary(vocabulary)
        for number, options in enumerate(VARIANTS):
            checkpoint = write_pretrained(Path(work, f"run{number}"), vocabulary, **options)
            write_reference(checkpoint, out / f"variant{number}")
        for kind in LABELS:
            write_reference(write_fine_tuned(Path(work, kind), vocabulary, kind), out / kind)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
