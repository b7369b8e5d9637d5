"""Sources: the files and words a config is made of, read in the order in which they merge.

The `defaults:` of a file come first, then the file itself, then the key=value words.  Not here: merging (given.py),
${references} (references.py), what a key may hold (sections.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from orchestrator.config.given import Given, Source
from orchestrator.config.sections import KEYS
from orchestrator.config.yaml_text import Key, read_yaml, shown, yaml_mistake
from orchestrator.errors import ConfError
from orchestrator.nearest import distance, near, nearest
from sweeps.settings import spelt

CONF = Path(__file__).resolve().parents[2] / "conf"
COMMAND_LINE = "command line"
_WORD = re.compile(r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$")


def give(words: Sequence[str], otherwise: str | None = None) -> tuple[Given, str]:
    """What the conf that `conf=` names (`otherwise` without one), what it builds on, and the other words give; and its
    name.

    Raises:
        ConfError: a file is missing or is not YAML, so that nothing can be said about the keys.
    """
    name, source, reading = _words(words)
    path = reading.find(otherwise if name is None else name)
    if path is not None:
        reading.read(path, ())
    reading.stop_if_lost()
    return _merged(reading.sources, source, reading), "" if path is None else path.name.removesuffix(".yaml")


def regive(conf: dict[str, Any], label: str, folder: Path, words: Sequence[str]) -> Given:
    """A stored conf with words over it; its `conf=` is settled."""
    name, source, reading = _words(words)
    if name is not None:
        reading.mistakes.append(f"{COMMAND_LINE}: conf: the config of this run is fixed. Leave conf= out.")
    return _merged([Source(label, folder, conf)], source, reading)


def _merged(sources: list[Source], words: Source, reading: _Reading) -> Given:
    given = Given(sources[-1], mistakes=reading.mistakes, wrong=reading.wrong)
    for source in [*sources, words]:
        given.merge(_with_underscores(source, given))
    return given


def _with_underscores(source: Source, given: Given) -> Source:
    """`server_args` in SGLang's own spelling: chunked-prefill-size is chunked_prefill_size."""
    args = source.values.get("server_args")
    if not isinstance(args, dict):
        return source
    renamed: dict[str, Any] = {}
    for name, value in args.items():
        plain = spelt(name)
        if plain in renamed:
            given.mistake(("server_args", plain), "given twice, with dashes and with underscores.", source)
        renamed[plain] = value
    return Source(source.label, source.folder, {**source.values, "server_args": renamed})


def _words(words: Sequence[str]) -> tuple[str | None, Source, _Reading]:
    """The value of conf=, the other words as a tree, and a reading that knows what is wrong with them."""
    conf, values, reading = None, dict[str, Any](), _Reading()
    for word in words:
        name, equals, text = word.partition("=")
        wrong: list[str] = []
        if not equals or not _WORD.match(name) or name.startswith("-"):
            wrong = [f"{word!r}: {_form(word)}"]
        elif name != "conf":
            wrong = _put(values, name, text)
        elif conf is None:
            conf = text
        else:
            wrong = ["conf: given twice. Keep one of them."]
        if wrong:
            reading.mistakes += [f"{COMMAND_LINE}: {line}" for line in wrong]
            reading.wrong.add(_key(name))
    return conf, Source(COMMAND_LINE, Path.cwd(), values), reading


def _key(name: str) -> Key:
    """What a word is about, however badly it is formed."""
    return tuple(re.split(r"[\[:]", name.lstrip("-"))[0].split("."))


def _form(word: str) -> str:
    name, equals, _ = word.partition("=")
    if name.startswith("-"):
        plain = word.lstrip("-")
        known = equals and _key(name)[0] in (*KEYS, "conf")
        return f"flags are -h and --json only.{f' Write {plain}' if known else ''}"
    if "[" in name:
        return f"a list is replaced whole. Write {name.partition('[')[0]}=[…]"
    return "not key=value, e.g. budget.launches=12"


def _put(values: dict[str, Any], name: str, text: str) -> list[str]:
    """Set one dotted key; returns what is wrong with it."""
    wrong: list[str] = []
    *sections, last = name.split(".")
    try:
        value = read_yaml(text, lambda key, why: wrong.append(f"{name}.{shown(key)}: {why}"))
    except yaml.YAMLError as error:
        return [f"{name}: {text!r}: {yaml_mistake(error)}"]
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            return [f"{name}: {section} was given a value before. Give it once."]
    if last in values:
        return [f"{name}: given twice. Keep one of them."]
    values[last] = value
    return wrong


