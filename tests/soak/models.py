"""Kinds of input around the model: checkpoints, options, tokens, and Hydra's overrides."""

import random
from argparse import Namespace
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf

from fairseq_linformer import LinformerRobertaModel
from fairseq_linformer.attention import ATTENTIONS
from fairseq_linformer.attention.registry import PROJECTIONS, SHARINGS
from fairseq_linformer.checkpoints.reading import read_checkpoint
from fairseq_linformer.checkpoints.resuming import read_progress
from fairseq_linformer.checkpoints.vocabulary import digest_vocabulary
from fairseq_linformer.finetune.overrides import check_override
from fairseq_linformer.model.config import LinformerRobertaConfig
from fairseq_linformer.model.resolve import resolve_config
from fairseq_linformer.training.commands import override
from tests.helpers.exports import MECHANISMS, write_pretrained, write_vocabulary
from tests.helpers.models import SIZES, Task

from .mutations import ODD_TEXT, ODD_VALUES, mutate, mutate_json
from .readers import difference

LENGTH = 16
OTHER = Path("other.pt")
PARTS = ("model", "last_optimizer_state", "optimizer_history", "extra_state", "task_state", "cfg")


def write_checkpoint() -> tuple[Path, dict[str, Any]]:
    """A checkpoint of a small model with Adam's moments and the hash of its vocabulary, and its content."""
    Path("vocabulary").mkdir()
    vocabulary = write_vocabulary(Path("vocabulary"))
    path = write_pretrained(Path("run"), vocabulary, projected_length=4, sharing="layerwise")
    state = torch.load(path, weights_only=False)
    dictionary = LinformerRobertaModel.from_pretrained("run", path.name).task.source_dictionary
    moments = {number: {"step": 3, "exp_avg": value * 0.1} for number, value in enumerate(state["model"].values())}
    state |= {"last_optimizer_state": {"state": moments}}
    state |= {"task_state": {"vocabulary": digest_vocabulary(dictionary, vocabulary)}}
    torch.save(state, path)
    return path, state


class Checkpoints:
    """Checkpoints whose bytes were changed: refused, or read as they were saved."""

    def __init__(self) -> None:
        path, _ = write_checkpoint()
        self.content, self.state = path.read_bytes(), read_checkpoint(path)

    def attempt(self, chance: random.Random) -> str | None:
        OTHER.write_bytes(mutate(self.content, chance))
        read_progress(OTHER)
        state = read_checkpoint(OTHER)
        saved, found = ({part: of.get(part) for part in PARTS} for of in (self.state, state))
        lost = difference(saved, found, "the checkpoint")
        return lost or (_loaded_otherwise(self.state) if chance.random() < 0.2 else None)


def _loaded_otherwise(state: Any) -> str | None:
    """Loads other.pt as users do, and compares each parameter with what was saved."""
    own = LinformerRobertaModel.from_pretrained(".", OTHER.name, "vocabulary").model.state_dict()
    saved = {name: torch.tensor(1.0) for name in own if name.endswith(".multiplier")}  # once it had none
    saved |= state["model"]
    others = [name for name, value in own.items() if not torch.equal(value, saved[name].to(value.dtype))]
    return f"other weights than were saved: {', '.join(others)}" if others else None


class HandMade:
    """Whole files whose content is no checkpoint, or one with parts missing, added or of another type."""

    VALUES = (*ODD_VALUES, torch.zeros(2, 3), torch.full((12,), float("nan")), torch.zeros(12, dtype=torch.int32))
    PARTS = ("model", "cfg", "optimizer_history", "extra_state", "task_state", "args")

    def __init__(self) -> None:
        _, self.state = write_checkpoint()

    def attempt(self, chance: random.Random) -> str | None:
        part, state = chance.choice(self.PARTS), dict(self.state)
        if chance.random() < 0.1:
            state = mutate_json(state, chance, self.VALUES)
        elif chance.random() < 0.1:
            del state[part]
        else:
            state[part] = mutate_json(state[part], chance, self.VALUES)
        torch.save(state, OTHER)
        try:
            read_progress(OTHER)
        except ValueError as error:
            if "\n" in str(error):
                raise
        return _loaded_otherwise(state)


class Options:
    """The model's options, as flags and as Hydra's: refused, or a model that works."""

    NAMES = tuple(option.name for option in fields(LinformerRobertaConfig))
    UNKNOWN = ("modle", "attention.window", "", *NAMES)
    NUMBERS = (-1, 0, 1, 2, 3, 4, 8, 16, 17, 2**20, 0.5, 0.0)
    WORDS = (*ATTENTIONS, *PROJECTIONS, *SHARINGS, "8,4", "8..4", "4,", "..", "0,1", "0,0", "linformer_roberta_tiny")

    def attempt(self, chance: random.Random) -> str | None:
        attention = chance.choice([*ATTENTIONS])
        options: dict[str, Any] = {**SIZES, "attention": attention, "attention_dropout": 0.0}
        own = [name for name in self.NAMES if name.startswith(attention)]
        for _ in range(chance.choice((1, 1, 2, 4))):
            name = chance.choice(chance.choice((self.NAMES, own or self.NAMES, self.UNKNOWN)))
            options[name] = chance.choice(chance.choice((self.NUMBERS, self.NUMBERS, self.WORDS, ODD_VALUES)))
        as_flags = chance.random() < 0.5
        cfg = Namespace(**options) if as_flags else OmegaConf.create(options, flags={"allow_objects": True})
        resolved = resolve_config(cfg, LENGTH)
        if max(size for size in vars(resolved).values() if isinstance(size, int)) > 64 or resolved.compile_layers:
            return None  # accepted, and too large to be built here
        model = LinformerRobertaModel.build_model(cfg, Task(LENGTH)).eval()
        with torch.inference_mode():
            features = model(_tokens(chance, rows=2), features_only=True)[0]
        return None if bool(features.isfinite().all()) else f"numbers that are not finite with {options}"


