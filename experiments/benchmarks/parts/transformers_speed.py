"""Times prefill and decoding by `transformers` on this CPU.

The other side of a comparison: `hugging_face.write` gives it the same weights.
Needs the extra `interchange`.

Prefill is one call over whole prompts that keeps the cache and makes the logits
of each last token alone. A decoding step is one call with one token per row,
greedy, from the context that the prefill left; the cache grows with it. That
cache is `DynamicCache`, which copies its tensors to append, or `StaticCache`,
which holds its last length from the start and attends over all of it.

Where others use the machine too, set OMP_WAIT_POLICY=passive: torch's threads
otherwise spin while they wait for one that the system has put aside. (Float32
steps of 97 M parameters, 8 rows, on 4 cores with a load above 20: 10,462 ms
without and 73 to 185 ms with it.)
"""

from collections.abc import Callable
import os
import statistics
import time

import torch
import transformers

CACHES = ('dynamic', 'static')


def read(folder: str | os.PathLike, dtype: str, attention: str = 'sdpa'):
  """Returns a folder's model, whose threads are one per core.

  Args:
    folder: written by `hugging_face.write`, or another one.
    dtype: 'float32' or 'bfloat16', of weights and arithmetic.
    attention: implementation, as `transformers` names it.

  Raises:
    OSError: the folder is not there.
  """
  torch.set_num_threads(os.cpu_count())
  return transformers.AutoModelForCausalLM.from_pretrained(
    folder, dtype=getattr(torch, dtype), attn_implementation=attention
  ).eval()


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
    model: from `read`.
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

  def run():
    with torch.inference_mode():
      make_cache = _maker(model, cache, length + steps)
      return _run(model, tokens_BL, make_cache, steps, clock)

  return run


def _maker(model, cache: str, length: int) -> Callable[[], object]:
  if cache == 'dynamic':
    return lambda: transformers.DynamicCache(config=model.config)
  return lambda: transformers.StaticCache(
    config=model.config, max_cache_len=length
  )


def _run(
  model, tokens_BL, make_cache, steps: int, clock
) -> tuple[float, float]:
  """Returns the seconds of one prefill and of the median step after it."""
  past = make_cache()
  taken = []
  for _ in range(1 + steps):
    started = clock()
    out = model(
      tokens_BL, past_key_values=past, use_cache=True, logits_to_keep=1
    )
    tokens_BL = out.logits[:, -1:].argmax(-1)
    taken.append(clock() - started)
  return taken[0], statistics.median(taken[1:])
