"""The registered model and its architectures: fairseq's RoBERTa around our sentence encoder."""

from argparse import ArgumentParser
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fairseq.models import register_model, register_model_architecture
from fairseq.models.roberta import RobertaEncoder, RobertaHubInterface, RobertaModel
from fairseq.tasks import FairseqTask
from torch import nn

from .config import ARCHITECTURES, LinformerRobertaConfig, ResolvedConfig, apply_architecture, resolve_config
from .encoder import SentenceEncoder


class LinformerRobertaEncoder(RobertaEncoder):
    """RoBERTa's encoder, token embedding and LM head, around our sentence encoder."""

    def build_encoder(self, args: ResolvedConfig, dictionary: Any, embed_tokens: nn.Embedding) -> nn.Module:
        return SentenceEncoder(args, dictionary, embed_tokens)


@register_model("linformer_roberta", dataclass=LinformerRobertaConfig)
class LinformerRobertaModel(RobertaModel):
    """Masked language model and classifier with Linformer's attention, or any other of the registry.

    Everything but the sentence encoder and the configuration is fairseq's ``RobertaModel``: LM head, classification
    heads, hub interface, upgrade of checkpoints.
    """

    @classmethod
    def hub_models(cls) -> dict[str, str]:
        return {}

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        # RobertaModel lists its flags by hand; ours come from the dataclass, as in BaseFairseqModel.
        super(RobertaModel, cls).add_args(parser)

    @classmethod
    def build_model(cls, cfg: Any, task: FairseqTask) -> "LinformerRobertaModel":
        """Builds the model; ValueError where an option cannot work (``LinformerRobertaConfig.validate``)."""
        config = resolve_config(cfg, task.max_positions())
        return cls(config, LinformerRobertaEncoder(config, task.source_dictionary))

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str,
        checkpoint_file: str = "checkpoint_best.pt",
        data_name_or_path: str | None = None,
        bpe: str | None = None,
        **overrides: Any,
    ) -> RobertaHubInterface:
        """A checkpoint with fairseq's hub interface: encode, decode, extract_features, fill_mask, predict.

        Args:
            model_name_or_path: folder of the checkpoint.
            checkpoint_file: its name in that folder.
            data_name_or_path: folder of dict.txt and of the subword model; by default the checkpoint's own folder
                where it holds a dict.txt, else the folder that the checkpoint was trained on.
            bpe: fairseq's name of the subword model; by default what lies in the data's folder.
            overrides: any other option of the checkpoint's configuration.

        Raises:
            FileNotFoundError: the checkpoint, or its dictionary or subword model, is not there.
        """
        checkpoint = Path(model_name_or_path, checkpoint_file)
        if not checkpoint.is_file():
            raise FileNotFoundError(f"there is no checkpoint {checkpoint}")
        data = Path(data_name_or_path or _data_folder(checkpoint)).absolute()
        return super().from_pretrained(
            str(checkpoint.parent), checkpoint.name, str(data), **{**_subword_model(data, bpe), **overrides}
        )


def _data_folder(checkpoint: Path) -> Path:
    """The folder of the dictionary that belongs to a checkpoint."""
    if (checkpoint.parent / "dict.txt").is_file():
        return checkpoint.parent
    trained_on = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)["cfg"]["task"]["data"]
    return Path(trained_on)


def _subword_model(data: Path, bpe: str | None) -> dict[str, str]:
    """fairseq's options for the subword model that lies in a data folder under fairseq's own names."""
    known = {
        "sentencepiece": {"sentencepiece_model": data / "sentencepiece.bpe.model"},
        "gpt2": {"gpt2_encoder_json": data / "encoder.json", "gpt2_vocab_bpe": data / "vocab.bpe"},
    }
    for name, files in known.items():
        if bpe in (None, name) and all(file.is_file() for file in files.values()):
            return {"bpe": name, **{key: str(file) for key, file in files.items()}}
    if bpe is None:
        raise FileNotFoundError(f"{data} holds no sentencepiece.bpe.model, nor encoder.json with vocab.bpe: name a bpe")
    return {"bpe": bpe}


for _name in ARCHITECTURES:
    register_model_architecture("linformer_roberta", _name)(partial(apply_architecture, _name))
