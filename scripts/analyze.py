"""`linformer analyze` of this clone."""

from clone import linformer

if __name__ == "__main__":
    linformer("analyze")
