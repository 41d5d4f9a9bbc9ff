"""The registered model and its architectures: fairseq's RoBERTa around our sentence encoder."""

from argparse import ArgumentParser, Namespace
from functools import partial
from typing import Any

from fairseq.data import Dictionary
from fairseq.models import register_model, register_model_architecture
from fairseq.models.roberta import RobertaEncoder, RobertaModel
from fairseq.modules import LayerDropModuleList, PositionalEmbedding
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig
from torch import Tensor, nn

from ..attention.base import Attention
from ..attention.kernels.flex import use_flex
from .architecture import ARCHITECTURES
from .classification import ClassifierRoberta
from .config import resolve_config
from .encoder import SentenceEncoder, build_norm
from .execution import compile_layers, recompute
from .lm_head import linear_cross_entropy
from .options import LinformerRobertaConfig, ResolvedConfig
from .resolution import fill_in

# Values of fairseq's param_group, for optimizers: matrices of linear maps in the layers, and token embeddings.
IN_LAYERS, EMBEDDINGS = "in layers", "embeddings"


class LinformerRobertaEncoder(RobertaEncoder):
    """RoBERTa's encoder, token embedding and LM head, around our sentence encoder."""

    def build_encoder(self, args: ResolvedConfig, dictionary: Dictionary, embed_tokens: nn.Embedding) -> nn.Module:
        positions = None
        if args.positions == "learned":
            positions = PositionalEmbedding(args.max_positions, args.encoder_embed_dim, dictionary.pad(), learned=True)
        encoder = SentenceEncoder(args, embed_tokens, positions)
        if args.checkpoint_activations:
            encoder.recompute = partial(recompute, offload=args.offload_activations)
        if args.compile_layers:
            compile_layers(encoder.layers)
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


@register_model("linformer_roberta", dataclass=LinformerRobertaConfig)
class LinformerRobertaModel(ClassifierRoberta):
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
        """Encode as in RoBERTa, or return the logits of a classification head."""
        if classification_head_name is not None:
            return self.classify(src_tokens, classification_head_name, return_all_hiddens, **batch_info)
        return self.encoder(src_tokens, features_only, return_all_hiddens, **batch_info)

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
