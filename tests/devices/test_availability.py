"""When clients can be reached: the three questions agree, chains are in equilibrium, traces are followed exactly."""

from __future__ import annotations

import json
import tracemalloc
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from edgefl import seeds
from edgefl.devices import AvailabilityOptions, FleetOptions, availability_of
from edgefl.devices.availability import Diurnal, Presence
from edgefl.errors import DeviceError

HOUR, DAY = 3600.0, 86400.0


def _made(seed=1, **written):
    return availability_of(AvailabilityOptions.model_validate(written), 1000, seed)


def _trace(path, rows):
    path.write_text("device,start,end\n" + "".join(f"{d},{s!r},{e!r}\n" for d, s, e in rows))
    return str(path)


def _consistent(made, clients, at):
    """Available until it leaves, away until it returns, and the same whoever else is asked for."""
    clients = np.asarray(clients)
    there, leaves, returns = (ask(clients, at) for ask in (made.available, made.leaves, made.returns))
    times = np.broadcast_to(np.asarray(at, dtype=float), clients.shape)
    assert np.all(np.where(there, leaves > times, leaves == times))
    assert np.all(np.where(there, returns == times, returns > times))
    ends = np.isfinite(leaves) & there
    assert not made.available(clients[ends], leaves[ends]).any()
    back = np.isfinite(returns)
    assert made.available(clients[back], returns[back]).all()
    on, until = made.state(clients, at)
    assert np.array_equal(on, there) and np.array_equal(until, np.where(there, leaves, returns))
    away = back & ~there
    for share in (0.0, 0.3, 0.999):  # nothing happens in between
        assert made.available(clients[ends], times[ends] + share * (leaves[ends] - times[ends])).all()
        assert not made.available(clients[away], times[away] + share * (returns[away] - times[away])).any()
    one = len(clients) // 2
    assert made.leaves(clients[[one]], times[[one]])[0] == leaves[one]
    assert made.returns(clients[[one]], times[[one]])[0] == returns[one]


many = st.lists(st.integers(0, 2**40), min_size=1, max_size=30)
moments = st.floats(0, 400 * DAY)


@settings(max_examples=25, deadline=None)
@given(many, moments, st.floats(0.1, 20), st.floats(0, 1.9), st.sampled_from(["spread", "22:00..2:00", [0, 24]]))
def test_days_are_consistent(clients, at, hours, jitter, start):
    made = _made(diurnal={"hours": [hours / 2, hours], "start": start, "jitter": jitter * HOUR})
    _consistent(made, clients, at)


@settings(max_examples=25, deadline=None)
@given(many, moments, st.floats(60, DAY), st.floats(60, DAY), st.integers(0, 5))
def test_chains_are_consistent(clients, at, on, off, seed):
    _consistent(_made(seed, markov={"on": on, "off": off}), clients, at)


# eighths of seconds, of which sums and remainders are exact: an interval's ends are themselves in every period
eighths = st.integers(1, 400).map(lambda number: number / 8)
gaps = st.lists(st.tuples(st.just(0.0) | eighths, eighths), min_size=1, max_size=8)


@settings(max_examples=25, deadline=None)
@given(st.lists(gaps, min_size=1, max_size=4), many, st.integers(0, 40_000), st.sampled_from([None, 0.0, 1.75]))
def test_traces_are_consistent(tmp_path_factory, records, clients, at, over):
    rows, last = [], 0.0
    for device, record in enumerate(records):
        now = 0.0
        for gap, length in record:
            rows.append((device, now + gap, now + gap + length))
            now = now + gap + length
        last = max(last, now)
    file = _trace(tmp_path_factory.mktemp("trace") / "trace.csv", rows)
    made = _made(trace={"file": file} | ({} if over is None else {"period": last + over}))
    _consistent(made, clients, at / 8)


def test_always():
    made = availability_of("always", 3, 1)
    assert made.available([0, 1], 5).tolist() == [True, True]
    assert made.leaves([0, 1], 5).tolist() == [inf, inf]
    assert made.returns([0, 1], [5, 6]).tolist() == [5, 6]


