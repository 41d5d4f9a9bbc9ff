"""Kinds of input around the model: checkpoints, options, tokens, and Hydra's overrides."""

import random
from argparse import Namespace
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from fairseq.checkpoint_utils import torch_persistent_save
from fairseq.data import Dictionary
from fairseq.dataclass.configs import FairseqConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf

from fairseq_linformer import LinformerRobertaModel
from fairseq_linformer.attention import ATTENTIONS
from fairseq_linformer.attention.linformer import PROJECTIONS, SHARINGS
from fairseq_linformer.checkpoints.reading import read_checkpoint
from fairseq_linformer.checkpoints.resuming import read_progress
from fairseq_linformer.checkpoints.vocabulary import digest_vocabulary
from fairseq_linformer.config import LinformerRobertaConfig
from fairseq_linformer.data.tokenizer import DICTIONARY_FILE, load_dictionary
from fairseq_linformer.finetune.runner import check_override
from fairseq_linformer.resolve import resolve_config
from fairseq_linformer.training.commands import override

from .commands import equal
from .inputs import write_corpus
from .mutations import ODD_TEXT, ODD_VALUES, mutate, mutate_json

SIZES = {"encoder_layers": 2, "encoder_embed_dim": 24, "encoder_ffn_embed_dim": 40, "encoder_attention_heads": 3}
LENGTH = 16


class Task:
    """What a model asks of its task."""

    def __init__(self, dictionary: Dictionary | None = None) -> None:
        self.source_dictionary = dictionary or Dictionary()
        for number in range(0 if dictionary else 46):
            self.source_dictionary.add_symbol(f"w{number}")

    def max_positions(self) -> int:
        return LENGTH


def write_checkpoint(folder: Path) -> dict[str, Any]:
    """A checkpoint of a small model with Adam's moments, as fairseq writes one, and its content."""
    torch.manual_seed(1)
    data = write_corpus(folder)
    dictionary = load_dictionary(data / DICTIONARY_FILE)
    vocabulary = digest_vocabulary(dictionary, data)
    dictionary.add_symbol("<mask>")
    options = Namespace(**SIZES, projected_length=4, sharing="layerwise")
    weights = LinformerRobertaModel.build_model(options, Task(dictionary)).state_dict()
    cfg: Any = OmegaConf.to_container(OmegaConf.structured(FairseqConfig()), resolve=True, enum_to_str=True)
    cfg["model"] = {"_name": "linformer_roberta", **vars(options), "max_positions": LENGTH}
    cfg["task"] = {"_name": "dynamic_masked_lm", "data": str(data), "tokens_per_sample": LENGTH}
    moments = {number: {"step": 3, "exp_avg": value * 0.1} for number, value in enumerate(weights.values())}
    history = {"num_updates": 3, "optimizer_name": "FairseqAdam", "lr_scheduler_state": {"best": None}}
    state = {"args": None, "cfg": cfg, "model": weights, "optimizer_history": [history]}
    state |= {"last_optimizer_state": {"state": moments}, "task_state": {"vocabulary": vocabulary}}
    state |= {"extra_state": {"train_iterator": {"epoch": 1}, "best": 4.5, "previous_training_time": 1.5}}
    torch_persistent_save(state, str(folder / "whole.pt"))
    return state


class Checkpoints:
    """Checkpoints whose bytes were changed: refused, or read as they were saved."""

    def __init__(self, folder: Path) -> None:
        write_checkpoint(folder)
        self.folder = folder
        self.content = (folder / "whole.pt").read_bytes()
        self.state = read_checkpoint(folder / "whole.pt")

    def attempt(self, chance: random.Random) -> str | None:
        (self.folder / "other.pt").write_bytes(mutate(self.content, chance))
        read_progress(self.folder / "other.pt")
        state = read_checkpoint(self.folder / "other.pt")
        parts = ("model", "last_optimizer_state", "optimizer_history", "extra_state", "task_state", "cfg")
        others = [part for part in parts if not equal(state.get(part), self.state[part])]
        if others:
            return f"other content than was saved: {', '.join(others)}"
        return _loaded_otherwise(self.folder, self.state) if chance.random() < 0.2 else None


def _loaded_otherwise(folder: Path, state: Any) -> str | None:
    """Loads other.pt as users do, and compares each parameter with what was saved."""
    own = LinformerRobertaModel.from_pretrained(str(folder), "other.pt", str(folder / "data")).model.state_dict()
    saved = {name: torch.tensor(1.0) for name in own if name.endswith(".multiplier")} | state[
        "model"
    ]  # once it had none
    others = [name for name, value in own.items() if not torch.equal(value, saved[name].to(value.dtype))]
    return f"other weights than were saved: {', '.join(others)}" if others else None


class HandMade:
    """Whole files whose content is no checkpoint, or one with parts missing, added or of another type."""

    VALUES = (*ODD_VALUES, torch.zeros(2, 3), torch.full((24,), float("nan")), torch.zeros(24, dtype=torch.int32))
    PARTS = ("model", "cfg", "optimizer_history", "extra_state", "task_state", "args")

    def __init__(self, folder: Path) -> None:
        self.state = write_checkpoint(folder)
        self.folder = folder

    def attempt(self, chance: random.Random) -> str | None:
        part, state = chance.choice(self.PARTS), dict(self.state)
        if chance.random() < 0.1:
            state = mutate_json(state, chance, self.VALUES)
        elif chance.random() < 0.1:
            del state[part]
        else:
            state[part] = mutate_json(state[part], chance, self.VALUES)
        torch.save(state, self.folder / "other.pt")
        try:
            read_progress(self.folder / "other.pt")
        except ValueError as error:
            if "\n" in str(error):
                raise
        return _loaded_otherwise(self.folder, state)


