"""`linformer prepare glue` of this checkout, installed or not."""

from clone import linformer

if __name__ == "__main__":
    linformer("prepare glue")
