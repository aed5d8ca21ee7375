"""A decoder without a model, so that an engine runs thousands of sequences.

The account of rows, pages and points is the decoder's own. Of the device there
is a hash of each row's text, and what is drawn follows from it alone: so each
text is known beforehand, however its sequence is run (`expected`).
"""

import dataclasses
import functools
import types
import zlib

import numpy as np

from kaiju_jax.decoding.beam import paths as beam_paths
from kaiju_jax.decoding.engine import compiled
from kaiju_jax.decoding.engine import rounds as rounds_lib
from kaiju_jax.decoding.pages import pages
from kaiju_jax.decoding.pages import rows as rows_lib
from kaiju_jax.decoding.requests import alternatives as alternatives_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import paging

VOCABULARY = 251
CLASSES = 2


def pools(length, page, window, counts, sinks=0) -> dict[str, paging.Pool]:
  """Returns a global and a local pool; `counts` are their pages.

  With sinks, layers of half the window have them, and a pool of their own.
  """
  layout = f'L0:{window // 2}+{sinks} L1 G2' if sinks else 'L0 G1'
  stack = layers_lib.parse(layout, window)
  kinds = paging.pools(stack, 1, length, page=page)
  return {
    kind: dataclasses.replace(pool, pages=counts[pool.window is not None])
    for kind, pool in kinds.items()
  }


