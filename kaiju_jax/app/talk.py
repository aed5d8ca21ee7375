"""Chats and continues text at a terminal."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import signal
import threading
import time
from typing import TextIO

import numpy as np

from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling as sampling_lib


@dataclasses.dataclass(frozen=True)
class Manner:
  """The settings of all answers."""

  max_tokens: int  # Of an answer, at most.
  # Of the first answer; each further one has the next seed.
  sampling: sampling_lib.Sampling
  # What ends an answer.
  stop_strings: Sequence[str] = ()
  stop_tokens: Sequence[int] = ()

  def request(
    self, tokens_L: np.ndarray, index: int, room: int | None = None
  ) -> request_lib.Request:
    """Returns the request of prompt or turn `index`, from 0.

    `room` tokens fit in the row after it; None for no limit.
    """
    seed = (self.sampling.seed + index) % 2**32
    count = self.max_tokens if room is None else min(self.max_tokens, room)
    return request_lib.Request(
      tokens_L,
      count,
      dataclasses.replace(self.sampling, seed=seed),
      stop_tokens=self.stop_tokens,
      stop_strings=self.stop_strings,
    )


class Pace:
  """A stopwatch of tokens, over all streams that it `times`."""

  def __init__(self, clock: Callable[[], float] = time.monotonic):
    self._clock = clock
    self._started = clock()
    self._first: float | None = None
    self._last = self._started
    self._later = 0
    self.tokens: int = 0

  def times(
    self, events: Iterable[request_lib.Event]
  ) -> Iterator[request_lib.Event]:
    """Passes events on, noting each one's time."""
    for event in events:
      self._last = self._clock()
      self.tokens += 1
      if self._first is None:
        self._first = self._last
      else:
        self._later += 1
      yield event

  def __str__(self) -> str:
    """Returns counts and times; the rate leaves out the first token."""
    if self._first is None:
      return 'no tokens'
    words = [
      f'{self.tokens:,} tokens',
      f'the first after {self._first - self._started:.3f} s',
    ]
    seconds = self._last - self._first
    if self._later and seconds > 0:
      words.append(f'then {self._later / seconds:,.1f} tokens/s')
    return ', '.join(words)


def open_document(tokenizer: tokenizer_lib.Tokenizer, text: str) -> np.ndarray:
  """Returns the tokens of a text at the beginning of a document."""
  return np.concatenate([[tokenizer.bos_id], tokenizer.encode(text)])


def write_line(
  tokenizer: tokenizer_lib.Tokenizer, line: str, before_L: np.ndarray
) -> np.ndarray:
  """Returns the tokens of a line of text behind others, int32 [L]."""
  line += '\n'
  if len(before_L):
    return tokenizer.encode(line)
  return open_document(tokenizer, line)


def write_message(
  format: chat.Format, line: str, before_L: np.ndarray
) -> np.ndarray:
  """Returns a user's message behind a chat and a reply's opening, int32 [L]."""
  if not len(before_L):
    return format.prompt([('user', line)])
  after = format.advance('assistant', format.advance('user'))
  closing_L = format.behind[after].closing_L
  # The model draws the token that ends its reply, unless it is cut short.
  closing_L = closing_L[np.isin(before_L[-1], closing_L[:1]).sum() :]
  message_L = format.message('user', line, after)
  opening_L = format.opening('assistant', format.advance('user', after))
  return np.concatenate([closing_L, message_L, opening_L])


def answer(
  generator: generator_lib.Generator,
  requests: Sequence[request_lib.Request],
  out: TextIO,
  pace: Pace,
) -> None:
  """Writes the prompts' continuations, in order, as they are generated.

  Raises:
    BadLogits: the first such error, after all answers are written.
  """
  if len(requests) == 1:
    with generator.stream(requests[0]) as stream:
      _write(pace.times(stream), out)
    return
  streams = [generator.stream(one) for one in requests]
  error = None
  try:
    for index, stream in enumerate(streams):
      out.write(f'── {index} ──\n')
      try:
        _write(pace.times(stream), out)
      except request_lib.BadLogits as bad:
        error = error or bad
  finally:
    for stream in streams:
      stream.close()
  if error is not None:
    raise error


def converse(
  generator: generator_lib.Generator,
  write: Callable[[str, np.ndarray], np.ndarray],
  manner: Manner,
  read: Callable[[], str],
  out: TextIO,
  notes: TextIO,
) -> None:
  """Answers line after line; earlier turns stay in the cache.

  Ctrl-C ends an answer, whose tokens so far stay. If the history leaves no room
  for a line, it begins anew.

  Args:
    generator: a generator with a free row.
    write: returns the tokens of a line behind others.
    manner: the settings of the answers.
    read: returns a line without its end; EOFError ends the conversation.
    out: takes the answers.
    notes: takes the figures of each turn.
  """
  conversation = generator.converse()
  whole = conversation.left
  turn = 0
  try:
    while True:
      try:
        line = read()
      except EOFError:
        return
      held = whole - conversation.left
      tokens_L = write(line, conversation.tokens)
      if held and len(tokens_L) >= conversation.left:
        notes.write(f'[{held:,} tokens of history: full, begun anew]\n')
        conversation.close()
        conversation = generator.converse()
        tokens_L = write(line, conversation.tokens)
        held = 0
      room = conversation.left - len(tokens_L)
      if room < 1:
        notes.write(
          f'[{len(tokens_L):,} tokens, and the cache holds {whole:,}: say less]'
          '\n'
        )
        continue
      _turn(
        conversation, manner.request(tokens_L, turn, room), held, out, notes
      )
      turn += 1
  finally:
    conversation.close()


def _turn(conversation, request, held: int, out: TextIO, notes: TextIO) -> None:
  pace = Pace()
  with conversation.stream(request) as stream, _stoppable() as interrupts:
    try:
      _write(pace.times(stream), out, interrupts)
    except request_lib.BadLogits as error:
      notes.write(f'[{error}]\n')
  notes.write(
    f'[{len(request.tokens):,} tokens after {held:,} in the cache; {pace}]\n'
  )


@contextlib.contextmanager
def _stoppable() -> Iterator[list[int]]:
  """Yields a list that the first Ctrl-C fills; a second one raises as usual."""
  interrupts = []
  if threading.current_thread() is not threading.main_thread():
    yield interrupts  # Python handles no signals here.
    return
  former = signal.getsignal(signal.SIGINT)

  def ask(number, _):
    interrupts.append(number)
    signal.signal(signal.SIGINT, former)

  signal.signal(signal.SIGINT, ask)
  try:
    yield interrupts
  finally:
    signal.signal(signal.SIGINT, former)


def _write(
  events: Iterable[request_lib.Event],
  out: TextIO,
  interrupts: Sequence[int] = (),
) -> None:
  """Writes events' text until they end or `interrupts` is not empty."""
  for event in events:
    out.write(event.text)
    out.flush()
    if interrupts:
      break
  out.write('\n')
