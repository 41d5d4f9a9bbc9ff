"""What is analysed: checkpoints of every kind that this package reads, and text as rows of their tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..attention import get_attention
from ..checkpoints.reading import FINE_TUNED, data_folder, find_tokenizer, read_checkpoint, vocabulary_folder
from ..checkpoints.resuming import updates_of_training
from ..checkpoints.sentence_modules import is_of_transformers
from ..checkpoints.vocabulary import check_vocabulary_of, digest_vocabulary
from ..conversion.convert import as_checkpoint
from ..data.dictionaries import with_mask
from ..data.prepare.encoding import encode_items
from ..data.prepare.examples import Example
from ..data.prepare.text_files import find_files, read_chunks
from ..data.tokenizer import Tokenizer, load_tokenizer
from ..data.truncation import kept_tokens, limits
from ..errors import UserError
from ..finetune.prediction import Predictor
from ..model.config import ResolvedConfig
from ..model.encoder import SentenceEncoder
from ..model.roberta import LinformerRobertaModel
from ..system.digests import digest_file, digest_folder
from .maps import check_has_map


@dataclass(frozen=True)
class Analysed:
    """A model to look at, with what it is made of.

    Attributes:
        source: what it was read from.
        task: the prepared folder with the labels of a fine-tuned one; None where that is not here.
        encoder: in evaluation mode, on the first GPU or the CPU.
        options: of the model.
        tokenizer: of the text that it was trained on.
        updates: that it was trained with.
        begins: whether its rows begin with <s>.
        fine_tuned: whether it was fine-tuned on labelled texts.
        longest: tokens of a row at most: n, or what its task cuts texts to.
        truncation: how that cuts them, one of ``truncation.METHODS``.
        about: for JSON: digest, updates and sizes.
    """

    source: Path
    task: Path | None
    encoder: SentenceEncoder
    options: ResolvedConfig
    tokenizer: Tokenizer
    updates: int
    begins: bool
    fine_tuned: bool
    longest: int
    truncation: str
    about: dict[str, Any]

    @property
    def chosen(self) -> list[int] | None:
        """k of each layer; None for full attention."""
        uses = get_attention(self.options.attention).USES_PROJECTION
        return list(self.options.projected_length) if uses else None


def read_model(source: Path, data: Path | None = None) -> Analysed:
    """Reads a model.

    Args:
        source: a checkpoint of ours, of fairseq's ``examples/linformer`` or of its RoBERTa, the folder of its run, or a
            folder of transformers.
        data: its vocabulary, as ``find_tokenizer`` takes it; by default the folder that it was trained on.

    Raises:
        FileNotFoundError: the checkpoint, or its vocabulary, is not there.
        UserError: it cannot be read, or its attention is none that has a map.
    """
    with as_checkpoint(source) as (checkpoint, _):
        state = read_checkpoint(checkpoint)
        options = LinformerRobertaModel.resolve(state["cfg"])
        check_has_map(options.attention, options)
        folder = vocabulary_folder(checkpoint, state["cfg"]) if data is None else find_tokenizer(data)
        tokenizer = load_tokenizer(folder)
        vocabulary = digest_vocabulary(tokenizer.dictionary, folder)
        check_vocabulary_of(state, vocabulary, str(folder), str(checkpoint))
        # A file of sentencepiece may have no dictionary beside it.
        model = LinformerRobertaModel.of_checkpoint(state, with_mask(tokenizer.dictionary))
        prepared = _prepared_task(checkpoint, state["cfg"], None if data is None else folder)
        digest = digest_folder(source) if is_of_transformers(source) else digest_file(checkpoint)
    task, updates = state["cfg"].task, updates_of_training(state)
    uses = get_attention(options.attention).USES_PROJECTION
    sizes = ("encoder_layers", "encoder_attention_heads", "encoder_embed_dim", "max_positions")
    names = ("attention", *sizes, *(("projection", "sharing", "projected_length") if uses else ()))
    fine_tuned = task._name in FINE_TUNED
    longest, truncation = options.max_positions, "head"
    if fine_tuned:  # with max_positions=null a configuration leaves n to the model
        longest, truncation = limits(task, task.max_positions or longest)
    about = {"name": "/".join(source.absolute().parts[-2:]), "digest": digest, "updates": updates}
    return Analysed(
        source,
        prepared,
        model.eval().to("cuda" if torch.cuda.is_available() else "cpu").encoder.sentence_encoder,
        options,
        tokenizer,
        updates,
        begins=not fine_tuned or task.get("init_token") is not None,
        fine_tuned=fine_tuned,
        longest=longest,
        truncation=truncation,
        about=about | {name: getattr(options, name) for name in names},
    )


def _prepared_task(checkpoint: Path, cfg: Any, given: Path | None) -> Path | None:
    """The folder that was given, or the one that a checkpoint was trained on; None where no labels are."""
    try:
        folder = given or data_folder(checkpoint, cfg)
    except FileNotFoundError:  # what is left is a vocabulary beside the checkpoint
        return None
    return folder if (folder / "input0").is_dir() else None


def read_blocks(text: Path, tokenizer: Tokenizer, length: int, number: int) -> Tensor:
    """Rows of token ids from all over a text file, cut as pretraining cuts it: <s>, then length - 1 tokens.

    Args:
        text: plain, .gz or .xz; lines end with </s>, a blank line ends a document.
        tokenizer: its own.
        length: n.
        number: of rows to choose, evenly spaced; all there are where there are fewer.

    Returns:
        (R, n); one shorter row where the text does not fill a block.

    Raises:
        OSError: the file cannot be read.
        UserError: it holds no text, or is not UTF-8.
    """
    encoded = [encode_items(tokenizer, chunk.lines)[0] for chunk in read_chunks(find_files([text]))]
    ids = torch.from_numpy(np.concatenate(encoded).astype(np.int64))
    width = min(length - 1, len(ids))
    if width < 1:
        raise UserError(f"max_positions={length} leaves no room for text after <s>")
    blocks = ids[: len(ids) // width * width].view(-1, width)
    chosen = torch.arange(min(number, len(blocks))) * len(blocks) // min(number, len(blocks))
    return torch.cat([torch.full((len(chosen), 1), tokenizer.dictionary.bos()), blocks[chosen]], dim=1)


def first_line(text: Path) -> str:
    """The first line of a file that is not blank."""
    return next(line for chunk in read_chunks(find_files([text])) for line in chunk.lines if line)


def predict_line(model: Analysed, line: str) -> str | None:
    """What a fine-tuned model says of a line, with its probability: "positive (93 %)".

    None where there is nothing to say: without labels, and of a model that reads pairs, or labels words.
    """
    if model.task is None:
        return None
    with as_checkpoint(model.source) as (checkpoint, _):
        predictor = Predictor(checkpoint, model.task)
        if predictor.pairs or predictor.record.kind == "token-label":
            return None
        (said,) = predictor.texts([Example(line, None)])
    if isinstance(said.label, tuple):
        return ", ".join(said.label) or "no label"
    return f"{said.label} ({said.probabilities[said.label]:.0%})" if said.probabilities else said.label


def read_line(model: Analysed, line: str) -> Tensor:
    """A line as a fine-tuned model reads it: <s> where rows begin so, tokens, </s>, cut as its task cuts them; (n,)."""
    dictionary = model.tokenizer.dictionary
    bos, eos = dictionary.bos(), dictionary.eos()
    row = torch.tensor([*([bos] if model.begins else []), *model.tokenizer.encode([line])[0].tolist(), eos])
    return row[kept_tokens(row, model.longest, model.truncation, bos, eos)]


def token_texts(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """What each token adds to the text; special symbols by their names.

    Of a character that several tokens make up, the last one has it and the others have nothing.
    """
    dictionary = tokenizer.dictionary
    special = {dictionary.bos(), dictionary.pad(), dictionary.eos(), dictionary.unk()}
    texts: list[str] = []
    so_far: list[int] = []
    for token in tokens:
        if token in special:
            texts.append(dictionary[token])
            so_far = []
            continue
        before, after = tokenizer.decode([np.array(so_far, dtype=np.int64), np.array([*so_far, token])])
        so_far.append(token)
        texts.append(after.rstrip("\ufffd")[len(before.rstrip("\ufffd")) :])
    return texts
