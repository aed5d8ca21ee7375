"""Serves a load by `transformers` on this CPU, or times its calls.

The other side of a comparison: `hugging_face.write` gives it the same weights.
Needs the extra `interchange`, with transformers ≥ 5.

`serve` hands each arrival to a `ContinuousBatchingManager` at its second. The
manager's own thread batches them: one packed pass over the prompts' chunks and
the running answers' tokens, with pages of keys and values and shared prefixes.
Each token's second is what the manager itself records, so that reading the
answers takes nothing from it.

One setting is in its favour: heads of keys and values are not repeated before
attention. By default it repeats them wherever attention has a mask, and a
packed pass always has one, which keeps the rows apart.

`runner` times one prefill, a call over whole prompts that keeps the cache and
makes the logits of each last token alone, and decoding steps, each a call with
one token per row, greedy; the cache grows with it. That cache is
`DynamicCache`, which copies its tensors to append, or `StaticCache`, which
holds its last length from the start and attends over all of it.

Where others use the machine too, set OMP_WAIT_POLICY=passive: torch's threads
otherwise spin while they wait for one that the system has put aside. (Float32
steps of 97 M parameters, 8 rows, on 4 cores with a load above 20: 10,462 ms
without and 73 to 185 ms with it.)
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import os
import statistics
import time
from typing import Any

import numpy as np
import torch
import transformers

from kaiju_jax.experiments.benchmarks.load_test import load

# Read at each call of its attention; without it K and V are repeated per head.
_GROUPED = 'TRANSFORMERS_SDPA_FORCE_GQA'
CACHES = 'dynamic', 'static'


def model(
  folder: str | os.PathLike[str], dtype: str = 'float32'
) -> transformers.PreTrainedModel:
  """Returns a folder's model, whose threads are one per core.

  Args:
    folder: written by `hugging_face.write`, another one, or a GGUF file.
    dtype: 'float32' or 'bfloat16', of weights and arithmetic.

  Raises:
    OSError: the folder is not there.
  """
  torch.set_num_threads(len(os.sched_getaffinity(0)))
  path, file = os.fspath(folder), None
  if os.path.isfile(path):
    path, file = os.path.split(path)
  return transformers.AutoModelForCausalLM.from_pretrained(
    path or '.',
    gguf_file=file,
    dtype=getattr(torch, dtype),
    attn_implementation='sdpa',
  ).eval()


def serve(
  model: transformers.PreTrainedModel,
  arrivals: Sequence[load.Arrival],
  *,
  in_flight: int = 8,
  chunk: int = 256,
  page: int = 64,
) -> list[load.Timeline]:
  """Serves a load in real time, greedily, and returns its timelines.

  Each call has a manager and pages of its own: nothing of an earlier call is
  reused. The first requests, which do not count, are as many as may be in
  flight.

  Args:
    model: from `model`.
    arrivals: the load, in the order in which it comes. All at second 0 measure
      throughput with `in_flight` at a time.
    in_flight: most requests in a pass; others wait.
    chunk: most tokens in a pass, of prompts and answers together.
    page: tokens of a page. Whole pages alone are shared.

  Returns:
    The timelines, in the order of the arrivals, their seconds since the call
    took up the load.

  Raises:
    ValueError: no arrivals, or a prompt without tokens.
    RuntimeError: the manager failed, or gave an answer of another length.
  """
  _check(arrivals)
  longest = max(len(x.tokens) + x.max_tokens for x in arrivals)
  config = transformers.ContinuousBatchingConfig(
    page_size=page,
    # Twice of what runs at a time, so that shared pages survive and the
    # manager's margin, 15 % of the pages, never holds a prompt back.
    num_blocks=2 * in_flight * -(-(longest + page) // page),
    max_batch_tokens=max(chunk, in_flight),
    max_requests_per_batch=in_flight,
    allow_block_sharing=True,
    auto_switch_to_flash=False,
  )
  with _heads(), _manager(model, config) as manager:
    _answers(manager, _warm_up(model, longest, in_flight, chunk))
    return _answers(manager, arrivals)


def _check(arrivals: Sequence[load.Arrival]) -> None:
  if not arrivals:
    raise ValueError('arrivals=[]: there must be at least one.')
  for number, arrival in enumerate(arrivals):
    if not len(arrival.tokens) or arrival.max_tokens < 1:
      raise ValueError(
        f'arrival {number}: {len(arrival.tokens)} tokens and an answer of'
        f' {arrival.max_tokens}: both must be at least 1.'
      )


@contextlib.contextmanager
def _heads() -> Iterator[None]:
  before = os.environ.get(_GROUPED)
  os.environ[_GROUPED] = '1'
  try:
    yield
  finally:
    if before is None:
      del os.environ[_GROUPED]
    else:
      os.environ[_GROUPED] = before


@contextlib.contextmanager
def _manager(model, config) -> Iterator[Any]:
  manager = model.init_continuous_batching(
    # The likeliest tokens, and nothing that stops them.
    generation_config=transformers.GenerationConfig(
      do_sample=False, max_new_tokens=1, eos_token_id=-1, pad_token_id=0
    ),
    continuous_batching_config=config,
  )
  manager.warmup()
  manager.start()
  try:
    yield manager
  finally:
    # Cancel what still runs: an error is being raised.
    manager.stop(block=True, hard_stop=True)
    manager.destroy()


def _warm_up(model, longest: int, in_flight: int, chunk: int):
  """Returns requests like those that will come, of tokens that will not."""
  rng = np.random.default_rng(2**32 - 1)
  length = min(chunk, longest - 1)
  vocabulary = model.config.vocab_size
  return [
    load.Arrival(0.0, rng.integers(0, vocabulary, length, np.int32), 4)
    for _ in range(in_flight)
  ]


def _answers(manager, arrivals: Sequence[load.Arrival]) -> list[load.Timeline]:
  # What is converted here is not converted while others are being served.
  prompts = [arrival.tokens.tolist() for arrival in arrivals]
  began = time.perf_counter()
  names = []
  for arrival, prompt in zip(arrivals, prompts):
    time.sleep(max(0.0, began + arrival.seconds - time.perf_counter()))
    names.append(
      manager.add_request(
        prompt, max_new_tokens=arrival.max_tokens, record_timestamps=True
      )
    )
  answers = {}
  while len(answers) < len(names):
    answer = manager.get_result(timeout=1)
    if answer is not None:
      answers[answer.request_id] = answer
    elif not manager.is_running():
      fault = manager.background_thread_status.fatal_error
      raise RuntimeError(
        f'The manager ended with {len(answers)} of {len(names)} answers:'
        f' {fault or "no error"}.'
      ) from fault
  return [
    _timeline(arrival, answers[name], began)
    for arrival, name in zip(arrivals, names)
  ]


def _timeline(arrival: load.Arrival, answer, began: float) -> load.Timeline:
  tokens = np.array(answer.generated_tokens, np.int32)
  if answer.error is not None or not (
    len(tokens) == len(answer.timestamps) == arrival.max_tokens
  ):
    raise RuntimeError(
      f'Request {answer.request_id} has {len(tokens)} tokens at'
      f' {len(answer.timestamps)} times, not {arrival.max_tokens}:'
      f' {answer.error or "no error"}.'
    )
  return load.Timeline(arrival, tokens, np.array(answer.timestamps) - began)


def runner(
  model,
  batch: int,
  length: int,
  cache: str,
  steps: int,
  clock: Callable[[], float] = time.perf_counter,
) -> Callable[[], tuple[float, float]]:
  """Returns a function that times one prefill and the median step after it.

  Args:
    model: from `model`.
    batch: rows, each with other random tokens.
    length: tokens of a prompt, and so the context of the first step.
    cache: one of `CACHES`.
    steps: decoding steps in a run.
    clock: returns seconds.

  Raises:
    ValueError: no such cache.
  """
  if cache not in CACHES:
    raise ValueError(f'cache={cache!r}: must be one of {", ".join(CACHES)}.')
  generator = torch.Generator().manual_seed(0)
  shape = (batch, length)
  tokens_BL = torch.randint(model.config.vocab_size, shape, generator=generator)

  @torch.inference_mode()
  def run():
    past = transformers.DynamicCache(config=model.config)
    if cache == 'static':
      past = transformers.StaticCache(
        config=model.config, max_cache_len=length + steps
      )
    next_BL, taken = tokens_BL, []
    for _ in range(1 + steps):
      started = clock()
      out = model(
        next_BL, past_key_values=past, use_cache=True, logits_to_keep=1
      )
      next_BL = out.logits[:, -1:].argmax(-1)
      taken.append(clock() - started)
    return taken[0], statistics.median(taken[1:])

  return run
