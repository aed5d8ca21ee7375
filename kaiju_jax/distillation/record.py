"""Encodes and decodes records: the targets of 1,024 corpus tokens as bytes.

Each token has up to T *entries*, each a token id of the vocabulary and a
weight. A record stores equal fields side by side, so that they compress:

    entries   per token, its number of entries; 0 where there is no teacher
    heads     per token, its number of entries with a count of 2 or more
    ids       per entry: all lowest bytes, then all next ones
    weights   per head or entry

Ids take two bytes, or three where V is above 65,536. A number of entries or
heads takes one byte, or two where T is above 255; a count likewise, where the
largest count is above 255. `Form.coding` says how weights are coded:

    counts    An entry's value is its count over the token's sum of counts.
              Heads come first, then the entries of count 1, whose counts need
              no byte; both in the order of their ids. Exact.
    log8      One byte: the value is 2^(−byte / 12), from 4e-7 to 1. A value
              between two levels is rounded to one of them at random, so that
              its expectation is the value. The rounding adds no bias, and noise
              of at most 3 % of the value. No heads.
    float16   Two bytes: the value within 0.05 %, from 6e-5 to 65,504. No heads.

Gumbel's q̂ of a rare entry is e^κ, which is above 1 for some of the tokens.
With K entries per token, log8 would cut off up to P(K, 1) − K · P(K + 1, 1) of
the mass, where P is the regularized incomplete gamma function: .37 for K = 1,
.004 for 4, 1e-6 for 8. Fewer than 8 entries are therefore stored as float16,
which cuts off 8e-6 for K = 1.

The planes are then compressed by zstd. From the sources: targets are sampled
offline. The layout is our own.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
from typing import NamedTuple

import numpy as np
import zstandard

from kaiju_jax.distillation import config as config_lib

TOKENS = 1024
_LEVEL = 3
_STEPS_PER_OCTAVE = 12
# With at least this many entries, Gumbel's values are hardly ever above 1.
_LOG8_ENTRIES = 8
_LARGEST_FLOAT16 = 65_504.0
_HEADER = 4  # Bytes: the number of tokens.


@dataclasses.dataclass(frozen=True)
class Form:
  """The properties that all records of a store share."""

  vocab_size: int  # V, one more than the largest id.
  entries: int  # T, the most entries of a token.
  # How weights are coded, 'counts', 'log8' or 'float16'.
  coding: str = 'counts'
  largest: int = 255  # The largest count, where weights are counts.

  @property
  def id_bytes(self) -> int:
    return 2 if self.vocab_size <= 65_536 else 3

  @property
  def number(self) -> np.dtype:
    """The type of a token's number of entries."""
    return _smallest_unsigned(self.entries)

  @property
  def weight(self) -> np.dtype:
    """The type of a coded weight."""
    if self.coding == 'counts':
      return _smallest_unsigned(self.largest)
    return np.dtype('u1' if self.coding == 'log8' else '<f2')


def form_of(sampling: config_lib.Sampling, vocab_size: int) -> Form:
  """Returns the form for the entries that `sampling` draws from V ids."""
  coding = 'log8'
  if sampling.method in ('systematic', 'multinomial'):
    coding = 'counts'
  elif sampling.method == 'full':
    coding = 'float16'
  elif sampling.method == 'gumbel':
    most = sampling.k or sampling.entries
    coding = 'log8' if most >= _LOG8_ENTRIES else 'float16'
  largest = max(sampling.draws, sampling.entries)
  return Form(vocab_size, sampling.entries, coding, largest)


def _smallest_unsigned(largest: int) -> np.dtype:
  """Returns the smallest type that holds `largest`, little-endian."""
  return np.min_scalar_type(largest).newbyteorder('<')


class Targets(NamedTuple):
  """The sampled entries of n tokens; empty slots are 0 in both arrays."""

  ids_NT: np.ndarray  # Int [n, T], ids of the vocabulary, each once per token.
  weights_NT: np.ndarray  # [n, T], integer counts, or float values.


def encode(
  targets: Targets, form: Form, noise: int | Sequence[int] = 0
) -> bytes:
  """Returns a record.

  Args:
    targets: entries of at most `TOKENS` tokens; integer counts where
      `form.coding='counts'`, otherwise values.
    form: the store's.
    noise: the seed of log8's rounding; the same numbers give the same bytes.
  """
  return zstandard.compress(planes(targets, form, noise), _LEVEL)


def planes(
  targets: Targets, form: Form, noise: int | Sequence[int] = 0
) -> bytes:
  """Returns a record before its compression; arguments as for `encode`.

  Raises:
    ValueError: an id or a count that the form cannot hold.
  """
  ids_NT, weights_NT = targets
  if form.coding == 'counts':
    return _encode_counts(ids_NT, weights_NT, form)
  order_NT = np.argsort(
    np.where(weights_NT > 0, ids_NT, form.vocab_size), axis=1, kind='stable'
  )
  weights_NT = np.take_along_axis(weights_NT, order_NT, axis=1)
  ids_NT = np.take_along_axis(ids_NT, order_NT, axis=1)
  is_held_NT = weights_NT > 0
  values = weights_NT[is_held_NT]
  if form.coding == 'log8':
    values = _levels(values, noise)
  else:
    values = np.minimum(values, _LARGEST_FLOAT16)
  return b''.join(
    [
      len(ids_NT).to_bytes(_HEADER, 'little'),
      is_held_NT.sum(1).astype(form.number).tobytes(),
      _id_planes(ids_NT[is_held_NT], form),
      values.astype(form.weight).tobytes(),
    ]
  )


