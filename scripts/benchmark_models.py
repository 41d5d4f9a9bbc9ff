"""Models that scripts/benchmark.py measures: those of this package, and others of equal width and depth, by name.

Dimensions: B batch, n sequence length, N masked positions of the batch, d embedding, V vocabulary.
"""

import importlib
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
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
from fairseq_linformer.attention.kernels.flex import attach
from fairseq_linformer.model.config import resolve_config
from fairseq_linformer.model.options import ResolvedConfig
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
    """Sizes that all models of a comparison share."""

    layers: int
    embed_dim: int
    heads: int
    vocabulary: int
    dropout: float
    length: int  # n, the longest sequence and that of every batch
    projected_length: int  # k of a Linformer
    options: tuple[tuple[str, Any], ...] = ()  # additional ones of this package's models
    all_positions: bool = False  # True to compute the last feed-forward network of all models on all positions

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
    """Model, or attention of one layer, ready to be measured."""

    module: nn.Module
    features: Callable[..., Tensor]  # maps the inputs to the output of inference, (B, n, d)
    loss: Callable[..., Tensor]  # maps the inputs to a scalar
    layers: Iterable[nn.Module] = ()  # to compile, each by itself
    kernel: SDPBackend | None = None  # of scaled-dot-product attention; None for PyTorch's choice

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
class Source:
    """Builders of a whole model, and of the attention of one layer if it can be used alone."""

    model: Callable[[Sizes], Model]
    layer: Callable[[Sizes], Model] | None = None
    options: Mapping[str, Any] | None = None  # of a model of this package


def package_source(options: Mapping[str, Any], kernel: str | None = None) -> Source:
    """Return the builders of a model of this package."""
    arguments = (options, None if kernel is None else KERNELS[kernel])
    return Source(partial(package_model, *arguments), partial(package_layer, *arguments), options)


def preset_source(name: str) -> Source:
    """Return the builders of the model in a YAML of configs/pretrain/preset."""
    return package_source(yaml.safe_load((PRESETS / f"{name}.yaml").read_text(encoding="utf-8"))["model"])


def package_config(options: Mapping[str, Any], sizes: Sizes) -> ResolvedConfig:
    """Return the configuration of a model of this package, by default with one E = F per layer.

    Raises:
        UserError: an option cannot work.
    """
    defaults = {"arch": "linformer_roberta_base", "projected_length": sizes.projected_length, "sharing": "key-value"}
    merged = {**defaults, **sizes.fairseq_options(), **options, **dict(sizes.options)}
    return resolve_config(Namespace(**merged), sizes.length)


def package_model(options: Mapping[str, Any], kernel: SDPBackend | None, sizes: Sizes) -> Model:
    """Build a model of this package, with the masks and padding of a batch as the training tasks pass them."""
    model = LinformerRobertaModel.of_config(package_config(options, sizes), sizes.dictionary())

    def features(tokens: Tensor, *_: Tensor) -> Tensor:
        return model.encoder.extract_features(tokens, padded=False)[0]

    layers = model.encoder.sentence_encoder.layers
    if sizes.all_positions:
        return replace(masked_language_model(model, features, model.encoder.lm_head, layers), kernel=kernel)

    def loss(tokens: Tensor, masked: Tensor, indices: Tensor) -> Tensor:
        masks = {"masked_tokens": masked, "masked_positions": indices}
        return model(tokens, **masks, masked_targets=tokens.flatten()[indices], padded=False)[0] / len(indices)

    return Model(model, features, loss, layers, kernel)


def package_layer(options: Mapping[str, Any], kernel: SDPBackend | None, sizes: Sizes) -> Model:
    """Build the attention of one layer, without a value residual."""
    sizes = replace(sizes, layers=1, options=(*sizes.options, ("value_residual", False)))
    config = package_config(options, sizes)
    attention = get_attention(config.attention).build_layers(config)[0]
    if config.flex_attention:
        attach(attention)
    return Model(attention, attention, lambda x: attention(x).sum(), (attention,), kernel)


def masked_language_model(
    module: nn.Module, features: Callable[..., Tensor], head: Callable[[Tensor], Tensor], layers: Iterable[nn.Module]
) -> Model:
    """Return a model that computes the features of all positions, and its head at masked positions only."""

    def loss(tokens: Tensor, masked: Tensor, indices: Tensor) -> Tensor:
        logits = head(features(tokens).flatten(0, 1)[indices])
        return F.cross_entropy(logits.float(), tokens.flatten()[indices])

    return Model(module, features, loss, layers)


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

    return masked_language_model(model, features, model.encoder.lm_head, model.encoder.sentence_encoder.layers)


def fairseq_example_layer(sizes: Sizes) -> Model:
    """Build the attention layer of the example, which takes (n, B, d)."""
    layer_class = _example_module("multihead_linear_attention").MultiheadLinearAttention
    ratio = sizes.length // sizes.projected_length
    projection: dict[str, Any] = {"compressed": ratio, "max_seq_len": sizes.length, "shared_kv_compressed": 1}
    projection |= {"shared_compress_layer": None, "freeze_compress": 0}
    noise = {"dropout": sizes.dropout, "q_noise": 0.0, "qn_block_size": 8}
    attention = layer_class(sizes.embed_dim, sizes.heads, self_attention=True, **noise, **projection)

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
    head = nn.Sequential(model.head, model.decoder)
    return masked_language_model(model, lambda tokens, *_: model.model(tokens)[0], head, model.model.layers)


MODELS = {
    **{name: package_source({"attention": name}) for name in ATTENTIONS},
    "near_and_far": preset_source("near_and_far"),
    "distant": preset_source("distant"),
    # as many local keys as in the presets
    "longformer": package_source({"attention": "longformer", "longformer_window": 256}),
    **{f"softmax-{kernel}": package_source({"attention": "softmax"}, kernel) for kernel in KERNELS},
    "fairseq-example": Source(fairseq_example, fairseq_example_layer),
    "modernbert": Source(modernbert),
}
LOCAL = ("near_and_far", "longformer", "alternating")  # models with a local window, for flex_attention
