"""`linformer VERB`: verbs, help, and the commands of the pages."""

import re
import shlex
import subprocess
import sys

import pytest

from fairseq_linformer.cli.command import VERBS, main, parser_of, split_verb
from tests.helpers import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("words", [[], ["--help"], ["prepare"], ["prepare", "-h"]])
def test_the_overview_lists_the_verbs(words, capsys):
    with pytest.raises(SystemExit, match="0"):
        main(words)
    listed = re.findall("^  ([a-z]+(?: [a-z]+)?)  +[A-Z]", capsys.readouterr().out, re.MULTILINE)
    assert listed == [verb for verb in VERBS if "prepare" not in words or verb.startswith("prepare ")]


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_every_verb_has_its_flags_and_defaults(verb, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([*verb.split(), "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith(f"usage: linformer {verb}")
    for action in parser_of(verb)._actions:
        assert action.help
        if action.default not in (None, False, "==SUPPRESS==", []):
            default = " ".join(map(str, action.default)) if isinstance(action.default, list) else action.default
            assert f"(default: {default})" in printed


@pytest.mark.parametrize("words", ["predcit x", "prepare corpsu", "finetune m --data d --tasks t t", "export"])
def test_mistakes_end_with_status_2(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    assert "error: " in capsys.readouterr().err


def test_help_and_mistakes_import_neither_torch_nor_fairseq():
    program = "import sys\nfrom fairseq_linformer.cli.command import main\n"
    for words in (["--help"], ["finetune", "--help"], ["predict", "--inptu", "x"], ["predict", "run"], ["configs"]):
        program += f"try:\n    main({words!r})\nexcept SystemExit:\n    pass\n"
    program += "assert not {'torch', 'fairseq', 'numpy', 'transformers'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True)


@pytest.mark.parametrize(
    ("words", "begin"),
    [
        (["-m", "fairseq_linformer.cli", "configs"], f"{ROOT / 'configs'}\n"),
        (["scripts/clone.py", "configs"], f"{ROOT / 'configs'}\n"),
        (["scripts/prepare_glue.py", "--help"], "usage: linformer prepare glue "),
        (["scripts/prepare_imdb.py", "--help"], "usage: linformer prepare imdb "),
        (["scripts/finetune.py", "--help"], "usage: linformer finetune "),
    ],
)
def test_a_checkout_that_is_not_installed(words, begin):
    command = [sys.executable, *words]
    printed = subprocess.run(command, cwd=ROOT, env={}, capture_output=True, check=True, text=True).stdout
    assert printed.startswith(begin)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_can_be_typed(page):
    for block in re.findall(r"^```bash\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            program, *words = [*shlex.split(line.partition(" > ")[0], comments=True), ""][:-1] or [""]
            if program == "linformer":
                verb, arguments = split_verb(words)
                assert parser_of(verb).parse_args(arguments)
