"""A folder of pictures, numbers and a page about a checkpoint: what ``linformer analyze`` writes."""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError
from ..system.digests import digest_file
from ..system.files import staged_folder
from .findings import describe_looks, describe_loss, describe_rank
from .looks import check_twins, look, write_page
from .matrices import distinct_matrices
from .measuring import Measured, attentions_of, in_short, measure
from .reading import Analysed, first_line, predict_line, read_blocks, read_line, read_model

MARK = "analysis.json"  # of a folder: what it is about


def analyze(
    checkpoints: Sequence[Path],
    text: Path,
    out: Path,
    rows: int,
    tokens: int,
    beside: Path | None = None,
    data: Path | None = None,
) -> tuple[list[str], Sequence[str]]:
    """Writes the folder.

    Args:
        checkpoints: each as ``read_model`` takes it. Of several, of one run, the one with most updates has the
            pictures, and all of them the curves against updates.
        text: a text file.
        out: the folder to make.
        rows: of n tokens, that are averaged over.
        tokens: whose maps are shown.
        beside: a checkpoint whose maps stand beside those of the first.
        data: their vocabulary, as ``find_tokenizer`` takes it; by default the folder that each was trained on. Without
            the labels of a fine-tuned model nothing is said of what it predicts.

    Returns:
        The names of the files, and sentences about rank, projections, and where tokens look.

    Raises:
        FileNotFoundError: a file is not there.
        UserError: a checkpoint or the text cannot be read, matplotlib is missing, or `out` is in the way.
    """
    _check_matplotlib()
    if not text.is_file():
        raise FileNotFoundError(f"there is no file {text}")
    models = in_order([read_model(checkpoint, data) for checkpoint in checkpoints])
    twin = None if beside is None else read_model(beside, data)
    model = models[-1]
    if twin is not None:
        check_twins(model, twin)
    with staged_folder(out, MARK) as (folder, mark):
        blocks = read_blocks(text, model.tokenizer, model.options.max_positions, rows)
        made_of = {"checkpoint": model.about, "text": digest_file(text), "rows": len(blocks), "n": blocks.size(1)}
        whole = made_of | {"beside": twin and twin.about}
        # First what takes seconds: a mistake that shows there costs no hours of singular values.
        shown = [model] if twin is None else [model, twin]
        looks = _write_looks(folder, shown, text, blocks[0], tokens, whole)
        measured = [measure(one.encoder, blocks, one.chosen) for one in models]
        last = measured[-1]
        _write_numbers(folder, last, made_of)
        _draw_numbers(folder, last, model)
        if len(models) > 1:
            _write_training(folder, models, measured, made_of)
        found = (describe_rank(last.spectrum), describe_loss(last.low_rank, last.spectrum), describe_looks(looks))
        write_page(looks, _title(shown), [_note(looks, model), *found], folder / "looks.html")
        mark.write(json.dumps(whole | {"found": found}, indent=1) + "\n")
        return sorted(path.name for path in folder.iterdir()), found


def in_order(models: Sequence[Analysed]) -> list[Analysed]:
    """Checkpoints of one run by their updates.

    Raises:
        UserError: they are of models with other options, or two have the same number of updates.
    """
    ordered = sorted(models, key=lambda one: one.updates)
    for before, after in itertools.pairwise(ordered):
        if before.updates == after.updates:
            raise UserError(f"two checkpoints have {after.updates:,} updates: give those of one run, each once")
    sizes = {name: value for name, value in ordered[0].about.items() if name not in ("name", "digest", "updates")}
    for one in ordered[1:]:
        for name, value in sizes.items():
            if one.about.get(name) != value:
                raise UserError(
                    f"{one.about['name']} has {name}={one.about.get(name)}, {ordered[0].about['name']} has {value}: "
                    "several checkpoints must be of one run"
                )
    return ordered


def _check_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UserError(f"matplotlib is needed ({error}): pip install 'fairseq-linformer[analysis]'") from error


