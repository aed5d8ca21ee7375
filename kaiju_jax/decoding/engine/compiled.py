"""Jitted decode rounds of one decoder, plus each row's sampling state.

Prompts of any length run in calls of a few shapes, so that requests that join
and leave compile nothing.
"""

from collections.abc import Collection
from collections.abc import Sequence
from concurrent import futures
import functools
import operator
import threading
from typing import Any
from typing import NamedTuple

import jax
import numpy as np

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import interrupts
from kaiju_jax.decoding.device import judge as judge_lib
from kaiju_jax.decoding.device import layered
from kaiju_jax.decoding.engine import rounds
from kaiju_jax.decoding.requests import penalties
from kaiju_jax.decoding.requests import sampling as sampling_lib

_SMALLEST_CHUNK = 8
# Rows of a call that prefills several short prompts.
_ROWS = (4, 8)
# From so many rows on, a step may be narrower than the cache.
_LEAST_ROWS = 4
_NOTHING = np.zeros(0, np.int32)


class Chunk(NamedTuple):
  """The next int32 tokens of a row, maybe none; `draws` if the prompt ends."""

  row: int
  tokens_L: np.ndarray
  draws: bool = False


class _Program(NamedTuple):
  """A compiled call: 'step', 'prefill' or 'score', and its shape."""

  kind: str
  rows: int
  size: int = 1


class Prefilled(NamedTuple):
  """The results of a prefill."""

  # The tokens in the order of the chunks (`rounds._draw`); if none draws, an
  # array that is ready when the call is done.
  packed: jax.Array
  # The head's scores of each token, padding included; None without.
  judged_BLC: jax.Array | None = None
  # Of the first chunk's successors; None if not requested.
  scores: rounds.Scores | None = None


