"""What an analyst needs of a run: its rows as a DataFrame or as Records, what each column means, and the verdict.

    import results

    frame = results.load("runs/eagle3/20260101T120000Z")
    measured = frame[frame.status == "measured"]
    measured.groupby(["algorithm", "drafter", "num_steps", "concurrency"]).output_tok_s.mean()

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

    from results.record import Record
    from results.rundir import RunDir

__all__ = ["columns", "load", "load_records"]


def load(run: str | Path | RunDir) -> pd.DataFrame:
    """All rows of a run directory, one a (load point × repeat) or a failure; whole numbers stay whole, with NA for none.

    Reads compact/trials.parquet where it is there and no file of trials/ is newer, else trials/; never both.

    Raises:
        RunDirProblem: this is no run directory.
    """
    import pandas as pd
    import pyarrow as pa

    from results.ledger import read_tables
    from results.record import schema

    whole = {pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype()}
    table = pa.concat_tables([schema().empty_table(), *read_tables(_opened(run))], promote_options="default")
    frame: pd.DataFrame = table.to_pandas(types_mapper=whole.get)
    return frame


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


def _opened(run: str | Path | RunDir) -> RunDir:
    from results.rundir import RunDir

    return run if isinstance(run, RunDir) else RunDir.open(Path(run))
