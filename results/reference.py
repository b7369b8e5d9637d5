"""docs/schema.md, and the guide's table of failures: what a run holds, made from the declarations by `make docs`.

Not here: the keys of a config (orchestrator/config/reference.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from results.failure import FailureKind, Stage
from results.journal import EVENTS
from results.measurement import Flag
from results.record import schema
from results.tables import escaped

HEAD = """# What a run holds

Made from the declarations by `make docs`; do not edit. How to read it: [guide.md](guide.md).

## Columns of trials/*.parquet

One row a load point and repeat, or one a failure. The doc and unit of each column are in the Parquet schema too."""

_MARKS = ("<!-- failures -->", "<!-- end of failures -->")


def schema_page() -> str:
    columns = [
        (f"`{field.name}`", str(field.type), field.metadata.get(b"unit", b"").decode(), field.metadata[b"doc"].decode())
        for field in schema()
    ]
    flags = [(f"`{flag}`", str(flag.effect), flag.doc) for flag in Flag]
    events = [(f"`{name}`", doc) for name, doc in EVENTS.items()]
    parts = [
        HEAD, _table(("column", "type", "unit", "meaning"), columns),
        "## Flags", "A *note* does not keep a row from winning; *never best* and *invalid* do.",
        _table(("flag", "effect", "meaning"), flags),
        "## Why a trial failed", failures_table(), "Stages, in order: " + ", ".join(f"`{stage}`" for stage in Stage) + ".",
        "## Lines of events.jsonl",
        "One JSON object a line, with `at` (UTC, ISO 8601), `steady_s` (a steady clock, to tell how far lines of one driver are apart) and `event`:",
        _table(("event", "what it says"), events),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def failures_table() -> str:
    """Every kind of failure: whose doing it is, what follows, and what to do."""
    follows = {
        "setting": "counts as a result: not launched again", "infrastructure": "tried once more",
        "environment": "the sweep stops", "person": "resumable",
    }  # fmt: skip
    rows = [
        (f"`{kind}`", kind.blame, "tried once more" if kind.retried else follows[kind.blame], kind.remedy)
        for kind in FailureKind
    ]
    return _table(("failure_kind", "whose doing", "what follows", "what to do"), rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(escaped(cell) for cell in line) + " |" for line in lines)


def with_failures(guide: str) -> str:
    """The guide with its table of failures made anew between its two marks."""
    before, _, rest = guide.partition(_MARKS[0])
    _, _, after = rest.partition(_MARKS[1])
    return f"{before}{_MARKS[0]}\n{failures_table()}\n{_MARKS[1]}{after}"


def write_pages(docs: Path) -> None:
    (docs / "schema.md").write_text(schema_page(), encoding="utf-8")
    guide = docs / "guide.md"
    guide.write_text(with_failures(guide.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
