"""Models that scripts/benchmark.py measures: those of this package, and others of equal width and depth, by name.

Dimensions: B batch, n sequence length, N masked positions of the batch, d embedding, V vocabulary.
"""

import importlib
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import fairseq
import torch
import torch.nn.functional as F
import yaml
from fairseq.data import Dictionary
from fairseq.models.roberta import RobertaEncoder, RobertaModel, init_bert_params
from fairseq.models.roberta import base_architecture as fill_in_roberta
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fairseq_linformer.attention import ATTENTIONS, get_attention
from fairseq_linformer.model.config import ResolvedConfig
from fairseq_linformer.model.flex import attach
from fairseq_linformer.model.resolve import resolve_config
from fairseq_linformer.model.roberta import LinformerRobertaModel

PRESETS = Path(__file__).resolve().parents[1] / "configs/pretrain/preset"
KERNELS = {
    "math": SDPBackend.MATH,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
Inputs = Sequence[Tensor]


@dataclass(frozen=True)
class Sizes:
    """Sizes that all models of a comparison share.

    Attributes:
        length: n, the longest sequence and that of every batch.
        projected_length: k of a Linformer.
        options: further options of this package's models.
    """

    layers: int
    embed_dim: int
    heads: int
    vocabulary: int
    dropout: float
    length: int
    projected_length: int
    options: tuple[tuple[str, Any], ...] = ()

    def fairseq_options(self) -> dict[str, Any]:
        """Return the sizes under fairseq's names."""
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
        """Return a dictionary of as many symbols as the vocabulary has."""
        dictionary = Dictionary()
        for number in range(self.vocabulary - len(dictionary)):
            dictionary.add_symbol(f"piece{number}")
        return dictionary


@dataclass(frozen=True)
class Model:
    """A model, or one layer's attention, ready to be measured.

    Attributes:
        module: with all parameters.
        features: maps the inputs to what inference returns, (B, n, d).
        loss: maps the inputs to a scalar.
        layers: modules to compile, each by itself.
        kernel: implementation of scaled-dot-product attention; None for PyTorch's choice.
    """

    module: nn.Module
    features: Callable[..., Tensor]
    loss: Callable[..., Tensor]
    layers: Iterable[nn.Module] = ()
    kernel: SDPBackend | None = None

    def selected_kernel(self) -> AbstractContextManager[None]:
        """Return a context in which PyTorch uses the model's kernel."""
        return nullcontext() if self.kernel is None else sdpa_kernel(self.kernel)


def text_inputs(sizes: Sizes, sequences: int) -> Inputs:
    """Draw tokens (B, n), their masks (B, n), and the indices of masked tokens in the flattened batch (N,)."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(4, sizes.vocabulary, (sequences, sizes.length), generator=generator)
    masked = torch.rand(tokens.shape, generator=generator) < 0.15
    return tokens, masked, masked.flatten().nonzero()[:, 0]


def layer_inputs(sizes: Sizes, sequences: int) -> Inputs:
    """Draw the input of one layer, (B, n, d)."""
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(sequences, sizes.length, sizes.embed_dim, generator=generator, requires_grad=True),)


@dataclass(frozen=True)
class PackageModel:
    """A model of this package by its options, with the padding and mask information that its training tasks pass."""

    options: Mapping[str, Any]
    kernel: str | None = None

    def config(self, sizes: Sizes) -> ResolvedConfig:
        """Return the resolved configuration.

        Raises:
            UserError: an option cannot work.
        """
        options = {"arch": "linformer_roberta_base", "projected_length": sizes.projected_length, "sharing": "key-value"}
        options |= {**sizes.fairseq_options(), **self.options, **dict(sizes.options)}
        return resolve_config(Namespace(**options), sizes.length)

    def model(self, sizes: Sizes) -> Model:
        """Build the whole model."""
        model = LinformerRobertaModel.of_config(self.config(sizes), sizes.dictionary())

        def features(tokens: Tensor, *_: Tensor) -> Tensor:
            return model.encoder.extract_features(tokens, padded=False)[0]

        def loss(tokens: Tensor, masked: Tensor, indices: Tensor) -> Tensor:
            masks = {"masked_tokens": masked, "masked_positions": indices}
            return model(tokens, **masks, masked_targets=tokens.flatten()[indices], padded=False)[0] / len(indices)

        return Model(model, features, loss, model.encoder.sentence_encoder.layers, self._backend)

    def layer(self, sizes: Sizes) -> Model:
        """Build the attention of one layer, without a value residual."""
        config = self.config(replace(sizes, layers=1, options=(*sizes.options, ("value_residual", False))))
        attention = get_attention(config.attention).build_layers(config)[0]
        if config.flex_attention:
            attach(attention)
        return Model(attention, attention, lambda x: attention(x).sum(), (attention,), self._backend)

    @property
    def _backend(self) -> SDPBackend | None:
        return None if self.kernel is None else KERNELS[self.kernel]


@dataclass(frozen=True)
class OtherModel:
    """A model of another project."""

    model: Callable[[Sizes], Model]
    one_layer: Callable[[Sizes], Model] | None = None

    def layer(self, sizes: Sizes) -> Model:
        """Build the attention of one layer.

        Raises:
            NotImplementedError: the project's layer cannot be used alone.
        """
        if self.one_layer is None:
            raise NotImplementedError("measured as a whole model only")
        return self.one_layer(sizes)


def fairseq_example(sizes: Sizes) -> Model:
    """Build the model of the Linformer authors, fairseq's examples/linformer, with one E = F per layer.

    Only its encoder is imported: its registered model has the name of this package's.
    """
    encoder_class = _example_module("linformer_sentence_encoder").LinformerTransformerEncoder

    class Encoder(RobertaEncoder):
        def build_encoder(self, args: Any, dictionary: Dictionary, embed_tokens: nn.Embedding) -> nn.Module:
            encoder = encoder_class(args, dictionary, embed_tokens)
            encoder.apply(init_bert_params)
            return encoder

    ratio = sizes.length // sizes.projected_length
    sharing = {"shared_kv_compressed": 1, "shared_layer_kv_compressed": 0, "freeze_compress": 0}
    options = Namespace(**sizes.fairseq_options(), compressed=ratio, **sharing)
    fill_in_roberta(options)
    model = RobertaModel(options, Encoder(options, sizes.dictionary()))

    def features(tokens: Tensor, *_: Tensor) -> Tensor:
        return model.encoder.extract_features(tokens)[0]

    def loss(tokens: Tensor, masked: Tensor, indices: Tensor) -> Tensor:
        logits = model(tokens, masked_tokens=masked)[0]
        return F.cross_entropy(logits.float(), tokens.flatten()[indices])

    return Model(model, features, loss, model.encoder.sentence_encoder.layers)


def fairseq_example_layer(sizes: Sizes) -> Model:
    """Build the attention layer of the example, which takes (n, B, d)."""
    attention = _example_module("multihead_linear_attention").MultiheadLinearAttention(
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
        x = x.transpose(0, 1)
        return attention(x, x, x, need_weights=False)[0]

    return Model(attention, features, lambda x: features(x).sum(), (attention,))


def _example_module(name: str) -> ModuleType:
    """Import a module of examples/linformer under another package name, so that nothing is registered."""
    package = ModuleType("fairseq_example_linformer")
    package.__path__ = [str(Path(fairseq.__file__).parent / "examples/linformer/linformer_src/modules")]
    return importlib.import_module(f"{sys.modules.setdefault(package.__name__, package).__name__}.{name}")


def modernbert(sizes: Sizes) -> Model:
    """Build transformers' ModernBERT with random weights: local windows of 128 except in every third layer, no dropout.

    Raises:
        ImportError: transformers is not installed.
    """
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    special = {"bos_token_id": 0, "cls_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "sep_token_id": 2}
    config = ModernBertConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.embed_dim,
        intermediate_size=3 * sizes.embed_dim // 2,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        max_position_embeddings=sizes.length,
        **special,
    )
    model = ModernBertForMaskedLM(config)

    def features(tokens: Tensor, *_: Tensor) -> Tensor:
        return model.model(tokens)[0]

    def loss(tokens: Tensor, masked: Tensor, indices: Tensor) -> Tensor:
        x = features(tokens).flatten(0, 1)[indices]  # the head computes masked positions only, as in all models here
        return F.cross_entropy(model.decoder(model.head(x)).float(), tokens.flatten()[indices])

    return Model(model, features, loss, model.model.layers)


def preset(name: str) -> PackageModel:
    """Return the model of a YAML in configs/pretrain/preset."""
    return PackageModel(yaml.safe_load((PRESETS / f"{name}.yaml").read_text(encoding="utf-8"))["model"])


MODELS: dict[str, PackageModel | OtherModel] = {
    **{name: PackageModel({"attention": name}) for name in ATTENTIONS},
    "near_and_far": preset("near_and_far"),
    "fetch": preset("fetch"),
    # as many local keys as the presets have
    "longformer": PackageModel({"attention": "longformer", "longformer_window": 256}),
    **{f"softmax-{kernel}": PackageModel({"attention": "softmax"}, kernel) for kernel in KERNELS},
    "fairseq-example": OtherModel(fairseq_example, fairseq_example_layer),
    "modernbert": OtherModel(modernbert),
}
LOCAL = ("near_and_far", "fetch", "longformer", "alternating")  # models with a local window, for flex_attention
