"""The random projection of the paper's theory (Wang et al. 2020, theorem 2)."""

from .options import AttentionConfig
from .projection import LinearProjection


class RandomProjection(LinearProjection):
    """A matrix that is drawn once and never trained.

    It is in the state dict, so a checkpoint carries it.
    """

    INITIALISATIONS = ("johnson-lindenstrauss", "normal")
    TRAINABLE = False

    @staticmethod
    def default_multiplier(config: AttentionConfig) -> float:
        return 1.0  # nothing moves it
