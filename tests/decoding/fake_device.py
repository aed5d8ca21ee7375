"""A decoder without a model, so that an engine runs thousands of sequences.

The account of rows, pages and points is the decoder's own. Of the device there
is a hash of each row's text, and what is drawn follows from it alone: so each
text is known beforehand, however its sequence is run (`expected`).
"""

import functools
import types
import zlib

import numpy as np

from kaiju_jax.decoding import pages
from kaiju_jax.decoding import rows as rows_lib
from kaiju_jax.model import paging

VOCABULARY = 251


def pools(length, page, window, counts) -> dict[str, paging.Pool]:
  """Returns a global and a local pool; `counts` are their pages."""
  ring = -(-min(length, window + page - 2) // page)
  return {
    'global': paging.Pool((1,), None, page, -(-length // page), counts[0]),
    'local': paging.Pool((0,), window, page, ring, counts[1]),
  }


class Decoder:
  """Rows whose texts are hashes."""

  def __init__(self, pools, rows, length):
    self.config = types.SimpleNamespace(vocab_size=VOCABULARY)
    self.rows, self.length = rows, length
    self.account = rows_lib.Rows(pools, rows)
    self.lengths, self.hashes, self.opened = {}, {}, {}

  def open(self, length, text=None):
    opened = self.account.open(length, 0, text)
    row = opened.row
    self.lengths[row], self.opened[row] = opened.length, length
    held = () if text is None else text.tokens[: opened.length]
    self.hashes[row] = appended(0, held)
    return row

  def close(self, row):
    self.account.close(row)
    del self.lengths[row], self.hashes[row], self.opened[row]

  def length_of(self, row):
    return self.lengths[row]

  def append(self, tokens):
    """Appends tokens to rows' texts, by row."""
    ends = {row: self.lengths[row] + len(x) for row, x in tokens.items()}
    assert all(end <= self.opened[row] for row, end in ends.items())
    self.account.grow(ends).keep()
    for row, added in tokens.items():
      self.lengths[row] = ends[row]
      self.hashes[row] = appended(self.hashes[row], added)


class Rounds:
  """Stands for `compiled.Rounds`.

  Attributes:
    ran: tokens of prompts that ran, all in all.
    bad: of so many texts one draws nothing; None for none of them.
  """

  def __init__(self, decoder, chunk, bad=None):
    self.shapes = sorted({(1, 8), (1, chunk), (4, max(chunk // 4, 1))})
    self.ran, self.bad = 0, bad
    self._decoder, self._seeds, self._pending = decoder, {}, {}

  def join(self, row, sampling, text_L):
    assert appended(0, text_L) == self._decoder.hashes[row]
    self._seeds[row] = sampling.seed

  def prefill(self, chunks, shape):
    assert shape in self.shapes and len(chunks) <= shape[0]
    assert all(0 < len(chunk.tokens_L) <= shape[1] for chunk in chunks)
    self.ran += sum(len(chunk.tokens_L) for chunk in chunks)
    self._decoder.append({chunk.row: chunk.tokens_L for chunk in chunks})
    return self._drawn([chunk.row if chunk.draws else None for chunk in chunks])

  def step(self, rows):
    self._decoder.append({row: [self._pending[row]] for row in rows})
    return self._drawn(rows)

  def _drawn(self, rows):
    tokens = np.full((2, len(rows)), 7_777, np.int32)
    for place, row in enumerate(rows):
      if row is not None:
        token = drawn(self._decoder.hashes[row], self._seeds[row], self.bad)
        self._pending[row] = max(token, 0)
        tokens[:, place] = token, np.float32(-token).view(np.int32)
    return tokens


def appended(text: int, tokens) -> int:
  """Returns the hash of a text with these tokens behind it."""
  for token in tokens:
    text = zlib.crc32(b'%d' % token, text)
  return text


def drawn(text: int, seed: int, bad: int | None) -> int:
  """Returns the token that follows a text; −1 for none."""
  mixed = zlib.crc32(b'%d' % seed, text)
  if bad and not mixed % bad:
    return -1
  return mixed % VOCABULARY


def expected(request, bad=None) -> tuple[list[int], str]:
  """Returns what a request draws if nobody disturbs it, and why it ends."""
  return _expected(
    tuple(map(int, request.tokens)),
    request.max_tokens,
    request.sampling.seed,
    tuple(request.stop_tokens),
    bad,
  )


@functools.cache
def _expected(prompt, most, seed, stops, bad):
  text, tokens = appended(0, prompt), []
  while len(tokens) < most:
    token = drawn(text, seed, bad)
    if token < 0:
      return tokens, 'error'
    tokens.append(token)
    text = appended(text, [token])
    if token in stops:
      return tokens, 'stop_token'
  return tokens, 'length'


def is_empty(decoder) -> bool:
  """Drops all points; returns whether nothing is held any more."""
  tree = decoder.account.tree
  for point in list(tree.points()):
    tree.drop(point)
  held: pages.Pages = decoder.account.pages
  return (
    not decoder.account.open_rows
    and decoder.account.free == decoder.rows
    and all(held.held(kind) == 0 for kind in held.kinds)
  )