@dataclass
class _Reading:
    """The files read so far, in the order in which they merge."""

    mistakes: list[str] = field(default_factory=list)
    wrong: set[Key] = field(default_factory=set)
    sources: list[Source] = field(default_factory=list)
    lost: bool = False

    def find(self, name: str | None) -> Path | None:
        """The file that conf= names: a shipped name, or a path."""
        if name is None:
            shipped = ", ".join(sorted(file.stem for file in CONF.glob("[!_]*.yaml")))
            self._lose(f"{COMMAND_LINE}: conf=… is missing: a shipped name ({shipped}) or a path to a YAML.")
            return None
        given = Path(name).expanduser()
        path = given if "/" in name or name.endswith((".yaml", ".yml")) else CONF / f"{name}.yaml"
        if path.is_file():
            return path
        if name and given.is_dir():
            self._lose(f"{COMMAND_LINE}: conf={name} is a directory. {_yamls_in(given)}")
        else:
            self._missing(COMMAND_LINE, f"conf={name}", path)
        return None

    def read(self, path: Path, above: tuple[Path, ...]) -> None:
        label = label_of(path)
        try:
            text = path.read_text(encoding="utf-8")
            values = read_yaml(text, lambda key, why: self._report(label, key, why))
        except yaml.YAMLError as error:
            return self._lose(f"{label}: {yaml_mistake(error)}")
        except (OSError, UnicodeDecodeError) as error:
            return self._lose(f"{label}: cannot be read: {error}")
        values = {} if values is None else values
        if not isinstance(values, dict):
            return self._lose(f"{label}: holds no keys. A config is made of sections such as `space:`.")
        values = values["conf"] if isinstance(values.get("conf"), dict) and "answers" in values else values
        for name in self._names(label, values.pop("defaults", None)):
            self._read_default(path, name, above)
        return self.sources.append(Source(label, path.resolve().parent, values))

    def _names(self, label: str, names: Any) -> list[str]:
        names = [] if names is None else names
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return names
        self._lose(f"{label}: defaults: {names!r} is no list of names. Write e.g. defaults: [_base].")
        return []

    def _read_default(self, path: Path, name: str, above: tuple[Path, ...]) -> None:
        chain = (*above, path.resolve())
        below = path.parent / f"{name.removesuffix('.yaml')}.yaml"
        if below.resolve() in chain:
            circle = " → ".join(file.stem for file in [*chain[chain.index(below.resolve()) :], below])
            self._lose(f"{label_of(path)}: defaults: {circle} is a circle.")
        elif not below.is_file():
            self._missing(label_of(path), f"defaults: {name}", below)
        else:
            self.read(below, chain)

    def _missing(self, label: str, what: str, path: Path) -> None:
        names = sorted(file.stem if path.parent == CONF else file.name for file in path.parent.glob("*.yaml"))
        asked = path.stem if path.suffix == ".yaml" and path.parent == CONF else path.name
        here = [name for name in names if not name.startswith("_")]
        hint = _shipped(path) if label == COMMAND_LINE and not near(asked, names) else ""
        self._lose(f"{label}: {what}: there is no {label_of(path)}.{hint or nearest(asked, names, here)}")

    def _report(self, label: str, key: Key, why: str) -> None:
        self.mistakes.append(f"{label}: {shown(key)}: {why}")
        self.wrong.add(key)

    def _lose(self, mistake: str) -> None:
        self.mistakes.append(mistake)
        self.lost = True

    def stop_if_lost(self) -> None:
        if self.lost:
            raise ConfError(self.mistakes)


def _shipped(path: Path) -> str:
    """Of a path that leads to no file, the shipped name that was meant."""
    names = [file.stem for file in CONF.glob("[!_]*.yaml")]
    meant = [f"conf={name}" for name in near(path.stem, names)] if path.parent != CONF else []
    return f" Did you mean {' or '.join(meant)}, which is shipped?" if meant else ""


def _yamls_in(folder: Path) -> str:
    """What conf= could say instead of this folder, nearest to its name first."""
    files = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
    files.sort(key=lambda file: distance(file.stem, folder.resolve().name))
    words = [f"conf={file if file.is_absolute() or len(file.parts) > 1 else f'./{file}'}" for file in files]
    return f"There is: {', '.join(words)}." if words else "It holds no YAML: give a path to one."


def label_of(path: Path) -> str:
    """A file as a person would write it from here."""
    path = path if path.is_absolute() else Path.cwd() / path
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
