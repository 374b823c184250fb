"""The process of one engine: vLLM in it, asked over a pipe."""

import json
import os
import sys
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import prometheus_client
from vllm import SamplingParams, TokensPrompt
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.request import LoRARequest
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.kv_offload.base import GPULoadStoreSpec
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

from engine_cases.answer import Answer
from engine_cases.prompts import Prompt
from kvstore_vllm.blocks.block_copier import BlockCopier, ExtentTensors
from kvstore_vllm.offload.cpu_worker import HostCopyWorker
from kvstore_vllm.step_plan import BlockTransfer
from rig.answer import Call, Counts
from rig.late_saves import save_late
from rig.options import EngineOptions

READY = "ready"
ABORTED = "aborted"
# Steps without a request, until saves are at their end.
FORGETTING_STEPS = 200
# Steps of an engine without requests before it is idle.
MOST_LAST_STEPS = 10_000
STEP_SECONDS = 0.02
# Labels that every counter of one engine has alike.
SAME = frozenset({"engine", "model_name"})


def serve(connection: Connection, options: EngineOptions, log: Path) -> None:
    """Starts an engine, say READY, then do what is asked until the other end closes.

    A list of prompts is answered with as many answers, COUNTS with the counts, RESET with whether
    the local prefix cache is empty now, and a call once it returned.
    """
    _write_to(log)
    if options.wrong_page:
        _lose_a_page()
    if options.late_saves:
        save_late()
    arguments = EngineArgs(**options.engine_arguments())
    engine = LLMEngine.from_engine_args(arguments)
    connection.send(READY)
    while True:
        try:
            asked = connection.recv()
        except EOFError:
            break
        if asked == "counts":
            connection.send(_counts())
        elif asked == "reset":
            connection.send(_forget(engine))
        elif isinstance(asked, Call):
            getattr(engine, asked.method)(*asked.arguments, **asked.named)
            connection.send(READY)
        else:
            connection.send(_run(engine, options, asked))
    engine.engine_core.shutdown()


def _write_to(log: Path) -> None:
    """Sends all that this process prints to a file."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _lose_a_page() -> None:
    """Makes every load put its second page in the first one's place too.

    Pages that change places would change nothing: keys carry their positions.
    """
    load = BlockCopier.load

    def wrong(
        self: BlockCopier, memory: ExtentTensors, transfer: BlockTransfer, *, beside: bool = False
    ) -> int:
        copied = load(self, memory, transfer, beside=beside)
        first, _, *others = transfer.block_ids
        load(self, memory, replace(transfer, block_ids=(first, first, *others)), beside=beside)
        return copied

    BlockCopier.load = wrong  # type: ignore[method-assign]
    submit_load = HostCopyWorker.submit_load

    def wrong_row(
        self: HostCopyWorker, job_id: int, src_spec: CPULoadStoreSpec, dst_spec: GPULoadStoreSpec
    ) -> bool:
        src_spec.block_ids[:1] = src_spec.block_ids[1:2]
        return submit_load(self, job_id, src_spec, dst_spec)

    HostCopyWorker.submit_load = wrong_row  # type: ignore[method-assign, assignment]


def _run(engine: LLMEngine, options: EngineOptions, asked: list[Prompt]) -> list[Answer]:
    """Runs requests until all are at their end, those aborted that ask for it."""
    run = f"{id(asked):x}"
    names = [f"{run}-{number}" for number in range(len(asked))]
    for name, prompt in zip(names, asked, strict=True):
        engine.add_request(
            name, _tokens(prompt), _sampling(prompt), lora_request=_adapter(options, prompt)
        )
    wanted = dict(zip(names, asked, strict=True))
    ended: dict[str, Answer] = {}
    _abort(engine, dict.fromkeys(names, ()), wanted, ended)
    while engine.has_unfinished_requests():
        heard = {}
        for output in engine.step():
            completion = output.outputs[0]
            heard[output.request_id] = tuple(completion.token_ids)
            if output.finished:
                ended[output.request_id] = Answer(
                    tuple(completion.token_ids), str(completion.finish_reason)
                )
        _abort(engine, heard, wanted, ended)
    # What a connector still sends or gives back, it says in a step: as an engine of its own
    # process goes on until it is idle.
    scheduler = engine.engine_core.engine_core.scheduler  # type: ignore[attr-defined]
    engine.step()
    for _ in range(MOST_LAST_STEPS):
        if not scheduler.has_requests():
            break
        engine.step()
    return [ended[name] for name in names]


def _forget(engine: LLMEngine) -> bool:
    """Empty the local prefix cache, once no page of it is being saved any more."""
    for _ in range(FORGETTING_STEPS):
        if engine.reset_prefix_cache():
            return True
        engine.step()
        time.sleep(STEP_SECONDS)
    return False


def _abort(
    engine: LLMEngine,
    heard: dict[str, tuple[int, ...]],
    wanted: dict[str, Prompt],
    ended: dict[str, Answer],
) -> None:
    for name, tokens in heard.items():
        limit = wanted[name].abort_after
        if limit is not None and len(tokens) >= limit and name not in ended:
            engine.abort_request([name])
            ended[name] = Answer(tokens, ABORTED)


def _tokens(prompt: Prompt) -> TokensPrompt:
    asked = TokensPrompt(prompt_token_ids=list(prompt.tokens))
    if prompt.salt is not None:
        asked["cache_salt"] = prompt.salt
    return asked


def _sampling(prompt: Prompt) -> SamplingParams:
    # As vLLM's server passes on the field of a request's body.
    extra = None
    if prompt.hint is not None:
        extra = {"kv_transfer_params": {"kvstore": json.loads(prompt.hint)}}
    return SamplingParams(
        temperature=0.0,
        max_tokens=prompt.answer_tokens,
        ignore_eos=True,
        detokenize=False,
        extra_args=extra,
    )


def _adapter(options: EngineOptions, prompt: Prompt) -> LoRARequest | None:
    if prompt.adapter is None:
        return None
    number = [path.name for path in options.adapters].index(prompt.adapter)
    return LoRARequest(prompt.adapter, number + 1, str(options.adapters[number]))


def _counts() -> Counts:
    """Returns every counter of vLLM and of the connector."""
    found = {}
    for metric in prometheus_client.REGISTRY.collect():
        if metric.type != "counter" or not metric.name.startswith(("vllm:", "kvstore")):
            continue
        for sample in metric.samples:
            if sample.name.endswith("_total"):
                labels = {k: v for k, v in sorted(sample.labels.items()) if k not in SAME}
                shown = ",".join(f'{key}="{value}"' for key, value in labels.items())
                found[metric.name + (f"{{{shown}}}" if shown else "")] = sample.value
    return Counts(found)