def _write_numbers(folder: Path, measured: Measured, made_of: Mapping[str, Any]) -> None:
    numbers = {"spectrum": measured.spectrum, "low_rank": measured.low_rank, "projections": measured.matrices}
    for name, content in numbers.items():
        if content is not None:
            _write(folder / f"{name}.json", {"made_of": made_of, **content})


def _draw_numbers(folder: Path, measured: Measured, model: Analysed) -> None:
    from . import drawing  # here: without pictures nothing needs matplotlib

    drawing.draw_spectrum(measured.spectrum, folder / "spectrum.png")
    drawing.draw_spectrum_heat(measured.spectrum, folder / "spectrum_heat.png")
    drawing.draw_ranks(measured.spectrum, folder / "spectrum_ranks.png")
    if measured.low_rank is not None:
        drawing.draw_low_rank(measured.low_rank, measured.spectrum["n"], folder / "low_rank.png")
    if measured.matrices is not None:
        if any(len(layer["use"]) > 1 for layer in measured.matrices["layers"]):  # a row alone gets all there is
            drawing.draw_use(measured.matrices["layers"], folder / "projections_use.png")
        if measured.matrices["matrices"]:
            drawing.draw_matrices(list(distinct_matrices(attentions_of(model.encoder))), folder / "projections.png")
            drawing.draw_rows(measured.matrices["matrices"], folder / "projections_rows.png")


def _write_training(
    folder: Path, models: Sequence[Analysed], measured: Sequence[Measured], made_of: Mapping[str, Any]
) -> None:
    from .drawing import draw_training

    points = [{"updates": one.updates, **in_short(own)} for one, own in zip(models, measured, strict=True)]
    digests = [one.about["digest"] for one in models]
    _write(folder / "training.json", {"made_of": {**made_of, "checkpoints": digests}, "points": points})
    draw_training(points, folder / "training.png")


def _write_looks(
    folder: Path, models: Sequence[Analysed], text: Path, block: Tensor, tokens: int, made_of: Mapping[str, Any]
) -> dict[str, Any]:
    """Where the models look, as numbers, which it returns, and pictures: in the first line of a fine-tuned model.

    A row is no longer than each of them reads.
    """
    from .drawing import draw_first_token, draw_looks

    if models[0].fine_tuned:
        row, predicted = _classified(first_line(text), models)
    else:
        row, predicted = block[: min(model.longest for model in models)], [None] * len(models)
    found = look(models, row, tokens)
    for shown, said in zip(found["models"], predicted, strict=True):
        shown["predicted"] = said
    _write(folder / "looks.json", {"made_of": made_of, **found}, indent=None)
    draw_looks(found, folder / "looks.png")
    if models[0].fine_tuned:
        draw_first_token(found, folder / "looks_first_token.png")
    return found


def _title(models: Sequence[Analysed]) -> str:
    return "Where it looks: " + " beside ".join(one.about["name"] for one in models)


def _note(looks: Mapping[str, Any], model: Analysed) -> str:
    size = f"n = {model.options.max_positions}, {model.updates:,} updates."
    said = [f" {one['name']} predicts: {one['predicted']}." for one in looks["models"] if one["predicted"]]
    return f"The first {len(looks['tokens'])} of {looks['length']} tokens; {size}{''.join(said)}"


def _classified(line: str, models: Sequence[Analysed]) -> tuple[Tensor, list[str | None]]:
    """A line as the model reads it that cuts it shortest, and what those predict that read this very row."""
    rows = [read_line(model, line) for model in models]
    row = min(rows, key=len)
    reads_it = [model.fine_tuned and torch.equal(own, row) for model, own in zip(models, rows, strict=True)]
    return row, [predict_line(model, line) if own else None for model, own in zip(models, reads_it, strict=True)]


def _write(path: Path, content: Mapping[str, Any], indent: int | None = 1) -> None:
    path.write_text(json.dumps(content, indent=indent, allow_nan=False) + "\n", encoding="utf-8")
