"""Draws from a loaded model, within a budget of memory."""

from collections.abc import Sequence
import dataclasses
import os
from typing import TYPE_CHECKING
from typing import Annotated
from typing import Any
from typing import Literal

from kaiju_jax.costs import cache_plan
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.runs import flags

if TYPE_CHECKING:
  from kaiju_jax.runs import load as load_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
  """How the model of a Hugging Face folder is computed."""

  # What is int8 in the products of a Hugging Face folder's model: nothing,
  # weights, or weights and activations.
  int8: Literal[*quantization_config.ARMS] = 'all'
  # Its keys and values.
  kv: Literal['int8', 'none'] = 'int8'
  # Its activations; by default float32 on a CPU, and its own elsewhere.
  dtype: Literal['', 'float32', 'bfloat16'] = ''

  def load(
    self, path: str | os.PathLike[str], tokenizer: str | None = None
  ) -> 'load_lib.Loaded':
    """Returns the model at `path`; see `load.from_anywhere`."""
    from kaiju_jax.runs import load  # Imports jax: not for --help.

    arm = quantization_config.for_serving(self.int8, self.kv)
    return load.from_anywhere(path, tokenizer, arm, dtype=self.dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Player(Arm):
  """How a model is played; by default as `experiments.serve` serves it."""

  # Most memory for keys and values, such as 2GiB; by default a power of two,
  # at most a quarter of what is free.
  cache: Annotated[
    int | None, flags.Parsed(cache_plan.parse, cache_plan.draw)
  ] = None
  # Tokens of a prompt and its reply; by default what is needed, or the model's
  # max_length, as far as two such texts fit into --cache, and no more than
  # 32,768.
  length: Annotated[int | None, flags.Bounds(2)] = None


SERVED = Player()


def decoder(
  loaded: 'load_lib.Loaded',
  tokenizer: Any,
  *,
  rows: int,
  length: int | None = None,
  cache: int | None = None,
  extra: int = 0,
  page_counts: dict[str, int] | None = None,
  mode: str = 'fast',
) -> Any:
  """Returns a `decoding.device.decoder.Decoder` of a loaded model.

  Its cache stays within a budget: where not all rows fit in full, its pages are
  those of `cache_plan.plan`.

  Args:
    loaded: the model.
    tokenizer: its tokenizer, beyond whose tokens none is drawn; None to draw
      all of the model's vocabulary.
    rows, extra, mode: as `Decoder`'s.
    length: tokens of the longest text; None for the plan's.
    cache: bytes of keys and values; None for a part of what is free.
    page_counts: the pages of each kind, which are not planned then.

  Raises:
    ValueError: as `Decoder`; or not even one text fits.
  """
  from kaiju_jax.decoding.device import decoder as decoder_lib
  from kaiju_jax.decoding.device import memory

  longest = loaded.config.max_length
  if page_counts is None and (length is None or length <= longest):
    budget = cache or memory.budget_cache()
    plan = cache_plan.plan(loaded.config, budget, rows, length, extra)
    length, page_counts = plan.length, plan.pages
  return decoder_lib.Decoder(
    loaded.params,
    loaded.config,
    replica=loaded.replica,
    tokens=None if tokenizer is None else tokenizer.vocab_size,
    rows=rows,
    length=length,
    extra=extra,
    page_counts=page_counts,
    mode=mode,
  )


def texts(
  loaded: 'load_lib.Loaded',
  prompts: Sequence[str],
  max_tokens: int = 200,
  sampling: Any = None,
) -> list[str]:
  """Returns each prompt's continuation; generates all of them together.

  Args:
    loaded: a model from `load.from_workdir` or `load.from_export`.
    prompts: texts, each of which opens a document.
    max_tokens: the most tokens of a continuation.
    sampling: the sampling of tokens; greedy by default.

  Raises:
    ValueError: a prompt and its continuation are longer than the model's
      `max_length`, or a setting is wrong.
    request.BadLogits: the model gave logits from which no token can be drawn.
  """
  # These import jax: not for --help.
  import numpy as np

  from kaiju_jax.data import tokenizer as tokenizer_lib
  from kaiju_jax.decoding.engine import generator as generator_lib
  from kaiju_jax.decoding.requests import request as request_lib
  from kaiju_jax.decoding.requests import sampling as sampling_lib

  if not prompts:
    return []
  tokenizer = tokenizer_lib.load(loaded.tokenizer, loaded.config.vocab_size)
  sampling = sampling or sampling_lib.Sampling(temperature=0)
  requests = [
    request_lib.Request(
      np.concatenate([[tokenizer.bos_id], tokenizer.encode(text)]),
      max_tokens,
      sampling,
    )
    for text in prompts
  ]
  made = decoder(
    loaded,
    tokenizer,
    rows=len(requests),
    length=max(len(one.tokens) for one in requests) + max_tokens,
  )
  results = generator_lib.Generator(
    made, tokenizer, batch_invariant=True
  ).generate(requests)
  for result in results:
    if result.error is not None:
      raise result.error
  return [result.text for result in results]
