"""Times the optimizer's step (docs/pretraining.md): python docs/commands/optimizer_step.py [cuda]"""

import statistics
import sys
import time

import torch
from fairseq.optim.adam import Adam

from fairseq_linformer import FusedAdam

device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
times: dict[type, list[float]] = {Adam: [], FusedAdam: []}
torch.set_num_threads(1)
layer = [(256, 256)] * 4 + [(1024, 256), (256, 1024), (1024,)] + [(256,)] * 9
optimizers = {}
for kind, options in ((Adam, {}), (FusedAdam, {"fused": True})):
    parameters = [torch.nn.Parameter(torch.randn(shape, device=device)) for shape in [(8000, 256), *4 * layer]]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizers[kind] = kind(parameters, lr=1e-3, weight_decay=0.01, **options)
for _ in range(16):
    for kind, optimizer in optimizers.items():
        begun = time.perf_counter()
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        times[kind].append(time.perf_counter() - begun)
print({kind.__module__: f"{1000 * statistics.median(values[1:]):.1f} ms" for kind, values in times.items()})