class Rounds:
  """The compiled calls of an engine, and the state of how its rows draw.

  Ctrl-C during a method raises after it. `warm` can put off all programs but
  two, the largest chunk of one prompt and the widest step, which serve any
  request; with `alternatives` not one that scores a prompt either. `shapes` and
  `widths` are those that are ready.

  Args:
    decoder: the model and its cache.
    chunk: most prompt tokens of a call.
    shares: whether several prompts may share a call, and a few sequences a step
      narrower than the cache: last bits depend on the shape of a call.
    judge: a token-level head that scores all tokens; None for none.
    alternatives: likeliest tokens that each draw and score comes with.
    tokenizer: finds DRY's breakers (`penalties.py`); None for none.
  """

  def __init__(
    self,
    decoder: decoder_lib.Decoder,
    chunk: int,
    shares: bool = True,
    judge: judge_lib.Judge | None = None,
    alternatives: int = 0,
    tokenizer: tokenizer_lib.Tokenizer | None = None,
  ):
    def size(part: int) -> int:
      return min(chunk, max(chunk // part, _SMALLEST_CHUNK))

    self._shapes = sorted(
      {(1, size(part)) for part in (16, 4, 1)}
      | {
        (rows, size(rows)) for rows in _ROWS if shares and rows <= decoder.rows
      }
    )
    self._widths = [decoder.rows]
    if shares and decoder.rows >= _LEAST_ROWS:
      powers = range((decoder.rows - 1).bit_length())
      self._widths = [*(2**x for x in powers), decoder.rows]
    self._decoder, self._tokenizer = decoder, tokenizer
    self._state = jax.device_put(
      rounds.initial(decoder.rows, decoder.config.vocab_size),
      decoder.cache.length_R.sharding,
    )
    network = decoder.network
    # Hidden states [B, 1, D] of the last token of each chunk of the latest
    # prefill, zeros beyond them; None before it.
    self.last_BLD: jax.Array | None = None
    self._head = None if judge is None else judge.params
    self._join = decoder.jit(rounds.join, donate_argnums=0)
    program = functools.partial(layered.choose, network, decoder.jit)
    self._has_alternatives = alternatives > 0

    def part(function, *given):
      return functools.partial(
        function, network, *given, alternatives=alternatives
      )

    self._step = program(
      rounds.step_text, part(rounds.end_step, judge), is_step=True
    )
    self._first = decoder.jit(part(rounds.first), donate_argnums=1)
    # Programs that are put off, in their order; and those compiled since.
    self._later: list[_Program] = []
    self._compiled: dict[_Program, Any] = {}
    self._compiling = threading.Lock()
    self._rows = max(rows for rows, _ in self._shapes)
    self._prefill = {
      is_scored: program(
        rounds.prefill_text,
        part(rounds.end_prefill, judge, self._rows, is_scored),
      )
      for is_scored in (False, True)
    }

  def join(
    self,
    row: int,
    sampling: sampling_lib.Sampling,
    text_L: np.ndarray,
    prompt: int,
  ) -> None:
    """Sets how a row draws, and the text that it will hold when it does.

    The first `prompt` tokens of the text are the prompt's.
    """
    breakers = _NOTHING
    if sampling.dry_multiplier:
      strings = sampling.dry_sequence_breakers
      breakers = penalties.find_breakers(self._tokenizer, strings)
    if not sampling.penalizes:
      text_L = _NOTHING
    vocab_size = self._decoder.config.vocab_size
    text = penalties.read(text_L, prompt, breakers, vocab_size)
    with interrupts.delay():
      self._state = self._join(
        self._state, np.int32(row), sampling_lib.settings([sampling]), text
      )

  def prefill(
    self, chunks: Sequence[Chunk], shape: tuple[int, int]
  ) -> Prefilled:
    """Appends chunks to texts, in a call of `shape`; draws where one ends."""
    return self._run(chunks, shape, _NOTHING, False)

  def score(self, chunk: Chunk, next_L: np.ndarray) -> Prefilled:
    """Appends a chunk of at most `scored` tokens, and scores their successors.

    It returns what `prefill` does, and scores of `next_L`, int32, the chunk's
    next.
    """
    sizes = (size for rows, size in self._shapes if rows == 1)
    size = min(x for x in sizes if x >= len(chunk.tokens_L))
    program = _Program('score', 1, size)
    with self._compiling:
      if program in self._later:  # No size is ready: this one cannot wait.
        self._compile([program])
    return self._run([chunk], (1, size), next_L, True)

  def step(self, rows: Sequence[int]) -> jax.Array:
    """Draws the next token of each of these rows (`rounds.end_step`).

    Entries behind those of the rows mean nothing. With a head, its scores are
    of the tokens drawn before.
    """
    width = min(x for x in self.widths if x >= len(rows))
    return self._step_of(rows, width)

  def _step_of(self, rows: Sequence[int], width: int) -> jax.Array:
    count_B = np.zeros(width, np.int32)
    count_B[: len(rows)] = 1
    with interrupts.delay():
      self._state, packed = self._decoder.run(
        self._compiled.get(_Program('step', width), self._step),
        self._state,
        np.array(self._rows_of(rows, width), np.int32),
        count_B,
        self._head,
        appends=dict.fromkeys(rows, 1),
      )
    return packed

  def warm(
    self,
    lengths: Sequence[int] | None = None,
    scores: bool = False,
    puts_off: bool = False,
  ) -> None:
    """Compiles what sequences will run; pages.Full if no row is free.

    `lengths` are as `Engine.warm`'s `prompts`; `scores` compiles for scored
    prompts too; `puts_off` leaves to `compile_next` what is not needed to
    begin.
    """
    self._decoder.warm()
    shapes = set(self._shapes)
    if lengths is not None:
      # Counts of whole chunks, and of the rest behind them.
      counts = {min(x, self.chunk) for x in lengths}
      counts |= {x % self.chunk or self.chunk for x in lengths}
      shapes = {self.shape_of(count) for count in counts}
    programs = [
      *(_Program('step', width) for width in self._widths),
      *(_Program('prefill', *shape) for shape in sorted(shapes)),
    ]
    if scores:
      sizes = [size for rows, size in self._shapes if rows == 1]
      programs += [_Program('score', 1, size) for size in sizes]
    if puts_off:
      now = {
        _Program('step', max(self._widths)),
        _Program('prefill', 1, self.chunk),
      }
      if scores and self._has_alternatives:
        now.add(_Program('score', *self._shapes[0]))
      self._later = [x for x in programs if x not in {*now, *self._compiled}]
      programs = [x for x in programs if x in now]
      self._compile({*programs} - {*self._compiled})
    for program in programs:
      if program.kind == 'step':
        self._step_of((), program.rows)
      else:
        shape = program.rows, program.size
        self._run([], shape, _NOTHING, program.kind == 'score')
    self._draw([])
    row = self._decoder.open(1)
    try:
      self.join(row, sampling_lib.Sampling(), _NOTHING, 0)
    finally:
      self._decoder.close(row)

  @property
  def shapes(self) -> list[tuple[int, int]]:
    """(rows, tokens of each) of a prefill's calls that are ready, ascending.

    One row takes a sixteenth of `chunk`, a quarter or the whole, but not below
    8 tokens unless `chunk` is; four and eight rows share a chunk.
    """
    return self._list_ready('prefill', self._shapes)

  @property
  def widths(self) -> list[int]:
    """Rows of a step that are ready: powers of two, and all of the cache's."""
    steps = [(width, 1) for width in self._widths]
    return [width for width, _ in self._list_ready('step', steps)]

  @property
  def scored(self) -> int:
    """Most tokens of a chunk whose successors are scored."""
    alone = [shape for shape in self._shapes if shape[0] == 1]
    ready = self._list_ready('score', alone) or alone[:1]
    return max(size for _, size in ready)

  @property
  def waiting(self) -> int:
    """The number of compilations that are put off."""
    return len(self._later)

  def compile_next(self) -> None:
    """Compiles a program that was put off, beside other threads' calls."""
    with self._compiling:
      if self._later:
        self._compile(self._later[:1])

  def _list_ready(
    self, kind: str, shapes: Sequence[tuple[int, int]]
  ) -> list[tuple[int, int]]:
    """Returns the shapes of which the program is not put off."""
    later = self._later  # Another thread replaces the list as a whole.
    return [shape for shape in shapes if _Program(kind, *shape) not in later]

  def _compile(self, programs: Collection[_Program]) -> None:
    """Compiles programs side by side: XLA takes a core for each."""
    lowered = [self._lower(program) for program in programs]
    with futures.ThreadPoolExecutor(max(len(lowered), 1)) as pool:
      compiled = pool.map(operator.methodcaller('compile'), lowered)
      self._compiled.update(zip(programs, compiled))
    self._later = [x for x in self._later if x not in self._compiled]

  def _lower(self, program: _Program) -> Any:
    decoder, rows = self._decoder, program.rows
    one = np.zeros(rows, np.int32)
    if program.kind == 'step':
      function, given = self._step, (one, one)
    else:
      function = self._prefill[program.kind == 'score']
      many = np.zeros((rows, program.size), np.int32)
      given = (rounds.Chunks(one, many, many, one),)
    held = decoder.params, decoder.cache, decoder.account.rings(), self._state
    arguments = (*held, *given, self._head)
    return function.lower(*jax.tree.map(_shape_of, arguments))

  def shape_of(self, count: int) -> tuple[int, int]:
    """Returns the smallest ready shape of one row that takes so many tokens."""
    return min(x for x in self.shapes if x[0] == 1 and x[1] >= count)

  @property
  def chunk(self) -> int:
    """Most tokens of a call."""
    return max(size for rows, size in self._shapes if rows == 1)

  def _run(self, chunks, shape, next_L, is_scored: bool) -> Prefilled:
    B, L = shape
    filled = self._fill(chunks, B)
    tokens_BL = np.zeros((B, L), np.int32)
    for b, (_, tokens_L, _) in enumerate(filled):
      count = len(tokens_L)
      # Padding repeats a token of the text, so that it brings no NaN that the
      # text does not have.
      tokens_BL[b] = tokens_L[0] if count else 0
      tokens_BL[b, :count] = tokens_L
    next_BL = np.zeros((B, L), np.int32)
    next_BL[0, : len(next_L)] = next_L
    counts = {row: len(tokens_L) for row, tokens_L, _ in filled}
    packed = rounds.Chunks(
      np.array(list(counts), np.int32),
      tokens_BL,
      next_BL,
      np.array(list(counts.values()), np.int32),
    )
    appends = {row: count for row, count in counts.items() if count}
    with interrupts.delay():
      program = _Program('score' if is_scored else 'prefill', B, L)
      function = self._compiled.get(program, self._prefill[is_scored])
      self._state, *ran = self._decoder.run(
        function, self._state, packed, self._head, appends=appends
      )
    self.last_BLD, scores, judged_BLC = ran
    draws = any(chunk.draws for chunk in chunks)
    drawn = self._draw(chunks) if draws else self.last_BLD
    return Prefilled(drawn, judged_BLC, scores)

  def _draw(self, chunks: Sequence[Chunk]) -> jax.Array:
    """Draws the tokens that follow prompts; no row draws where none is said."""
    decoder = self._decoder
    filled = self._fill(chunks, self._rows)
    with interrupts.delay():
      self._state, packed = self._first(
        decoder.params,
        self._state,
        np.array([row for row, *_ in filled], np.int32),
        np.array([decoder.length_of(row) for row, *_ in filled], np.int32),
        np.array([draws for *_, draws in filled]),
        self.last_BLD,
      )
    return packed

  def _fill(self, chunks: Sequence[Chunk], count: int) -> list[Chunk]:
    """Returns chunks, and beyond them empty ones of other rows."""
    rows = self._rows_of([chunk.row for chunk in chunks], count)
    return [*chunks, *(Chunk(row, _NOTHING) for row in rows[len(chunks) :])]

  def _rows_of(self, rows: Sequence[int], count: int) -> list[int]:
    """Returns `count` rows of a call: these, and others to leave alone."""
    given = set(rows)
    others = (x for x in range(self._decoder.rows) if x not in given)
    return [*rows, *others][:count]


def _shape_of(x: Any) -> jax.ShapeDtypeStruct:
  """Returns an array's shape, dtype and sharding, for a compilation."""
  sharding = x.sharding if isinstance(x, jax.Array) else None
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
