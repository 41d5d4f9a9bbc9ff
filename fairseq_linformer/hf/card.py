"""Model card of an exported model."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Any

from fairseq.utils import split_paths

from ..checkpoint import read_task_state, updates_of_training
from ..finetune.sweep import SCORES_FILE
from ..model.hub import architecture_options
from ..model.options import ResolvedConfig

FEATURES = "features"  # type of an encoder without a head
TASKS = {None: "fill-mask", FEATURES: "feature-extraction", "token-label": "token-classification"}
CARD = Template("""---
library_name: $library
pipeline_tag: $tag
tags: [fairseq, $attention]
---

# Model card

An encoder with attention=$attention, made with fairseq and fairseq_linformer, for texts of up to $max_positions tokens.
No licence was chosen: add `license:` above before you publish it.

```python
$example
```

$remarks| | |
|---|---|
$table
""")


def model_card(
    run: Path, state: dict[str, Any], options: ResolvedConfig, label_type: str | None, code: str, remarks: list[str]
) -> str:
    """Return the card of a checkpoint in `run` in Markdown; `label_type` is None, FEATURES or a type of label."""
    sentences, task = "SentenceTransformer" in code, TASKS.get(label_type, "text-classification")
    rows = {**architecture_options(options), **dict(_training(run, state))}
    return CARD.substitute(
        library="sentence-transformers" if sentences else "transformers",
        tag="sentence-similarity" if sentences else task,
        attention=options.attention,
        max_positions=f"{options.max_positions:,}",
        example=code,
        remarks="".join(f"{remark}\n\n" for remark in remarks),
        table="\n".join(f"| {_cell(name)} | {_cell(value)} |" for name, value in rows.items()),
    )


def usage_example(label_type: str | None, mask: str, pairs: bool, sentences: bool, remote_code: bool) -> str:
    """Return Python code that loads the model from FOLDER and calls it."""
    trust = ", trust_remote_code=True" if remote_code else ""
    if sentences:
        load = f'from sentence_transformers import SentenceTransformer\n\nmodel = SentenceTransformer("FOLDER"{trust})'
        return f'{load}\nmodel.encode(["A text."])'
    text = '{"text": "A text.", "text_pair": "Another."}' if pairs else '"A text."'
    filled = json.dumps(f"The answer is {mask}.", ensure_ascii=False)
    inputs = {None: filled, "token-label": '"Words between spaces ."'}.get(label_type, f"{text}, truncation=True")
    words = ', aggregation_strategy="simple"' if label_type == "token-label" else ""
    task = TASKS.get(label_type, "text-classification")
    return f'from transformers import pipeline\n\nmodel = pipeline("{task}", "FOLDER"{trust}{words})\nmodel({inputs})'


def _cell(value: object) -> str:
    """Escape a value for a cell of a Markdown table: one line, without links, HTML, code or further cells."""
    line = "".join(character if character.isprintable() else " " for character in str(value))
    return re.sub(r"[\\|`<&]|(?<=\])\(", r"\\\g<0>", " ".join(line.split()))


def _training(run: Path, state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    cfg, extra, updates = state["cfg"], state.get("extra_state") or {}, updates_of_training(state)
    if origins := read_task_state(state.get("task_state"))["converted_from"]:
        yield "converted from", ", then ".join(f"{origin['source']} (SHA-256 {origin['sha256']})" for origin in origins)
    yield "updates", f"{updates:,}"
    if updates == 0:
        return  # imported or converted: without settings of a training
    yield from (("task", cfg.task._name), ("criterion", cfg.criterion._name))
    yield "data", Path(split_paths(str(cfg.task.data))[0]).name
    yield "learning rate", ", ".join(map(str, cfg.optimization.lr))
    if extra.get("best") is not None:
        yield f"best {cfg.checkpoint.best_checkpoint_metric} of validation", extra["best"]
    if (run / SCORES_FILE).is_file():
        for split, scores in json.loads((run / SCORES_FILE).read_text())["scores"].items():
            yield from ((f"{split}: {name}", f"{score:.1f}") for name, score in scores.items())
