"""Largest differences between edgefl's weights and those of pfl-research and Flower, on the same cohorts and batches.

    python tools/agree_with_peers.py [--methods fedavg,fedprox,scaffold] [--keep-environments DIR] [--within 1e-9]
                                     [--record docs/evidence/figures/other-programs.json]

edgefl plays 5 rounds of a small convolutional network in float64 (``training.precision: float64``).  Its first values,
its cohorts and the batches of every client, in their order, are given to each peer, which trains and aggregates
by its own code in an environment of its own, and to a loop by hand.  Exit 1 if a difference that isn't explained
is above ``--within``; docs/evidence/other-programs.md has the figures and the explanations.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).resolve().parent
sys.path[:0] = [str(TOOLS), str(TOOLS.parent)]

import numpy as np  # noqa: E402
import safetensors.torch  # noqa: E402
import torch  # noqa: E402
from agreeing.plain_client import CLIENTS, METHODS, MU, RATE, Case, renewed, trained, zeros  # noqa: E402
from bench.contestants import python_of, variables  # noqa: E402
from bench.edgefl_parts import pictures  # noqa: E402
from bench.jobs import Job  # noqa: E402
from bench.pairing import Failed  # noqa: E402
from measuring import parser_of, several, table  # noqa: E402
from torch import Tensor  # noqa: E402

import edgefl  # noqa: E402
from edgefl import seeds  # noqa: E402
from edgefl.data.collection import DataSet  # noqa: E402
from edgefl.scenario import load  # noqa: E402
from edgefl.setup.compose import compose, federation_of  # noqa: E402
from edgefl.work.description import Pass  # noqa: E402

ROUNDS, COHORT, SAMPLES, BATCH = 5, 4, 24, 8
FIRST_DISPATCH = 1
"""Number of the first round's dispatch."""
JOB = Job("agree", "a convolutional network", CLIENTS, SAMPLES, COHORT, BATCH, None)
edgefl.register("data set", "bench-agree")(DataSet(partial(pictures, JOB)))
AS_IS = {
    "fedavg-as-is": "pfl-research's FedAvg as it is, which writes differences of models to float32",
    "scaffold-as-is": "pfl-research's SCAFFOLD as it is, whose control variates have the other sign",
}
PEERS = {
    "flower": ("Flower", "agreeing.flower_rounds", ()),
    "pfl": ("pfl-research", "agreeing.pfl_rounds", tuple(AS_IS)),
}


def scenario(method: str) -> dict[str, Any]:
    """The rounds as edgefl's scenario."""
    return {
        "edgefl": 1,
        "name": "agree",
        "data": {
            "source": "bench-agree", "clients": {"image": CLIENTS}, "partition": "iid", "samples": SAMPLES,
            "validation": 10, "test": 10,
        },
        "model": {"image": {"tower": "bench-cnn"}},
        "method": {"name": "fedprox", "mu": MU} if method == "fedprox" else method,
        "schedule": {"name": "end-to-end", "rounds": ROUNDS},
        "training": {"optimizer": "sgd", "lr": RATE, "batch": BATCH, "precision": "float64"},
        "round": {"cohort": COHORT},
        "executor": {"name": "inline", "device": "cpu", "checkpoints": ROUNDS},
        "evaluation": {"every": ROUNDS},
    }  # fmt: skip


def played(method: str, folder: Path) -> list[list[Tensor]]:
    """edgefl's parameters after each round; writes the case for the others."""
    loaded = load(scenario(method))
    setup = compose(loaded)
    federation = federation_of(loaded, str)
    first = setup.method.at_start(setup.seed).tensors
    names = [f"image/{name}" for name in setup.method.setting.kinds["image"].trainable()]
    run = folder / "run"
    edgefl.run(loaded, out=run)
    flights = [json.loads(line) for line in (run / "clients.jsonl").read_text().splitlines()]
    cohorts = [[f["client"] for f in flights if f["round"] == r] for r in range(1, ROUNDS + 1)]
    # client i trains in dispatch r by this seed, and shuffles its one pass by the next
    pass_ = Pass("classify", "private", ("image",), BATCH, True, {})
    batches = [
        [batch for _, batch in federation.client(client).batches(pass_, seeds.key(seed, "shuffle", 0, 0))]
        for number, cohort in enumerate(cohorts, FIRST_DISPATCH)
        for client in cohort
        for seed in [seeds.key(setup.seed, "training", client, number)]
    ]
    arrays = {f"first.{k}": first[name].numpy() for k, name in enumerate(names)}
    arrays["x"] = np.stack([np.stack([b["image"].double().numpy() for b in steps]) for steps in batches])
    arrays["y"] = np.stack([np.stack([b["label"].numpy() for b in steps]) for steps in batches])
    np.savez(folder / "case.npz", client=np.array(cohorts), **arrays)
    files = [*(f"checkpoints/round-{r:06}/state.safetensors" for r in range(1, ROUNDS)), "weights.safetensors"]
    stored = [safetensors.torch.load_file(run / file) for file in files]
    return [[values[name] for name in names] for values in stored]


