"""Configurations composed as fairseq-hydra-train composes them."""

from fairseq.dataclass.initialize import hydra_init
from hydra import compose, initialize_config_module
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from tests.helpers import ROOT


class CommandLineFolder(SearchPathPlugin):
    """Does for compose() what --config-dir does for fairseq-hydra-train."""

    folder = ""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if self.folder:
            search_path.append("command-line", f"file://{self.folder}")


Plugins.instance().register(CommandLineFolder)


def composed(folder, name, *overrides, with_hydra=False):
    """The configuration of configs/FOLDER/NAME.yaml with overrides; with Hydra's own node only where asked."""
    hydra_init(name)
    CommandLineFolder.folder = str(ROOT / "configs" / folder)
    GlobalHydra.instance().clear()
    with initialize_config_module("fairseq.config", version_base="1.1", job_name=name):
        cfg = compose(name, overrides=[*overrides, f"hydra.job.config_name={name}"], return_hydra_config=True)
    CommandLineFolder.folder = ""
    HydraConfig.instance().set_config(cfg)
    if with_hydra:
        return cfg
    return OmegaConf.create({str(key): value for key, value in OmegaConf.to_container(cfg).items() if key != "hydra"})
