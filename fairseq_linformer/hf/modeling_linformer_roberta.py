"""Linformer RoBERTa models in transformers, with the same layers and parameter names as in fairseq.

Dimensions: B batch, n sequence length, d embedding, V vocabulary.
"""

from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    ModelOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)

from ..attention import Attention
from ..attention.dropout import runs_eagerly_on_cpu
from ..attention.linformer import PROJECTIONS
from ..attention.projection import Projection
from ..errors import check
from ..model.architecture import Architecture
from ..model.encoder import (
    Encoder,
    EncoderLayer,
    Positions,
    build_norm,
    check_length,
    may_be_padded,
    misplaced_padding,
    select_positions,
)
from ..model.parts import ACTIVATIONS, ClassificationHead, mean_over_text
from ..model.resolution import check_removed, complete_options, validate
from .configuration_linformer_roberta import LinformerRobertaConfig

FIRST: Positions = (slice(None), 0)  # <s>
SharedName = tuple[int, str, int, str]  # layer and name of a shared module, and of its first occurrence


def resolve(config: LinformerRobertaConfig) -> Architecture:
    """Return the complete, validated options that layers read.

    Raises:
        ValueError: an option is invalid; the message names it.
    """
    options = config.to_dict()
    check_removed(options)
    activations = list(ACTIVATIONS)
    choices = {"projection": list(PROJECTIONS), "activation_fn": activations, "pooler_activation_fn": activations}
    for name, allowed_values in choices.items():
        check(name, options[name], options[name] in allowed_values, f"one of {', '.join(allowed_values)}")
    architecture = cast(Architecture, SimpleNamespace(**complete_options(options)))
    validate(architecture)
    return architecture


def register_once(layers: nn.ModuleList) -> list[SharedName]:
    """Deregister all names but the first of projections that layers, or keys and values, share.

    transformers stores every tensor under one name, and ties other names by rules that depend on its version.
    """
    first_names: dict[nn.Module | None, tuple[int, str]] = {}
    shared: list[SharedName] = []
    for layer_index, layer in enumerate(layers):
        attention = cast(EncoderLayer, layer).self_attn
        for name, module in list(attention._modules.items()):  # named_children omits second names
            if module in first_names:
                delattr(attention, name)
                shared.append((layer_index, name, *first_names[module]))
            first_names.setdefault(module, (layer_index, name))
    retie(layers, shared)
    return shared


def retie(layers: nn.ModuleList, shared: list[SharedName]) -> None:
    """Set the other names, without registration, to the modules of the first ones."""
    for layer, name, first_layer, first_name in shared:
        attention, first_attention = (cast(EncoderLayer, layers[number]).self_attn for number in (layer, first_layer))
        module = getattr(first_attention, first_name)
        if getattr(attention, name, None) is not module:
            attention.__dict__[name] = module  # setattr would register it


def draw_missing(module: nn.Module, draws: Iterable[Callable[[], None]], recurse: bool) -> None:
    """Initialize a module's parameters and buffers by `draws`, and restore those from a checkpoint.

    Versions of transformers skip different initializations, but all mark loaded tensors.
    """
    tensors = (*module.parameters(recurse), *module.buffers(recurse))
    loaded = [tensor for tensor in tensors if getattr(tensor, "_is_hf_initialized", False)]
    for draw in draws if len(loaded) < len(tensors) else ():
        values = [tensor.clone() for tensor in loaded]
        draw()
        for tensor, value in zip(loaded, values, strict=True):
            tensor.copy_(value)


class LinformerRobertaPreTrainedModel(PreTrainedModel):
    """Base class of the models."""

    config_class = LinformerRobertaConfig
    base_model_prefix = "linformer_roberta"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["LinformerRobertaLayer"]  # noqa: RUF012 (transformers requires it)
    _keys_to_ignore_on_load_unexpected = [r"lm_head\."]  # noqa: RUF012 (kept in exports for import)

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Initialize all parameters and buffers that were not loaded."""
        new = [module for module in self.modules() if not getattr(module, "_is_hf_initialized", False)]
        super().initialize_weights()
        for module in new:
            if isinstance(module, Attention):
                draw_missing(module, [module.finish_initialisation], recurse=True)
        for module in self.modules():  # transformers makes all loaded weights trainable
            if isinstance(module, Projection) and (self.config.freeze_projection or not module.TRAINABLE):
                module.requires_grad_(False)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialize the parameters and buffers of a module that were not loaded, without those of its children."""
        names = ("reset_buffers", "reset_parameters")  # reset_parameters may read buffers
        draws = [getattr(module, name) for name in names if hasattr(module, name)]
        if isinstance(module, nn.Linear | nn.Embedding):
            draws = [partial(super()._init_weights, module)]  # with the distribution of fairseq
        draw_missing(module, draws, recurse=False)


