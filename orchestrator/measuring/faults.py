"""Why a load point could not be measured; worker.py makes failures of them by their types."""

from __future__ import annotations


class MeasureError(Exception):
    """The point cannot be measured: too few requests ended well.  The message names the first error."""


class HangError(Exception):
    """No token at all arrived for as long as one request may take."""


class Stopped(Exception):  # noqa: N818  # not an error: a stop that was asked for
    """`stopping` was set while measuring; nothing of the point is kept."""