def decode(data: bytes, form: Form) -> Targets:
  """Returns the entries of a record: int32 ids and float32 values, [n, T].

  Counts are divided by their token's sum, as training reads them. Entries lie
  in the first slots of each token.

  Raises:
    ValueError: not a record of this form.
  """
  try:
    return _decode(inflate(data, _HEADER + TOKENS * _most(form)), form)
  except (zstandard.ZstdError, ValueError, IndexError) as error:
    raise ValueError(f'not a record of {form}: {error}') from error


def inflate(data: bytes, most: int) -> bytes:
  """Returns what was compressed, at most `most` bytes.

  Raises:
    ValueError: there are more.
    zstandard.ZstdError: it is not whole.
  """
  size = zstandard.frame_content_size(data)
  if size > most:
    raise ValueError(f'{size:,} bytes are compressed: at most {most:,}')
  return zstandard.decompress(data, most)


def _most(form: Form) -> int:
  """Returns the most bytes of a token."""
  entry = form.id_bytes + form.weight.itemsize
  return 2 * form.number.itemsize + form.entries * entry


def bytes_per_token(targets: Targets, form: Form) -> tuple[float, float]:
  """Returns the size on disk in bytes per token: (before zstd, after it).

  Args:
    targets: entries of any number of tokens, at least one.
    form: the store's.
  """
  before = after = 0
  for block in blocks(targets):
    raw = planes(block, form, 0)
    before += len(raw)
    after += len(zstandard.compress(raw, _LEVEL))
  count = len(targets.ids_NT)
  return before / count, after / count


def blocks(targets: Targets) -> Iterator[Targets]:
  """Yields the targets of each record in turn; the last may be shorter."""
  for first in range(0, len(targets.ids_NT), TOKENS):
    yield Targets(*(x[first : first + TOKENS] for x in targets))


def _encode_counts(
  ids_NT: np.ndarray, counts_NT: np.ndarray, form: Form
) -> bytes:
  if counts_NT.size and int(counts_NT.max()) > form.largest:
    raise ValueError(
      f'a count of {int(counts_NT.max())}: must be at most {form.largest}.'
    )
  # One sort orders everything: (whether it is single, id, count) in an integer.
  is_single_NT = counts_NT == 1
  keys_NT = is_single_NT.astype(np.int64) << 48
  keys_NT |= ids_NT.astype(np.int64) << 16
  keys_NT |= counts_NT.astype(np.int64)
  keys_NT[counts_NT == 0] = np.iinfo(np.int64).max
  keys_NT.sort(axis=1)
  number_N = (counts_NT > 0).sum(1)
  heads_N = (counts_NT > 1).sum(1)
  slot_T = np.arange(keys_NT.shape[1])
  keys = keys_NT[slot_T < number_N[:, None]]
  heads = keys_NT[slot_T < heads_N[:, None]]
  return b''.join(
    [
      len(ids_NT).to_bytes(_HEADER, 'little'),
      number_N.astype(form.number).tobytes(),
      heads_N.astype(form.number).tobytes(),
      _id_planes((keys >> 16) & 0xFFFF_FFFF, form),
      (heads & 0xFFFF).astype(form.weight).tobytes(),
    ]
  )


def _id_planes(ids: np.ndarray, form: Form) -> bytes:
  if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < form.vocab_size:
    raise ValueError(
      f'ids {int(ids.min())}…{int(ids.max())}: must lie in'
      f' 0…{form.vocab_size - 1}.'
    )
  bytes_of = ids.astype('<u4').view(np.uint8).reshape(-1, 4)
  return bytes_of[:, : form.id_bytes].T.tobytes()


def _decode(raw: bytes, form: Form) -> Targets:
  count = int.from_bytes(raw[:_HEADER], 'little')
  place = _HEADER

  def take(dtype: np.dtype, length: int) -> np.ndarray:
    nonlocal place
    array = np.frombuffer(raw, dtype, length, place)
    place += array.nbytes
    return array

  number_N = take(form.number, count)
  is_counted = form.coding == 'counts'
  heads_N = take(form.number, count) if is_counted else None
  total = int(number_N.sum(dtype=np.int64))
  id_bytes = np.zeros((total, 4), np.uint8)
  for place_of_byte in range(form.id_bytes):
    id_bytes[:, place_of_byte] = take(np.dtype('u1'), total)
  slot_T = np.arange(form.entries)
  is_held_NT = slot_T < number_N[:, None]
  ids_NT = np.zeros((count, form.entries), np.int32)
  ids_NT[is_held_NT] = id_bytes.view('<u4')[:, 0]
  values_NT = np.zeros((count, form.entries), np.float32)
  if is_counted:
    heads = int(heads_N.sum(dtype=np.int64))
    values_NT[is_held_NT] = 1
    values_NT[slot_T < heads_N[:, None]] = take(form.weight, heads)
    values_NT /= np.maximum(values_NT.sum(1, keepdims=True), 1)
  else:
    weights = take(form.weight, total)
    values_NT[is_held_NT] = (
      _LEVELS[weights] if form.coding == 'log8' else weights
    )
  if place != len(raw):
    raise ValueError(f'{len(raw) - place} bytes are left over')
  return Targets(ids_NT, values_NT)


_LEVELS = np.exp2(-np.arange(256) / _STEPS_PER_OCTAVE).astype(np.float32)


def _levels(values: np.ndarray, noise) -> np.ndarray:
  """Returns values as log8's bytes, rounded to a neighbour without bias."""
  exact = -_STEPS_PER_OCTAVE * np.log2(values.astype(np.float64))
  upper = np.clip(np.floor(exact), 0, 254).astype(np.int64)
  above, below = _LEVELS[upper], _LEVELS[upper + 1]
  chance = np.random.default_rng(noise).random(len(values))
  return upper + (chance < (above - values) / (above - below))
