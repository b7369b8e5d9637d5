"""What an analyst needs of a run: its rows as a DataFrame or as Records, what each column means, and the verdict.

    import results

    frame = results.load("runs/eagle3/20260101T120000Z")
    measured = frame[frame.status == "measured"]
    measured.groupby(["algorithm", "drafter", "num_steps", "concurrency"]).output_tok_s.mean()

    results.load("runs/**")                       # many runs in one frame, with run_dir and comparable_key
    results.dataset("runs/eagle3/20260101T120000Z").to_table(columns=["trial", "output_tok_s"])    # pyarrow, read lazily
    results.columns()["acceptance_length"]        # what a column means, with its unit
    records = results.load_records("runs/eagle3/20260101T120000Z")
    from results.verdict import judge             # the verdict anew, e.g. for another goal

The rows need nothing of this package: `pandas.read_parquet("runs/…/trials")`, polars and duckdb read them as they stand,
also beside a live sweep.  Importing `results` imports neither pandas nor pyarrow nor scipy.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow.dataset

    from results.record import Record
    from results.rundir import RunDir

__all__ = ["columns", "dataset", "load", "load_records", "runs"]


def load(run: str | Path | RunDir) -> pd.DataFrame:
    """All rows of a run directory, one a (load point × repeat) or a failure; whole numbers stay whole, with NA for none.

    Reads compact/trials.parquet where it is there and no file of trials/ is newer, else trials/; never both.

    With a pattern such as "runs/**", the rows of every run directory that it meets, and two columns more: `run_dir`, and
    `comparable_key`, a settings key that is equal in two runs exactly when the settings are and the drafter is: it is
    known by the hash of its config, not by what a config calls it.

    Raises:
        RunDirProblem: this is no run directory, or the pattern meets none.
    """
    import pandas as pd

    if _is_pattern(run):
        frames = [_frame(one).assign(run_dir=str(one.path)) for one in runs(str(run))]
        frame = pd.concat(frames, ignore_index=True)
        frame["comparable_key"] = [
            _comparable(*row) for row in zip(frame.asked_settings, frame.drafter_hash, strict=True)
        ]
        return frame
    return _frame(_opened(run))


def dataset(run: str | Path | RunDir) -> pyarrow.dataset.Dataset:
    """The same rows as a pyarrow Dataset, read when it is scanned: for more rows than fit into memory, and for filters.

    Raises:
        RunDirProblem: as `load`.
    """
    from pyarrow.dataset import dataset as opened

    from results.ledger import rows_path
    from results.record import schema

    places = [rows_path(one) for one in (runs(str(run)) if _is_pattern(run) else [_opened(run)])]
    files = [file for place in places for file in ([place] if place.is_file() else sorted(place.glob("[!.]*.parquet")))]
    return opened([str(file) for file in files], schema=schema(), format="parquet")


def runs(pattern: str) -> list[RunDir]:
    """Every run directory that a pattern such as "runs/**" or "runs/eagle3/*" meets, by path.

    Raises:
        RunDirProblem: it meets none.
    """
    from glob import iglob

    from results.files import RunDirProblem
    from results.rundir import RunDir

    places = (Path(found) for found in iglob(pattern, recursive=True))  # noqa: PTH207 - a pattern may be absolute
    found = {place.absolute() for place in places if (place / "plan.yaml").is_file() and (place / "trials").is_dir()}
    if not found:
        raise RunDirProblem(f"{pattern}: meets no run directory (one holds plan.yaml and trials/).")
    return [RunDir(path) for path in sorted(found)]


def load_records(run: str | Path | RunDir) -> list[Record]:
    """All rows of a run directory as Records, in trial order, from where `load` reads them.

    Raises:
        RunDirProblem: this is no run directory.
    """
    from results.ledger import read_records, rows_path

    return read_records(rows_path(_opened(run)))


def columns() -> dict[str, str]:
    """Column → what it means, with its unit in brackets where it has one."""
    from results.record import schema

    def text(metadata: dict[bytes, bytes]) -> str:
        unit = metadata.get(b"unit", b"").decode()
        return metadata[b"doc"].decode() + (f" [{unit}]" if unit else "")

    return {field.name: text(field.metadata) for field in schema()}


def _frame(run: RunDir) -> pd.DataFrame:
    import pandas as pd
    import pyarrow as pa

    from results.ledger import joined, read_tables

    whole = {pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype()}
    frame: pd.DataFrame = joined(read_tables(run)).to_pandas(types_mapper=whole.get)
    return frame


def _comparable(asked_settings: str, drafter_hash: str | None) -> str:
    import json

    from sweeps.settings import Settings

    settings = Settings.from_dict(json.loads(asked_settings))
    return (
        settings.replace(drafter=drafter_hash).key if isinstance(drafter_hash, str) and drafter_hash else settings.key
    )


def _is_pattern(run: object) -> bool:
    return not hasattr(run, "trials_dir") and any(sign in str(run) for sign in "*?")


def _opened(run: str | Path | RunDir) -> RunDir:
    from results.rundir import RunDir

    return run if isinstance(run, RunDir) else RunDir.open(Path(run))
