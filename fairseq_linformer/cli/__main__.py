"""Entry point of `python -m fairseq_linformer.cli VERB …`, if `linformer` is not installed."""

from .command import main

if __name__ == "__main__":
    main()
