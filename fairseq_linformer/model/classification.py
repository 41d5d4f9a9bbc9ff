"""Classification heads on ``<s>``, or on the mean over the text: those of RoBERTa, with the options of ModernBERT's."""

from typing import Any

from fairseq.models.roberta.model import RobertaClassificationHead
from torch import Tensor, nn

from .encoder import build_norm
from .hub import PretrainedRoberta
from .parts import mean_over_text


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


class ClassifierRoberta(PretrainedRoberta):
    """RoBERTa whose heads have the options ``classifier_pooling``, ``head_bias`` and ``pooler_norm``."""

    def register_classification_head(self, name: str, *arguments: Any, **options: Any) -> None:
        """Register a head as RoBERTa does, with ``head_bias`` and ``pooler_norm``."""
        super().register_classification_head(name, *arguments, **options)
        head = self.classification_heads[name]
        if not self.args.head_bias:
            head.dense.bias = None
        if self.args.pooler_norm:
            self.classification_heads[name] = NormedClassificationHead(head, build_norm(self.args))

    def classify(
        self, src_tokens: Tensor, name: str, return_all_hiddens: bool, **batch_info: Any
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return a head's logits, and the states as RoBERTa does; for ``<s>`` the last layer returns it alone."""
        head = self.classification_heads[name]
        on_text = isinstance(head, RobertaClassificationHead)  # other heads may use all positions
        if on_text and not return_all_hiddens and self.args.classifier_pooling == "cls":
            features, _ = self.encoder.sentence_encoder(src_tokens, (slice(None), 0), **batch_info)
            return head(features.unsqueeze(1)), {"inner_states": None}
        features, extra = self.encoder.extract_features(src_tokens, return_all_hiddens, **batch_info)
        if on_text and self.args.classifier_pooling == "mean":
            features = mean_over_text(features, src_tokens.eq(self.encoder.dictionary.pad())).unsqueeze(1)
        return head(features), extra
