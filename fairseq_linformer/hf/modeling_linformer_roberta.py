"""Linformer RoBERTa models in transformers, with the layers and the parameters' names that they have in fairseq.

Dimensions: B batch, n sequence length, d embedding, V vocabulary.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    ModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)

from ..attention import Attention
from ..attention.projection import Projection
from ..attention.registry import PROJECTIONS
from ..errors import check
from ..model.architecture import Architecture, per_layer_lists, projection_defaults, validate
from ..model.batch import Positions, check_length, may_be_padded, mean_over_text, misplaced_padding, pick
from ..model.encoder import Encoder
from ..model.parts import ACTIVATIONS, ClassificationHead, LocalConvolution
from .configuration_linformer_roberta import LinformerRobertaConfig
from .second_names import name_again, register_once

FIRST: Positions = (slice(None), 0)  # <s>


def resolve(config: LinformerRobertaConfig) -> Architecture:
    """The options with nothing left open, as layers read them.

    Raises:
        ValueError: an option cannot work; the message names it.
    """
    options = config.to_dict()
    activations = list(ACTIVATIONS)
    kinds = {"projection": list(PROJECTIONS), "activation_fn": activations, "pooler_activation_fn": activations}
    for name, known in kinds.items():
        check(name, options[name], options[name] in known, f"one of {', '.join(known)}")
    options |= projection_defaults(options)
    options |= per_layer_lists(options)
    architecture = cast(Architecture, SimpleNamespace(**options))
    validate(architecture)
    return architecture


class LinformerRobertaPreTrainedModel(PreTrainedModel):
    """What the models share."""

    config_class = LinformerRobertaConfig
    base_model_prefix = "linformer_roberta"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["EncoderLayer"]  # noqa: RUF012 (the form that transformers reads)

    @classmethod
    def from_pretrained(cls, *arguments: Any, **options: Any) -> Any:
        """A model of a folder or of the Hub, as ``PreTrainedModel`` loads it: with output_loading_info a pair."""
        loaded = super().from_pretrained(*arguments, **options)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        for module in model.modules():  # transformers lets every weight that it loads be trained
            if isinstance(module, Projection) and (model.config.freeze_projection or not module.TRAINABLE):
                module.requires_grad_(False)
        return loaded

    def init_weights(self) -> None:
        """Draws all weights of a new model."""
        super().init_weights()
        for module in self.modules():
            if isinstance(module, Attention):
                module.finish_initialisation()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draws the weights of a module as fairseq's RoBERTa does; E and F as their options say."""
        # Some versions of transformers ask for modules, too, whose weights have just been loaded.
        tensors = (*module.parameters(), *([module.begins] if isinstance(module, WordLabels) else []))
        if all(getattr(tensor, "_is_hf_initialized", False) for tensor in tensors):
            return
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, self.config.initializer_range)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, 0.0, self.config.initializer_range)
            if module.padding_idx is not None:
                module.weight[module.padding_idx].zero_()
        elif isinstance(module, nn.LayerNorm | nn.RMSNorm | Projection):
            module.reset_parameters()
        elif isinstance(module, LocalConvolution):
            module.conv.reset_parameters()
        elif isinstance(module, Attention):
            module.reset_value_mix()
        elif isinstance(module, WordLabels):
            module.begins.fill_(True)


