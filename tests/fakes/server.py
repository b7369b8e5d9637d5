# ruff: noqa: T201 - what it prints is what a test reads
"""A server that behaves or misbehaves as told; it speaks the three words a launch needs, with the standard library alone."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--host", default="127.0.0.1")
    words.add_argument("--port", type=int, required=True)
    words.add_argument("--served-model-name", required=True)
    words.add_argument("--ready-after-s", type=float, default=0.0, help="with a line in the log every 0.1 s")
    words.add_argument("--bind-when", type=Path, help="not before this file is there")
    words.add_argument("--exit", type=int, help="die at start with this code")
    words.add_argument("--silent", action="store_true", help="never bind, never write")
    words.add_argument("--ignore-term", action="store_true")
    words.add_argument(
        "--grandchild", action="store_true", help="leave a child in a session of its own; its pid is logged"
    )
    words.add_argument("--refuse-generations", type=int, default=0, help="answer so many with 503")
    args = words.parse_args()
    if args.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if args.grandchild:
        print("grandchild", subprocess.Popen(["/bin/sleep", "600"], start_new_session=True).pid, flush=True)
    if args.exit is not None:
        print("ValueError: these arguments do not go together", flush=True)
        sys.exit(args.exit)
    if args.silent:
        time.sleep(600)
    until = time.monotonic() + args.ready_after_s
    while time.monotonic() < until:
        print("loading", flush=True)
        time.sleep(0.1)
    while args.bind_when and not args.bind_when.exists():
        time.sleep(0.05)
    serve(args)


def serve(args: argparse.Namespace) -> None:
    try:
        server = ThreadingHTTPServer((args.host, args.port), handler(args))
    except OSError as error:  # like uvicorn under SGLang: say so, and hang
        print(f"ERROR: [Errno {error.errno}] error while attempting to bind: address already in use", flush=True)
        time.sleep(600)
        return
    print("The server is fired up and ready to roll!", flush=True)
    server.serve_forever()


def handler(args: argparse.Namespace) -> type[BaseHTTPRequestHandler]:
    refusals = iter(range(args.refuse_generations))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/die":
                os._exit(int(self.headers["Code"]))
            known = self.path == "/server_info"
            self.reply(200 if known else 404, {"served_model_name": args.served_model_name, "version": "0.5.17"})

        def do_POST(self) -> None:
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != "/generate" or next(refusals, None) is not None:
                return self.reply(503, {})
            return self.reply(200, {"text": " end", "asked": question})

        def reply(self, status: int, answer: object) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


if __name__ == "__main__":
    main()
