"""Record: one row, with a column for every knob and metric, and what the sampler is told of it."""

from __future__ import annotations

import dataclasses
import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.failure import FailureKind
from results.measurement import Flag, Measurement, metrics, worst
from results.record import Record, schema
from sweeps.observation import Goal
from sweeps.settings import Settings, knobs, passed
from tests.fakes.records import EAGLE3, PLAIN, failure, measured

GOAL = Goal()


def test_every_knob_and_metric_has_a_column_with_its_doc() -> None:
    """A knob or a metric is declared once; its column and the column's doc follow from that."""
    found = schema()
    for name, doc in [*((k.name, k.doc) for k in knobs().values()), *((m.name, m.doc) for m in metrics().values())]:
        assert found.field(name).metadata[b"doc"].decode() == doc


def test_every_column_is_documented_and_typed() -> None:
    """No column is of the null type, which readers cannot unite with a real one, and none is without a doc."""
    for field in schema():
        assert field.type != pa.null()
        assert field.metadata[b"doc"]


def test_units_stand_in_the_column_names_metadata() -> None:
    """Milliseconds are named so in the column and in its metadata."""
    assert schema().field("ttft_p99_ms").metadata[b"unit"] == b"ms"


def test_a_row_has_every_column_and_no_other() -> None:
    """A measured row and a failed one have the same columns, those of the schema."""
    for record in (measured(EAGLE3, 100.0, trial=1), failure(EAGLE3, trial=2)):
        assert list(record.row()) == schema().names


@pytest.mark.parametrize(
    "record", [measured(EAGLE3, 100.0, trial=1), failure(EAGLE3, trial=2)], ids=["measured", "failed"]
)
def test_a_record_comes_back_from_its_row(record: Record) -> None:
    """Nothing is lost on the way to a row and back."""
    assert Record.from_table(pa.Table.from_pylist([record.row()], schema=schema())) == [record]


def test_a_row_holds_what_ran_and_what_was_asked() -> None:
    """Where the server changed a value, the columns show what ran; the question is kept beside it."""
    record = measured(EAGLE3, 100.0, trial=1, asked=EAGLE3.replace(attention_backend=None))
    row = record.row()
    assert row["attention_backend"] == "fa3"
    assert row["settings_key"] == EAGLE3.key
    assert row["asked_key"] == EAGLE3.replace(attention_backend=None).key


def test_a_failure_has_no_key() -> None:
    """Only a measured point counts as measured; a failed one may be tried again."""
    assert failure(EAGLE3, trial=1).key is None
    assert measured(EAGLE3, 100.0, trial=1).key == (EAGLE3.key, 0, "chat-mix-256", 8, 0)


@pytest.mark.parametrize("flag", list(Flag))
def test_a_row_may_win_unless_a_flag_says_otherwise(flag: Flag) -> None:
    """Notes do not bar a row; `never best` and `invalid` do."""
    record = measured(EAGLE3, 100.0, trial=1, flags=(flag,))
    assert record.trusted == (worst([str(flag)]) == "note")


@pytest.mark.parametrize("kind", list(FailureKind))
def test_a_failure_teaches_by_whose_doing_it_is(kind: FailureKind) -> None:
    """A setting that cannot run is infeasible; the machine's fault says nothing about the setting."""
    observation = failure(EAGLE3, kind, trial=1).observation(GOAL)
    assert observation.outcome == ("infeasible" if kind.blame == "setting" and not kind.retried else "fault")
    assert observation.value is None
    assert observation.cause == str(kind)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -1.0, None])
def test_an_impossible_value_never_reaches_the_sampler(value: float | None) -> None:
    """Not a number, infinite, zero or negative: the row keeps the number, the sampler sees none."""
    record = measured(EAGLE3, value, trial=1)
    assert record.observation(GOAL).value is None


def test_an_invalid_row_has_no_value() -> None:
    """A row flagged invalid teaches no speed."""
    assert measured(EAGLE3, 100.0, trial=1, flags=(Flag.CAPACITY_CLAMPED,)).observation(GOAL).value is None


def test_a_broken_limit_shows_as_excess() -> None:
    """The largest relative excess over the limits goes to the sampler as a constraint."""
    observation = measured(PLAIN, 100.0, trial=1, ttft_p99_ms=750.0).observation(Goal(limits={"ttft_p99_ms": 500.0}))
    assert observation.excess == pytest.approx(0.5)


numbers = st.none() | st.floats(allow_nan=False, allow_infinity=True)
whole = st.none() | st.integers(0, 2**62)
_BY_TYPE = {
    "float": numbers, "int": whole, "list[int]": st.none() | st.lists(st.integers(0, 2**62), max_size=9),
    "str": st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
}  # fmt: skip
measurements = st.builds(Measurement, **{m.name: _BY_TYPE[m.type] for m in metrics().values()})
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
yaml_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words, st.lists, max_leaves=4
)
settings = st.builds(
    Settings,
    algorithm=st.sampled_from(knobs()["algorithm"].choices),
    drafter=st.none() | words,
    num_steps=st.none() | st.integers(1, 64),
    mem_fraction_static=st.none() | st.floats(0.01, 1.0),
    cuda_graph=st.booleans(),
    tp_size=st.integers(1, 64),
    server_args=st.dictionaries(words, yaml_values, max_size=3).map(passed),
)


@given(settings, settings, measurements, st.lists(st.sampled_from(list(Flag)), unique=True))
def test_any_record_survives_parquet(
    asked: Settings, ran: Settings, measurement: Measurement, flags: list[Flag]
) -> None:
    """Record → Arrow with the fixed schema → Record gives the same record, whatever the knobs and metrics are."""
    record = dataclasses.replace(
        measured(ran, 1.0, trial=3, asked=asked), measurement=measurement, flags=tuple(flags), launch_s=None
    )
    table = pa.Table.from_pylist([record.row()], schema=schema())
    assert Record.from_table(table) == [record]
