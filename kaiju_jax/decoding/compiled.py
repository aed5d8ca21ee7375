"""The rounds of one decoder, compiled, and how each of its rows draws.

The pure functions are those of `rounds.py`. Here they meet a decoder's cache,
and prompts of any length meet chunks of a few sizes, so that requests that join
and leave compile nothing.
"""

from collections.abc import Sequence
import functools

import jax
import numpy as np

from kaiju_jax.decoding import decoder as decoder_lib
from kaiju_jax.decoding import interrupts
from kaiju_jax.decoding import rounds
from kaiju_jax.decoding import sampling as sampling_lib

_SMALLEST_CHUNK = 8


class Rounds:
  """What a generator runs on the device.

  Ctrl-C during a method raises after it.

  Args:
    decoder: the model and its cache.
    chunk: prompt tokens of a call, at most.

  Attributes:
    sizes: the chunks' sizes in tokens, ascending: a sixteenth of `chunk`, a
      quarter and the whole, but not below 8 unless `chunk` is.
  """

  def __init__(self, decoder: decoder_lib.Decoder, chunk: int):
    self.sizes = sorted(
      {min(chunk, max(chunk // part, _SMALLEST_CHUNK)) for part in (16, 4, 1)}
    )
    self._decoder = decoder
    self._state = jax.device_put(
      rounds.initial(decoder.rows, decoder.config.vocab_size),
      decoder.cache.length_R.sharding,
    )
    network = decoder.network
    self._join = decoder.jit(rounds.join, donate_argnums=0)
    self._step = decoder.jit(
      functools.partial(rounds.step, network), donate_argnums=(1, 3)
    )
    self._first = decoder.jit(
      functools.partial(rounds.first, network), donate_argnums=1
    )
    self._prefill = {
      is_scored: decoder.jit(
        functools.partial(rounds.prefill, network, is_scored),
        donate_argnums=(1, 3),
      )
      for is_scored in (False, True)
    }

  def join(self, row: int, sampling: sampling_lib.Sampling) -> None:
    """Sets how a row draws; a row without text has seen no token."""
    with interrupts.held():
      self._state = self._join(
        self._state,
        np.int32(row),
        sampling_lib.settings([sampling]),
        np.bool_(self._decoder.length_of(row) == 0),
      )

  def append(
    self, row: int, left_L: np.ndarray, is_scored: bool
  ) -> tuple[jax.Array, rounds.Scores | None, int]:
    """Runs the next chunk of a text.

    Args:
      row: the cache row's index.
      left_L: int32, the tokens to append, at least one.
      is_scored: whether their successors' scores are wanted.

    Returns:
      The hidden state of the chunk's last token [1, 1, D], the scores or None,
      and how many tokens the chunk took.
    """
    count = min(len(left_L), self.sizes[-1])
    size = self._size_of(count)
    last_BLD, scores = self._run_chunk(
      row, left_L[:count], left_L[1 : size + 1], size, is_scored
    )
    return last_BLD, scores, count

  def first(
    self, row: int, last_BLD: jax.Array
  ) -> tuple[np.ndarray, np.ndarray]:
    """Draws the token after a prompt; returns it and its log-probability."""
    decoder = self._decoder
    with interrupts.held():
      self._state, packed = self._first(
        decoder.params,
        self._state,
        np.int32(row),
        np.int32(decoder.length_of(row)),
        last_BLD,
      )
    return rounds.unpacked(packed)

  def step(self, rows: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Draws the next token of each of these rows.

    Returns:
      Tokens and log-probabilities of all R rows; those of other rows mean
      nothing.
    """
    count_R = np.zeros(self._decoder.rows, np.int32)
    count_R[list(rows)] = 1
    with interrupts.held():
      self._state, packed = self._decoder.run(
        self._step, self._state, count_R, appends=dict.fromkeys(rows, 1)
      )
    return rounds.unpacked(packed)

  def warm(self, row: int, lengths: Sequence[int] | None) -> None:
    """Compiles what sequences will run, in a row without text.

    Args:
      row: the cache row's index.
      lengths: the lengths, in tokens, of prompts that are not to be scored;
        None for any.
    """
    sizes = set(self.sizes)
    if lengths is not None:
      sizes = set().union(*map(self._sizes_of, lengths))
    nothing_L = np.zeros(0, np.int32)
    self.join(row, sampling_lib.Sampling())
    for size in sizes:
      last_BLD, _ = self._run_chunk(row, nothing_L, nothing_L, size, False)
      self.first(row, last_BLD)
    self.step(())

  def _size_of(self, count: int) -> int:
    return min(size for size in self.sizes if size >= count)

  def _sizes_of(self, length: int) -> set[int]:
    """Returns the sizes of a prompt's chunks."""
    chunk = self.sizes[-1]
    whole = {chunk} if length >= chunk else set()
    return whole | (
      {self._size_of(length % chunk)} if length % chunk else set()
    )

  def _run_chunk(self, row, tokens_L, successors_L, size: int, is_scored: bool):
    count = len(tokens_L)
    # Padding repeats a token of the text, so that it brings no NaN that the
    # text does not have.
    padded_L = np.full(size, tokens_L[0] if count else 0, np.int32)
    padded_L[:count] = tokens_L
    next_L = np.zeros(size, np.int32)
    next_L[: len(successors_L)] = successors_L
    with interrupts.held():
      self._state, last_BLD, scores = self._decoder.run(
        self._prefill[is_scored],
        self._state,
        np.int32(row),
        padded_L,
        next_L,
        np.int32(count),
        appends={row: count},
      )
    return last_BLD, scores
