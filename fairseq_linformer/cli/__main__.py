"""`python -m fairseq_linformer.cli VERB …`, where the command `linformer` is not installed."""

from .command import main

if __name__ == "__main__":
    main()