def test_a_window_of_the_day_by_hand():
    made = _made(diurnal={"hours": "9 h", "start": "22:00"})
    assert made.available([7] * 5, np.array([0, 6.9, 7, 21.9, 22]) * HOUR).tolist() == [True, True, False, False, True]
    assert made.leaves([7], 23 * HOUR).tolist() == [31 * HOUR]
    assert made.returns([7], 8 * HOUR).tolist() == [22 * HOUR]
    assert made.returns([7], 3 * DAY + 8 * HOUR).tolist() == [3 * DAY + 22 * HOUR]


def test_windows_differ_between_clients_and_shift_between_days():
    everybody = np.arange(2000)
    made = _made(diurnal={"hours": "8..10 h", "start": "18:00..23:00", "jitter": "30 min"})
    starts = [made.returns(everybody, day * DAY + 12 * HOUR) - day * DAY for day in (1, 2)]
    assert starts[0].min() >= 17.5 * HOUR
    assert starts[0].max() < 23.5 * HOUR
    shift = starts[1] - starts[0]
    assert 0.9 * HOUR < np.abs(shift).max() < HOUR
    # the difference of two even draws from +-30 min is triangular: a variance of twice 30^2/3
    assert np.std(shift) == pytest.approx(1800 * np.sqrt(2 / 3), rel=0.05)
    lengths = made.leaves(everybody, starts[0] + DAY) - starts[0] - DAY
    assert 8 * HOUR <= lengths.min() < 8.1 * HOUR
    assert 9.9 * HOUR < lengths.max() <= 10 * HOUR + 1e-6
    # spread over the day the share that is there is the mean window's, at any moment
    spread = _made(diurnal={"hours": "8..10 h", "start": "spread"})
    for at in (0, 5.5 * DAY):
        assert spread.available(np.arange(20_000), at).mean() == pytest.approx(9 / 24, abs=0.02)


@pytest.mark.parametrize(("on", "off"), [(HOUR, HOUR), (600, 6000), (6000, 600)])
def test_a_chain_is_in_equilibrium(on, off):
    everybody = np.arange(10_000)
    made = _made(markov={"on": on, "off": off})
    share = on / (on + off)
    error = 5 * np.sqrt(share * (1 - share) / len(everybody))
    for at in (0, 1234.5, 30 * DAY):
        assert made.available(everybody, at).mean() == pytest.approx(share, abs=error)
    # stays and absences are exponential: mean and deviation are the same, from any moment on
    there = made.available(everybody, DAY)
    for left, mean in ((made.leaves(everybody, DAY)[there], on), (made.returns(everybody, DAY)[~there], off)):
        assert (left - DAY).mean() == pytest.approx(mean, rel=5 / np.sqrt(len(left)))
        assert (left - DAY).std() == pytest.approx(mean, rel=10 / np.sqrt(len(left)))
    # a chain of two states forgets with exp(-t (1/on + 1/off))
    lag = 0.5 * min(on, off)
    kept = np.corrcoef(there, made.available(everybody, DAY + lag))[0, 1]
    assert kept == pytest.approx(np.exp(-lag * (1 / on + 1 / off)), abs=0.05)


