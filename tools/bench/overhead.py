"""CPU time of one client's steps, the meter and a prediction, as ratios to a training loop written by hand.

    python tools/bench.py overhead [--steps 60] [--repeat 5]

Trains the quickstart's image client; whole rounds are in ``bench.peers``.  Prints medians of paired ratios.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import torch
from measuring import paired, parser_of, ratios, spread, table
from torch.nn import functional as F

from edgefl import models
from edgefl.cost.predict import predict
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.work import NO_METER, Meter, NoMeter, run


def measured(steps: int, repeat: int) -> tuple[str, dict[str, list[float]]]:
    """What was timed, in words, and by part its processor seconds in each pair; ``bare`` is the loop."""
    torch.set_num_threads(1)
    scenario = load("quickstart", ["compare=null", "schedule=end-to-end", "method=fedavg", "training.epochs=8"])
    setup = compose(scenario)
    source = setup.clients.client(setup.of_kind("image")[0])
    work = setup.schedule.stage(1).restrict_work(setup.method.work("image", 1)).limit_batches(source.size)
    each = source.counts(work.passes[0])["image"]
    work = replace(work, passes=work.passes[: max(1, steps // each)])
    inputs = setup.method.initial(scenario.seed).inputs(work)
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

    def interpreted(meter: Meter | NoMeter = NO_METER) -> None:
        run(work, inputs, source, module=module, device=torch.device("cpu"), seed=1, meter=meter)

    calls = {
        "bare": bare,
        "interpreter": interpreted,
        "first work metered": lambda: interpreted(Meter()),
        "prediction": lambda: predict(work, source),
    }
    bare()
    interpreted()
    return f"{len(work.passes) * each} steps of batch {work.passes[0].batch}", paired(calls, repeat)


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = parser_of(__doc__, "bench.py overhead")
    parser.add_argument("--steps", type=int, default=60, help="steps of the timed loop")
    parser.add_argument("--repeat", type=int, default=5, help="pairs of runs")
    chosen = parser.parse_args(arguments)
    what, found = measured(chosen.steps, chosen.repeat)
    bare = found.pop("bare")
    print(f"{what}, {chosen.repeat} pairs; the loop takes {median(bare):.2f} s of CPU\n")
    print(table(("what", "/ bare loop"), [[name, str(spread(ratios(each, bare)))] for name, each in found.items()]))
