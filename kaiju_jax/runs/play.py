"""Draws from a loaded model, within a budget of memory."""

from collections.abc import Sequence
import contextlib
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
class Spread(Arm):
  """How a model is computed, and by how many devices."""

  # Devices that share the model and its cache: each has a part of the weights
  # and of every page.
  tensor: flags.Positive = 1

  def load(
    self, path: str | os.PathLike[str], tokenizer: str | None = None
  ) -> 'load_lib.Loaded':
    """Returns the model as `Arm`'s; for several devices in host memory."""
    with self.reading(path):
      return super().load(path, tokenizer)

  def reading(
    self, path: str | os.PathLike[str]
  ) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which to read the weights of the model at `path`.

    Those for several devices are read into host memory. Raises ValueError as
    `check`.
    """
    if self.tensor == 1:
      return contextlib.nullcontext()
    from kaiju_jax.decoding.device import weights  # Imports jax.

    self.check(path)
    return weights.on_host()

  def check(self, path: str | os.PathLike[str]) -> None:
    """Refuses a model that the devices cannot divide; reads no weights.

    Raises ValueError: names what cannot be divided; or there are fewer devices.
    """
    if self.tensor > 1:
      # These import jax.
      from kaiju_jax.decoding.device import placement
      from kaiju_jax.runs import load

      placement.check(placement.make(self.tensor), load.describe(path).config)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Player(Spread):
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

  def decoder(
    self, loaded: 'load_lib.Loaded', tokenizer: Any, rows: int
  ) -> Any:
    """Returns the `decoder` of a loaded model, of `rows` rows."""
    return decoder(
      loaded,
      tokenizer,
      rows=rows,
      length=self.length,
      cache=self.cache,
      tensor=self.tensor,
    )


SERVED = Player()


def page_of(config: Any, tensor: int) -> int:
  """Returns the slots of pages that devices of this platform can share."""
  from kaiju_jax.kernels import dispatch
  from kaiju_jax.model import paging

  return paging.choose_page(config.num_kv_heads, tensor, dispatch.platform())


def plan_cache(
  config: Any,
  cache: int | None,
  texts: int,
  length: int | None,
  extra: int,
  tensor: int,
) -> cache_plan.Plan:
  """Returns the plan of a cache on devices of this platform (`cache_plan`).

  Args:
    config, texts, length, extra: as for `cache_plan.plan`, and its ValueError.
    cache: bytes on all devices; None for a part of what is free.
    tensor: the devices.
  """
  from kaiju_jax.costs import footprint
  from kaiju_jax.decoding.device import memory
  from kaiju_jax.kernels import dispatch

  if not cache:
    # One device has its weights already; on several the decoder places them.
    each = footprint.weight_bytes(config, tensor) if tensor > 1 else 0
    cache = memory.budget_cache(tensor, tensor * each)
  return cache_plan.plan(
    config,
    cache,
    texts,
    length,
    extra,
    page_of(config, tensor),
    tensor,
    dispatch.platform(),
  )


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
  tensor: int = 1,
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
    cache: bytes of keys and values on all devices; None for a part of what is
      free.
    page_counts: the pages of each kind, which are not planned then; those of
      full rows for a kind that it leaves out.
    tensor: devices that share the model and its cache.

  Raises:
    ValueError: as `Decoder`; there are fewer devices; or not even one text
      fits.
  """
  from kaiju_jax.decoding.device import decoder as decoder_lib
  from kaiju_jax.decoding.device import placement

  mesh = placement.make(tensor)
  longest = loaded.config.max_length
  if page_counts is None and (length is None or length <= longest):
    plan = plan_cache(loaded.config, cache, rows, length, extra, tensor)
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
    mesh=mesh,
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
