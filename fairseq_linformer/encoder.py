"""The sentence encoder: embeddings, layers of attention and feed-forward network.

Dimensions: B batch, n sequence length, d embedding. Inside, tensors are (B, n, d); what leaves ``forward`` has
fairseq's layout (n, B, d). Parameters have the names of fairseq's ``TransformerEncoder``, so checkpoints carry over.
"""

from contextlib import nullcontext
from typing import cast

import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqEncoder
from fairseq.modules import LayerDropModuleList, PositionalEmbedding
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from .attention import Attention
from .attention.dropout import Dropout
from .config import ResolvedConfig
from .errors import UserError
from .layer import EncoderLayer, FirstLayer, Positions, build_attentions, may_be_padded, misplaced_padding, pick


class RecomputedLayer(EncoderLayer):
    """A layer that keeps its input alone, and computes the rest again in the backward pass, with the same random draws.

    With ``offload_activations`` the input is kept in the memory of the CPU. What value residuals take of the first
    layer is kept once, where it is. The checkpointing is PyTorch's, not fairseq's: that one runs a backward pass within
    the backward pass, which DistributedDataParallel refuses where layers share parameters or some parameters have no
    part in the loss, and it computes again without autocast.
    """

    def __init__(self, config: ResolvedConfig, attention: Attention):
        super().__init__(config, attention)
        self.offload = config.offload_activations

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        wanted: Positions | None = None,
        first_values: Tensor | None = None,
    ) -> Tensor:
        if not torch.is_grad_enabled():
            return super().forward(x, padding_mask, wanted, first_values)
        with save_on_cpu(pin_memory=True) if self.offload else nullcontext():
            return checkpoint(super().forward, x, padding_mask, wanted, first_values=first_values, use_reentrant=False)


def build_layers(config: ResolvedConfig) -> list[EncoderLayer]:
    """All layers, from the first to the last."""
    first, *others = build_attentions(config)
    kind = RecomputedLayer if config.checkpoint_activations else EncoderLayer
    kind_of_first = FirstLayer if config.value_residual and kind is EncoderLayer else kind
    return [kind_of_first(config, first), *(kind(config, attention) for attention in others)]


class SentenceEncoder(FairseqEncoder):
    """Token ids to features, by way of learned positions and ``encoder_layers`` layers.

    Args:
        config: resolved and validated.
        dictionary: the task's; its padding symbol marks padded positions, which stand on the right.
        embed_tokens: (V, d) token embedding, shared with the LM head unless untied.
    """

    def __init__(self, config: ResolvedConfig, dictionary: Dictionary, embed_tokens: nn.Embedding):
        super().__init__(dictionary)
        self.padding_idx = dictionary.pad()
        self.max_source_positions = config.max_positions
        self.embed_tokens = embed_tokens
        self.embed_positions = PositionalEmbedding(
            config.max_positions, config.encoder_embed_dim, self.padding_idx, learned=True
        )
        self.layernorm_embedding = nn.LayerNorm(config.encoder_embed_dim) if config.layernorm_embedding else None
        self.dropout = Dropout(config.dropout)
        self.value_residual = config.value_residual
        layers = build_layers(config)
        if config.compile_layers:
            for layer in layers:
                layer.compile(dynamic=True)  # in place: parameters keep their names; not anew for each length
        layerdrop = config.encoder_layerdrop
        self.layers = LayerDropModuleList(layerdrop, layers) if layerdrop > 0 else nn.ModuleList(layers)
        self.layer_norm = nn.LayerNorm(config.encoder_embed_dim) if config.encoder_normalize_before else None

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
        wanted: Positions | None = None,
        padded: bool | None = None,
    ) -> dict[str, list[Tensor]]:
        """Encodes a batch.

        Args:
            src_tokens: (B, n) token ids, padded on the right.
            src_lengths: unused; fairseq's batches carry it.
            return_all_hiddens: also return the input of the first layer and the output of each.
            token_embeddings: (B, n, d) to use instead of the tokens' own embeddings.
            wanted: the N positions whose features are needed, None for all. Not together with ``return_all_hiddens``.
            padded: whether the batch holds padding, where that is known; it spares the mask, or the question.

        Returns:
            ``encoder_out`` [(n, B, d)], of wanted positions [(N, d)]; ``encoder_padding_mask`` [(B, n)]; and
            ``encoder_states``, a list of (n, B, d).

        Raises:
            ValueError: the ids are not int64 or int32, n is beyond ``max_positions``, the batch is empty, and on the
                CPU also where a token id is not in the vocabulary or padding stands before a token: looking at values
                on a GPU would stop the host.
        """
        padding_mask = src_tokens.eq(self.padding_idx)
        self._check(src_tokens, padding_mask)
        x = self._embed(src_tokens, token_embeddings)
        if padded is None:
            padded = may_be_padded(padding_mask)
        mask = padding_mask if padded else None  # without one there is less to do
        states = [x] if return_all_hiddens else []  # held only on demand: in inference nothing else keeps them alive
        # Also where LayerDrop skips the first layer.
        first_values = cast(EncoderLayer, self.layers[0]).own_values(x) if self.value_residual else None
        layers = list(self.layers)  # LayerDrop: a choice of them, each time another
        for layer in layers:
            x = layer(x, mask, wanted if layer is layers[-1] else None, first_values)
            if return_all_hiddens:
                states.append(x)
        if not layers:
            x = pick(x, wanted)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return {
            "encoder_out": [x.transpose(0, 1) if wanted is None else x],
            "encoder_padding_mask": [padding_mask],
            "encoder_states": [state.transpose(0, 1) for state in states],
        }

    def _check(self, src_tokens: Tensor, padding_mask: Tensor) -> None:
        if src_tokens.dtype not in (torch.int64, torch.int32):  # all that an embedding takes
            raise UserError(f"tokens are {src_tokens.dtype}, they must be torch.int64 or torch.int32")
        if src_tokens.dim() != 2:
            raise UserError(f"tokens must have two dimensions, rows and positions, not {src_tokens.dim()}")
        rows, length = src_tokens.shape
        if length > self.max_source_positions:
            raise UserError(f"a sequence of {length} tokens is longer than max_positions={self.max_source_positions}")
        if rows == 0 or length == 0:
            raise UserError(f"the batch is empty: {rows} rows of {length} tokens")
        if src_tokens.device.type != "cpu" or torch.compiler.is_compiling():
            return
        smallest, largest = (int(end) for end in src_tokens.aminmax())
        vocabulary = self.embed_tokens.num_embeddings
        if smallest < 0 or largest >= vocabulary:
            unknown = smallest if smallest < 0 else largest
            raise UserError(f"token id {unknown} is not in the vocabulary: ids are from 0 to {vocabulary - 1}")
        row = misplaced_padding(padding_mask)
        if row is not None:
            raise UserError(f"row {row} has padding before a token, or no token: padding must stand on the right")

    def _embed(self, src_tokens: Tensor, token_embeddings: Tensor | None) -> Tensor:
        tokens = self.embed_tokens(src_tokens) if token_embeddings is None else token_embeddings
        x = tokens + self.embed_positions(src_tokens)
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout(x)

    def max_positions(self) -> int:
        """Longest sequence, in tokens."""
        return self.max_source_positions
