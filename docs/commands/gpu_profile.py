"""A training step of base on a GPU, and its kernels: docs/benchmark.md, "On a GPU".

    PYTHONPATH=.:scripts python docs/commands/gpu_profile.py near_and_far,2048 fetch,2048 softmax-flash,2048 fetch,8192

Each word is a model of scripts/gpu_speed.py and n; its layers are compiled. The time is the median of eight steps after
three, of one model after the other. The package need not be installed.
"""

import statistics
import sys

import gpu_speed
import torch

SIZES = gpu_speed.Sizes()
SHOWN = 30  # kernels


def main() -> None:
    for word in sys.argv[1:]:
        name, n = word.split(",")
        torch._dynamo.reset()
        report(name, int(n))


def report(name: str, n: int) -> None:
    batch = gpu_speed.batch_of(SIZES, n)
    step = gpu_speed.calls_of(SIZES, n, batch, True, name)[gpu_speed.TRAINING]
    for _ in range(gpu_speed.WARM_UPS):
        step()
    seconds = statistics.median(gpu_speed.timed(step, SIZES) for _ in range(8))
    print(f"{name}, n = {n}: {1000 * seconds:.2f} ms, {gpu_speed.peak_memory(step, SIZES):.0f} MiB", flush=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        step()
        torch.cuda.synchronize()
    events = sorted(recorded.key_averages(), key=lambda event: -event.self_device_time_total)
    for event in events[:SHOWN]:
        print(f"{event.self_device_time_total / 1000:9.3f} ms, {event.count:3d} times: {event.key[:120]}")


if __name__ == "__main__":
    main()
