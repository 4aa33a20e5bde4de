"""Works that differ by client: the methods of docs/guides/own-method.md, and tables that are one client's own."""

from __future__ import annotations

import re
import runpy
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from edgefl_games import Games
from pydantic import Field
from tensors import assert_equal_tensors
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

import edgefl
from edgefl import seeds
from edgefl.commands.profile.against import with_difference
from edgefl.cost.predict import Predictor
from edgefl.errors import MethodError, ScenarioError
from edgefl.methods import ClientFacts, Method, ServerState, Setting, Update
from edgefl.planning.planner import Planner
from edgefl.registry import registered
from edgefl.results.verify import verify
from edgefl.runs import Run, checkpoints
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.training import Assignment, Inline
from edgefl.work import Context, Pass, Work, Wrapper
from edgefl.work.training_options import TrainingOptions
from tools.pages import running

Tiny = Callable[..., dict[str, Any]]
PAGE = "docs/guides/own-method.md"
SLOW, FAST = "raspberry-pi-3b-plus", "jetson-orin-nano-8gb"
CLIENTS = 4
BLOCK = re.compile(r".*\.blocks\.\d+\.")


class Leave(Wrapper):
    """Leaves what has been trained in the outputs ``mine.<parameter>``."""

    def finish(self, ctx: Context, pass_: Pass) -> None:
        super().finish(ctx, pass_)
        for name, mine in ctx.outputs_like("mine").items():
            mine.copy_(ctx.model.get_parameter(name))


class Mirror(Method):
    """FedAvg; each client also sends its model to a table of its own, and downloads a table that only it is sent."""

    streams = True

    def variant(self, client: ClientFacts) -> int:
        return client.index

    def work(self, kind: str, round: int, variant: int | None = None) -> Work:
        work = super().work(kind, round).around("leave")
        down = self.like_model(kind, "cloud", f"table/cloud/{variant}/")
        up = self.like_model(kind, "mine", f"table/mine/{variant}/")
        return replace(work, down=(*work.down, down), up=(*work.up, up))

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        cloud = {}
        for update in updates:
            assert update.variant == update.client
            (payload,) = (payload for payload in update.work.up if payload.name == "mine")
            assert all(i.source.startswith(f"table/mine/{update.client}/") for i in payload.items)
            own = {i.source: update.payloads["mine"][i.name] for i in payload.items}
            cloud |= {a.replace("/mine/", "/cloud/"): t * 2 for a, t in own.items()} | own
        return super().aggregate(state, updates).with_tensors(cloud)

    def changed_addresses(self, work: Work) -> set[str]:
        sent = set(super().changed_addresses(work))
        return sent | {a.replace("/mine/", "/cloud/") for a in sent}


