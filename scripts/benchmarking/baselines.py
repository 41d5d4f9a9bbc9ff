"""What the benchmark compares, behind one interface: our models, and baselines of equal width and depth.

ModernBERT needs transformers, which is not installed by default (extra ``hf``).

Dimensions: B batch, n sequence length, N masked positions of the batch, d embedding, V vocabulary.
"""

import importlib
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import fairseq
import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.models.roberta import RobertaEncoder, RobertaModel, init_bert_params
from fairseq.models.roberta import base_architecture as roberta_defaults
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fairseq_linformer.attention import ATTENTIONS, get_attention
from fairseq_linformer.model.config import ResolvedConfig
from fairseq_linformer.model.resolve import resolve_config
from fairseq_linformer.model.roberta import LinformerRobertaModel

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
FIRST_TOKEN = 4  # of fairseq's dictionaries


@dataclass(frozen=True)
class Sizes:
    """The sizes that the models of a comparison share, n and k included."""

    layers: int
    embed_dim: int
    heads: int
    vocabulary: int
    length: int = 512
    projected_length: int = 128
    dropout: float = 0.1  # of hidden layers and attention weights
    sharing: str = "key-value"
    options: tuple[tuple[str, Any], ...] = ()  # further options of our model

    def options_of_fairseq(self) -> dict[str, Any]:
        """Under fairseq's names."""
        return {
            "encoder_layers": self.layers,
            "encoder_embed_dim": self.embed_dim,
            "encoder_ffn_embed_dim": 4 * self.embed_dim,
            "encoder_attention_heads": self.heads,
            "max_positions": self.length,
            "dropout": self.dropout,
            "attention_dropout": self.dropout,
        }

    def dictionary(self) -> Dictionary:
        dictionary = Dictionary()
        for number in range(self.vocabulary - len(dictionary)):
            dictionary.add_symbol(f"piece{number}")
        return dictionary


@dataclass(frozen=True)
class Candidate:
    """A model, or a part of one, to be measured.

    Attributes:
        module: holds the parameters.
        draw: gives a batch for sizes and a number of rows.
        features: maps a batch to what inference gives, (B, n, d).
        loss: maps a batch to a scalar.
        kernel: the one of ``KERNELS`` that PyTorch must use, None for PyTorch's choice.
    """

    module: nn.Module
    draw: Callable[[Sizes, int], tuple[Tensor, ...]]
    features: Callable[..., Tensor]
    loss: Callable[..., Tensor]
    kernel: str | None = None

    def run(self, inference: bool, batch: Sequence[Tensor]) -> Tensor:
        """Features or loss of a batch."""
        with sdpa_kernel(KERNELS[self.kernel]) if self.kernel else nullcontext():
            return self.features(*batch) if inference else self.loss(*batch)


def draw_text(sizes: Sizes, rows: int) -> tuple[Tensor, Tensor]:
    """Rows of random tokens, (B, n), and the 15 % of them that are masked, (B, n)."""
    generator, shape = torch.Generator().manual_seed(1), (rows, sizes.length)
    tokens = torch.randint(FIRST_TOKEN, sizes.vocabulary, shape, generator=generator)
    return tokens, torch.rand(shape, generator=generator) < 0.15


def draw_text_as_trained(sizes: Sizes, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """``draw_text``, and what a batch of our tasks says of itself: the places of its masks, (N,), in rows one after
    another.
    """
    tokens, masked = draw_text(sizes, rows)
    return tokens, masked, masked.flatten().nonzero()[:, 0]


def draw_positions_first(sizes: Sizes, rows: int) -> tuple[Tensor]:
    """The input of fairseq's layers, (n, B, d)."""
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(sizes.length, rows, sizes.embed_dim, generator=generator, requires_grad=True),)


def draw_rows_first(sizes: Sizes, rows: int) -> tuple[Tensor]:
    """The same values as the input of our layers, (B, n, d)."""
    (x,) = draw_positions_first(sizes, rows)
    return (x.detach().transpose(0, 1).contiguous().requires_grad_(),)


def _language_model(
    model: nn.Module, features: Callable[[Tensor], Tensor], logits: Callable[[Tensor, Tensor], Tensor]
) -> Candidate:
    """`features` maps tokens (B, n) to (B, n, d); `logits` maps tokens and a mask of N positions (B, n) to (N, V)."""

    def loss(tokens: Tensor, masked: Tensor) -> Tensor:
        return F.cross_entropy(logits(tokens, masked).float(), tokens[masked])

    return Candidate(model, draw_text, lambda tokens, masked: features(tokens), loss)


def _of_fairseq(model: RobertaModel) -> Candidate:
    def features(tokens: Tensor) -> Tensor:
        return model.encoder.extract_features(tokens)[0]

    return _language_model(model, features, lambda tokens, masked: model(tokens, masked_tokens=masked)[0])


def _our_config(attention: str, sizes: Sizes) -> ResolvedConfig:
    options: dict[str, Any] = {"arch": "linformer_roberta_base", "attention": attention, **sizes.options_of_fairseq()}
    options |= {"projected_length": sizes.projected_length, "sharing": sizes.sharing, **dict(sizes.options)}
    return resolve_config(Namespace(**options), sizes.length)


