"""The compiled functions that beam searches run on a decoder."""

from collections.abc import Sequence
import functools
from typing import Any

import jax
import numpy as np

from kaiju_jax.decoding.beam import paths as beam_paths
from kaiju_jax.decoding.beam import row as beam_row
from kaiju_jax.decoding.beam import step as beam_step
from kaiju_jax.decoding.beam import tree as beam_tree
from kaiju_jax.decoding.device import decoder as decoder_lib


class Calls:
  """Compiled calls for any number of searches, widths, depths and rows.

  A step has at most `size` candidates. `judge` scores them; None for none.
  Raises ValueError for a decoder in the reference mode.
  """

  def __init__(
    self,
    decoder: decoder_lib.Decoder,
    size: int,
    judge: beam_step.Judge | None = None,
  ):
    if decoder.network.reference_length is not None:
      raise ValueError(
        "mode='reference' reads rows in the order of their positions, which"
        " beams share: beam search needs a Decoder of mode='fast'."
      )
    self.size = size
    self.is_judged: bool = judge is not None
    self._decoder = decoder
    network, top = decoder.network, min(size, decoder.tokens)
    self._first = decoder.jit(functools.partial(beam_step.first, network, top))
    self._step = decoder.jit(
      functools.partial(beam_step.step, network, judge, top), donate_argnums=1
    )

  def first(
    self, hidden_BLD: jax.Array, place: int = 0
  ) -> beam_step.Expansions:
    """Returns a text's expansions; entry `place` is its last token."""
    return self._first(self._decoder.params, hidden_BLD, np.int32(place))

  def step(
    self,
    row: int,
    placed: beam_tree.TokenLayout,
    parents: Sequence[int],
    paths: Sequence[beam_paths.Path],
    arguments: Sequence[Any] = (),
  ) -> tuple[beam_step.CandidateScores, beam_step.Expansions]:
    """Runs candidates; returns `size` scores and expansions, on the device.

    The `paths` follow the live beams `parents` and stand where the tree
    `placed` them, in a lent row. Entries beyond them mean nothing. The judge
    gets `arguments` too.
    """
    chunk = beam_row.chunk(row, placed, [x.token for x in paths], self.size)

    def padded(values, fill, dtype):
      x_C = np.full(self.size, fill, dtype)
      x_C[: len(paths)] = values
      return x_C

    candidates = beam_step.Candidates(
      chunk.tokens_BL[0],
      padded(parents, 0, np.int32),
      padded([x.log_probability for x in paths], -np.inf, np.float32),
      padded([x.total for x in paths], -np.inf, np.float32),
      padded([x.score for x in paths], -np.inf, np.float32),
      None,
    )
    return self._decoder.run(
      self._step, placed.ranges, chunk, candidates, tuple(arguments)
    )