@pytest.mark.parametrize(("on", "off"), [(60.0, 60.0), (5.0, 400.0), (1000.0, 3.0)])
@pytest.mark.parametrize("many", [1, 700, 2500])
def test_a_chain_follows_its_calls(on, off, many):
    def calls(kind, gap, client, first, last):
        """All calls of one client from cell ``first`` to ``last``, by a loop over their gaps."""
        times, length = [], 4 * gap
        for cell in range(first, last + 1):
            position, block = 0.0, 0
            while position < 1:
                batch = position  # gaps of four blocks are added up before
                drawn = seeds.uniforms(
                    7, f"availability calls {kind}", of=[client] * 4, block=48 * cell + block + np.arange(4)
                )
                inside = 0.0
                for uniform in drawn.reshape(-1):
                    inside += np.log(np.array([uniform]))[0] / -4
                    position = batch + inside
                    if position >= 1:
                        break
                    times.append(min((cell + position) * length, np.nextafter((cell + 1) * length, -inf)))
                block += 4
        return np.array(times)

    made = _made(seed=7, markov={"on": on, "off": off})
    rng = np.random.default_rng(0)
    clients, at = rng.integers(0, 10**6, many), rng.uniform(0, 1e4, many)
    there, until = made.state(clients, at)
    assert np.array_equal(made.available(clients, at), there)
    for index in range(0, many, max(many // 12, 1)):
        ons, offs = (
            calls(kind, gap, int(clients[index]), int(at[index] // (4 * gap)) - 8, int(at[index] // (4 * gap)) + 8)
            for kind, gap in (("on", off), ("off", on))
        )
        is_on = ons[ons <= at[index]].max() >= offs[offs <= at[index]].max(initial=-inf)
        following = offs if is_on else ons
        assert there[index] == is_on
        assert until[index] == following[following > at[index]].min()


def test_whole_stays_are_exponential():
    # followed from switch to switch: alternating means that have nothing to do with each other
    made, some, steps = _made(markov={"on": 100, "off": 300}), np.arange(50), 20
    now, stays, absences = made.returns(some, 0.0), [], []
    for _ in range(steps):
        left = made.leaves(some, now)
        back = made.returns(some, left)
        stays += list(left - now)
        absences += list(back - left)
        now = back
    assert np.mean(stays) == pytest.approx(100, rel=5 / np.sqrt(len(stays)))
    assert np.mean(absences) == pytest.approx(300, rel=5 / np.sqrt(len(stays)))
    assert abs(np.corrcoef(stays, absences)[0, 1]) < 5 / np.sqrt(len(stays))


def test_a_trace_is_followed_exactly(tmp_path):
    file = _trace(tmp_path / "one.csv", [("a", 10, 20), ("a", 30, 40), ("a", 40, 50)])
    once = _made(trace={"file": file})
    times = np.array([0, 10, 19.9, 20, 35, 50, 60], dtype=float)
    assert once.available([0] * 7, times).tolist() == [False, True, True, False, True, False, False]
    assert once.leaves([0] * 7, times).tolist() == [0, 20, 20, 20, 50, 50, 60]
    assert once.returns([0] * 7, times).tolist() == [10, 10, 19.9, 30, 35, inf, inf]
    again = _made(trace={"file": file, "period": "100 s"})
    assert again.returns([0] * 2, [50, 260]).tolist() == [110, 310]
    assert again.leaves([0] * 2, [115, 1_000_045]).tolist() == [120, 1_000_050]


def test_a_trace_that_goes_on_over_its_end(tmp_path):
    file = _trace(tmp_path / "over.csv", [("a", 0, 10), ("a", 80, 100)])
    made = _made(trace={"file": file, "period": 100})
    assert made.leaves([0] * 3, [85, 105, 285]).tolist() == [110, 110, 310]
    whole = _made(trace={"file": _trace(tmp_path / "whole.csv", [("a", 0, 100)]), "period": 100})
    assert whole.leaves([0], 250).tolist() == [inf]


def test_records_are_drawn_and_json_lines_are_the_same(tmp_path):
    rows = [(f"phone-{i}", i, i + 1) for i in range(10)]
    table = _made(trace={"file": _trace(tmp_path / "ten.csv", rows)})
    lines = tmp_path / "ten.jsonl"
    lines.write_text("".join(json.dumps({"client": d, "start": s, "end": e, "more": 1}) + "\n\n" for d, s, e in rows))
    first = table.returns(np.arange(1000), 0)
    assert np.array_equal(first, _made(trace={"file": str(lines)}).returns(np.arange(1000), 0))
    counts = np.bincount(first.astype(int), minlength=10)
    assert counts.min() > 60
    assert counts.sum() == 1000
    assert not np.array_equal(first, _made(2, trace={"file": str(lines)}).returns(np.arange(1000), 0))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "trace.csv: this trace is empty"),
        ("device,start,end\n", "trace.csv: this trace is empty"),
        ("device,begin,end\na,1,2\n", "trace.csv:1: 'start' is missing"),
        (
            "device,start,end\na,5,9\na,3,4\n",
            "trace.csv:3: the rows of device a aren't sorted: .* at 3 s, line 2 at 5 s",
        ),
        ("device,start,end\na,5,9\nb,1,2\na,8,12\n", "trace.csv:4: the interval overlaps line 2: .*join the two rows"),
        ("device,start,end\na,5,5\n", "trace.csv:2: the interval ends at 5 s, not after its start at 5 s"),
        ("device,start,end\na,5,now\n", "trace.csv:2: end: 'now' is not a number of seconds"),
        ("device,start,end\na,5,inf\n", "trace.csv:2: end: 'inf' is not a time"),
        ("device,start,end\na,-5,6\n", "trace.csv:2: start: '-5' is not a time"),
        ("device,start,end\na,1700000000,1700003600\n", "trace.csv:2: the interval starts 54 years after .*since 1970"),
        ("device,start,start,end\na,1,2,3\n", "trace.csv:1: 2 columns are named 'start': rename all but one"),
        ("device;start;end\na;1;2\n", "trace.csv:1: 'device' is missing, there are 'device;start;end'"),
        ("device,start,end\na,5\n", "trace.csv:2: 2 values under 3 columns"),
        ("device,start,end\na,5,101\n", "trace.csv:2: the interval ends at 101 s, after the period of 100 s"),
    ],
)
def test_a_wrong_trace_is_refused_with_its_line(tmp_path, text, said):
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(DeviceError, match=said) as caught:
        _made(trace={"file": str(file), "period": 100})
    assert "\n" not in str(caught.value)


def test_what_is_no_trace_at_all(tmp_path):
    with pytest.raises(DeviceError, match=r"nowhere\.csv: this trace can't be read: No such file"):
        _made(trace={"file": str(tmp_path / "nowhere.csv")})
    with pytest.raises(DeviceError, match=r"can't be read: Is a directory"):
        (tmp_path / "folder.csv").mkdir()
        _made(trace={"file": str(tmp_path / "folder.csv")})
    for name, raw, said in (
        ("a.txt", b"x", r"a\.txt: a trace is a file with suffix \.csv, \.jsonl"),
        ("a.csv", b"device,start,end\n\xff,1,2\n", "isn't UTF-8"),
        ("a.jsonl", b"{}\n", r"a\.jsonl:1: 'device' is missing"),
        ("b.jsonl", b'{"device": 1, "start": 0, "end": 1}\nno\n', r"b\.jsonl:2: this line isn't JSON"),
        ("c.jsonl", b"[1]\n", r"c\.jsonl:1: a row is an object"),
        ("d.jsonl", b'{"device": 1, "start": true, "end": 1}\n', r"d\.jsonl:1: start: True is not a number"),
    ):
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(DeviceError, match=said):
            _made(trace={"file": str(tmp_path / name)})


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("sometimes", "always"),
        ({}, "nothing is given; write one of always"),
        ({"markov": {"on": 1, "off": 1}, "diurnal": {}}, "diurnal and markov are given together"),
        ({"markov": {"on": 0, "off": 1}}, "must be more than 0 s"),
        ({"markov": {"on": "1 h"}}, "Field required"),
        ({"markov": {"on": "1 kg", "off": 1}}, "unknown unit 'kg'"),
        ({"diurnal": {"hours": "10..8 h"}}, "empty range"),
        ({"diurnal": {"hours": 0}}, "longer than 0 h"),
        ({"diurnal": {"hours": 24}}, "write availability: always"),
        ({"diurnal": {"hours": 20, "jitter": "2 h"}}, "don't fit into a period of 24 h"),
        ({"diurnal": {"start": "25 o'clock"}}, "or a time of day"),
        ({"diurnal": {"start": "18:00..23:70"}}, "not a time of day"),
        ({"diurnal": {"start": 64800}}, "start: 64800 h is outside a period of 24 h"),
        ({"diurnal": {"hour": 3}}, "Extra inputs"),
        ({"trace": {"file": ""}}, "at least 1 character"),
        ({"trace": {"file": "a.csv", "period": 0}}, "more than 0 s"),
        ({"trace": {}}, "Field required"),
    ],
)
def test_what_a_person_is_told(written, said):
    with pytest.raises(ValidationError) as caught:
        FleetOptions.model_validate({"availability": written})
    assert any(said in error["msg"] for error in caught.value.errors())