class LinformerRobertaModel(LinformerRobertaPreTrainedModel, Encoder):
    """Token ids to features: (B, n) to (B, n, d)."""

    _keys_to_ignore_on_load_unexpected = [r"lm_head\."]  # noqa: RUF012 (exports of encoders keep it, for the way back)
    post_init: Any  # of transformers, as is the next
    _gradient_checkpointing_func: Any

    def __init__(self, config: LinformerRobertaConfig):
        super().__init__(config)
        pad = config.pad_token_id
        tokens, positions = nn.Embedding(config.vocab_size, config.encoder_embed_dim, padding_idx=pad), None
        if config.positions == "learned":
            positions = nn.Embedding(config.max_positions + pad + 1, config.encoder_embed_dim, padding_idx=pad)
        self.build(resolve(config), tokens, positions)
        self.second_names = register_once(self.layers)
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embed_tokens = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        output_attentions: bool | None = None,
    ) -> Any:
        """Encodes a batch.

        Args:
            input_ids: (B, n) token ids, padded on the right; n is at most ``config.max_positions``.
            attention_mask: (B, n), 1 at tokens and 0 at padding; by default what ``input_ids`` shows.
            inputs_embeds: (B, n, d), instead of ``input_ids``.
            output_hidden_states: also return the input of the first layer and the output of each.
            return_dict: an output object instead of a tuple; by default the configuration's.
            output_attentions: refused if true; PEFT gives it whatever it is.

        Raises:
            ValueError: the input is none of these, or too long, and on the CPU also where padding stands before a
                token: looking at values on a GPU would stop the host.
        """
        everything = self.returns_states(output_hidden_states, output_attentions)
        mask = self.padding_mask(input_ids, attention_mask, inputs_embeds)
        hidden, states = self.features(input_ids, inputs_embeds, mask, everything)
        output = BaseModelOutput(last_hidden_state=hidden, hidden_states=states)
        return output if self.asked("return_dict", return_dict) else output.to_tuple()

    def asked(self, name: str, given: bool | None) -> bool:
        """What an argument says, or the configuration where it is left out."""
        return bool(getattr(self.config, name) if given is None else given)

    def returns_states(self, output_hidden_states: bool | None, output_attentions: bool | None) -> bool:
        """Whether hidden states are asked for; attention matrices, which most mechanisms never have, are refused."""
        attentions = self.asked("output_attentions", output_attentions)
        check("output_attentions", attentions, not attentions, "false; linformer analyze shows what attention does")
        return self.asked("output_hidden_states", output_hidden_states)

    def features(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        mask: Tensor | None,
        everything: bool,
        wanted: Positions | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """Features (B, n, d), or of `wanted` positions (N, d), and with `everything` also the hidden states.

        The mask is that of ``padding_mask``.
        """
        # What replaces a module, as DataParallel's replicas and PEFT's modules_to_save do, does so by its first name.
        name_again(self.layers, self.second_names)
        x = self.embed(self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds, mask)
        if mask is not None and not may_be_padded(mask):
            mask = None
        if not everything:
            return self.encode(x, mask, wanted)[0], None
        x, states = self.encode(x, mask, keep_states=True)
        return pick(x, wanted), (*states[:-1], x)

    def run_layer(self, layer: nn.Module, *arguments: Any, **first_values: Any) -> Tensor:
        if self.gradient_checkpointing and self.training:
            return self._gradient_checkpointing_func(layer.__call__, *arguments, *first_values.values())
        return layer(*arguments, **first_values)

    def padding_mask(
        self, input_ids: Tensor | None, attention_mask: Tensor | None, inputs_embeds: Tensor | None
    ) -> Tensor | None:
        """(B, n), True where padded."""
        given = input_ids if inputs_embeds is None else inputs_embeds
        if given is None or (input_ids is not None and inputs_embeds is not None):
            raise ValueError("give input_ids or inputs_embeds, one of them")
        embedded = inputs_embeds is not None
        if given.dim() != 2 + embedded or given.shape[1] == 0:
            name, allowed = ("inputs_embeds", "(B, n, d)") if embedded else ("input_ids", "(B, n)")
            raise ValueError(f"{name} has the shape {tuple(given.shape)}, it must be {allowed}, n at least 1")
        shape = given.shape[:2]
        check_length(shape[1], self.longest)
        if attention_mask is None:
            if input_ids is None:
                return None
            source, padding_mask = "input_ids", input_ids.eq(self.padding_idx)
        elif attention_mask.shape != shape:
            allowed = f"{tuple(shape)}, a number per token"
            raise ValueError(f"attention_mask has the shape {tuple(attention_mask.shape)}, it must be {allowed}")
        else:
            source, padding_mask = "attention_mask", attention_mask.eq(0)
        row = misplaced_padding(padding_mask)
        if row is not None:
            raise ValueError(
                f"{source}: row {row} has padding before a token, or no token: padding must stand on the right "
                "(tokenizer.padding_side='right')"
            )
        return padding_mask


class LinformerRobertaWithHead(LinformerRobertaPreTrainedModel):
    """A model and what makes logits of its features: what all models with a head share."""

    output_class: type[ModelOutput]
    wanted: Positions | None = None  # of the features; None for all of them
    reads_mean = False  # whether the head reads their mean over the text
    accepts_loss_kwargs = True  # so transformers' Trainer passes `num_items_in_batch`

    def __init__(self, config: LinformerRobertaConfig):
        super().__init__(config)
        self.linformer_roberta = LinformerRobertaModel(config)

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
    ) -> Any:
        """Logits, and the loss where there are labels: the class says of what shapes.

        The loss is the mean over these labels, or their sum over `num_items_in_batch`, the number of labels in all
        parts of an update. The other arguments and errors are those of ``LinformerRobertaModel``.
        """
        base = self.linformer_roberta
        everything = base.returns_states(output_hidden_states, output_attentions)
        mask = base.padding_mask(input_ids, attention_mask, inputs_embeds)
        features, states = base.features(input_ids, inputs_embeds, mask, everything, self.wanted)
        if self.reads_mean:
            features = mean_over_text(features, mask)
        logits = self.logits(features)
        loss = None if labels is None else self.loss(logits, labels, num_items_in_batch)
        if input_ids is not None:
            logits = self.returned(logits, input_ids)
        output = self.output_class(loss=loss, logits=logits, hidden_states=states)
        return output if base.asked("return_dict", return_dict) else output.to_tuple()

    def logits(self, features: Tensor) -> Tensor:
        """What the head makes of the features."""
        raise NotImplementedError

    def returned(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        """The logits that are returned; the loss is of those before."""
        return logits

    def loss(self, logits: Tensor, labels: Tensor, items: Tensor | int | None) -> Tensor:
        """Cross-entropy of logits (..., classes) and labels (...), without those that are -100."""
        return mean_of(F.cross_entropy, logits.flatten(0, -2), labels.flatten(), items)


def mean_of(loss: Callable[..., Tensor], logits: Tensor, labels: Tensor, items: Tensor | int | None) -> Tensor:
    """A loss of PyTorch's, as the mean over the labels, or as what these are of the mean over `items` labels."""
    return loss(logits, labels) if items is None else loss(logits, labels, reduction="sum") / items


class LMHead(nn.Module):
    """Features to logits: (..., d) to (..., V)."""

    def __init__(self, config: LinformerRobertaConfig):
        super().__init__()
        self.dense = nn.Linear(config.encoder_embed_dim, config.encoder_embed_dim)
        self.activation_fn = ACTIVATIONS[config.activation_fn]
        self.layer_norm = nn.LayerNorm(config.encoder_embed_dim, config.layer_norm_eps)
        self.decoder = nn.Linear(config.encoder_embed_dim, config.vocab_size)

    def forward(self, features: Tensor) -> Tensor:
        return self.decoder(self.layer_norm(self.activation_fn(self.dense(features))))


class LinformerRobertaForMaskedLM(LinformerRobertaWithHead):
    """The masked language model: logits (B, n, V); labels (B, n), -100 at positions that do not count."""

    output_class = MaskedLMOutput
    _tied_weights_keys = {"lm_head.decoder.weight": "linformer_roberta.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: LinformerRobertaConfig):
        super().__init__(config)
        self.lm_head = LMHead(config)
        self.post_init()

    def logits(self, features: Tensor) -> Tensor:
        return self.lm_head(features)

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.lm_head.decoder = new_embeddings


def classification_head(config: LinformerRobertaConfig) -> ClassificationHead:
    """A new head, of ``config.num_labels`` classes."""
    size, activation = config.encoder_embed_dim, ACTIVATIONS[config.pooler_activation_fn]
    dense, dropout = nn.Linear(size, size), nn.Dropout(config.pooler_dropout)
    return ClassificationHead(dense, activation, dropout, nn.Linear(size, config.num_labels))


class LinformerRobertaForSequenceClassification(LinformerRobertaWithHead):
    """A class, several classes or a score per text, by ``classifier_pooling``: logits (B, classes), scores (B, 1).

    Labels are classes (B,), for several classes per text 0 and 1 (B, classes), or scores (B,) or (B, 1).
    ``config.problem_type`` says which; left open it follows from ``num_labels`` and the type of the labels.
    """

    output_class = SequenceClassifierOutput
    _keys_to_ignore_on_load_unexpected = [r"lm_head\."]  # noqa: RUF012 (exports keep it, for the way back)

    def __init__(self, config: LinformerRobertaConfig):
        super().__init__(config)
        self.reads_mean = config.classifier_pooling == "mean"
        self.wanted = None if self.reads_mean else FIRST
        self.classifier = classification_head(config)
        self.post_init()

    def logits(self, features: Tensor) -> Tensor:
        is_score = self.config.num_labels == 1 and self.config.problem_type in ("regression", None)
        return self.classifier(features) * (self.config.score_scale if is_score else 1.0)

    def loss(self, logits: Tensor, labels: Tensor, items: Tensor | int | None) -> Tensor:
        if self.config.problem_type is None:
            several = "multi_label_classification" if labels.is_floating_point() else "single_label_classification"
            self.config.problem_type = "regression" if self.config.num_labels == 1 else several
        if self.config.problem_type == "regression":
            return mean_of(F.mse_loss, logits, labels.view_as(logits).to(logits.dtype), items)
        if self.config.problem_type == "multi_label_classification":
            return mean_of(F.binary_cross_entropy_with_logits, logits, labels.to(logits.dtype), items)
        return super().loss(logits, labels, items)


class WordLabels(nn.Module):
    """Gives every token of a word the logits of the word's first one, which alone is trained.

    Of two classes ``B-NAME`` and ``I-NAME`` all tokens but the first get the larger logit at ``I-NAME``, so that they
    continue what the first begins.

    Attributes:
        begins: (V,), whether a token begins a word; all do in a new model, whose logits stay as they are.
    """

    begins: Tensor

    def __init__(self, config: LinformerRobertaConfig):
        super().__init__()
        self.register_buffer("begins", torch.ones(config.vocab_size, dtype=torch.bool))
        names = [config.id2label[number] for number in range(config.num_labels)]
        others = [{"B": "I", "I": "B"}.get(name[:1], "") + name[1:] if name[1:2] == "-" else name for name in names]
        self.pairs = [names.index(other) if other in names else own for own, other in enumerate(others)]
        self.inside = [name.startswith("I-") for name in names]

    def forward(self, logits: Tensor, input_ids: Tensor, bos: int) -> Tensor:
        """(B, n, classes) of logits (B, n, classes) and token ids (B, n); a word begins after the id `bos`, too."""
        begins = self.begins[input_ids] | F.pad(input_ids[:, :-1], (1, 0), value=bos).eq(bos)
        place, word = torch.arange(input_ids.size(1), device=logits.device).expand_as(input_ids), begins.cumsum(1)
        firsts = F.pad(torch.zeros_like(place), (1, 0)).scatter(1, word * begins, place)  # words count from 1
        first = logits.gather(1, firsts.gather(1, word).unsqueeze(-1).expand_as(logits))
        paired, inside = first[..., self.pairs], torch.tensor(self.inside, device=logits.device)
        following = torch.where(inside, torch.maximum(first, paired), torch.minimum(first, paired))
        return torch.where(begins.unsqueeze(-1), logits, following)

    def resize(self, size: int) -> None:
        """Makes `size` the number of tokens; new ones begin words."""
        self.begins = F.pad(self.begins, (0, size - len(self.begins)), value=True)


class LinformerRobertaForTokenClassification(LinformerRobertaWithHead):
    """A class per token: logits (B, n, classes); labels (B, n), -100 at tokens that do not count.

    Training of ours labels the first token of each word, whose logits the others get here (``WordLabels``); with
    ``inputs_embeds`` tokens are not known, and each has its own. The loss is of each token's own logits.
    """

    output_class = TokenClassifierOutput
    _keys_to_ignore_on_load_unexpected = [r"lm_head\."]  # noqa: RUF012 (exports keep it, for the way back)

    def __init__(self, config: LinformerRobertaConfig):
        super().__init__(config)
        self.classifier = classification_head(config)
        self.words = WordLabels(config)
        self.post_init()

    def logits(self, features: Tensor) -> Tensor:
        return self.classifier(features)

    def returned(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        return self.words(logits, input_ids, self.config.bos_token_id)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        self.words.resize(self.config.vocab_size)
        return embeddings
