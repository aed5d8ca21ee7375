"""Computes a model's hidden states of texts placed as in a server's prompts.

A text is placed as a user's message or as a reply:

    prompt   bos (system character end) user text end assistant    all is judged
    reply    bos (system character end) assistant text    judged: the text

The token-level head reads the hidden states of the judged tokens. A reply's
stop token is not judged (`decoding/engine/sequence.py`). They are computed as a
server computes them, by a decoder: in the codes that it serves, with keys and
values in its cache, and what many texts begin with once.

Our guess: a text follows one of the built-in characters, or none, by its
digest. A head that was trained on texts alone would take the unknown characters
for violations. In a server, texts follow other turns as well.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import hashlib
import itertools
from typing import NamedTuple

import numpy as np

from kaiju_jax.characters.cards import builtin
from kaiju_jax.characters.prompts import prompt
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.runs import defaults
from kaiju_jax.runs import load
from kaiju_jax.runs import play

ROLES = 'prompt', 'reply'
# Tokens of the cache, of its shortest row, and that a row reads at a time.
_TOKENS, _SHORTEST, _CHUNK = 16384, 256, 16


class PlacedText(NamedTuple):
  """A text placed as a prompt or a reply."""

  tokens: np.ndarray  # int32 [L], with the tokens around the text.
  first: int  # The index of the first judged token; all later ones are judged.
  shared: int = 0  # How many of its first tokens other texts begin with, too.


class Reader:
  """A model that reads placed texts, and compiles once per length of rows."""

  def __init__(self, loaded: load.Loaded, tensor: int = 1):
    """Loads the tokenizer and prepares the characters' prefixes.

    Args:
      loaded: the model, in the form that is served.
      tensor: devices that share it.

    Raises:
      OSError, ValueError: the tokenizer is missing, or lacks a chat template.
    """
    self.d_model: int = loaded.config.d_model
    self.origin: str = loaded.origin
    self._most = loaded.config.max_length
    tokenizer = tokenizer_lib.load(loaded.tokenizer, loaded.config.vocab_size)
    written = defaults.read(loaded, tokenizer).format
    if written is None:
      raise ValueError(f'{loaded.origin}: has no chat template to place texts.')
    self._format = written
    prefixes = [
      prompt.prefix(fields, self._format) for fields in builtin.CHARACTERS
    ]
    # A server publishes the same ones (`app/serve.py`).
    self._heads = [
      prompt.open_prefix(self._format),
      *(one_L for one_L in prefixes if len(one_L) <= self._most // 2),
    ]
    self._loaded, self._tensor = loaded, tensor
    self._decoder: decoder_lib.Decoder | None = None

  def place(self, text: str, role: str) -> PlacedText:
    """Returns a text placed in a role, one of `ROLES`.

    Raises:
      ValueError: the placed text is longer than the model's rows, or holds a
        surrogate.
    """
    digest = hashlib.sha256(text.encode(errors='replace')).digest()
    which = int.from_bytes(digest[:8], 'big') % len(self._heads)
    head_L = self._heads[which]
    after = self._format.advance('system') if which else ''
    if role == 'prompt':
      message_L = self._format.message('user', text, after)
      opening_L = self._format.opening(
        'assistant', self._format.advance('user', after, text)
      )
      tokens_L = np.concatenate([head_L, message_L, opening_L])
      said = PlacedText(tokens_L, 0, len(head_L))
    else:
      opening_L = self._format.opening('assistant', after)
      message_L = self._format.message('assistant', text, after)
      # Text encodes to no special token, so the first stop token ends it.
      is_stop_L = np.isin(message_L, self._format.stop_tokens)
      is_stop_L[: len(opening_L)] = False
      message_L = message_L[
        : np.append(np.flatnonzero(is_stop_L), len(is_stop_L))[0]
      ]
      first = len(head_L) + len(opening_L)
      tokens_L = np.concatenate([head_L, message_L])
      said = PlacedText(tokens_L, first, len(head_L))
    if len(said.tokens) > self._most:
      raise ValueError(
        f'the text {text[:40]!r}… has {len(said.tokens):,} tokens as a {role}:'
        f' the model takes {self._most:,}; split it, or leave it out.'
      )
    return said

  def states(self, said: Sequence[PlacedText]) -> Iterator[np.ndarray]:
    """Yields float32 [T, D], the hidden states of each text's judged tokens."""
    longest = max((len(one.tokens) for one in said), default=0)
    if self._decoder is None or self._decoder.length < longest:
      self._decoder = self._make(longest)
    begins = [one.tokens[: one.shared] for one in said]
    alone = {x.tobytes(): PlacedText(x, 0) for x in begins if len(x)}
    known = dict(zip(alone, self._read([*alone.values()], recorded=True)))
    known[b''] = np.zeros((0, self.d_model), np.float32)
    for one, begin_L, own_TD in zip(said, begins, self._read(said)):
      begin_TD = known[begin_L.tobytes()]
      yield np.concatenate([begin_TD, own_TD])[one.first :]

  def _make(self, longest: int) -> decoder_lib.Decoder:
    """Returns a decoder of rows that hold `longest` tokens."""
    length = _SHORTEST
    while length < longest:
      length *= 2
    length = min(length, self._most)
    return play.decoder(
      self._loaded,
      None,
      rows=max(1, _TOKENS // length),
      length=length,
      page_counts={},
      tensor=self._tensor,
    )

  def _read(
    self, said: Sequence[PlacedText], recorded: bool = False
  ) -> Iterator[np.ndarray]:
    """Yields float32 [T, D] of each text's tokens from `shared` on.

    If `recorded`, texts that begin with one of them do not read it again.
    """
    decoder, waiting = self._decoder, iter(enumerate(said))
    # By number, the states of a text so far; by open row, its number.
    states: dict[int, list[np.ndarray]] = {}
    numbers: dict[int, int] = {}
    try:
      for number in range(len(said)):
        while number not in states or number in numbers.values():
          free = decoder.rows - len(numbers)
          for opened, text in itertools.islice(waiting, free):
            own = prefix_tree.Text(text.tokens, text.shared, b'own')
            row = decoder.open(len(text.tokens), text=None if recorded else own)
            numbers[row], states[opened] = opened, []
          self._advance(said, states, numbers)
          for row in [x for x in numbers if not decoder.room_of(x)]:
            tokens_L = said[numbers.pop(row)].tokens
            if recorded:
              decoder.record(row, prefix_tree.Text(tokens_L, len(tokens_L)))
            decoder.close(row)
        yield np.concatenate(states.pop(number))
    finally:
      for row in numbers:
        decoder.close(row)

  def _advance(self, said, states, numbers) -> None:
    """Reads the next tokens of the texts in open rows."""
    decoder = self._decoder
    # A call has as many rows each time, so that it compiles once.
    idle = [decoder.open(1) for _ in range(decoder.rows - len(numbers))]
    tokens_BL = np.zeros((decoder.rows, _CHUNK), np.int32)
    count_B = np.zeros(decoder.rows, np.int32)
    kept = []
    for b, (row, number) in enumerate(numbers.items()):
      text, begin = said[number], decoder.length_of(row)
      chunk_L = text.tokens[begin : begin + _CHUNK]
      tokens_BL[b, : len(chunk_L)], count_B[b] = chunk_L, len(chunk_L)
      kept.append((number, slice(max(0, text.shared - begin), len(chunk_L))))
    hidden_BLD = decoder.extend_text([*numbers, *idle], tokens_BL, count_B)
    hidden_BLD = np.asarray(hidden_BLD, np.float32)
    for hidden_LD, (number, which) in zip(hidden_BLD, kept):
      states[number].append(hidden_LD[which].copy())
    for row in idle:
      decoder.close(row)
