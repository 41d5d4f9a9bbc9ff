"""scripts/python_sources.py: which files become documents, and how."""

import python_sources


def test_files_become_documents(monkeypatch, tmp_path, capsys):
    library = tmp_path / "lib"
    sources = {f"module{number}.py": f"\ndef f{number}():\n\n    return {number}\n" for number in range(20)}
    sources |= {"package/__init__.py": "", "encodings/table.py": "x = 1", "site-packages/other.py": "y = 2"}
    sources |= {"large.py": "#" * 200_001, "notes.txt": "no source"}
    for name, text in sources.items():
        (library / name).parent.mkdir(parents=True, exist_ok=True)
        (library / name).write_text(text)
    (library / "latin1.py").write_bytes(b"# caf\xe9\n")
    monkeypatch.setattr(python_sources.sysconfig, "get_path", lambda name: str(library))
    monkeypatch.setattr("sys.argv", ["python_sources.py", "--out", str(tmp_path / "out")])
    python_sources.main()
    splits = {split: (tmp_path / "out" / f"{split}.txt").read_text() for split in ("valid", "train")}
    documents = {split: text.rstrip("\n").split("\n\n") for split, text in splits.items()}
    assert len(documents["valid"]) == 1, "one file in twenty"
    expected = [f"def f{number}():\nreturn {number}" for number in range(20)]
    assert sorted(documents["valid"] + documents["train"]) == sorted(expected)
    assert documents["train"] != [document for document in expected if document in documents["train"]], "shuffled"
    assert "million characters" in capsys.readouterr().out

    python_sources.main()
    assert (tmp_path / "out" / "train.txt").read_text() == splits["train"], "the same each time"
