"""Redaction: takes the values of secret variables of this process's environment out of whatever a run keeps.

A secret is a value, so it is found wherever it went: a row, a log, a report, a message.  It is known by the name of the
variable that holds it (HF_TOKEN, OPENAI_API_KEY, …).  Not here: refusing secrets in a config (orchestrator/config).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SECRET_ENDS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD")
_SECRET_PARTS = {"SECRET", "SECRETS", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS"}
SHORTEST = 8
"""Shorter values are left alone: `FOO_KEY=1` would take every 1 out of the figures."""
_BLOCK = 2**20


def is_secret(name: str) -> bool:
    """Whether a variable's or argument's name says that its value is to be kept from others, e.g. HF_TOKEN."""
    words = name.upper().split("_")
    return words[-1].endswith(_SECRET_ENDS) or bool(_SECRET_PARTS.intersection(words))


def secrets_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Secret text → the variable that holds it, the longest first.

    A value of several lines (a private key) counts line by line, and each text also as JSON would write it.
    """
    found: dict[str, str] = {}
    for name, value in environment.items():
        if is_secret(name):
            for line in filter(lambda line: len(line) >= SHORTEST, map(str.strip, value.splitlines())):
                found |= {line: name, json.dumps(line)[1:-1]: name}
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))


def redacted(text: str) -> str:
    """`text` with every secret of this process's environment replaced by `<redacted: NAME>`."""
    for secret, name in secrets_of(os.environ).items():
        text = text.replace(secret, f"<redacted: {name}>")
    return text


def redacted_values(value: Any) -> Any:
    """The same for every text in a plain value of lists and mappings; keys are left alone."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {name: redacted_values(item) for name, item in value.items()}
    return [redacted_values(item) for item in value] if isinstance(value, list | tuple) else value


def secret_in(text: str) -> str | None:
    """The name of the variable whose secret stands in `text`; None when there is none."""
    return next((name for secret, name in secrets_of(os.environ).items() if secret in text), None)


def redact_file(path: Path) -> None:
    """The same for a file of any bytes and size, whose writer has ended; it is replaced by rename, and only if need be."""
    words = {
        secret.encode("utf-8", "surrogateescape"): f"<redacted: {name}>".encode()
        for secret, name in secrets_of(os.environ).items()
    }
    if not words or not path.is_file() or not _holds(path, words):
        return
    clean = path.with_name(f".{path.name}.redacted")
    with path.open("rb") as source, clean.open("wb") as target:
        kept = b""
        while block := source.read(_BLOCK):
            kept += block
            for secret, instead in words.items():
                kept = kept.replace(secret, instead)
            ready = max(0, len(kept) - _longest(words) + 1)  # a secret may go on in the next block
            target.write(kept[:ready])
            kept = kept[ready:]
        target.write(kept)
    clean.chmod(path.stat().st_mode & 0o777)
    clean.replace(path)


def _holds(path: Path, words: Mapping[bytes, bytes]) -> bool:
    kept = b""
    with path.open("rb") as source:
        while block := source.read(_BLOCK):
            kept += block
            if any(secret in kept for secret in words):
                return True
            kept = kept[-_longest(words) + 1 :]
    return False


def _longest(words: Mapping[bytes, bytes]) -> int:
    return max(map(len, words))
