"""What every endpoint of SGLang's HTTP server answers here.

Not here: bytes on the wire (wire.py), the wording of generations (answers.py).
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from orchestrator.simulator import speech
from orchestrator.simulator.answers import Form, Generation, Native, OpenAI
from orchestrator.simulator.console import log
from orchestrator.simulator.decoder import Decoder
from orchestrator.simulator.wire import Exchange

VERSION = "0.5.17"


class BadRequest(Exception):  # noqa: N818 - an answer, not a fault of ours
    """The client asked for something that SGLang would answer with 400."""


@dataclass(frozen=True)
class Asked:
    """What the three generating endpoints have in common."""

    prompt: str
    tokens: int
    form: Form
    sampling: dict[str, Any]
    """Of its keys temperature and ignore_eos matter."""
    limit: Any
    """Most tokens to generate, as the client wrote it."""


class Endpoints:
    """The routes, over one decoder."""

    def __init__(self, decoder: Decoder, is_ready: Callable[[], bool]) -> None:
        self.decoder = decoder
        self.is_ready = is_ready
        self.args = decoder.args
        self.profile = decoder.profile
        self.started = decoder.started
        self.scheduler = decoder.scheduler
        self.counters = decoder.counters
        self._arrived = 0
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

    def handle(self, exchange: Exchange) -> None:
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

    def log_access(self, exchange: Exchange, status: int) -> None:
        if self.args["log_level_http"] in (None, "info"):
            line = f"{exchange.method} {exchange.path} HTTP/1.1"
            log(f'INFO:     {exchange.peer} - "{line}" {status} {HTTPStatus(status).phrase}')

    def _health(self, exchange: Exchange) -> None:
        exchange.send(200 if self.is_ready() else 503, content_type="text/plain")

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
                "token_capacity": self.decoder.kv_tokens,
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
                "status": "ready" if self.is_ready() else "starting",
                "max_total_num_tokens": self.decoder.kv_tokens,
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
            "num_running_reqs": self.decoder.running,
            "num_waiting_reqs": len(self.scheduler.waiting),
            "num_waiting_uncached_tokens": sum(r.prompt_tokens - r.cached_tokens for r in self.scheduler.waiting),
            "num_used_tokens": used,
            "num_total_tokens": used,
            "num_active_tokens": used,
            "max_total_num_tokens": self.decoder.kv_tokens,
            "max_running_requests": self.started.max_running,
            "token_usage": used / self.decoder.kv_tokens,
            "gen_throughput": self.counters.gen_throughput,
            "cache_hit_rate": 0.0,
            "utilization": self.decoder.running / self.started.max_running,
            "memory": {
                "weight_gb": round(memory.weights_gib + memory.drafter_gib, 3),
                "kv_cache_gb": round(memory.kv_gib, 3),
                "graph_gb": round(memory.graph_gib, 3),
                "token_capacity": self.decoder.kv_tokens,
            },
            "queues": {"waiting": len(self.scheduler.waiting), "grammar": 0, "paused": 0, "retracted": 0},
        }
        if self.counters.lifetime.verify_steps:
            lifetime = self.counters.lifetime
            load["speculative"] = {
                "accept_length": lifetime.acceptance_length,
                "accept_rate": lifetime.acceptance_rate(self.args.launch.num_draft_tokens),
            }
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
            "num_reqs": self.decoder.running + len(self.scheduler.waiting),
            "num_waiting_reqs": len(self.scheduler.waiting),
            "num_tokens": self.scheduler.used_kv_tokens(),
            "num_pending_tokens": 0,
            "ts_tic": time.monotonic(),
        }
        exchange.send_json(200, [load])

    def _flush_cache(self, exchange: Exchange) -> None:
        if self.decoder.flush():
            body = b"Cache flushed.\nPlease check backend logs for more details (When there are running or waiting requests, the operation will not be performed.)\n"
            exchange.send(200, body, "text/plain; charset=utf-8")
        else:
            exchange.send(400, b"Flush cache failed: requests are running or waiting.\n", "text/plain; charset=utf-8")

    def _metrics(self, exchange: Exchange) -> None:
        if not self.args["enable_metrics"]:
            exchange.send_json(404, {"detail": "Not Found"})
            return
        launch, last = self.args.launch, self.counters.last
        gauges: dict[str, float] = {
            "num_running_reqs": self.decoder.running,
            "num_queue_reqs": len(self.scheduler.waiting),
            "num_used_tokens": self.scheduler.used_kv_tokens(),
            "token_usage": self.scheduler.used_kv_tokens() / self.decoder.kv_tokens,
            "gen_throughput": self.counters.gen_throughput,
            "cache_hit_rate": 0.0,
            "max_total_num_tokens": self.decoder.kv_tokens,
            "spec_accept_length": last.acceptance_length,
            "spec_accept_rate": last.acceptance_rate(launch.num_draft_tokens),
            "spec_num_steps": launch.num_steps,
            "spec_num_draft_tokens": launch.num_draft_tokens if launch.speculative else 0,
            "is_cuda_graph": float(launch.cuda_graph),
        }
        text = self.counters.prometheus(gauges, self.args["served_model_name"])
        exchange.send(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _generate(self, exchange: Exchange) -> None:
        body = _body(exchange)
        ids, text = body.get("input_ids"), body.get("text")
        if isinstance(ids, list) and ids and isinstance(ids[0], int):
            prompt, tokens = json.dumps(ids), len(ids)
        elif isinstance(text, str):
            prompt, tokens = text, speech.prompt_tokens(text)
        else:
            raise BadRequest(
                "One of text (a string) and input_ids is needed; the simulator takes one prompt a request."
            )
        sampling = body.get("sampling_params") or {}
        if body.get("return_logprob") and sampling.get("max_new_tokens") == 0:
            self._score(exchange, body, ids if ids else speech.prompt_ids(prompt, tokens))
            return
        form = Native(incremental=self.args["incremental_streaming_output"])
        self._begin(exchange, body, Asked(prompt, tokens, form, sampling, sampling.get("max_new_tokens", 128)))

    def _score(self, exchange: Exchange, body: dict[str, Any], ids: list[int]) -> None:
        """How probable the target finds the tokens from `logprob_start_len` on; what stands before is the prompt.

        As in SGLang the first of them has no probability.  It does not wait for a turn in the batch.
        """
        start = int(body.get("logprob_start_len") or 0)
        if not 0 <= start < len(ids):
            raise BadRequest(f"logprob_start_len {start} is not within the {len(ids)} tokens of the input.")
        target = speech.speak(speech.seed_of(ids[: start + 1]), len(ids) - start - 1).tokens
        gaps = [speech.gap_nats(said, best) for said, best in zip(ids[start + 1 :], target, strict=True)]
        token_logprobs = [
            [-speech.BEST_NATS - gap, said, None] for gap, said in zip(gaps, ids[start + 1 :], strict=True)
        ]
        meta = {
            "id": uuid.uuid4().hex,
            "finish_reason": {"type": "length", "length": 0},
            "prompt_tokens": len(ids),
            "completion_tokens": 0,
            "input_token_logprobs": [[None, ids[start], None], *token_logprobs],
            "input_top_logprobs": [None, *([[-speech.BEST_NATS, best, None]] for best in target)],
        }
        exchange.send_json(200, {"text": "", "output_ids": [], "meta_info": meta, "simulated": True})

    def _slips(self) -> speech.Slips | None:
        """What the faults of this server make it say wrong; None for a plain one, and where nothing does."""
        found = {kind: self.decoder.faults.find(kind) for kind in ("corrupt", "near-ties")}
        if not self.args.launch.speculative or not any(found.values()):
            return None
        corrupt, near_ties = (fault.amount if fault else 0.0 for fault in found.values())
        return speech.Slips(corrupt, near_ties)

    def _completions(self, exchange: Exchange) -> None:
        body = _body(exchange)
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1:
            prompt = prompt[0]
        if not isinstance(prompt, str):
            raise BadRequest("prompt: one string a request.")
        form = self._openai(body, chat=False)
        asked = Asked(prompt, speech.prompt_tokens(prompt), form, body, body.get("max_tokens", 16))
        self._begin(exchange, body, asked)

    def _chat(self, exchange: Exchange) -> None:
        body = _body(exchange)
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
            raise BadRequest("messages: a list of {role, content}.")
        prompt = "".join(f"<|im_start|>{m.get('role')}\n{m.get('content')}<|im_end|>\n" for m in messages)
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or 4096
        asked = Asked(prompt, speech.prompt_tokens(prompt), self._openai(body, chat=True), body, limit)
        self._begin(exchange, body, asked)

    def _openai(self, body: dict[str, Any], chat: bool) -> OpenAI:
        options = body.get("stream_options") or {}
        return OpenAI(
            model=body.get("model") or self.args["served_model_name"],
            chat=chat,
            include_usage=bool(options.get("include_usage")),
            return_meta_info=bool(body.get("return_meta_info")),
        )

    def _begin(self, exchange: Exchange, body: dict[str, Any], asked: Asked) -> None:
        """Check what was asked and hand it to the decoder."""
        longest = self._context_length()
        if not isinstance(asked.limit, int) or asked.limit < 1:
            raise BadRequest(f"max_new_tokens must be at least 1, got {asked.limit!r}.")
        if asked.tokens + 1 > longest:
            raise BadRequest(
                f"The input ({asked.tokens} tokens) is longer than the model's context length ({longest} tokens)."
            )
        self._arrived += 1
        self.counters.requests += 1
        fault = self.decoder.faults.find("fail-requests")
        if fault and int(self._arrived * fault.amount) > int((self._arrived - 1) * fault.amount):
            exchange.send_json(500, {"error": {"message": "simulated failure of this request"}})
            return
        self.decoder.begin(self._generation(exchange, body, asked))

    def _generation(self, exchange: Exchange, body: dict[str, Any], asked: Asked) -> Generation:
        temperature = asked.sampling.get("temperature")
        seed = speech.prompt_hash(asked.prompt)
        if temperature is None or temperature > 0:
            seed ^= self._arrived
        limit = min(asked.limit, self._context_length() - asked.tokens)
        natural = limit + 1 if asked.sampling.get("ignore_eos") else speech.natural_tokens(seed, self.profile)
        request = speech.request_for(seed, asked.prompt, asked.tokens, limit, natural, self.decoder.performance)
        request.cached_tokens = self.decoder.cached_tokens(asked.prompt, asked.tokens)
        return Generation(
            request=request,
            exchange=exchange,
            speech=speech.speak(seed, request.output_tokens, self._slips()),
            rid=str(body.get("rid") or uuid.uuid4().hex),
            form=asked.form,
            stream=bool(body.get("stream")),
            natural_end=natural <= limit,
            num_draft_tokens=self.args.launch.num_draft_tokens,
        )

    def _abort_request(self, exchange: Exchange) -> None:
        body = _body(exchange)
        self.decoder.abort(None if body.get("abort_all") else str(body.get("rid", "")))
        exchange.send(200)

    def _context_length(self) -> int:
        return int(self.args["context_length"] or self.profile.target.context_length)


def _body(exchange: Exchange) -> dict[str, Any]:
    try:
        body = exchange.json() if exchange.body else {}
    except ValueError as error:
        raise BadRequest(f"The body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object.")
    return body