def check_sizes(model: str, sizes: Sizes) -> None:
    """Refuses sizes that a model of ours cannot have, without building it; others are checked as full attention is.

    Raises:
        UserError: an option is not allowed.
    """
    _our_config(model if model in ATTENTIONS else "softmax", sizes)


def our_attention(sizes: Sizes) -> Candidate:
    attention = get_attention("linformer").build_layers(_our_config("linformer", replace(sizes, layers=1)))[0]
    return Candidate(attention, draw_rows_first, attention, lambda x: attention(x).sum())


def ours(attention: str, kernel: str | None = None) -> Callable[[Sizes], Candidate]:
    """Our model as users run it: in training it knows of a batch what our tasks say of it, in inference nothing.

    With a kernel of ``KERNELS`` it never has a padding mask.
    """

    def build(sizes: Sizes) -> Candidate:
        model = LinformerRobertaModel.of_config(_our_config(attention, sizes), sizes.dictionary())
        if kernel:  # in inference on a GPU the model passes its layers a padding mask, which flash attention refuses
            for layer in model.encoder.sentence_encoder.layers:
                layer.register_forward_pre_hook(lambda _, arguments: (arguments[0], None, *arguments[2:]))

        def features(tokens: Tensor, *_: Tensor) -> Tensor:
            return model.encoder.extract_features(tokens)[0]

        def loss(tokens: Tensor, masked: Tensor, places: Tensor) -> Tensor:
            logits = model(tokens, masked_tokens=masked, masked_positions=places, padded=False)[0]
            return F.cross_entropy(logits.float(), tokens.flatten()[places])

        return Candidate(model, draw_text_as_trained, features, loss, kernel)

    return build


def fairseq_roberta(sizes: Sizes) -> Candidate:
    """fairseq's own RoBERTa, on its own multihead attention."""
    options = Namespace(**sizes.options_of_fairseq())
    roberta_defaults(options)
    return _of_fairseq(RobertaModel(options, RobertaEncoder(options, sizes.dictionary())))


def fairseq_example(sizes: Sizes) -> Candidate:
    """The authors' code, fairseq's examples/linformer.

    Its encoder is taken as it is; its registered model cannot be loaded beside ours, because both have one name.
    """
    encoder_class = _example_modules("linformer_sentence_encoder").LinformerTransformerEncoder

    class Encoder(RobertaEncoder):
        def build_encoder(self, args: Any, dictionary: Dictionary, embed_tokens: nn.Embedding) -> nn.Module:
            encoder = encoder_class(args, dictionary, embed_tokens)
            encoder.apply(init_bert_params)
            return encoder

    options = Namespace(
        **sizes.options_of_fairseq(),
        compressed=sizes.length // sizes.projected_length,
        shared_kv_compressed=int(sizes.sharing == "key-value"),
        shared_layer_kv_compressed=int(sizes.sharing == "layerwise"),
        freeze_compress=0,
    )
    roberta_defaults(options)
    return _of_fairseq(RobertaModel(options, Encoder(options, sizes.dictionary())))


def example_attention(sizes: Sizes) -> Candidate:
    """The example's attention layer alone."""
    attention = _example_modules("multihead_linear_attention").MultiheadLinearAttention(
        sizes.embed_dim,
        sizes.heads,
        dropout=sizes.dropout,
        self_attention=True,
        q_noise=0.0,
        qn_block_size=8,
        compressed=sizes.length // sizes.projected_length,
        max_seq_len=sizes.length,
        shared_kv_compressed=1,
        shared_compress_layer=None,
        freeze_compress=0,
    )

    def features(x: Tensor) -> Tensor:
        return attention(x, x, x, need_weights=False)[0]

    return Candidate(attention, draw_positions_first, features, lambda x: features(x).sum())


def _example_modules(name: str) -> ModuleType:
    """A module of examples/linformer, imported under another package name: its own package registers its model."""
    package = ModuleType("fairseq_example_linformer")
    package.__path__ = [str(Path(fairseq.__file__).parent / "examples/linformer/linformer_src/modules")]
    return importlib.import_module(f"{sys.modules.setdefault(package.__name__, package).__name__}.{name}")


def hugging_face_modernbert(sizes: Sizes) -> Candidate:
    """At its defaults: windows of 128 except in every third layer, gated linear units of 1.5 d, no dropout."""
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    config = ModernBertConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.embed_dim,
        intermediate_size=3 * sizes.embed_dim // 2,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        max_position_embeddings=sizes.length,
        bos_token_id=0,
        cls_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
        sep_token_id=2,
    )
    model = ModernBertForMaskedLM(config)

    def body(tokens: Tensor) -> Tensor:
        return model.model(tokens)[0]

    # The head works on masked positions only, as in all models here.
    return _language_model(model, body, lambda tokens, masked: model.decoder(model.head(body(tokens)[masked])))


# By the names of tables: what builds one layer's attention, or a whole model.
LAYERS: dict[str, Callable[[Sizes], Candidate]] = {"linformer": our_attention, "fairseq-example": example_attention}
MODELS: dict[str, Callable[[Sizes], Candidate]] = {
    **{attention: ours(attention) for attention in ATTENTIONS},
    **{f"softmax-{kernel}": ours("softmax", kernel) for kernel in KERNELS},
    "fairseq-example": fairseq_example,
    "fairseq-roberta": fairseq_roberta,
    "hf-modernbert": hugging_face_modernbert,
}