class Options:
    """The model's options, as flags and as Hydra's: refused, or a model that works."""

    NAMES = tuple(option.name for option in fields(LinformerRobertaConfig))
    UNKNOWN = ("modle", "attention.window", "", *NAMES)
    NUMBERS = (-1, 0, 1, 2, 3, 4, 8, 16, 17, 2**20, 0.5, 0.0)
    WORDS = (*ATTENTIONS, *PROJECTIONS, *SHARINGS, "8,4", "8..4", "4,", "..", "0,1", "0,0", "linformer_roberta_tiny")

    def __init__(self, folder: Path) -> None:
        pass

    def attempt(self, chance: random.Random) -> str | None:
        attention = chance.choice([*ATTENTIONS])
        options: dict[str, Any] = {**SIZES, "attention": attention, "attention_dropout": 0.0}
        own = [name for name in self.NAMES if name.startswith(attention)]
        for _ in range(chance.choice((1, 1, 2, 4))):
            name = chance.choice(
                (chance.choice(self.NAMES), chance.choice(own or self.NAMES), chance.choice(self.UNKNOWN))
            )
            options[name] = chance.choice(chance.choice((self.NUMBERS, self.NUMBERS, self.WORDS, ODD_VALUES)))
        as_flags = chance.random() < 0.5
        cfg = Namespace(**options) if as_flags else OmegaConf.create(options, flags={"allow_objects": True})
        resolved = resolve_config(cfg, LENGTH)
        if max(size for size in vars(resolved).values() if isinstance(size, int)) > 64 or resolved.compile_layers:
            return None  # accepted, and too large to be built here
        model = LinformerRobertaModel.build_model(cfg, Task()).eval()
        with torch.inference_mode():
            features = model(_tokens(chance, rows=2), features_only=True)[0]
        return None if bool(features.isfinite().all()) else f"numbers that are not finite with {options}"


def _tokens(chance: random.Random, rows: int) -> torch.Tensor:
    """Rows of 1 to LENGTH tokens, (rows, LENGTH), the first as long as that, padded on the right."""
    lengths = [LENGTH, *(chance.randint(1, LENGTH) for _ in range(rows - 1))]
    return torch.tensor([[chance.randint(4, 49) for _ in range(n)] + [1] * (LENGTH - n) for n in lengths])


class Tokens:
    """Batches of token ids, of any type, shape and padding: refused, or what each row gives alone."""

    TYPES = (torch.int32, torch.int16, torch.uint8, torch.bool, torch.float32, torch.float16, torch.complex64)

    def __init__(self, folder: Path) -> None:
        self.models = {}
        for name, kind in ATTENTIONS.items():
            torch.manual_seed(1)
            small = {} if name in ("softmax", "linformer") else kind.Options.SMALL[0]
            own = {kind.prefix() + option: value for option, value in small.items()}
            dropout = {} if kind.HAS_WEIGHTS else {"attention_dropout": 0.0}
            cfg = Namespace(**SIZES, attention=name, projected_length=4, **own, **dropout)
            self.models[name] = LinformerRobertaModel.build_model(cfg, Task()).eval()

    def attempt(self, chance: random.Random) -> str | None:
        name = chance.choice([*self.models])
        tokens = _tokens(chance, rows=chance.randint(1, 4))
        for _ in range(chance.choice((0, 1, 1, 2))):
            tokens = self._changed(tokens, chance)
        with torch.inference_mode():
            features = self._features(name, tokens)
            for row, out in zip(tokens, features, strict=True):
                length = int((row != 1).sum())
                alone = self._features(name, row[None, :length])[0]
                if not torch.allclose(out[:length], alone, atol=1e-4):
                    return f"{name}: a row differs from itself alone, in the batch {tokens.tolist()}"
        return None

    def _features(self, name: str, tokens: torch.Tensor) -> torch.Tensor:
        return self.models[name](tokens, features_only=True)[0]

    def _changed(self, tokens: torch.Tensor, chance: random.Random) -> torch.Tensor:
        changes = [
            lambda: tokens.to(chance.choice(self.TYPES)),
            tokens.flatten,
            lambda: tokens[None],
            lambda: tokens[:0],
            lambda: tokens[..., :0],
            lambda: tokens.flip(-1),
            lambda: torch.cat([tokens, tokens], -1),
            lambda: torch.cat([tokens, torch.ones_like(tokens[:1])]),
            lambda: torch.where(
                torch.rand(tokens.shape) < 0.1, torch.full(tokens.shape, chance.choice((-1, 1, 2**40, 50, 0))), tokens
            ),
            lambda: tokens.transpose(0, -1).contiguous().transpose(0, -1),
        ]
        return chance.choice(changes)()


class Overrides:
    """Values and names that end in Hydra's overrides: a value means itself, and no name slips past what a run sets."""

    SET = ("task.data", "common.seed", "checkpoint.save_dir", "optimization.lr", "optimization.max_update")
    OTHERS = ("model.dropout", "optimization.clip_norm", "dataset.num_workers", "modle", "")
    PIECES = (*ODD_TEXT, "${", "}", "${oc.env:HOME}", "$", "{", "[", "]", "(", ")", "=", ",", ":", "/", "a", " ", "\\'")

    def __init__(self, folder: Path) -> None:
        pass

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
