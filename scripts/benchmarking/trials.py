"""What comparisons of small models share: results that are kept, and the time of an update.

A result lies in a file that is named after a digest of all that it depends on; it is computed once.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from fairseq_linformer.system.files import write_whole
from fairseq_linformer.system.state import read_state

from .measuring import Machine, in_turns, spread

Result = dict[str, float]  # figures by name


class _Kept(TypedDict):
    made_of: dict[str, Any]
    result: Result


def once(folder: Path, name: str, made_of: dict[str, Any], result: Callable[[], Result]) -> Result:
    """A result, from the file that is named after what it is made of; if there is none, it is computed and kept.

    Raises:
        UserError: the file is damaged.
    """
    digest = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:12]
    file = folder / f"{name}-{digest}.json"
    if file.is_file():
        return read_state(file, _Kept)["result"]
    kept = _Kept(made_of=made_of, result=result())
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(kept, indent=1) + "\n")
    return kept["result"]


def timed_once(
    folder: Path,
    made_of: dict[str, Any],
    names: Iterable[str],
    steps: Callable[[], Mapping[str, Callable[[], None]]],
    rounds: int,
) -> dict[str, Result]:
    """Seconds of an update by name, measured in turns, unless that was done on this machine.

    Args:
        folder: of the file that keeps them.
        made_of: what they depend on, machine and rounds aside.
        names: of the variants.
        steps: builds them all; an update of each, by name.
        rounds: times that each is measured, after two to warm up.

    Returns:
        The median ("seconds") and the quartiles ("low", "high") by name.
    """

    def result() -> Result:
        calls = steps()
        in_turns(calls, rounds=2)  # to warm up
        seconds = in_turns(calls, rounds)
        return {f"{name} {what}": x for name, own in seconds.items() for what, x in spread(own).items()}

    kept = once(folder, "cost", {**made_of, **Machine("cpu", "float32").describe(), "rounds": rounds}, result)
    return {name: {what: kept[f"{name} {what}"] for what in ("seconds", "low", "high")} for name in names}