def by_hand(case: Case, method: str, sign: int = 1) -> list[list[Tensor]]:
    """The rounds as a loop: clients in plain torch, and the mean of their models; ``sign`` as in ``renewed``."""
    module, server, rounds = case.network(), case.first, []
    control, own = zeros(server), {client: zeros(server) for client in range(CLIENTS)}
    for round, cohort in enumerate(case.client):
        ends, change = [], zeros(server)
        for place, client in enumerate(cohort):
            batches = case.flight(round, place)
            ends.append(trained(module, server, batches, method, control, own[client]))
            new = renewed(own[client], control, server, ends[-1], len(batches), sign)
            change = [d + n - o for d, n, o in zip(change, new, own[client], strict=True)]
            own[client] = new
        server = [sum(values) / len(cohort) for values in zip(*ends, strict=True)]
        control = [c + d / CLIENTS for c, d in zip(control, change, strict=True)]
        rounds.append(server)
    return rounds


def difference(ours: Sequence[Sequence[Tensor]], theirs: Sequence[Sequence[Tensor]]) -> float:
    """The largest difference of a parameter after any round.  Raises ValueError for other rounds or shapes."""
    return max(
        float((a - b).abs().max())
        for own, other in zip(ours, theirs, strict=True)
        for a, b in zip(own, other, strict=True)
    )


def read(path: Path, like: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    """What a peer wrote."""
    with np.load(path) as stored:
        return [[torch.from_numpy(stored[f"{r}.{k}"]) for k in range(len(values))] for r, values in enumerate(like)]


def main() -> None:
    """Play the methods with all peers, and print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--methods", type=several(METHODS), default=METHODS)
    parser.add_argument("--within", type=float, default=1e-9, help="largest difference that is no failure")
    parser.add_argument("--keep-environments", type=Path, help="folder to install peers in, and to find them in again")
    parser.add_argument("--record", type=Path, help="write the differences to this file, for the pages")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows, failed, versions = [], [], []
    with tempfile.TemporaryDirectory() as temporary:
        home = given.keep_environments or Path(temporary) / "environments"
        home.mkdir(parents=True, exist_ok=True)
        pythons = {}
        for peer, (title, _, _) in PEERS.items():
            try:
                pythons[peer], version = python_of(peer, home.resolve())
                versions.append(version)
            except Failed as reason:
                print(f"{title}: left out, {reason}")
                failed.append(title)
        for method in given.methods:
            folder = Path(temporary) / method
            folder.mkdir()
            print(f"{method}: {ROUNDS} rounds", file=sys.stderr, flush=True)
            ours = played(method, folder)
            case = Case.read(folder)
            moved = difference(ours, [case.first] * ROUNDS)
            found = [("a loop by hand", difference(ours, by_hand(case, method)), True)]
            for peer, python in pythons.items():
                title, module, as_is = PEERS[peer]
                for name in (method, *(each for each in as_is if each.startswith(method))):
                    command = [python, "-m", module, str(folder), name]
                    done = subprocess.run(command, env=variables(folder, peer), capture_output=True, text=True)
                    if done.returncode:
                        print(f"{title}, {name}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
                        failed.append(f"{title}, {name}")
                        continue
                    told, theirs = AS_IS.get(name, title), read(folder / f"{peer}-{name}.npz", ours)
                    found.append((told, difference(ours, theirs), name == method))
                    if name == "scaffold-as-is":
                        turned = difference(by_hand(case, method, -1), theirs)
                        found.append(("that, and a loop by hand with that sign", turned, True))
            rows += [[method, title, f"{size:.1e}", f"{moved:.2f}"] for title, size, _ in found]
            failed += [f"{title}, {method}" for title, size, held in found if held and not size <= given.within]
    if given.record:
        pairs = [{"method": row[0], "compared_with": row[1], "difference": row[2]} for row in rows]
        told = {
            "from": f"`tools/agree_with_peers.py` on {date.today():%d %B %Y}; {', '.join(versions)}",
            "pairs": pairs,
        }
        given.record.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(table(("method", "compared with", "largest difference", "largest change by training"), rows))
    print(f"\n{ROUNDS} rounds, {COHORT} of {CLIENTS} clients each, float64; {', '.join(versions)}")
    if failed:
        sys.exit(f"these don't agree within {given.within:g}: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