class LinformerRobertaLayer(GradientCheckpointingLayer, EncoderLayer):
    """Encoder layer with gradient checkpointing."""


class LinformerRobertaModel(LinformerRobertaPreTrainedModel, Encoder):
    """Encoder of token ids: (B, n) to features (B, n, d)."""

    layer_class = LinformerRobertaLayer
    post_init: Any  # from transformers

    def __init__(self, config: LinformerRobertaConfig, add_pooling_layer: bool = False):
        """Build the encoder; `add_pooling_layer` is ignored."""
        super().__init__(config)
        pad = config.pad_token_id
        tokens, positions = nn.Embedding(config.vocab_size, config.encoder_embed_dim, padding_idx=pad), None
        if config.positions == "learned":
            positions = nn.Embedding(config.max_positions + pad + 1, config.encoder_embed_dim, padding_idx=pad)
        self.build(resolve(config), tokens, positions)
        self.second_names = register_once(self.layers)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        output_attentions: bool | None = None,
        **unused: Any,
    ) -> Any:
        """Encode a batch.

        Args:
            input_ids: (B, n) token ids, padded on the right; n is at most ``config.max_positions``.
            attention_mask: (B, n), 1 at tokens and 0 at padding; by default from ``input_ids``.
            inputs_embeds: (B, n, d), instead of ``input_ids``.
            output_hidden_states: also return the input of the first layer and the output of each.
            return_dict: return an output object instead of a tuple; by default as in the configuration.
            output_attentions: must be false; PEFT always passes it.
            unused: other arguments of ``returns_states``.

        Raises:
            ValueError: the input is missing or too long; on the CPU also if padding precedes a token (a test that would
                synchronize with a GPU).
        """
        mask = self.padding_mask(input_ids, attention_mask, inputs_embeds)
        return_states = self.returns_states(output_hidden_states, output_attentions, mask, **unused)
        hidden, states = self.features(input_ids, inputs_embeds, mask, return_states)
        output = BaseModelOutput(last_hidden_state=hidden, hidden_states=states)
        return output if self.resolve_flag("return_dict", return_dict) else output.to_tuple()

    def resolve_flag(self, name: str, argument: bool | None) -> bool:
        """Return the value of an argument; by default that of the configuration."""
        return bool(getattr(self.config, name) if argument is None else argument)

    def returns_states(
        self,
        output_hidden_states: bool | None,
        output_attentions: bool | None,
        mask: Tensor | None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        head_mask: Tensor | None = None,
        use_cache: bool | None = None,
    ) -> bool:
        """Return True if hidden states are requested. Token types and the cache do not exist and are ignored.

        Attention matrices, which most mechanisms do not compute, and masked heads are rejected; on the CPU also
        positions that are not consecutive from 0 or from RoBERTa's first position.
        """
        attentions = self.resolve_flag("output_attentions", output_attentions)
        check("output_attentions", attentions, not attentions, "false; linformer analyze describes attention")
        check("head_mask", "a tensor", head_mask is None, "None: heads cannot be masked")
        if position_ids is not None and runs_eagerly_on_cpu(position_ids):
            first_position = position_ids.flatten(0, -2) - torch.arange(position_ids.size(-1))
            first_position = first_position if mask is None else first_position.expand_as(mask)[~mask]
            consecutive = any(bool(first_position.eq(number).all()) for number in (0, self.padding_idx + 1))
            check("position_ids", "a tensor", consecutive, "left out, or 0, 1, 2, … at the tokens of each sequence")
        return self.resolve_flag("output_hidden_states", output_hidden_states)

    def features(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        mask: Tensor | None,
        return_states: bool,
        output_positions: Positions | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """Return features (B, n, d) or of `output_positions` (N, d), and with `return_states` the hidden states.

        The mask is the result of ``padding_mask``.
        """
        # DataParallel's replicas and PEFT's modules_to_save replace a module only under its first name.
        retie(self.layers, self.second_names)
        x = self.embed(self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds, mask)
        if mask is not None and not may_be_padded(mask):
            mask = None
        if not return_states:
            return self.encode(x, mask, output_positions)[0], None
        x, states = self.encode(x, mask, keep_states=True)
        return select_positions(x, output_positions), (*states[:-1], x)

    def padding_mask(
        self, input_ids: Tensor | None, attention_mask: Tensor | None, inputs_embeds: Tensor | None
    ) -> Tensor | None:
        """Validate a batch, and return its padding mask (B, n), True where padded; None without padding."""
        model_input = input_ids if inputs_embeds is None else inputs_embeds
        if model_input is None or (input_ids is not None and inputs_embeds is not None):
            raise ValueError("give input_ids or inputs_embeds, one of them")
        if model_input.dim() != (2 if inputs_embeds is None else 3) or model_input.shape[1] == 0:
            allowed = "(B, n) for input_ids and (B, n, d) for inputs_embeds, n at least 1"
            raise ValueError(f"the input has the shape {tuple(model_input.shape)}, it must be {allowed}")
        shape = model_input.shape[:2]
        check_length(shape[1], self.longest)
        if attention_mask is None:
            if input_ids is None:
                return None
            source, padding_mask = "input_ids", input_ids.eq(self.padding_idx)
        elif attention_mask.shape != shape:
            raise ValueError(f"attention_mask has the shape {tuple(attention_mask.shape)}, it must be {tuple(shape)}")
        else:
            source, padding_mask = "attention_mask", attention_mask.eq(0)
        index = misplaced_padding(padding_mask)
        if index is not None:
            raise ValueError(
                f"{source}: sequence {index} has no token, or padding before one: set padding_side='right'"
            )
        return padding_mask


class LinformerRobertaWithHead(LinformerRobertaPreTrainedModel):
    """Base class of the models with a head."""

    output_class: Callable[..., ModelOutput]
    head = "classifier"  # attribute of the head
    of_texts = False  # True if the input of the head is one vector per text, by classifier_pooling
    accepts_loss_kwargs = True  # makes Trainer of transformers pass `num_items_in_batch`

    def __init__(self, config: LinformerRobertaConfig):
        super().__init__(config)
        self.linformer_roberta = LinformerRobertaModel(config)
        self.reads_mean = self.of_texts and config.classifier_pooling == "mean"
        self.output_positions: Positions | None = FIRST if self.of_texts and not self.reads_mean else None
        self.add_head(config)
        self.post_init()

    def add_head(self, config: LinformerRobertaConfig) -> None:
        """Add the head, by default a classifier."""
        self.classifier = classification_head(config, config.num_labels)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        output_attentions: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **unused: Any,
    ) -> Any:
        """Compute logits, and with labels the loss; shapes are in the docstrings of the classes.

        The loss is the mean over the labels, or their sum divided by `num_items_in_batch`, the number of labels in all
        microbatches of an update. The other arguments and errors are those of ``LinformerRobertaModel``.
        """
        base = self.linformer_roberta
        mask = base.padding_mask(input_ids, attention_mask, inputs_embeds)
        return_states = base.returns_states(output_hidden_states, output_attentions, mask, **unused)
        features, states = base.features(input_ids, inputs_embeds, mask, return_states, self.output_positions)
        if self.reads_mean:
            features = mean_over_text(features, mask)
        logits = self.logits(features)
        loss = None if labels is None else self.loss(logits, labels, num_items_in_batch)
        if input_ids is not None:
            logits = self.returned(logits, input_ids)
        output = self.output_class(loss=loss, logits=logits, hidden_states=states)
        return output if base.resolve_flag("return_dict", return_dict) else output.to_tuple()

    def logits(self, features: Tensor) -> Tensor:
        return getattr(self, self.head)(features)

    def returned(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        """Postprocess logits for the output; the loss is computed before."""
        return logits

    def loss(self, logits: Tensor, labels: Tensor, items: Tensor | int | None) -> Tensor:
        """Compute the cross-entropy of logits (..., classes) and labels (...), without labels -100."""
        return mean_of(F.cross_entropy, logits.flatten(0, -2), labels.flatten(), items)


def mean_of(loss: Callable[..., Tensor], logits: Tensor, labels: Tensor, items: Tensor | int | None) -> Tensor:
    """Compute a loss of PyTorch as the mean over the labels, or as their sum divided by `items`."""
    return loss(logits, labels) if items is None else loss(logits, labels, reduction="sum") / items


class LMHead(nn.Module):
    """LM head, features (..., d) to logits (..., V)."""

    def __init__(self, config: LinformerRobertaConfig):
        super().__init__()
        self.dense = nn.Linear(config.encoder_embed_dim, config.encoder_embed_dim, bias=config.head_bias)
        self.activation_fn = ACTIVATIONS[config.activation_fn]
        self.layer_norm = build_norm(config)
        self.decoder = nn.Linear(config.encoder_embed_dim, config.vocab_size)

    def forward(self, features: Tensor) -> Tensor:
        return self.decoder(self.layer_norm(self.activation_fn(self.dense(features))))


class LinformerRobertaForMaskedLM(LinformerRobertaWithHead):
    """Masked language model: logits (B, n, V); labels (B, n), -100 at positions without loss."""

    output_class = MaskedLMOutput
    head = "lm_head"
    _tied_weights_keys = {"lm_head.decoder.weight": "linformer_roberta.embed_tokens.weight"}  # noqa: RUF012

    def add_head(self, config: LinformerRobertaConfig) -> None:
        self.lm_head = LMHead(config)

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.lm_head.decoder = new_embeddings


def classification_head(config: LinformerRobertaConfig, classes: int) -> ClassificationHead:
    size, activation = config.encoder_embed_dim, ACTIVATIONS[config.pooler_activation_fn]
    dense, dropout = nn.Linear(size, size, bias=config.head_bias), nn.Dropout(config.pooler_dropout)
    norm = build_norm(config) if config.pooler_norm else None
    return ClassificationHead(dense, activation, dropout, nn.Linear(size, classes), norm)


class LinformerRobertaForSequenceClassification(LinformerRobertaWithHead):
    """Classifier of texts, for a class, several classes or a score each: logits (B, classes), scores (B, 1).

    Labels are classes (B,), for several classes per text 0 and 1 (B, classes), or scores (B,) or (B, 1).
    ``config.problem_type`` selects one of them; the default depends on ``num_labels`` and the type of the labels.
    """

    output_class = SequenceClassifierOutput
    of_texts = True

    def logits(self, features: Tensor) -> Tensor:
        is_score = self.config.num_labels == 1 and self.config.problem_type in ("regression", None)
        return super().logits(features) * (self.config.score_scale if is_score else 1.0)

    def loss(self, logits: Tensor, labels: Tensor, items: Tensor | int | None) -> Tensor:
        if self.config.problem_type is None:
            classes = "multi_label_classification" if labels.is_floating_point() else "single_label_classification"
            self.config.problem_type = "regression" if self.config.num_labels == 1 else classes
        if self.config.problem_type == "regression":
            return mean_of(F.mse_loss, logits, labels.view_as(logits).to(logits.dtype), items)
        if self.config.problem_type == "multi_label_classification":
            return mean_of(F.binary_cross_entropy_with_logits, logits, labels.to(logits.dtype), items)
        return super().loss(logits, labels, items)


class WordLabels(nn.Module):
    """Copying of the logits of a word's first token, which is the only one with a label in training, to its others.

    If ``B-NAME`` and ``I-NAME`` are classes, the other tokens get the larger of their two logits at ``I-NAME`` and the
    smaller at ``B-NAME``, so that they continue an entity.

    Attributes:
        begins: (V,), True for tokens that begin a word; all True in a new model, whose logits are unchanged.
    """

    begins: Tensor

    def __init__(self, config: LinformerRobertaConfig):
        super().__init__()
        self.register_buffer("begins", torch.ones(config.vocab_size, dtype=torch.bool))
        names = [config.id2label[number] for number in range(config.num_labels)]
        partners = [{"B": "I", "I": "B"}.get(name[:1], "") + name[1:] if name[1:2] == "-" else name for name in names]
        self.pairs = [names.index(partner) if partner in names else index for index, partner in enumerate(partners)]
        self.continues = [name.startswith("I-") for name in names]

    def forward(self, logits: Tensor, input_ids: Tensor, bos: int) -> Tensor:
        """Return logits (B, n, classes) for logits and token ids (B, n); a word begins also after the id `bos`."""
        begins = self.begins[input_ids] | F.pad(input_ids[:, :-1], (1, 0), value=bos).eq(bos)
        index, word_ids = torch.arange(input_ids.size(1), device=logits.device).expand_as(input_ids), begins.cumsum(1)
        starts = F.pad(torch.zeros_like(index), (1, 0)).scatter(1, word_ids * begins, index)  # words count from 1
        initial = logits.gather(1, starts.gather(1, word_ids).unsqueeze(-1).expand_as(logits))
        paired, continues = initial[..., self.pairs], torch.tensor(self.continues, device=logits.device)
        copied = torch.where(continues, torch.maximum(initial, paired), torch.minimum(initial, paired))
        return torch.where(begins.unsqueeze(-1), logits, copied)

    def reset_buffers(self) -> None:
        """Set all tokens to begin a word."""
        self.begins.fill_(True)


class LinformerRobertaForTokenClassification(LinformerRobertaWithHead):
    """Classifier of tokens: logits (B, n, classes); labels (B, n), -100 at tokens without loss.

    In our training the first token of each word has the label; its logits are copied to the others (``WordLabels``).
    With ``inputs_embeds``, and in the loss, each token has its computed logits.
    """

    output_class = TokenClassifierOutput

    def add_head(self, config: LinformerRobertaConfig) -> None:
        super().add_head(config)
        self.words = WordLabels(config)

    def returned(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        return self.words(logits, input_ids, self.config.bos_token_id)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize the embeddings; new tokens begin words."""
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        new = self.config.vocab_size - len(self.words.begins)
        self.words.begins = F.pad(self.words.begins, (0, new), value=True)
        return embeddings


class LinformerRobertaForMultipleChoice(LinformerRobertaWithHead):
    """Selection of one of several texts, with input (B, choices, n): logits (B, choices); labels (B,)."""

    output_class = MultipleChoiceModelOutput
    of_texts = True

    def add_head(self, config: LinformerRobertaConfig) -> None:
        self.classifier = classification_head(config, 1)

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **options: Any,
    ) -> Any:
        tensors = (input_ids, attention_mask, inputs_embeds)
        self.choices = next((tensor.size(1) for tensor in tensors if tensor is not None), 1)
        ids, mask, embeds = (None if tensor is None else tensor.flatten(0, 1) for tensor in tensors)
        return super().forward(ids, mask, embeds, labels, **options)

    def logits(self, features: Tensor) -> Tensor:
        return super().logits(features).view(-1, self.choices)


class LinformerRobertaForQuestionAnswering(LinformerRobertaWithHead):
    """First and last token of an answer: logits (B, n) of each; positions (B,), without loss beyond n."""

    head = "qa_outputs"

    def add_head(self, config: LinformerRobertaConfig) -> None:
        self.qa_outputs = nn.Linear(config.encoder_embed_dim, 2)

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **options: Any,
    ) -> Any:
        labels = None
        if start_positions is not None and end_positions is not None:
            labels = torch.stack([start_positions, end_positions], dim=-1)
        return super().forward(input_ids, attention_mask, inputs_embeds, labels, **options)

    @staticmethod
    def output_class(loss: Tensor | None, logits: Tensor, hidden_states: tuple[Tensor, ...] | None) -> ModelOutput:
        return QuestionAnsweringModelOutput(loss, *logits.unbind(-1), hidden_states)

    def loss(self, logits: Tensor, labels: Tensor, items: Tensor | int | None) -> Tensor:
        return self.loss_function(*logits.unbind(-1), *labels.unbind(-1), num_items_in_batch=items)  # of transformers
