"""The errors a person meets, one tree.

    SweepError                 anything we say in one message, without a traceback
    ├── ConfError              a person's mistake in a config or on the command line (exit code 2)
    ├── RunDirError            a run directory that is busy, not empty, damaged or does not match (exit code 2)
    └── MachineError           this machine lacks what the sweep needs: no GPU, no interpreter, no disk (exit code 2)

A trial's mishap is not here: it is a `results.failure.Failure`, made in one place, `Worker.run`.
"""

from __future__ import annotations


class SweepError(Exception):
    """A message for a person: what happened, where, what to do."""


class ConfError(SweepError):
    """Every mistake of a config at once, a line each."""

    def __init__(self, mistakes: list[str]) -> None:
        self.mistakes = mistakes
        super().__init__("\n".join(mistakes))


class RunDirError(SweepError):
    pass


class MachineError(SweepError):
    pass
