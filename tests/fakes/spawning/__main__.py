# ruff: noqa: T201 - what it prints is what a test reads
"""Spawns its children, says what it and they are, and serves until it is ended."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from pathlib import Path

from tests.fakes import server
from tests.fakes.spawning import children


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--port", type=int, required=True)
    words.add_argument("--served-model-name", required=True)
    words.add_argument("--children", default="run_worker")
    words.add_argument("--sets", default="", help="a variable that the server sets for its children")
    words.add_argument("--python", help="interpreter of the children, as numactl's wrapper is one")
    args = words.parse_args()
    name, _, value = args.sets.partition("=")
    if name:
        os.environ[name] = value
    multiprocessing.set_start_method("spawn", force=True)
    if args.python:
        multiprocessing.set_executable(args.python)
    print(json.dumps({"main": children.facts(), "argv": sys.argv[1:], "path": sys.path[0]}), flush=True)
    for function in args.children.split(",") if args.children else []:
        reader, writer = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.Process(target=getattr(children, function), args=(writer, Path("here")))
        process.start()
        writer.close()
        print(json.dumps({"child": reader.recv(), "pid": process.pid}), flush=True)
    server.serve(argparse.Namespace(host="127.0.0.1", refuse_generations=0, **vars(args)))


if __name__ == "__main__":
    main()
