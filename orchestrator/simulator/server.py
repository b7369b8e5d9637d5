"""The server: HTTP endpoints in front of the scheduler, and the scheduler kept to the clock.

Steps follow an absolute schedule: each is due one step time after the last was due, so late wake-ups do not add up.
Not here: what a step does (scheduler.py), how answers are worded (answers.py), the start before the port (startup.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from orchestrator.simulator import console, speech
from orchestrator.simulator.answers import Form, Generation, Native, OpenAI
from orchestrator.simulator.console import log
from orchestrator.simulator.counters import Counters, Window
from orchestrator.simulator.flags import ServerArgs
from orchestrator.simulator.model import Performance
from orchestrator.simulator.scheduler import Request, Scheduler, Step
from orchestrator.simulator.startup import TREE_TOO_LARGE, Started, Startup
from orchestrator.simulator.wire import Connection, Exchange

VERSION = "0.5.17"
CATCH_UP_S = 0.5
"""How far the schedule may run ahead of a starved process; beyond it the lost time is lost."""


class BadRequest(Exception):  # noqa: N818 - an answer, not a fault of ours
    """The client asked for something that SGLang would answer with 400."""


class SimulatedServer:
    """One launch, from the bound port to its end."""

    def __init__(self, startup: Startup, started: Started) -> None:
        self.args = args = startup.args
        self.profile = profile = startup.profile
        self.faults = startup.faults
        self.startup = startup
        self.started = started
        self.performance = Performance(profile, args.launch)
        self.kv_tokens = startup.kv_tokens(started.memory)
        self.scheduler = Scheduler(
            self.performance,
            max_running=started.max_running,
            kv_tokens=self.kv_tokens,
            chunked_prefill_tokens=args["chunked_prefill_size"],
            captured_batch=started.captured_batch,
            seed=_launch_seed(args),
        )
        self.counters = Counters()
        self.ready = False
        self._generations: dict[Request, Generation] = {}
        self._cached_blocks: set[bytes] = set()
        self._wake = asyncio.Event()
        self._arrived = 0
        self._finished = 0
        self._interval = Window()
        self._interval_tokens = 0
        self._decode_steps = 0
        self._interval_began = time.monotonic()
        self._routes: dict[str, Callable[[Exchange], None]] = {
            "GET /health": self._health,
            "GET /health_generate": self._health,
            "GET /server_info": self._server_info,
            "GET /get_server_info": self._server_info,
            "GET /model_info": self._model_info,
            "GET /get_model_info": self._model_info,
            "GET /v1/models": self._models,
            "GET /v1/loads": self._loads,
            "GET /get_load": self._get_load,
            "GET /flush_cache": self._flush_cache,
            "POST /flush_cache": self._flush_cache,
            "GET /metrics": self._metrics,
            "POST /generate": self._generate,
            "POST /v1/completions": self._completions,
            "POST /v1/chat/completions": self._chat,
            "POST /abort_request": self._abort_request,
        }

    async def serve(self) -> None:
        """Bind the port, warm up, answer until the process is told to end."""
        loop = asyncio.get_running_loop()
        if not self.faults.find("ignore-term"):
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop)
        log(f"INFO:     Started server process [{os.getpid()}]")
        log("INFO:     Waiting for application startup.")
        log("INFO:     Application startup complete.")
        host, port = self.args["host"], self.args["port"]
        try:
            await loop.create_server(lambda: Connection(self._handle, self._access), host, port, backlog=2048)
        except OSError as error:
            await self._hang_without_port(error)
        log(f"INFO:     Uvicorn running on http://{host}:{port} (Press CTRL+C to quit)")
        if self.faults.find("setsid-grandchild"):
            _leave_grandchild()
        await self._warm_up()
        await self._run()

    async def _hang_without_port(self, error: OSError) -> None:
        """As SGLang does: it says so and waits for its own shutdown for ever, holding the GPU."""
        log(
            f"ERROR:    [Errno {error.errno}] error while attempting to bind on address "
            f"('{self.args['host']}', {self.args['port']}): address already in use"
        )
        log("INFO:     Waiting for application shutdown.")
        await asyncio.Event().wait()

    async def _warm_up(self) -> None:
        if fault := self.faults.find("slow", "warm_up"):
            await asyncio.sleep(fault.amount)
        if self.faults.find("crash", "warm_up"):
            console.warm_up_failed("RuntimeError: simulated crash in warm_up")
        if self.faults.find("oom", "warm_up"):
            console.scheduler_exception(self._out_of_memory(), serving=True)
        if self.faults.find("hang", "warm_up"):
            await asyncio.Event().wait()
        if self.startup.tree_too_large():
            console.scheduler_exception(TREE_TOO_LARGE, serving=True)
        if not self.args["skip_server_warmup"]:
            await asyncio.sleep(self.profile.start.warm_up_s)
        log("The server is fired up and ready to roll!")
        self.ready = True

    async def _run(self) -> None:
        """One step after the other for as long as the process lives."""
        if self.faults.find("hang", "serving"):
            await asyncio.Event().wait()
        clock = asyncio.get_running_loop().time
        late = self.faults.find("slow", "serving")
        due = clock()
        while True:
            step = self.scheduler.plan()
            if step is None:
                self._wake.clear()
                await self._wake.wait()
                due = clock()
                continue
            self._fail_if_told(step)
            due = max(due, clock() - CATCH_UP_S) + step.seconds
            if late and step.kind == "prefill":
                due += late.amount
            await asyncio.sleep(max(0.0, due - clock()))
            self._book(step)

    def _fail_if_told(self, step: Step) -> None:
        if step.kind != "decode":
            return
        crash, oom = self.faults.find("crash", "serving"), self.faults.find("oom", "serving")
        if crash and self._finished >= crash.amount:
            console.scheduler_exception("RuntimeError: simulated crash in serving", serving=True)
        tokens = len(step.requests) * self.args.launch.num_draft_tokens
        needed = self.profile.memory.activation_gib_per_ktoken * tokens / 1000.0
        if oom or needed > self.started.memory.free_gib:
            console.scheduler_exception(self._out_of_memory(), serving=True)

    def _out_of_memory(self) -> str:
        return console.out_of_memory(1.5, self.profile.memory.memory_gib, 0.1)

    def _book(self, step: Step) -> None:
        now = time.time()
        produced = self.scheduler.finish(step)
        for request, _ in produced:
            if generation := self._generations.get(request):
                self._emit(generation, now)
        tokens = sum(count for _, count in produced)
        self.counters.generation_tokens += tokens
        if step.kind == "prefill":
            self._log_prefill(step)
        else:
            self.counters.itl_s.add(step.seconds / max(1.0, tokens / max(1, len(produced))), tokens)
            self._count_decode(step, tokens, len(produced))

    def _emit(self, generation: Generation, now: float) -> None:
        request = generation.request
        if generation.first_token == 0.0:
            generation.first_token = now
            self.counters.ttft_s.add(now - generation.received)
        finished = request.finished
        if finished:
            self._end(generation, now)
        elif generation.stream:
            generation.exchange.write(generation.form.chunk(generation, finished=False))
            generation.sent_tokens = request.completion_tokens

    def _end(self, generation: Generation, now: float) -> None:
        """The last words of a generation, finished or aborted."""
        request = generation.request
        self._generations.pop(request, None)
        self._finished += 1
        self.counters.verify_calls += request.verify_steps
        self.counters.e2e_s.add(now - generation.received)
        generation.exchange.on_disconnect = None
        if generation.stream:
            generation.exchange.close_stream(generation.form.chunk(generation, finished=True))
        else:
            generation.exchange.send(200, generation.form.whole(generation))

    def _count_decode(self, step: Step, tokens: int, requests: int) -> None:
        if self.args.launch.speculative:
            self._interval.add(Window(requests, tokens))
        self._interval_tokens += tokens
        self._decode_steps += 1
        if self._decode_steps % max(1, self.args["decode_log_interval"]):
            return
        now = time.monotonic()
        self.counters.gen_throughput = self._interval_tokens / max(1e-9, now - self._interval_began)
        self.counters.lifetime.add(self._interval)
        self.counters.last = self._interval
        accepted = ""
        if self.args.launch.speculative:
            length = self._interval.acceptance_length
            rate = (length - 1.0) / max(1, self.args.launch.num_draft_tokens - 1)
            accepted = f"accept len: {length:.2f}, accept rate: {rate:.2f}, "
        used = self.scheduler.used_kv_tokens()
        log(
            f"Decode batch, #running-req: {len(step.requests)}, #token: {used}, token usage: {used / self.kv_tokens:.2f}, "
            f"{accepted}cuda graph: {self.scheduler.cuda_graph(len(step.requests))}, "
            f"gen throughput (token/s): {self.counters.gen_throughput:.2f}, #queue-req: {len(self.scheduler.waiting)}"
        )
        self._interval, self._interval_tokens, self._interval_began = Window(), 0, now

    def _log_prefill(self, step: Step) -> None:
        cached = sum(request.cached_tokens for request in step.requests)
        self.counters.prompt_tokens += step.tokens + cached
        self.counters.cached_tokens += cached
        usage = self.scheduler.used_kv_tokens() / self.kv_tokens
        log(
            f"Prefill batch, #new-seq: {len(step.requests)}, #new-token: {step.tokens}, #cached-token: {cached}, "
            f"token usage: {usage:.2f}, #running-req: {len(self.scheduler.running)}, "
            f"#queue-req: {len(self.scheduler.waiting)}, #pending-token: 0, cuda graph: True, "
            f"input throughput (token/s): {step.tokens / max(step.seconds, 1e-9):.2f}"
        )

    def _stop(self) -> None:
        """SIGTERM: SGLang 0.5.17 ends by killing itself, so its exit code is -9 even then."""
        self.ready = False
        log(f"Gracefully exiting... Remaining number of requests {len(self._generations)}. Remaining requests rids=[].")
        asyncio.get_running_loop().call_later(self.profile.stop_s, console.killed)

    # Endpoints

    def _handle(self, exchange: Exchange) -> None:
        path = exchange.path.partition("?")[0]
        route = self._routes.get(f"{exchange.method} {path}")
        if route is None:
            known = any(name.endswith(f" {path}") for name in self._routes)
            exchange.send_json(405 if known else 404, {"detail": "Method Not Allowed" if known else "Not Found"})
            return
        try:
            route(exchange)
        except BadRequest as error:
            exchange.send_json(400, {"error": {"message": str(error)}})

    def _access(self, exchange: Exchange, status: int) -> None:
        if self.args["log_level_http"] in (None, "info"):
            log(
                f'INFO:     {exchange.peer} - "{exchange.method} {exchange.path} HTTP/1.1" {status} {_PHRASES.get(status, "")}'
            )

    def _health(self, exchange: Exchange) -> None:
        exchange.send(200 if self.ready else 503, content_type="text/plain")

    def _server_info(self, exchange: Exchange) -> None:
        values, memory = dict(self.args.values), self.started.memory
        values["max_running_requests"] = values["max_running_requests"] or self.started.max_running
        seconds = self.started.seconds
        graph = {"target_verify" if self.args.launch.speculative else "decode": memory.graph_gib}
        state: dict[str, Any] = {
            **values,
            "last_gen_throughput": self.counters.gen_throughput,
            "memory_usage": {
                "weight": round(memory.weights_gib + memory.drafter_gib, 3),
                "kvcache": round(memory.kv_gib, 3),
                "startup_available": round(memory.free_gib, 3),
                "token_capacity": self.kv_tokens,
                "token_capacity_swa": None,
                "graph": graph,
            },
            "effective_max_running_requests_per_dp": self.started.max_running,
        }
        if self.counters.lifetime.verify_steps:
            state["avg_spec_accept_length"] = self.counters.lifetime.acceptance_length
        exchange.send_json(
            200,
            {
                **values,
                "status": "ready" if self.ready else "starting",
                "max_total_num_tokens": self.kv_tokens,
                "max_req_input_len": self._context_length() - 6,
                "startup_time": {
                    "load_weight": seconds["weights"],
                    "kv_cache_allocation": seconds["kv_pool"],
                    "scheduler_e2e": sum(seconds.values()),
                    "cuda_graph": {"target_verify": seconds["graph_capture"]},
                },
                "internal_states": [state],
                "version": VERSION,
                "simulated": True,
                "sim_profile": self.profile.name,
            },
        )

    def _model_info(self, exchange: Exchange) -> None:
        exchange.send_json(
            200,
            {
                "model_path": self.args["model_path"],
                "tokenizer_path": self.args["tokenizer_path"],
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": self.args["weight_version"],
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": "simulated",
                "architectures": [self.profile.target.architecture],
                "simulated": True,
            },
        )

    def _models(self, exchange: Exchange) -> None:
        name = self.args["served_model_name"]
        model = {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "sglang",
            "root": name,
            "parent": None,
            "max_model_len": self._context_length(),
        }
        exchange.send_json(200, {"object": "list", "data": [model]})

    def _loads(self, exchange: Exchange) -> None:
        used, memory = self.scheduler.used_kv_tokens(), self.started.memory
        load: dict[str, Any] = {
            "timestamp": time.time(),
            "dp_rank": 0,
            "num_running_reqs": self._running(),
            "num_waiting_reqs": len(self.scheduler.waiting),
            "num_waiting_uncached_tokens": sum(r.prompt_tokens - r.cached_tokens for r in self.scheduler.waiting),
            "num_used_tokens": used,
            "num_total_tokens": used,
            "num_active_tokens": used,
            "max_total_num_tokens": self.kv_tokens,
            "max_running_requests": self.started.max_running,
            "token_usage": used / self.kv_tokens,
            "gen_throughput": self.counters.gen_throughput,
            "cache_hit_rate": 0.0,
            "utilization": self._running() / self.started.max_running,
            "memory": {
                "weight_gb": round(memory.weights_gib + memory.drafter_gib, 3),
                "kv_cache_gb": round(memory.kv_gib, 3),
                "graph_gb": round(memory.graph_gib, 3),
                "token_capacity": self.kv_tokens,
            },
            "queues": {"waiting": len(self.scheduler.waiting), "grammar": 0, "paused": 0, "retracted": 0},
        }
        if self.counters.lifetime.verify_steps:
            length = self.counters.lifetime.acceptance_length
            rate = (length - 1.0) / max(1, self.args.launch.num_draft_tokens - 1)
            load["speculative"] = {"accept_length": length, "accept_rate": rate}
        exchange.send_json(
            200,
            {
                "timestamp": datetime.now(UTC).isoformat(),
                "version": VERSION,
                "accelerator": self.profile.gpu_name,
                "num_accelerators": self.args["tp_size"],
                "loads": [load],
            },
        )

    def _get_load(self, exchange: Exchange) -> None:
        load = {
            "dp_rank": 0,
            "num_reqs": self._running() + len(self.scheduler.waiting),
            "num_waiting_reqs": len(self.scheduler.waiting),
            "num_tokens": self.scheduler.used_kv_tokens(),
            "num_pending_tokens": 0,
            "ts_tic": time.monotonic(),
        }
        exchange.send_json(200, [load])

    def _flush_cache(self, exchange: Exchange) -> None:
        if self._generations:
            exchange.send(400, b"Flush cache failed: requests are running or waiting.\n", "text/plain; charset=utf-8")
            return
        self._cached_blocks.clear()
        self.counters.lifetime, self.counters.last, self._interval = Window(), Window(), Window()
        exchange.send(
            200, b"Cache flushed.\nPlease check backend logs for more details.\n", "text/plain; charset=utf-8"
        )

    def _metrics(self, exchange: Exchange) -> None:
        if not self.args["enable_metrics"]:
            exchange.send_json(404, {"detail": "Not Found"})
            return
        launch, last = self.args.launch, self.counters.last
        gauges: dict[str, float] = {
            "num_running_reqs": self._running(),
            "num_queue_reqs": len(self.scheduler.waiting),
            "num_used_tokens": self.scheduler.used_kv_tokens(),
            "token_usage": self.scheduler.used_kv_tokens() / self.kv_tokens,
            "gen_throughput": self.counters.gen_throughput,
            "cache_hit_rate": 0.0,
            "max_total_num_tokens": self.kv_tokens,
            "spec_accept_length": last.acceptance_length,
            "spec_accept_rate": max(0.0, last.acceptance_length - 1.0) / max(1, launch.num_draft_tokens - 1),
            "spec_num_steps": launch.num_steps,
            "spec_num_draft_tokens": launch.num_draft_tokens if launch.speculative else 0,
            "is_cuda_graph": float(launch.cuda_graph),
        }
        text = self.counters.prometheus(gauges, self.args["served_model_name"])
        exchange.send(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _generate(self, exchange: Exchange) -> None:
        body = _body(exchange)
        ids, text = body.get("input_ids"), body.get("text")
        if ids is not None:
            prompt, tokens = json.dumps(ids), len(ids)
        elif isinstance(text, str):
            prompt, tokens = text, speech.prompt_tokens(text)
        else:
            raise BadRequest(
                "One of text (a string) and input_ids is needed; the simulator takes one prompt a request."
            )
        sampling = body.get("sampling_params") or {}
        form = Native(incremental=self.args["incremental_streaming_output"])
        self._begin(exchange, body, prompt, tokens, form, sampling, sampling.get("max_new_tokens", 128))

    def _completions(self, exchange: Exchange) -> None:
        body = _body(exchange)
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1:
            prompt = prompt[0]
        if not isinstance(prompt, str):
            raise BadRequest("prompt: one string a request.")
        form = self._openai(body, chat=False)
        self._begin(exchange, body, prompt, speech.prompt_tokens(prompt), form, body, body.get("max_tokens", 16))

    def _chat(self, exchange: Exchange) -> None:
        body = _body(exchange)
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise BadRequest("messages: a list of {role, content}.")
        prompt = "".join(f"<|im_start|>{m.get('role')}\n{m.get('content')}<|im_end|>\n" for m in messages)
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or 4096
        form = self._openai(body, chat=True)
        self._begin(exchange, body, prompt, speech.prompt_tokens(prompt), form, body, limit)

    def _openai(self, body: dict[str, Any], chat: bool) -> OpenAI:
        options = body.get("stream_options") or {}
        return OpenAI(
            model=body.get("model") or self.args["served_model_name"],
            chat=chat,
            include_usage=bool(options.get("include_usage")),
            return_meta_info=bool(body.get("return_meta_info")),
        )

    def _begin(
        self,
        exchange: Exchange,
        body: dict[str, Any],
        prompt: str,
        tokens: int,
        form: Form,
        sampling: dict[str, Any],
        limit: Any,
    ) -> None:
        """Take a generation in: its request joins the queue."""
        if not isinstance(limit, int) or limit < 1:
            raise BadRequest(f"max_new_tokens must be at least 1, got {limit!r}.")
        if tokens + 1 > self._context_length():
            raise BadRequest(
                f"The input ({tokens} tokens) is longer than the model's context length ({self._context_length()} tokens)."
            )
        self._arrived += 1
        self.counters.requests += 1
        share = self.faults.find("fail-requests")
        if share and int(self._arrived * share.amount) > int((self._arrived - 1) * share.amount):
            exchange.send_json(500, {"error": {"message": "simulated failure of this request"}})
            return
        generation = self._generation(exchange, body, prompt, tokens, form, sampling, limit)
        self._generations[generation.request] = generation
        exchange.on_disconnect = lambda: self._disconnected(generation)
        if generation.stream:
            exchange.open_stream()
        self.scheduler.submit(generation.request)
        self._wake.set()

    def _generation(
        self,
        exchange: Exchange,
        body: dict[str, Any],
        prompt: str,
        tokens: int,
        form: Form,
        sampling: dict[str, Any],
        limit: int,
    ) -> Generation:
        seed = speech.prompt_hash(prompt)
        if sampling.get("temperature", 1.0) > 0:
            seed ^= self._arrived
        limit = min(limit, self._context_length() - tokens)
        natural = limit + 1 if sampling.get("ignore_eos") else speech.natural_tokens(seed, self.profile)
        request = speech.request_for(seed, prompt, tokens, limit, natural, self.performance)
        request.cached_tokens = self._cached(prompt, tokens)
        return Generation(
            request=request,
            exchange=exchange,
            speech=speech.speak(seed, request.output_tokens),
            rid=str(body.get("rid") or uuid.uuid4().hex),
            form=form,
            stream=bool(body.get("stream")),
            natural_end=natural <= limit,
            num_draft_tokens=self.args.launch.num_draft_tokens,
        )

    def _cached(self, prompt: str, tokens: int) -> int:
        """Prompt tokens found in the radix cache; the prompt's blocks are in it from now on."""
        if self.args["disable_radix_cache"]:
            return 0
        hashes = speech.block_hashes(prompt)
        found = next((n for n, block in enumerate(hashes) if block not in self._cached_blocks), len(hashes))
        self._cached_blocks.update(hashes)
        return min(found * speech.BLOCK_TOKENS, tokens - 1)

    def _disconnected(self, generation: Generation) -> None:
        self._generations.pop(generation.request, None)
        self.counters.aborted_requests += 1
        self.scheduler.drop(generation.request)

    def _abort_request(self, exchange: Exchange) -> None:
        body = _body(exchange)
        rid, everything = body.get("rid", ""), bool(body.get("abort_all"))
        for generation in list(self._generations.values()):
            if everything or generation.rid == rid:
                generation.aborted = True
                self.counters.aborted_requests += 1
                self.scheduler.drop(generation.request)
                self._end(generation, time.time())
        exchange.send(200)

    def _running(self) -> int:
        return len(self._generations) - len(self.scheduler.waiting)

    def _context_length(self) -> int:
        return int(self.args["context_length"] or self.profile.target.context_length)


_PHRASES = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 500: "Internal Server Error", 503: "Service Unavailable"}  # fmt: skip


def _body(exchange: Exchange) -> dict[str, Any]:
    try:
        body = exchange.json() if exchange.body else {}
    except ValueError as error:
        raise BadRequest(f"The body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object.")
    return body


def _launch_seed(args: ServerArgs) -> int:
    """Noise of this launch: given by --random-seed and the launch's own values, drawn anew without a seed."""
    if args["random_seed"] is None:
        return int.from_bytes(os.urandom(8), "big")
    text = f"{args['random_seed']} {args.launch}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _leave_grandchild() -> None:
    subprocess.Popen(
        ["sleep", "3600"],  # noqa: S607 - the system's own
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
