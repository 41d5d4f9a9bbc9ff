"""Which of Hydra's overrides are refused, however they are spelt."""

import pytest

from fairseq_linformer.finetune.overrides import check_override


@pytest.mark.parametrize(
    ("word", "set_by"),
    [
        ("common.seed=5", "common.seed is set by --seeds"),
        ("+common.seed=5", "common.seed is set by --seeds"),
        ("++common.seed=5", "common.seed is set by --seeds"),
        ("~common.seed", "common.seed is set by --seeds"),
        ("~common.seed=1", "common.seed is set by --seeds"),
        ("common={seed: 5}", "common.seed is set by --seeds"),
        ("++common={log_interval: 5}", "common.seed is set by --seeds"),
        ("~common", "common.seed is set by --seeds"),
        ("+common=other", "common.seed is set by --seeds"),
        ("task.seed=5", "task.seed is set by --seeds"),
        ("task.data=/d", "task.data is set by --data"),
        ("recipe=rte", "recipe is set by --tasks"),
        ("+recipe=rte", "recipe is set by --tasks"),
        ("~recipe", "recipe is set by --tasks"),
        ("recipe@_global_=rte", "@_global_ is not allowed"),
        ("checkpoint.best_checkpoint_metric=loss", "checkpoint.best_checkpoint_metric is set by --metric"),
        ("+optimizer@common=adam", "@common is not allowed"),
        ("task=masked_lm", "task is set by --tasks"),
        ("task/other=x", "task is set by --tasks"),
        ("criterion=masked_lm", "criterion is set by --tasks"),
        ("model=base_512", "model is set by MODEL"),
        ("+model/options=x", "model is set by MODEL"),
        ("checkpoint.restore_file=x.pt", "checkpoint.restore_file is set by MODEL"),
        ("++checkpoint.finetune_from_model=null", "checkpoint.finetune_from_model is set by MODEL"),
        ("++optimization.lr.0=1", "optimization.lr is set by --learning-rates"),
        ("~lr_scheduler", "lr_scheduler.warmup_updates is set by --epochs"),
        ("optimizer.lr=[1]", "optimizer.lr is set by --learning-rates"),
        ("lr_scheduler.lr=[1]", "lr_scheduler.lr is set by --learning-rates"),
        ("dataset.max_tokens=64", "dataset.max_tokens is set by --batch-sizes, in rows"),
        ("optimization.skip_remainder_batch=true", "which counts the updates of an epoch"),
        ("checkpoint.maximize_best_checkpoint_metric=false", "is set by --metric"),
        ("checkpoint.no_save=true", "which scores the best checkpoint"),
        ("dataset.disable_validation=true", "which scores the best checkpoint"),
        ("dataset.validate_after_updates=9", "which scores the best checkpoint"),
        ("hydra.run.dir=/x", "hydra is set by the command"),
        ("hydra/launcher=slurm", "--launcher names a launcher"),
        ("optimizer.weight_decay=0.1,0.2", "has several values, but a run has one"),
        ("optimizer.weight_decay=range(1,3)", "has several values"),
        ("optimizer=glob(*)", "has several values"),
        ("mrpc", "mrpc is no override of Hydra's, NAME=VALUE (missing EQUAL"),
        (" common.seed=5", "is no override of Hydra's"),
        ("common[seed]=5", "is no override of Hydra's"),
        ("a='b", "is no override of Hydra's"),
    ],
)
def test_refused(word, set_by):
    with pytest.raises(ValueError) as error:
        check_override(word)
    assert str(error.value).startswith(word) and set_by in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("word", ["a=\nb c'", "common.seed='1\n2'", "optimizer@a='\n'", "a='\n',2"])
def test_an_override_of_several_lines_is_refused_in_one(word):
    with pytest.raises(ValueError) as error:
        check_override(word)
    assert str(error.value).startswith(word.replace("\n", " ")) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "word",
    [
        "optimization.clip_norm=1.0",
        "++optimization.update_freq=[2]",
        "task.truncation=head-tail",
        "model.dropout=0.2",
        "criterion.report_mcc=true",
        "lr_scheduler=inverse_sqrt",
        "optimizer=adam",
        "optimizer.adam_betas='(0.9,0.98)'",
        "~optimizer.weight_decay",
        "checkpoint.keep_best_checkpoints=2",
        "dataset.max_tokens_valid=4096",
        "distributed_training.distributed_world_size=2",
        "common.seeds=1",
    ],
)
def test_left_to_the_user(word):
    check_override(word)