def _tokens(chance: random.Random, rows: int) -> torch.Tensor:
    """Rows of 1 to LENGTH tokens, (rows, LENGTH), the first as long as that, padded on the right."""
    lengths = [LENGTH, *(chance.randint(1, LENGTH) for _ in range(rows - 1))]
    return torch.tensor([[chance.randint(4, 49) for _ in range(n)] + [1] * (LENGTH - n) for n in lengths])


def _change_some(tokens: torch.Tensor, chance: random.Random) -> torch.Tensor:
    other = torch.full(tokens.shape, chance.choice((-1, 1, 2**40, 100, 0)))
    return torch.where(torch.rand(tokens.shape) < 0.1, other, tokens)


class Tokens:
    """Batches of token ids, of any type, shape and padding: refused, or what each row gives alone."""

    TYPES = (torch.int32, torch.int16, torch.uint8, torch.bool, torch.float32, torch.float16, torch.complex64)
    CHANGES: tuple[Callable[[torch.Tensor, random.Random], torch.Tensor], ...] = (
        lambda tokens, chance: tokens.to(chance.choice(Tokens.TYPES)),
        lambda tokens, _: tokens.flatten(),
        lambda tokens, _: tokens[None],
        lambda tokens, _: tokens[:0],
        lambda tokens, _: tokens[..., :0],
        lambda tokens, _: tokens.flip(-1),
        lambda tokens, _: torch.cat([tokens, tokens], -1),
        lambda tokens, _: torch.cat([tokens, torch.ones_like(tokens[:1])]),
        _change_some,
        lambda tokens, _: tokens.transpose(0, -1).contiguous().transpose(0, -1),
    )

    def __init__(self) -> None:
        self.models = {}
        for options in MECHANISMS:
            torch.manual_seed(1)
            cfg = Namespace(**SIZES, **options)
            self.models[str(options)] = LinformerRobertaModel.build_model(cfg, Task(LENGTH)).eval()

    def attempt(self, chance: random.Random) -> str | None:
        name = chance.choice([*self.models])
        tokens = _tokens(chance, rows=chance.randint(1, 4))
        torch.manual_seed(chance.randrange(2**32))
        for _ in range(chance.choice((0, 1, 1, 2))):
            tokens = chance.choice(self.CHANGES)(tokens, chance)
        with torch.inference_mode():
            for row, out in zip(tokens, self._features(name, tokens), strict=True):
                length = int((row != 1).sum())
                alone = self._features(name, row[None, :length])[0]
                if not torch.allclose(out[:length], alone, atol=1e-4):
                    return f"{name}: a row differs from itself alone, in the batch {tokens.tolist()}"
        return None

    def _features(self, name: str, tokens: torch.Tensor) -> torch.Tensor:
        return self.models[name](tokens, features_only=True)[0]


class Overrides:
    """Values and names that end in Hydra's overrides: a value means itself, and no name slips past what a run sets."""

    SET = ("task.data", "common.seed", "checkpoint.save_dir", "optimization.lr", "optimization.max_update")
    OTHERS = ("model.dropout", "optimization.clip_norm", "dataset.num_workers", "modle", "")
    PIECES = (*ODD_TEXT, "${", "}", "${oc.env:HOME}", "$", "{", "[", "]", "(", ")", "=", ",", ":", "/", "a", " ", "\\'")

    def attempt(self, chance: random.Random) -> str | None:
        return self._value(chance) if chance.random() < 0.5 else self._name(chance)

    def _value(self, chance: random.Random) -> str | None:
        value = "/" + "".join(chance.choices(self.PIECES, k=chance.randint(1, 8)))
        word = override("task.data", value)
        try:
            found = OverridesParser.create().parse_override(word).value()
            resolved = OmegaConf.to_container(OmegaConf.create({"data": found}), resolve=True)
        except Exception as error:
            return f"{value!r} becomes {word!r}, which is refused: {error!r}"
        return None if resolved == {"data": value} else f"{value!r} becomes {resolved!r}"

    def _name(self, chance: random.Random) -> str | None:
        name = chance.choice((*self.SET, *self.OTHERS)).replace(".", chance.choice((".", ".", "/", "..")))
        value = chance.choice(("=1", "=[1]", "={seed:1}", "", "=", "=a,b", f"={chance.choice(self.PIECES)}"))
        word = chance.choice(("", "", "+", "++", "~", " ")) + name + chance.choice(("", "", "", "@a", ":a")) + value
        check_override(word)
        try:
            key = OverridesParser.create().parse_override(word).key_or_group
        except HydraException:
            return f"{word!r} is let through, and is no override"
        return f"{word!r} is let through" if key.replace("/", ".") in self.SET else None
