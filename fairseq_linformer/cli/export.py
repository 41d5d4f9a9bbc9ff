"""A model as a folder that transformers loads without fairseq, or as an ONNX file.

    linformer export runs/tiny_512 --out exported
    linformer export runs/finetune/SST-2/seed1 --out sst-2
    linformer export runs/tiny_512 --format onnx --out tiny.onnx

A pretrained checkpoint becomes a masked language model, a fine-tuned one a classifier with its labels. The folder holds
the weights, the tokenizer and a model card, and also the code of the model, which transformers runs with
trust_remote_code=True. A model that is RoBERTa as transformers knows it (attention=softmax, norms after each block, no
convolution) needs none. Before the folder appears, its logits are compared with those in fairseq.

--format onnx takes a checkpoint, or a folder of transformers: one of ours, or that of a RoBERTa. No code from it runs.
The file takes any number of rows of any length, padded on the right, and has the names that optimum gives: the inputs
input_ids and attention_mask, and the output logits, or last_hidden_state of a model without a head. Weights above
1.5 GB stand beside it, in FILE.data. What is printed at the end is the size of the file, and how long onnxruntime and
PyTorch take for one row of the longest length, in turns, on as many threads as OMP_NUM_THREADS says (default: as many
as the machine has cores).
"""

from pathlib import Path

from ..errors import UserError
from .arguments import Parser
from .program import quieten_transformers


def add_arguments(parser: Parser) -> None:
    parser.share("model")
    parser.share("--out", metavar="DIR|FILE", help="folder to make; of ONNX the file to write")
    formats = ("transformers", "onnx")
    parser.add_argument("--format", choices=formats, default=formats[0], help="what the model becomes")
    data = "prepared folder with its vocabulary, and labels (default: the one that it was trained on)"
    parser.share("--data", help=data)


def run(model: Path, out: Path, format: str, data: Path | None) -> None:
    quieten_transformers()
    if format == "onnx":
        try:
            from .export_onnx import write_onnx
        except ModuleNotFoundError as error:
            raise UserError(f"{error.name} is missing: pip install onnx onnxscript onnxruntime") from error
        write_onnx(model, out, data)
        return
    from ..hf.exporting import export

    for remark in export(model, out, data):
        print(f"note: {remark}")
    print(f"{out}: written; its model card is README.md")