class Decoder:
  """Rows whose texts are hashes."""

  def __init__(self, pools, rows, length, extra=0):
    self.config = types.SimpleNamespace(vocab_size=VOCABULARY)
    self.tokens = VOCABULARY
    self.replaced = 0
    self.rows, self.length, self.pools = rows, length, pools
    self.network, self.extra = types.SimpleNamespace(pools=pools), extra
    self.account = rows_lib.Rows(pools, rows)
    self.lengths, self.hashes, self.opened = {}, {}, {}

  def open(self, length, extra=0, text=None):
    opened = self.account.open(length, extra, text)
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
    is_judged: whether there is a head, of the dimensions of `scores`.
    alternatives: as many of `likeliest` come with each token.
  """

  def __init__(self, decoder, chunk, bad=None, is_judged=False):
    self.alternatives = 0
    self.shapes = sorted({(1, 8), (1, chunk), (4, max(chunk // 4, 1))})
    self.last_BLD = None
    self.scored, self.waiting = chunk, 0
    self.ran, self.bad, self.is_judged = 0, bad, is_judged
    self._decoder, self._seeds, self._pending = decoder, {}, {}

  def join(self, row, sampling, text_L, prompt):
    held_L = text_L[: self._decoder.length_of(row)]
    assert appended(0, held_L) == self._decoder.hashes[row]
    self._seeds[row] = sampling.seed

  def prefill(self, chunks, shape):
    assert shape in self.shapes and len(chunks) <= shape[0]
    assert all(0 < len(chunk.tokens_L) <= shape[1] for chunk in chunks)
    self.ran += sum(len(chunk.tokens_L) for chunk in chunks)
    judged_BLC = np.full((*shape, CLASSES), np.nan, np.float32)
    for place, chunk in enumerate(chunks):
      text = self._decoder.hashes[chunk.row]
      for at, token in enumerate(chunk.tokens_L):
        text = appended(text, [token])
        judged_BLC[place, at] = scores(text)
    self._decoder.append({chunk.row: chunk.tokens_L for chunk in chunks})
    rows = [chunk.row if chunk.draws else None for chunk in chunks]
    return compiled.Prefilled(
      self._drawn(rows), judged_BLC if self.is_judged else None
    )

  def score(self, chunk, next_L):
    size = len(chunk.tokens_L)
    shape = min(x for x in self.shapes if x[0] == 1 and x[1] >= size)
    scores = rounds_lib.Scores(-next_L.astype(np.float32), next_L == 0)
    if self.alternatives:
      found = likeliest_of(next_L, self.alternatives)
      scores = scores._replace(alternatives=found)
    return self.prefill([chunk], shape)._replace(scores=scores)

  def step(self, rows):
    self._decoder.append({row: [self._pending[row]] for row in rows})
    packed = self._drawn(rows)
    if not self.is_judged:
      return packed
    score_BC = np.array([scores(self._decoder.hashes[row]) for row in rows])
    score_CB = score_BC.astype(np.float32).view(np.int32).T
    return np.concatenate([packed, score_CB])

  def _drawn(self, rows):
    count = 2 + 2 * self.alternatives
    tokens = np.full((count, len(rows)), 7_777, np.int32)
    for place, row in enumerate(rows):
      if row is not None:
        token = drawn(self._decoder.hashes[row], self._seeds[row], self.bad)
        self._pending[row] = max(token, 0)
        tokens[:2, place] = token, np.float32(-token).view(np.int32)
        tokens[2:, place] = likeliest(token, self.alternatives)
    return tokens


class Searches:
  """Stands for `searches.Searches`: finds what would be drawn, in a few steps.

  A search owns its rings and leaves the pages of the window, as real ones do.
  """

  STEPS = 3

  def __init__(self, decoder, bad=None, is_judged=False, is_recorded=True):
    self._decoder, self._bad = decoder, bad
    self._is_judged, self._is_recorded = is_judged, is_recorded

  def check(self, request, name):
    pass

  def begin(self, one, hidden_BLD, place):
    assert self._decoder.length_of(one.row) == one.prompt
    one.search = types.SimpleNamespace(step=0, read=0)

  def dispatch(self, one):
    if not one.search.step:
      # Never fails: it is set aside.
      self._decoder.account.copy_on_write(one.row)
    one.search.step += 1

  def finish_step(self, one):
    if one.search.read == one.search.step:
      return None
    one.search.read = one.search.step
    if one.search.step < self.STEPS:
      return None
    tokens, reason = expected(one.request, self._bad)
    if reason == 'error':
      one.error = request_lib.BadLogits('no numbers')
      return reason
    # A search gives out all or nothing.
    text, found = appended(0, one.request.tokens), []
    for token in tokens:
      text = appended(text, [token])
      found.append(np.float32(scores(text)))
    beam = beam_paths.Beam(
      tuple(tokens),
      tuple(-float(token) for token in tokens),
      0.0,
      reason == 'stop_token',
      tuple(found) if self._is_judged else (),
    )
    assert one.update(beam) == reason
    if self._is_recorded:
      self._adopt(one, tokens)
      one.search = None
    return reason

  def _adopt(self, one, tokens):
    decoder, row = self._decoder, one.row
    account, length = decoder.account, decoder.lengths[row] + len(tokens)
    firsts, held = account.firsts(row), {}
    for kind, pool in decoder.pools.items():
      firsts[kind] += pool.turns(firsts[kind], length) * pool.page
      lowest = 0 if pool.window is None else max(0, length - pool.window + 1)
      held[kind] = lowest // pool.page * pool.page
    account.settle(row, firsts, held)
    decoder.lengths[row] = length
    decoder.hashes[row] = appended(decoder.hashes[row], tokens)


def appended(text: int, tokens) -> int:
  """Returns the hash of a text with these tokens behind it."""
  for token in tokens:
    text = zlib.crc32(b'%d' % token, text)
  return text


def scores(text: int) -> tuple[float, ...]:
  """Returns what a head gives a text."""
  return tuple(
    float(np.float32(zlib.crc32(b'%d' % number, text) / 2**32))
    for number in range(CLASSES)
  )


def likeliest(token: int, count: int) -> np.ndarray:
  """Returns alternatives to a token as `rounds` packs them, int32 [2 · count].

  The token is the first of them if it is even; otherwise it is none.
  """
  places = np.arange(count) + token % 2
  tokens = ((token + places) % VOCABULARY).astype(np.int32)
  own = (-token + 0.5 * (token % 2) - np.arange(count)).astype(np.float32)
  return np.concatenate([tokens, own.view(np.int32)])


def likeliest_of(tokens_L: np.ndarray, count: int):
  """Returns alternatives to tokens, as `inflight.unpack_alternatives` does."""
  found = [likeliest(token, count) for token in tokens_L.tolist()]
  found_LN = np.array(found, np.int32).reshape(-1, 2 * count)
  own_LN = found_LN[:, count:].copy().view(np.float32)
  return alternatives_lib.Alternatives(found_LN[:, :count], own_LN)


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
    and all(held.count_held(kind) == 0 for kind in held.kinds)
  )