@pytest.mark.parametrize(
    "written",
    [
        "always",
        {"diurnal": {}},
        {"diurnal": {"hours": "30 min..8 h", "start": "22:30..1:15", "jitter": "10 min"}},
        {"diurnal": {"hours": 6, "start": "spread"}},
        {"markov": {"on": "2 h", "off": "10 h"}},
        {"trace": {"file": "a.csv", "period": "7 d"}},
    ],
)
def test_options_round_trip_through_json(written):
    options = FleetOptions.model_validate({"availability": written})
    assert FleetOptions.model_validate(json.loads(options.model_dump_json())) == options
    if written == {"diurnal": {"hours": "30 min..8 h", "start": "22:30..1:15", "jitter": "10 min"}}:
        assert options.availability.diurnal.hours == (0.5, 8)
        assert options.availability.diurnal.start == (22.5, 25.25)


def test_a_thousand_of_a_million_are_asked_without_the_others():
    some = np.random.default_rng(1).integers(0, 1_000_000, 1000)
    for written in ({"diurnal": {"jitter": "30 min"}}, {"markov": {"on": "2 h", "off": "10 h"}}):
        made = _made(**written)
        for ask in (made.available, made.leaves, made.returns):
            ask(some, 40 * DAY)
            tracemalloc.start()
            ask(some, 40 * DAY + 1)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 1_000_000 * 8 / 2  # half of one array of all clients


