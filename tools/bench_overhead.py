"""CPU time of one client's steps, the meter and a prediction, as ratios to a hand-written training loop.

    python tools/bench_overhead.py [--steps 60] [--repeat 5]

Trains the quickstart's image client; whole rounds are in bench_peers.py.  Prints medians of paired ratios.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from torch.nn import functional as F

from edgefl import models
from edgefl.commands.compose import compose
from edgefl.cost import predict
from edgefl.scenario import load
from edgefl.work import Meter, run


def seconds(do: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    started = time.process_time()
    do()
    return time.process_time() - started


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=60, help="steps of the timed loop")
    parser.add_argument("--repeat", type=int, default=5, help="pairs of runs")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    scenario = load("quickstart", ["compare=null", "schedule=end-to-end", "method=fedavg", "training.epochs=8"])
    setup = compose(scenario)
    client = setup.of_kind("image")[0]
    source = setup.clients.client(client)
    work = setup.schedule.stage(1).cut(setup.method.work("image", 1)).fitted(source.size)
    passes = max(1, chosen.steps // source.counts(work.passes[0])["image"])
    work = type(work)(**{**work.__dict__, "passes": work.passes[:passes]})
    steps = passes * source.counts(work.passes[0])["image"]
    state = setup.method.initial(scenario.seed)
    inputs = state.inputs(work)
    device = torch.device("cpu")
    module = models.build(work.model)

    def bare() -> None:
        module.load_state_dict(inputs)
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
        module.train()
        for number, pass_ in enumerate(work.passes):
            for _, batch in source.batches(pass_, number):
                loss = F.cross_entropy(module.logits("image", batch["image"]), batch["label"])
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

    def interpreted(meter: Meter | None = None) -> None:
        run(work, inputs, source, module=module, device=device, seed=1, meter=meter)

    bare()
    interpreted()
    ratios: dict[str, list[float]] = {"interpreter / bare loop": [], "first work metered / bare loop": []}
    ratios["prediction / bare loop"] = []
    for _ in range(chosen.repeat):
        base = seconds(bare)
        ratios["interpreter / bare loop"].append(seconds(interpreted) / base)
        ratios["first work metered / bare loop"].append(seconds(lambda: interpreted(Meter())) / base)
        ratios["prediction / bare loop"].append(seconds(lambda: predict(work, source)) / base)
    print(f"{steps} steps of batch {work.passes[0].batch}, {chosen.repeat} pairs; the loop takes {base:.2f} s of CPU")
    for name, values in ratios.items():
        print(f"{name:32} {median(values):5.2f}   ({min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    main()
