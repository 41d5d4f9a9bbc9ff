"""The studies, by name: what runs each, its own flags, and what studies.yaml says of it."""

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import long_documents, recall, sentences, speed
from .engine import Comparison
from .flags import Flag
from .perplexity import MECHANISMS, PERPLEXITY


@dataclass(frozen=True)
class Study:
    """What one word after ``study.py`` runs.

    Attributes:
        run: a record for the engine, or a function of the options that returns what is printed.
        flags: its own.
        quick: what --quick changes of the defaults.
    """

    run: Comparison | Callable[[Namespace], str]
    flags: Mapping[str, Flag] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)


STUDIES = {
    "perplexity": Study(PERPLEXITY),
    "mechanisms": Study(MECHANISMS),
    "recall": Study(recall.RECALL, recall.FLAGS),
    "long-documents": Study(long_documents.LONG_DOCUMENTS, long_documents.FLAGS),
    "sentences": Study(sentences.measure_sentences, sentences.FLAGS),
    "speed": Study(speed.measure_speed, speed.FLAGS, quick=speed.QUICK),
}
