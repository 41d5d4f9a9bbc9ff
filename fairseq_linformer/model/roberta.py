"""The registered model and its architectures: fairseq's RoBERTa around our sentence encoder."""

from argparse import ArgumentParser, Namespace
from functools import partial
from typing import Any

from fairseq.data import Dictionary
from fairseq.models import register_model, register_model_architecture
from fairseq.models.roberta import RobertaEncoder, RobertaModel
from fairseq.models.roberta.model import RobertaClassificationHead
from fairseq.modules import LayerDropModuleList, PositionalEmbedding
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig
from torch import Tensor, nn

from ..attention.base import Attention
from ..attention.kernels.flex import RECOMPILE_LIMIT, use_flex
from .architecture import ARCHITECTURES, fill_in
from .config import LinformerRobertaConfig, ResolvedConfig, resolve_config
from .encoder import SentenceEncoder, build_norm
from .hub import PretrainedRoberta
from .lm_head import linear_cross_entropy
from .parts import mean_over_text

# Values of fairseq's param_group, for optimizers: matrices of linear maps in the layers, and token embeddings.
IN_LAYERS, EMBEDDINGS = "in layers", "embeddings"


class LinformerRobertaEncoder(RobertaEncoder):
    """RoBERTa's encoder, token embedding and LM head, around our sentence encoder."""

    def build_encoder(self, args: ResolvedConfig, dictionary: Dictionary, embed_tokens: nn.Embedding) -> nn.Module:
        positions = None
        if args.positions == "learned":
            positions = PositionalEmbedding(args.max_positions, args.encoder_embed_dim, dictionary.pad(), learned=True)
        encoder = SentenceEncoder(args, embed_tokens, positions, args.checkpoint_activations, args.offload_activations)
        if args.compile_layers:
            import torch._dynamo

            # The first length has a graph with static shapes, which is fastest; all other lengths share one with
            # dynamic shapes. Padding, evaluation, and layers with different options add graphs.
            torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
            for layer in encoder.layers:
                layer.compile()
        if args.flex_attention:
            use_flex(encoder.layers)
        if args.encoder_layerdrop > 0:
            encoder.layers = LayerDropModuleList(args.encoder_layerdrop, encoder.layers)
        return encoder

    def build_lm_head(self, **arguments: Any) -> nn.Module:
        head = super().build_lm_head(**arguments)
        head.layer_norm = build_norm(self.args)
        if not self.args.head_bias:
            head.dense.bias = None
        return head

    def forward(
        self,
        src_tokens: Tensor,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        masked_tokens: Tensor | None = None,
        masked_positions: Tensor | None = None,
        masked_targets: Tensor | None = None,
        **batch_info: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Encode as in RoBERTa; the last layer returns only masked positions if only their logits are needed.

        Batches of our tasks include ``padded`` and ``masked_positions``, the indices of the masked tokens
        (``data/batches.py``), to avoid synchronization with a GPU. With ``masked_targets`` (N,) the sum of losses is
        returned.
        """
        if features_only or return_all_hiddens or masked_tokens is None:
            features, extra = self.extract_features(src_tokens, return_all_hiddens, **batch_info)
            return (features if features_only else self.output_layer(features, masked_tokens)), extra
        output_positions = masked_tokens if masked_positions is None else masked_positions
        features, _ = self.sentence_encoder(src_tokens, output_positions, **batch_info)
        if masked_targets is not None:
            head = self.lm_head
            x = head.layer_norm(head.activation_fn(head.dense(features)))
            return linear_cross_entropy(x, head.weight, head.bias, masked_targets), {"inner_states": None}
        return self.output_layer(features), {"inner_states": None}

    def extract_features(
        self, src_tokens: Tensor, return_all_hiddens: bool = False, **batch_info: Any
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return features (B, n, d), and on demand the states of ``SentenceEncoder``, as RoBERTa does."""
        features, states = self.sentence_encoder(src_tokens, keep_states=return_all_hiddens, **batch_info)
        return features, {"inner_states": [state.transpose(0, 1) for state in states] if return_all_hiddens else None}


class NormedClassificationHead(RobertaClassificationHead):
    """RoBERTa's classification head with a norm after the activation, as in ModernBERT."""

    def __init__(self, head: RobertaClassificationHead, norm: nn.Module):
        nn.Module.__init__(self)
        self.dense, self.activation_fn, self.dropout = head.dense, head.activation_fn, head.dropout
        self.norm, self.out_proj = norm, head.out_proj

    def forward(self, features: Tensor, **unused: Any) -> Tensor:
        """Return logits (B, classes) of features (B, n, d)."""
        hidden = self.norm(self.activation_fn(self.dense(self.dropout(features[:, 0]))))
        return self.out_proj(self.dropout(hidden))


@register_model("linformer_roberta", dataclass=LinformerRobertaConfig)
class LinformerRobertaModel(PretrainedRoberta):
    """Masked language model and classifier with any attention of the registry.

    Only the sentence encoder and the configuration differ from fairseq's ``RobertaModel``; LM head, classification
    heads, hub interface and upgrade of checkpoints are the same.
    """

    def __init__(self, args: ResolvedConfig, encoder: LinformerRobertaEncoder):
        super().__init__(args, encoder)  # initializes all linear maps
        self.apply(lambda module: module.finish_initialisation() if isinstance(module, Attention) else None)
        for module in encoder.sentence_encoder.layers.modules():
            if isinstance(module, nn.Linear):
                module.weight.param_group = IN_LAYERS  # type: ignore[attr-defined]
        for vectors in (encoder.sentence_encoder.embed_tokens.weight, encoder.lm_head.weight):  # tied: the same
            vectors.param_group = EMBEDDINGS

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        # BaseFairseqModel takes the flags from the dataclass; RobertaModel would add its own list.
        super(RobertaModel, cls).add_args(parser)

    def forward(
        self,
        src_tokens: Tensor,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        classification_head_name: str | None = None,
        **batch_info: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Encode as in RoBERTa; for a head on ``<s>`` the last layer returns only that position."""
        head = None if classification_head_name is None else self.classification_heads[classification_head_name]
        if isinstance(head, RobertaClassificationHead) and self.args.classifier_pooling == "mean":
            features, extra = self.encoder.extract_features(src_tokens, return_all_hiddens, **batch_info)
            return head(mean_over_text(features, src_tokens.eq(self.encoder.dictionary.pad())).unsqueeze(1)), extra
        if return_all_hiddens or not isinstance(head, RobertaClassificationHead):  # other heads may use all positions
            return super().forward(
                src_tokens, features_only, return_all_hiddens, classification_head_name, **batch_info
            )
        features, _ = self.encoder.sentence_encoder(src_tokens, (slice(None), 0), **batch_info)
        return head(features.unsqueeze(1)), {"inner_states": None}

    def register_classification_head(self, name: str, *arguments: Any, **options: Any) -> None:
        """Register a head as RoBERTa does, with ``head_bias`` and ``pooler_norm``."""
        super().register_classification_head(name, *arguments, **options)
        head = self.classification_heads[name]
        if not self.args.head_bias:
            head.dense.bias = None
        if self.args.pooler_norm:
            self.classification_heads[name] = NormedClassificationHead(head, build_norm(self.args))

    @classmethod
    def build_model(cls, cfg: Namespace | DictConfig, task: FairseqTask) -> "LinformerRobertaModel":
        """Build the model of a configuration that ``resolve_config`` completes and validates."""
        return cls.of_config(resolve_config(cfg, task.max_positions()), task.source_dictionary)

    @classmethod
    def of_config(cls, config: ResolvedConfig, dictionary: Dictionary) -> "LinformerRobertaModel":
        """Build a model from a complete configuration and the task's dictionary, with <mask>."""
        return cls(config, LinformerRobertaEncoder(config, dictionary))


for _name in ARCHITECTURES:
    register_model_architecture("linformer_roberta", _name)(partial(fill_in, _name))
