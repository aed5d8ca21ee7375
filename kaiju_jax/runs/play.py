"""Makes what draws from a loaded model, within a budget of memory."""

import os
from typing import Any
from typing import NamedTuple

from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.runs import load


class Played(NamedTuple):
  """How a model is played; by default in floats, as long as its cache allows.

  Attributes:
    quantization: see `load.from_anywhere`.
    dtype: see `load.from_anywhere`.
    cache: bytes of its keys and values, at most; None for a part of what is
      free (`memory.budget_cache`).
    length: tokens of the longest text; None for `cache_plan.plan`'s.
  """

  quantization: quantization_config.QuantizationConfig | None = None
  dtype: str = ''
  cache: int | None = None
  length: int | None = None

  def load(
    self, path: str | os.PathLike, tokenizer: str | None = None
  ) -> load.Loaded:
    """Returns the model at `path`; see `load.from_anywhere`."""
    return load.from_anywhere(
      path, tokenizer, self.quantization, dtype=self.dtype
    )


FLOATS = Played()


def decoder(
  loaded: load.Loaded,
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
  from kaiju_jax.costs import cache_plan
  from kaiju_jax.decoding.device import decoder as decoder_lib
  from kaiju_jax.runs import memory

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