@pytest.mark.parametrize("written", [{"diurnal": {"jitter": "30 min"}}, {"markov": {"on": "2 h", "off": "10 h"}}])
def test_a_run_knows_of_each_client_what_it_would_be_told(written):
    made, clients, draw = _made(**written), 3000, np.random.default_rng(2)
    presence = Presence(made, clients)
    for at in np.linspace(0, 3 * DAY, 40):
        some = draw.permutation(clients)[: draw.choice([1, 20, 2500])]
        assert (presence.available(some, at) == made.available(some, at)).all()
        assert (presence.leaves(some, at) == made.leaves(some, at)).all()


def test_a_day_of_a_fleet_isnt_drawn_anew_each_minute():
    class Counting(Diurnal):
        asked = 0

        def until(self, clients, at):
            self.asked += len(clients)
            return super().until(clients, at)

    counting = Counting(_made(diurnal={"jitter": "30 min"}).options, 1)
    presence = Presence(counting, 3000)
    for minute in range(24 * 60):
        presence.available(np.arange(3000), 60.0 * minute)
    # a day has one window, so a client's state lasts from midnight to it, to its end, and to the next day's
    assert 3000 <= counting.asked <= 3 * 3000 + 3000


def test_a_simulation_may_begin_at_any_time_of_day():
    clients = np.arange(50)
    midnight = _made(diurnal={"hours": 8, "start": "9:00..12:00", "jitter": 600})
    ten = _made(diurnal={"hours": 8, "start": "9:00..12:00", "jitter": 0, "begins": "10:00"})
    usual = _made(diurnal={"hours": 8, "start": "9:00..12:00"})
    assert not midnight.available(clients, 0.0).any() and ten.available(clients, 0.0).any()
    for at in (0.0, 3600.0, 5 * HOUR, 30 * HOUR):
        assert np.array_equal(ten.available(clients, at), usual.available(clients, at + 10 * HOUR))
        assert ten.leaves(clients, at) == pytest.approx(usual.leaves(clients, at + 10 * HOUR) - 10 * HOUR)
    with pytest.raises(ValidationError, match="one time of day"):
        _made(diurnal={"begins": "9:00..10:00"})
