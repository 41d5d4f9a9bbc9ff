"""The model card of an exported model: how it is used, what it is, and what its run says of its training."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq.utils import get_perplexity, split_paths
from huggingface_hub import ModelCardData

from ..checkpoint import read_task_state, updates_of_training
from ..data.dictionaries import REPORT_FILE
from ..finetune.report import RESULTS_FILE
from ..finetune.sweep import SCORES_FILE
from ..model.config import ResolvedConfig
from ..model.hub import architecture_options
from ..training.launch import command_line
from .markdown import cell, fenced

FEATURES = "features"  # the kind of an encoder alone
PIPELINES: dict[str | None, str] = {
    None: "fill-mask",
    FEATURES: "feature-extraction",
    "token-label": "token-classification",
}  # text-classification of all other kinds
OF_WORDS = '"Words between spaces ."'
OF_TEXTS, OF_PAIRS = '"A text."', '{"text": "A text.", "text_pair": "Another."}'
QUOTES = "'\""  # around what Hydra reads, which are not a shell's


def model_card(
    run: Path,
    state: Mapping[str, Any],
    options: ResolvedConfig,
    *,
    parameters: int,
    kind: str | None,
    mask: str,
    pairs: bool,
    sentences: bool,
    remote_code: bool,
    remarks: Sequence[str],
) -> str:
    """The card, in Markdown.

    Args:
        run: the checkpoint's folder, in which lies what its run wrote.
        state: of the checkpoint's file.
        options: of the model.
        parameters: how many it has.
        kind: of label; None for a masked language model, FEATURES for an encoder alone.
        mask: what the tokenizer calls <mask>.
        pairs: whether it classifies two texts.
        sentences: whether sentence-transformers reads the folder.
        remote_code: whether the folder holds code of its own.
        remarks: what its user should know.
    """
    pipeline = PIPELINES.get(kind, "text-classification")
    library, tag = ("sentence-transformers", "sentence-similarity") if sentences else ("transformers", pipeline)
    header = ModelCardData(library_name=library, pipeline_tag=tag, tags=["fairseq", options.attention])
    trust = ", trust_remote_code=True" if remote_code else ""
    lines = [
        f"---\n{header.to_yaml()}\n---",
        "# Model card",
        f"An encoder with attention={options.attention}, {parameters / 1e6:.1f} M parameters, for texts of up to "
        f"{options.max_positions:,} tokens. Made with fairseq and fairseq_linformer. No licence was chosen: add "
        "`license:` above before you publish it.",
        "## Use",
        fenced(_of_sentences(trust) if sentences else _of_pipeline(pipeline, mask, pairs, trust), "python"),
        *remarks,
        "## Model",
        _table(architecture_options(options)),
        "## Training",
        _table(dict(_training(state))),
        *_command(state),
        *_results(run),
    ]
    return "\n\n".join(lines) + "\n"


def _of_sentences(trust: str) -> str:
    load = f'model = SentenceTransformer("FOLDER"{trust})'
    return f'from sentence_transformers import SentenceTransformer\n\n{load}\nmodel.encode(["A text."])'


def _of_pipeline(pipeline: str, mask: str, pairs: bool, trust: str) -> str:
    words = ', aggregation_strategy="simple"' if pipeline == "token-classification" else ""
    load = f'model = pipeline("{pipeline}", "FOLDER"{trust}{words})'
    # Of these pipelines, those of texts alone cut none that is too long unless they are told to.
    of_texts = f"{OF_PAIRS if pairs else OF_TEXTS}, truncation=True"
    examples = {"fill-mask": json.dumps(f"The answer is {mask}.", ensure_ascii=False), "token-classification": OF_WORDS}
    example = examples.get(pipeline, of_texts)
    return f"from transformers import pipeline\n\n{load}\nmodel({example})"


def _table(rows: Mapping[str, Any]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {cell(name)} | {cell(value)} |" for name, value in rows.items())])


def _training(state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    cfg, extra, updates = state["cfg"], state.get("extra_state") or {}, updates_of_training(state)
    if origins := read_task_state(state.get("task_state"))["converted_from"]:
        named = ", then ".join(f"{one['source']} (SHA-256 {one['sha256']})" for one in origins)
        yield "converted by linformer convert from", named
    yield "updates", f"{updates:,}"
    if updates == 0:
        return  # imported or converted: settings of a training would be those of none
    data = Path(split_paths(str(cfg.task.data))[0])
    yield "task", cfg.task._name
    yield "criterion", cfg.criterion._name
    yield "data", data.name
    if (data / REPORT_FILE).is_file():
        yield "tokens of the data", f"{json.loads((data / REPORT_FILE).read_text())['train']['tokens']:,}"
    for name in ("lr", "update_freq"):
        yield name, ", ".join(map(str, cfg.optimization[name]))
    most = {"rows": cfg.dataset.batch_size, "tokens": cfg.dataset.get("max_tokens")}
    sizes = " and ".join(f"{size} {what}" for what, size in most.items() if size is not None)
    yield "batch size", f"at most {sizes} per device and step"
    yield "seed", cfg.common.seed
    best, metric = extra.get("best"), cfg.checkpoint.best_checkpoint_metric
    if best is not None:
        is_loss = metric == "loss" and cfg.criterion._name == "masked_lm"
        yield (
            f"best {metric} of validation",
            f"{best}" + (f" (perplexity {get_perplexity(best, 10):.2f})" if is_loss else ""),
        )


def _command(state: Mapping[str, Any]) -> Iterator[str]:
    """The command line, with the last parts of paths alone: the others are of the machine."""
    made_of = (state.get("task_state") or {}).get("made_of")
    words = made_of.get("command") if isinstance(made_of, dict) else None
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        return  # of fairseq alone, or edited by hand
    program, *arguments = words
    line = shlex.join([program, *(Path(word).name or word for word in arguments)])
    if program == "fairseq-hydra-train" and arguments[:1] == ["--config-dir"] and arguments[2:3] == ["--config-name"]:
        overrides = [_short(override) for override in arguments[4:]]
        line = command_line(f"{Path(arguments[1]).name}/{Path(arguments[3]).name}", *overrides)
    yield fenced(line, "bash")


def _short(override: str) -> str:
    name, _, value = override.partition("=")
    if "/" not in value:
        return override
    return f"{name}={Path(value.strip(QUOTES)).name}"


def _results(run: Path) -> Iterator[str]:
    """The scores of the run itself, and the table of fine-tuning that lies beside a pretrained checkpoint."""
    table = (run / RESULTS_FILE).with_suffix(".md")
    if (run / SCORES_FILE).is_file():
        scores = json.loads((run / SCORES_FILE).read_text())["scores"]
        yield "## Results"
        yield _table({f"{split}: {name}": f"{value:.1f}" for split, of in scores.items() for name, value in of.items()})
    elif table.is_file():
        yield "## Results after fine-tuning"
        text = table.read_text(encoding="utf-8").strip().replace("<", "&lt;")
        yield re.sub(r"^(Checkpoint: ).*/([^/\n]*/)", r"\1\2", text, flags=re.MULTILINE)  # the rest is of the machine