class RandomPart(Method):
    """FedAvg in which every client trains and sends another half of the blocks in each round."""

    def variant(self, client: ClientFacts) -> int:
        return client.index

    def work(self, kind: str, round: int, variant: int | None = None) -> Work:
        work = super().work(kind, round)
        blocks = sorted({found[0] for name in work.trainable if (found := BLOCK.search(name))})
        rest = tuple(seeds.generator(2, "rest", round, variant).permutation(blocks)[: len(blocks) // 2])
        trains = tuple(name for name in work.trainable if not name.startswith(rest))
        up = tuple(payload.only(lambda item: item.name in trains) for payload in work.up)
        return replace(work, trainable=trains, up=up)


def fedamp(models: type[Method]) -> type[Method]:
    """FedAMP (Huang et al. 2021, algorithm 1), whose models are those of the page's ``Models``."""

    class MyFedAMP(models):  # type: ignore[valid-type, misc]
        """Each client's cloud model is made by attention to models like its own."""

        class Options(Method.Options):
            alpha: float = Field(0.1, gt=0, description="step alpha of the attention")
            sigma: float = Field(1.0, gt=0, description="sigma of A(d) = 1 - exp(-d / sigma), for squared distances d")
            pull: float = Field(0.1, ge=0, description="weight lambda / alpha of the pull to the cloud model")

        def variant(self, client: ClientFacts) -> int:
            return client.index

        def work(self, kind: str, round: int, variant: int | None = None) -> Work:
            work: Work = super().work(kind, round, variant).around("proximal", proximal=self.options.pull)
            return replace(work, reference=work.trainable)

        def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
            alpha, sigma, changed = self.options.alpha, self.options.sigma, {}
            for kind in sorted({update.kind for update in updates}):
                own = sorted((update for update in updates if update.kind == kind), key=lambda update: update.client)
                sent = [dict(update.uploaded_tensors()) for update in own]
                vectors = torch.stack([torch.cat([tensor.flatten() for tensor in each.values()]) for each in sent])
                apart = (vectors[:, None] - vectors).square().sum(2)
                share = (alpha / sigma * torch.exp(-apart / sigma)).fill_diagonal_(0)
                share = share + torch.diag(1 - share.sum(1))
                for each, cloud in zip(sent, share @ vectors, strict=True):
                    parts = cloud.split([tensor.numel() for tensor in each.values()])
                    changed |= {a: part.view_as(each[a]) for a, part in zip(each, parts, strict=True)}
            return state.with_tensors(changed)

    return MyFedAMP


@pytest.fixture(scope="module", autouse=True)
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The page's methods and this module's, known in this module only; the file of the page's methods."""
    known = dict(registered.PARTS)
    (block,) = (block for block in running.blocks(PAGE) if block.file == "variants.py")
    path = tmp_path_factory.mktemp("page") / "variants.py"
    path.write_text(block.body)
    page = runpy.run_path(str(path))
    edgefl.register("method", "my-fedamp")(fedamp(page["Models"]))
    edgefl.register("step", "leave")(Leave)
    edgefl.register("method", "mirror")(Mirror)
    edgefl.register("method", "random-part")(RandomPart)
    yield path
    registered.PARTS.clear()
    registered.PARTS.update(known)


def scenario(tiny: Tiny, method: str | dict[str, Any], **sections: Any) -> dict[str, Any]:
    data = {"source": "glyphs", "clients": {"image": CLIENTS}, "size": 8, "samples": 20, "validation": 20, "test": 20}
    tower = {"blocks": 2, "width": 8, "heads": 2, "patch": 4}
    training = {"batch": 8, "epochs": 3, "optimizer": "sgd", "lr": 0.05, "measure": "all"}
    fleet = {"devices": {SLOW: "50%", FAST: "50%"}}
    return tiny(
        **{"data": data, "model": {"image": tower}, "training": training, "fleet": fleet, "method": method} | sections
    )


def batch_of(source: Any, pass_: Pass) -> dict[str, Tensor]:
    """All samples of a pass in one batch."""
    return dict(next(iter(source.batches(replace(pass_, batch=source.size(pass_)), 0)))[1])


def assert_priced_as_measured(run: Run) -> None:
    """Every client's predicted peak and FLOPs are the measured ones, and the records add up."""
    clients = run.records("clients")
    assert clients and all(c["measured_peak_memory_bytes"] is not None for c in clients)
    for c in clients:
        assert abs(c["peak_memory_bytes"] - c["measured_peak_memory_bytes"]) <= 4096
        assert (c["forward_flops"], c["backward_flops"]) == (c["measured_forward_flops"], c["measured_backward_flops"])
    assert verify(run.path)["valid"]


@pytest.mark.slow(smaller="test_each_cluster_is_fedavg_of_its_clients")
def test_fedamp_is_the_algorithm_written_by_hand(tiny: Tiny, tmp_path: Path) -> None:
    """Huang et al. 2021, algorithm 1, with one batch per client: u_i = sum_j xi_ij w_j, then w_i near u_i."""
    alpha, sigma, pull, lr, rounds, epochs = 3.0, 10.0, 0.3, 0.1, 3, 4
    given = scenario(
        tiny, {"name": "my-fedamp", "alpha": alpha, "sigma": sigma, "pull": pull},
        schedule={"name": "end-to-end", "rounds": rounds},
        training={"batch": 500, "epochs": epochs, "optimizer": "sgd", "lr": lr, "implementation": "for-loop"},
    )  # fmt: skip
    run = edgefl.run(given, out=tmp_path / "run")
    setup = compose(load(given))
    kind = setup.method.setting.kinds["image"]
    module, first = edgefl.models.build(kind.model), setup.method.initial(setup.seed).tensors
    module.forward = lambda modality, x: module.logits(modality, x)  # type: ignore[method-assign, assignment]
    batches = [
        batch_of(setup.clients.client(i), Pass("classify", "private", ("image",), 1, False)) for i in range(CLIENTS)
    ]
    names = list(kind.parameters())
    cloud = [[first[f"image/{n}"].double() for n in names] for _ in range(CLIENTS)]
    module = module.double()
    for _ in range(rounds):
        models = []
        for i, batch in enumerate(batches):
            w = [t.clone() for t in cloud[i]]
            for _ in range(epochs):
                own = [t.clone().requires_grad_() for t in w]
                state = dict(zip(names, own, strict=True))
                scores = functional_call(module, state, ("image", batch["image"].double()), tie_weights=False)
                gradients = torch.autograd.grad(F.cross_entropy(scores, batch["label"]), own)
                w = [t - lr * (g + pull * (t - u)) for t, g, u in zip(w, gradients, cloud[i], strict=True)]
            models.append(np.concatenate([t.numpy().ravel() for t in w]))
        mixed = []
        for i in range(CLIENTS):
            xi = [0.0] * CLIENTS
            for j in range(CLIENTS):
                if i != j:
                    xi[j] = alpha * np.exp(-((models[i] - models[j]) ** 2).sum() / sigma) / sigma
            xi[i] = 1 - sum(xi)
            assert 0.01 < max(xi[:i] + xi[i + 1 :]) < 0.99  # neither alone nor all the same
            mixed.append(sum(x * model for x, model in zip(xi, models, strict=True)))
        sizes = np.cumsum([t.numel() for t in cloud[0]])[:-1]
        cloud = [
            [torch.tensor(part).view_as(t) for part, t in zip(np.split(u, sizes), cloud[0], strict=True)] for u in mixed
        ]
    weights = run.weights()
    assert (
        max(float((cloud[0][k] - cloud[1][k]).abs().max()) for k in range(len(names))) > 1e-3
    )  # the tolerance is 1e-6
    for i in range(CLIENTS):
        for name, expected in zip(names, cloud[i], strict=True):
            found = weights[f"model-{i}/image/{name}"].double()
            assert float((found - expected).abs().max()) < 1e-6, (i, name)
    assert all(torch.equal(weights[f"image/{name}"], first[f"image/{name}"]) for name in names)
    sent = {c["client"]: (c["download_bytes"], c["upload_bytes"]) for c in run.records("clients")}
    size = 4 * sum(t.numel() for t in cloud[0])
    assert set(sent.values()) == {(size, size)}  # each downloads its own cloud model, and no other


@pytest.mark.slow(smaller="test_a_profile_has_a_row_for_each_variant_that_costs_something_else")
def test_slow_devices_train_fewer_epochs_and_are_priced_for_them(tiny: Tiny, tmp_path: Path) -> None:
    given = scenario(tiny, "epochs-by-device", data=scenario(tiny, "fedavg")["data"] | {"clients": {"image": 6}})
    run = edgefl.run(given, out=tmp_path / "run")
    assert_priced_as_measured(run)
    setup = compose(load(given))
    flops = {device: set[float]() for device in (SLOW, FAST)}
    for c in run.records("clients"):
        samples = int(setup.clients.client_samples[c["client"]])
        flops[c["device"]].add((c["forward_flops"] + c["backward_flops"]) / samples)
    assert min(flops[FAST]) == pytest.approx(3 * max(flops[SLOW]))
    assert max(flops[FAST]) == pytest.approx(3 * min(flops[SLOW]))
    plain = edgefl.run(given, out=tmp_path / "plain", overrides=["method=fedavg"]).records("clients")
    seconds = {c["client"]: c["virtual_seconds"] for c in plain if c["round"] == 1}
    for c in (c for c in run.records("clients") if c["round"] == 1):
        slow = c["device"] == SLOW
        assert c["virtual_seconds"] < seconds[c["client"]] if slow else c["virtual_seconds"] == seconds[c["client"]]


def test_a_budget_binds_the_variant_that_exceeds_it(tiny: Tiny) -> None:
    given = scenario(tiny, "epochs-by-device")
    rows = edgefl.profile(given, clients=True)["clients"]
    assert {(row["device"], row["variant"]) for row in rows} == {(SLOW, "slow"), (FAST, "fast")}
    of = {row["variant"]: row["flops"] for row in rows}
    assert of["slow"] < of["fast"]
    between = (of["slow"] + of["fast"]) / 2
    budgets = {"budgets": {"flops_per_round": f"{between / 1e6} MFLOP"}}
    given = scenario(tiny, "epochs-by-device", fleet={"devices": {SLOW: "50%", FAST: "50%"}, **budgets})
    assert {row["variant"]: row["eligible"] for row in edgefl.profile(given, clients=True)["clients"]} == {
        "slow": True, "fast": False,
    }  # fmt: skip
    game, played = Games(tiny), compose(load(given))
    simulation, _ = game.none(played)
    eligible = simulation.run.parts.roster.eligible
    assert eligible.tolist() == [played.variant_of(client) == "slow" for client in range(CLIENTS)]


def test_each_cluster_is_fedavg_of_its_clients(tiny: Tiny, tmp_path: Path) -> None:
    """The mean of a cluster's updates by samples, from what each client of a run of its own sends."""
    given = scenario(tiny, "two-clusters", schedule={"name": "end-to-end", "rounds": 1})
    run = edgefl.run(given, out=tmp_path / "run")
    assert_priced_as_measured(run)
    setup, weights = compose(load(given)), run.weights()
    for cluster in (0, 1):
        clients = [c for c in range(CLIENTS) if c % 2 == cluster]
        total = sum(int(setup.clients.client_samples[c]) for c in clients)
        expected: dict[str, Tensor] = {}
        for client in clients:
            # FedAvg of one client alone is its model
            work = setup.method.client_work("image", 1, cluster)
            one = _trained_alone(setup, work, client)
            share = int(setup.clients.client_samples[client]) / total
            expected = {n: expected.get(n, torch.zeros(())) + share * t.double() for n, t in one.items()}
        for name, value in expected.items():
            torch.testing.assert_close(weights[f"model-{cluster}/image/{name}"].double(), value, rtol=0, atol=1e-6)
    differ = [n for n in setup.method.setting.kinds["image"].parameters()
              if not torch.equal(weights[f"model-0/image/{n}"], weights[f"model-1/image/{n}"])]  # fmt: skip
    assert differ


def _trained_alone(setup: Any, work: Work, client: int) -> dict[str, Tensor]:
    """What a client sends up in the first round, computed outside a simulation."""
    state = setup.method.initial(setup.seed)
    fitted = work.limit_batches(setup.clients.client(client).size)
    seed = seeds.key(setup.seed, "training", client, 1)
    with Inline(setup.clients, "cpu") as inline:
        result = inline.submit(Assignment(fitted.form, fitted.scalars, state.wire(fitted), client, seed)).result()
    return dict(result.payloads["model"])


@pytest.mark.slow(smaller="test_tables_of_a_client_are_in_the_state_and_in_its_traffic_alone")
def test_every_client_trains_another_part_and_sends_only_that(tiny: Tiny, tmp_path: Path) -> None:
    run = edgefl.run(scenario(tiny, "random-part"), out=tmp_path / "run")
    assert_priced_as_measured(run)
    setup = compose(load(scenario(tiny, "random-part")))
    kind = setup.method.setting.kinds["image"]
    parts = {}
    for c in run.records("clients"):
        work = setup.method.client_work("image", c["round"], c["client"])
        assert c["upload_bytes"] == 4 * sum(np.prod(kind.parameters()[n].shape, dtype=int) for n in work.trainable)
        parts[c["round"], c["client"]] = work.trainable
    assert len(set(parts.values())) == 2 and any(parts[1, c] != parts[2, c] for c in range(CLIENTS))
    peaks = {parts[c["round"], c["client"]]: c["peak_memory_bytes"] for c in run.records("clients")}
    assert len(set(peaks.values())) == 2  # the first block's part keeps more activations


# --- tables of one client --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mirrored(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Four rounds of which each draws two of four clients, with all checkpoints."""
    return edgefl.run(mirror(tiny), out=tmp_path_factory.mktemp("mirror") / "run")


def mirror(tiny: Tiny, **sections: Any) -> dict[str, Any]:
    return scenario(
        tiny, "mirror", schedule={"name": "layerwise", "stages": 2, "rounds": 4}, round={"cohort": 2},
        executor={"name": "inline", "device": "cpu", "checkpoints": 4}, **sections,
    )  # fmt: skip


def test_tables_of_a_client_are_in_the_state_and_in_its_traffic_alone(mirrored: Run, tiny: Tiny) -> None:
    assert_priced_as_measured(mirrored)
    weights = mirrored.weights()
    took_part = {c["client"] for c in mirrored.records("clients")}
    held = {int(address.split("/")[2]) for address in weights if address.startswith("table/")}
    assert held == took_part and len(took_part) > 2
    for address, value in weights.items():
        if address.startswith("table/mine/"):
            assert torch.equal(weights[address.replace("/mine/", "/cloud/")], 2 * value)
    setup = compose(load(mirror(tiny)))
    planner = Planner(setup, Predictor())
    for c in mirrored.records("clients"):
        stage = setup.schedule.stages[c["stage"] - 1]
        work, _ = planner.work("image", c["round"], stage, c["client"])
        tables = [item.source for payload in work.down for item in payload.items if item.source.startswith("table/")]
        assert tables and all(address.startswith(f"table/cloud/{c['client']}/") for address in tables)
        trained = 4 * sum(np.prod(item.shape, dtype=int) for p in work.down for item in p.items if item.like)
        assert c["download_bytes_by_payload"]["cloud"] == trained


def test_a_resumed_run_has_the_same_tables_and_versions(mirrored: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(mirrored.path, folder)
    (folder / "result.json").unlink()
    for later in (3, 4):
        shutil.rmtree(folder / "checkpoints" / checkpoints.name(later))
    resumed = edgefl.run(resume=folder)
    assert_equal_tensors(resumed.weights(), mirrored.weights())
    last = checkpoints.name(4)
    versions = [
        checkpoints.manifest_of(run.path / "checkpoints" / last)["state"]["versions"] for run in (resumed, mirrored)
    ]
    assert versions[0] == versions[1] and any(address.startswith("table/cloud/") for address in versions[0])


@pytest.mark.parametrize("method", ["mirror", "my-fedamp", "two-clusters", "random-part"])
def test_without_training_the_same_tensors_change_and_the_records_are_the_same(tiny: Tiny, method: str) -> None:
    given = scenario(tiny, method, schedule={"name": "end-to-end", "rounds": 3}, round={"cohort": 2})
    game, setup = Games(tiny), compose(load(given))
    (real, written), (none, other) = game.real(setup), game.none(setup)
    assert dict(real.run.state.versions) == dict(none.run.state.versions)
    costs = ("client", "round", "download_bytes", "upload_bytes", "peak_memory_bytes", "virtual_seconds")
    rows = [[tuple(c[name] for name in costs) for c in memory.tables["clients"]] for memory in (written, other)]
    assert rows[0] == rows[1]


# --- planning --------------------------------------------------------------------------------------------------------


def test_a_work_is_planned_once_for_each_variant(tiny: Tiny) -> None:
    data = {"source": "glyphs", "clients": {"image": 12}, "size": 8, "samples": 40, "validation": 20, "test": 20}
    setup = compose(load(scenario(tiny, "two-clusters", data={**data, "partition": "iid"})))
    planner = Planner(setup, Predictor())
    stage = setup.schedule.stage(1)
    asked: list[Any] = []
    whole = type(setup.method).work
    type(setup.method).work = lambda self, *args: asked.append(args) or whole(self, *args)  # type: ignore[method-assign]
    try:
        found = [planner.plan(*setup.cell_indices(client), 1, stage, ()) for client in range(12)]
    finally:
        type(setup.method).work = whole  # type: ignore[method-assign]
    assert sorted(asked) == [("image", 1, 0), ("image", 1, 1)]
    plans = {id(plan): plan for plan in found}.values()
    assert len(plans) == len({(plan.group, plan.device.name, plan.link.name) for plan in plans}) < 12
    assert {plan.start[:2] for plan in plans} == {("image", 0), ("image", 1)}


def test_a_method_without_variants_asks_no_client(tiny: Tiny) -> None:
    setup = compose(load(scenario(tiny, "fedavg")))

    def never() -> Iterator[ClientFacts]:
        raise AssertionError("a client was asked")

    method = type(setup.method)(setup.method.options, replace(setup.method.setting, each_client=never))
    setup = replace(setup, method=method)
    assert setup.client_group is setup.clients.client_group and setup.of_variant("image", None) is setup.of_kind(
        "image"
    )
    assert setup.variants == [("image", None)] and method.client_variant is None


def test_facts_are_those_of_the_fleet_and_the_data(tiny: Tiny) -> None:
    setup = compose(load(scenario(tiny, "my-fedamp")))
    assert setup.method.setting.each_client is not None
    for index, facts in enumerate(setup.method.setting.each_client()):
        fleet = setup.fleet
        assert facts == ClientFacts(
            "image", index, int(setup.clients.client_samples[index]), fleet.device(index), fleet.link(index)
        )
    assert setup.method.variants == {"image": tuple(range(CLIENTS))}


class Short(Method):
    def variant(self, client: ClientFacts) -> int:
        return 0


class Listed(Short):
    def variant(self, client: ClientFacts) -> list[int]:  # type: ignore[override]
        return [0]

    def work(self, kind: str, round: int, variant: object = None) -> Work:
        return super().work(kind, round)


def test_a_work_that_takes_no_variant_and_a_variant_that_cannot_be_a_key_are_refused(tiny: Tiny) -> None:
    with pytest.raises(MethodError, match=r"Short has a variant\(\), so its work\(\) takes \(kind, round, variant\)"):
        Short(Short.Options(), Setting({}, TrainingOptions()))
    edgefl.register("method", "listed")(Listed)
    with pytest.raises(ScenarioError, match=r"Listed\.variant\(\).* returned an object of type list, which isn't hash"):
        compose(load(scenario(tiny, "listed")))


def test_a_profile_has_a_row_for_each_variant_that_costs_something_else(tiny: Tiny) -> None:
    by_device = edgefl.profile(scenario(tiny, "epochs-by-device"))
    rows = {row["variant"]: row for row in by_device["rows"]}
    assert rows.keys() == {"slow", "fast"} == {total["variant"] for total in by_device["totals"]}
    assert 3 * rows["slow"]["forward_flops"] == rows["fast"]["forward_flops"]  # equal samples
    assert rows["slow"]["peak_memory_bytes"] == rows["fast"]["peak_memory_bytes"]
    (round_total,) = by_device["round_totals"]
    counts = {"slow": 2, "fast": 2}
    assert round_total["forward_flops"] == sum(counts[name] * row["forward_flops"] for name, row in rows.items())
    for total in by_device["totals"]:
        assert total["forward_flops"] == 2 * rows[total["variant"]]["forward_flops"]
    for method in ("two-clusters", "my-fedamp"):  # variants of equal costs
        assert ["variant" in row for row in edgefl.profile(scenario(tiny, method))["rows"]] == [False]
    assert with_difference(by_device, by_device, 0.0).against.changed == []


def test_clients_are_scored_with_their_variants_model(tiny: Tiny, tmp_path: Path) -> None:
    """After a round the two clusters' clients score other models: each its cluster's, here by hand."""
    given = scenario(
        tiny, "two-clusters", schedule={"name": "end-to-end", "rounds": 1}, evaluation={"clients": 0.4, "every": 1},
    )  # fmt: skip
    run = edgefl.run(given, out=tmp_path / "run")
    setup, weights = compose(load(given)), run.weights()
    scored = list(run.each("scored"))
    module = edgefl.models.build(setup.method.setting.kinds["image"].model)
    whole = Pass("score-classify", "held-out", ("image",), 1, False)
    for record in scored:
        client = record["client"]
        batch = batch_of(setup.clients.client(client), whole)
        own = {a.split("/image/")[1]: t for a, t in weights.items() if a.startswith(f"model-{client % 2}/")}
        module.load_state_dict(own)
        right = (module.logits("image", batch["image"]).argmax(1) == batch["label"]).double().mean()
        assert record["metrics"]["accuracy"] == pytest.approx(float(right))
    assert len(scored) == CLIENTS
