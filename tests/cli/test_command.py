"""`linformer VERB` as it is typed: verbs, flags, lists, overrides, and one line for each mistake."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_linformer.checkpoints.reading import checkpoint_file
from linformer_cli.command import VERBS, find_verb, main, parser_of
from linformer_cli.old_names import OLD_FLAGS, OLD_VERBS
from tests.helpers import ROOT
from tests.helpers.commands import run
from tests.helpers.inputs import sentences

CORPUS = ["prepare", "corpus", "--train", "a,b", "c=d", "--valid", "e", "--out", "o"]
TUNING = ["finetune", "run", "--data", "tasks", "--tasks", "cola"]


def refusal(words, capsys) -> str:
    """The line that a mistake ends in, and nothing else: the work is not begun."""
    with pytest.raises(SystemExit, match=r"^2$"):
        main(words)
    printed = capsys.readouterr()
    assert not printed.out and printed.err.startswith("error: ") and printed.err.count("\n") == 1
    return printed.err.removeprefix("error: ").rstrip("\n")


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_without_a_verb_it_lists_them(words, capsys):
    with pytest.raises(SystemExit, match="0"):
        main(words)
    printed = capsys.readouterr().out.splitlines()
    assert all(any(re.match(rf"  {verb} +\S", line) for line in printed) for verb in VERBS)
    assert all(len(line) <= 120 for line in printed)


@pytest.mark.parametrize("words", [["prepare"], ["prepare", "--help"]])
def test_half_a_verb_lists_what_begins_with_it(words, capsys):
    with pytest.raises(SystemExit, match="0"):
        main(words)
    listed = re.findall("^  (prepare [a-z]+|finetune) ", capsys.readouterr().out, re.MULTILINE)
    assert listed == [verb for verb in VERBS if verb.startswith("prepare ")]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_says_what_may_be_typed(verb, capsys):
    """And every flag what it is for, defaults in one way, where the parser knows them."""
    with pytest.raises(SystemExit, match="0"):
        main([*verb.split(), "--help"])
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: linformer {verb}") and "python scripts/" not in printed
    for action in parser_of(verb)._actions:
        assert action.help
        if action.default not in (None, False, "==SUPPRESS==") and action.default != []:
            shown = " ".join(map(str, action.default)) if isinstance(action.default, list) else action.default
            assert f"(default: {shown})" in " ".join(printed.split())


def test_help_and_mistakes_import_neither_torch_nor_the_package():
    for words in (["--help"], ["finetune", "--help"], ["predict", "--inptu", "x"], ["predcit"]):
        program = f"import sys\nfrom linformer_cli.command import main\ntry:\n    main({words!r})\n"
        program += "finally:\n    assert not {'torch', 'fairseq', 'fairseq_linformer'} & sys.modules.keys()"
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["predcit", "x"], "predcit: there is no such verb; did you mean predict?"),
        (["prepar"], "prepar: there is no such verb; did you mean prepare?"),
        (["prepare", "corpsu"], "prepare corpsu: there is no such verb; did you mean prepare corpus?"),
        (["train"], "train: there is no such verb; linformer --help lists them"),
    ],
)
def test_a_wrong_verb_names_the_nearest(words, said, capsys):
    assert refusal(words, capsys) == said


@pytest.mark.parametrize("old", OLD_VERBS)
@pytest.mark.parametrize("spelt", [str, lambda old: old.replace("-", "_"), lambda old: f"linformer-{old}"])
def test_the_name_of_an_old_program_names_the_verb(old, spelt, capsys):
    said = refusal([spelt(old), "x"], capsys)
    assert said == f"{spelt(old)} is now linformer {OLD_VERBS[old]}"
    find_verb(OLD_VERBS[old].split())


@pytest.mark.parametrize(("verb", "flag"), [(verb, flag) for verb in OLD_FLAGS for flag in OLD_FLAGS[verb] if flag])
@pytest.mark.parametrize("form", ["{} x", "{}=x"])
def test_an_old_flag_names_the_new_one(verb, flag, form, capsys):
    new = OLD_FLAGS[verb][flag]
    assert refusal([*verb.split(), *form.format(flag).split()], capsys) == f"{flag} is now {new}"
    assert not new.startswith("--") or new in parser_of(verb)._option_string_actions


@pytest.mark.parametrize("verb", ["export", "import", "convert"])
def test_a_folder_to_make_as_the_second_word_is_refused(verb, capsys):
    said = refusal([verb, "run", "new", *(["model.attention=linformer"] if verb == "convert" else [])], capsys)
    assert said == "new: the folder to make is named by a flag now: --out new"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*TUNING[:-1], "cola,sst_2"], "--tasks: cola,sst_2 is not allowed: a list is separated by spaces: cola sst_2"),
        ([*TUNING, "--seeds", "1,2,3"], "--seeds: 1,2,3 is not allowed: a list is separated by spaces: 1 2 3"),
        ([*TUNING, "--learning-rates=1e-5,2e-5"], "1e-5,2e-5 is not allowed: a list is separated by spaces: 1e-5 2e-5"),
        ([*TUNING, "--batch-sizes", "16,32"], "16,32 is not allowed: a list is separated by spaces: 16 32"),
        (["prepare", "table", "x.csv", "--label", "a,b"], "--label: a,b is not allowed: a list is separated by spaces"),
        (["prepare", "table", "x.csv", "--split", "0.9,0.1"], "0.9,0.1 is not allowed: a list is separated by spaces"),
        (["prepare", "glue", "--tasks", "RTE,AX"], "--tasks: RTE,AX is not allowed: a list is separated by spaces"),
        ([*TUNING, "--seeds", "1", "2", "1"], "--seeds: 1 2 1 is not allowed: it must name each once"),
        ([*TUNING, "--seeds", "1", "x"], "--seeds: x is not allowed: it must be a whole number at least 0"),
        ([*TUNING, "--task", "cola"], "--task: there is no such flag; did you mean --tasks?"),
        ([*TUNING, "--learning-rate", "1"], "--learning-rate: there is no such flag; did you mean --learning-rates?"),
        ([*TUNING, "--lr", "1"], "--lr: there is no such flag; linformer finetune --help lists them"),
        ([*TUNING, "--jobs"], "--jobs: expected one argument"),
        (TUNING[:2], "missing: --data DIR, --tasks TASK [TASK ...]"),
        (["finetune", *TUNING[2:]], "missing: MODEL; it stands before the flags"),
        (["predict", "run"], "give MODEL and --input, with what goes with them, or --runs, --data and --out"),
        (["predict", "run", "more", "--input", "x"], "more is one word too many: linformer predict --help says what"),
        (["export", "run", "--out", "x", "--format", "tf"], "--format: invalid choice: 'tf' (choose from "),
        ([*TUNING, "more", "--jobs", "2", "again"], "again is no override of Hydra's, NAME=VALUE: linformer finetune"),
    ],
)
def test_a_mistake_ends_in_one_line(words, said, capsys):
    assert said in refusal(words, capsys)


@pytest.mark.parametrize(
    "more",
    [
        ["model.adaptive_length=true"],
        ["+preset=near_and_far", "~model.dropout", "++a.b=[1,2]", "hydra/launcher=x"],
        [f"a={999 * 'b'}"],  # too long for a path
        ["--search", "a=1"],
    ],
)
def test_overrides_stand_at_the_end(more):
    given = vars(parser_of("finetune").parse_args([*TUNING[1:], "sst_2", "--seeds", "1", "2", *more]))
    assert given["tasks"] == ["cola", "sst_2"] and given["seeds"] == [1, 2]
    assert given["overrides"] == [word for word in more if word != "--search"]


def test_the_value_of_a_flag_and_a_folder_are_no_overrides(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs/lr=0.1").mkdir(parents=True)
    given = vars(parser_of("convert").parse_args(["runs/lr=0.1", "--fit-on", "data=a", "--out", "new=b"]))
    assert [str(given[name]) for name in ("model", "fit_on", "out")] == ["runs/lr=0.1", "data=a", "new=b"]
    assert given["overrides"] == []


@pytest.mark.parametrize("words", ["a=1 --jobs 2", "a=1 --search b=1", "--seeds 1 a=1 --search"])
def test_an_override_elsewhere_is_refused(words, capsys):
    assert refusal([*TUNING, *words.split()], capsys) == "a=1: overrides stand at the end, after all flags"


def test_a_list_is_of_paths_as_they_are():
    given = vars(parser_of("prepare corpus").parse_args(CORPUS[2:]))
    assert given["train"] == [Path("a,b"), Path("c=d")]


@pytest.mark.slow
def test_ctrl_c_while_the_package_is_imported_is_one_line(monkeypatch, capsys):
    class Interrupted:
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "fairseq_linformer.cli.program", Interrupted())
    with pytest.raises(SystemExit) as ended:
        main(["configs"])
    assert (ended.value.code, capsys.readouterr().err) == (130, "interrupted\n")


def test_from_a_clone_that_is_not_installed(tmp_path):
    """Two ways to type the same, neither with the package on Python's path: the same files."""
    (tmp_path / "text.txt").write_text(sentences(200, seed=1))
    words = ["--train", "text.txt", "--valid", "text.txt", "--vocab-size", "286", "--workers", "1", "--out"]
    clone = [sys.executable, ROOT / "scripts/clone.py", "prepare", "corpus", *words, "clone"]
    subprocess.run(clone, cwd=tmp_path, env={"OMP_NUM_THREADS": "1"}, check=True)
    run("linformer", "prepare", "corpus", *words, "command", cwd=tmp_path)
    clone, command = (
        {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("clone", "command")
    )
    assert clone == command and "dict.txt" in clone


@pytest.mark.parametrize("verb", ["finetune", "prepare glue", "prepare imdb"])
def test_the_scripts_of_fine_tuning_are_its_verbs(verb):
    assert f'linformer("{verb}")' in (ROOT / "scripts" / f"{verb.replace(' ', '_')}.py").read_text()


def test_a_model_is_a_file_or_the_folder_of_its_run(tmp_path):
    for words in (["predict", "MODEL", "--input", "x"], ["export", "MODEL", "--out", "x"], TUNING):
        verb, *rest = words
        for model in (tmp_path, tmp_path / "checkpoint_best.pt"):
            given = vars(
                parser_of(verb).parse_args([str(model) if word in ("MODEL", "run") else word for word in rest])
            )
            assert checkpoint_file(given["model"]) == tmp_path / "checkpoint_best.pt"
