"""The interpreter: a function of the work, its inputs, its data and a seed, and of nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from edgefl_toys import CPU, Prototypes, Toy, described, do, inputs_of, make_work, scoring_pass, training_pass
from tensors import assert_equal_tensors
from torch import nn

from edgefl import models
from edgefl.cost.predict import predict
from edgefl.errors import MethodError, UnknownName
from edgefl.work import NO_METER, Context, Item, Pass, Payload, Update, Work, distinct
from edgefl.work.optimizer.gradient_trainer import GradientTrainer


def assert_equal(a: Update, b: Update) -> None:
    assert a.loss == b.loss
    assert_equal_tensors(a.payloads, b.payloads)


def dropping() -> Work:
    return make_work(model=described(drop_path=0.5))


def test_a_run_depends_on_its_seed_alone() -> None:
    first = do(dropping(), seed=4)
    torch.manual_seed(99)
    torch.rand(7)
    assert_equal(first, do(dropping(), seed=4))
    assert do(dropping(), seed=5).loss != first.loss


def test_a_run_leaves_the_global_generators_alone() -> None:
    torch.manual_seed(11)
    np.random.seed(11)  # noqa: NPY002
    module = models.build(dropping().model)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    do(dropping(), module=module)
    assert_equal_tensors(torch.get_rng_state(), before)
    assert np.random.get_state()[1].tolist() == numpy_before  # noqa: NPY002


def test_a_resident_module_changes_nothing() -> None:
    work = make_work(gate="trainable")
    module = models.build(work.model)
    first = do(work, module=module, seed=2)
    assert_equal(do(work, module=module, seed=2), first)


def test_metering_changes_no_result() -> None:
    from edgefl.work import Meter

    for work in (make_work(gate="trainable"), dropping()):
        assert_equal(do(work, meter=Meter()), do(work))


def test_what_is_frozen_stays_bit_for_bit() -> None:
    work = make_work()
    work = Work(**{**work.__dict__, "trainable": tuple(n for n in work.trainable if ".blocks.1." in n)})
    inputs, sent = inputs_of(work), do(work).payloads["model"]
    for name, value in sent.items():
        assert torch.equal(value, inputs[name]) != (".blocks.1." in name), name


def test_what_is_sent_is_a_copy() -> None:
    work = make_work()
    module = models.build(work.model)
    sent = do(work, module=module).payloads["model"]["image.head.weight"]
    with torch.no_grad():
        module.get_parameter("image.head.weight").zero_()
    assert sent.any()


def test_payloads_travel_in_their_dtype() -> None:
    work = make_work()
    half = Payload("model", tuple(Item(i.name, i.shape, "bfloat16", i.source) for i in work.up[0].items))
    sent = do(Work(**{**work.__dict__, "up": (half,)})).payloads["model"]
    assert {t.dtype for t in sent.values()} == {torch.bfloat16}


def test_outputs_of_a_step_can_be_sent_and_kept() -> None:
    work = make_work(passes=(scoring_pass(),))
    table = Payload("confusion", (Item("confusion", (5, 5), "float32", "table/confusion"),))
    result = do(Work(**{**work.__dict__, "up": (table,), "keep": ("image.norm.bias",)}))
    assert float(result.payloads["confusion"]["confusion"].sum()) == 40
    assert list(result.kept) == ["image.norm.bias"]
    assert result.loss is None


def test_an_unknown_payload_parameter_or_step_is_named() -> None:
    work = make_work()
    lost = Payload("lost", (Item("nothing", (1,), "float32", "own/nothing"),))
    with pytest.raises(MethodError, match="payload 'lost' sends 'nothing'"):
        do(Work(**{**work.__dict__, "up": (lost,)}))
    with pytest.raises(MethodError, match="trains 'image.tail.weight', which its model lacks"):
        do(Work(**{**work.__dict__, "trainable": ("image.tail.weight",)}))
    with pytest.raises(UnknownName, match="did you mean 'classify'"):
        do(make_work(passes=(Pass("clasify", "private", ("image",), 8),)))
    with pytest.raises(UnknownName, match=r"unknown optimizer 'adm'.*adam"):
        do(make_work(optimizer={"name": "adm", "lr": 1.0}))


def test_distinct_passes_come_in_order_of_their_first_place() -> None:
    a, b = training_pass(), scoring_pass()
    assert distinct(make_work(passes=(b, a, b, a, a))) == [b, a]


def test_equal_passes_are_shuffled_differently() -> None:
    seeds: list[int] = []

    class Listening(Toy):
        def batches(self, pass_, seed):  # type: ignore[no-untyped-def]
            seeds.append(seed)
            return super().batches(pass_, seed)

    do(make_work(), Listening(), seed=3)
    do(make_work(), Listening(), seed=3)
    assert len(set(seeds)) == 2 and seeds[:2] == seeds[2:]


def test_a_table_is_received_and_the_model_isnt() -> None:
    work = prototype_work()
    result = do(work)
    assert result.loss is not None and list(result.payloads) == ["model"]


def prototype_work() -> Work:
    table = Payload("prototypes", (Item("prototypes", (5, 16), "float32", "table/prototypes"),))
    work = make_work(passes=(Pass("toy-prototypes", "private", ("image",), 8),) * 2)
    trainable = tuple(n for n in work.trainable if "head" not in n)
    return Work(**{**work.__dict__, "down": (*work.down, table), "trainable": trainable})


def test_the_toys_are_found_as_a_plug_ins_parts_are() -> None:
    from edgefl import registry

    assert registry.get("step", "toy-prototypes") is Prototypes


def test_a_batch_norm_needs_more_than_one_sample() -> None:
    description = described(("image", "text"), blocks=1)
    rep = {"hidden": [8], "batch_norm": True, "dropout": 0.0, "dimension": 8}
    towers = {m: {**t, "rep": rep} for m, t in description["towers"].items()}
    work = make_work(("image", "text"), model={**description, "towers": towers, "joint": {}}).limit_batches(lambda _: 1)
    for told in (lambda: predict(work, Toy(1)), lambda: do(work, Toy(1))):
        with pytest.raises(MethodError, match="a batch of 1; set training.batch to 2 or more"):
            told()


def test_fused_sgd_that_meets_a_parameter_late_says_what_to_do() -> None:
    first, second = (nn.Parameter(torch.ones(2)) for _ in range(2))
    work = make_work(optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9, "implementation": "fused"})
    trainer = GradientTrainer(Context(work, nn.Module(), Toy(), CPU, trained={"first": first, "second": second}))
    trainer.train(first.sum, NO_METER)
    with pytest.raises(MethodError, match=r"set training.implementation to foreach or for-loop"):
        trainer.train(lambda: first.sum() + second.sum(), NO_METER)
