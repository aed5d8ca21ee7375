"""Cuts a reply into its reasoning and its answer, by the tokens between them.

    <think> reasoning </think> answer

Where a token is says what it belongs to, never how its text reads, so that no
text can pass as reasoning or as answer. Text is cut after moderation let it
pass: both parts are judged and held back as one text.
"""

import collections
from collections.abc import Sequence
from typing import NamedTuple

from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.requests import stop


class _Change(NamedTuple):
  """A mark in the text: its characters, and whether reasoning follows."""

  begin: int
  end: int
  is_inside: bool


class Cut:
  """Cuts one reply."""

  def __init__(
    self,
    thought: chat.Thought,
    tokenizer: tokenizer_lib.Tokenizer,
    is_inside: bool,
    begun: Sequence[int] = (),
  ):
    """Begins before the first token.

    Args:
      thought: the tokens around the reasoning.
      is_inside: whether the reply begins within the reasoning.
      begun: the first tokens of the reply, which the prompt holds.
    """
    self._thought = thought
    self._tokenizer = tokenizer
    self._placed_inside = self._shown_inside = is_inside
    self._skips_token = False  # Spaces between a thought and its answer.
    self._skips_text = is_inside
    self._changes: collections.deque[_Change] = collections.deque()
    self._shown = self._before = 0  # Characters.
    self._spaces = ''
    characters = stop.Characters(tokenizer)
    for token in begun:
      text = characters.push(token)
      self.place(token, self._shown + len(text))
      self.split(text)
    self._before = self._shown

  def place(self, token: int, end: int) -> bool | None:
    """Notes the next token.

    Args:
      end: the characters of the drawn text up to and including it.

    Returns:
      Whether it belongs to the answer; None for spaces between the parts.
    """
    if token in self._thought:
      self._placed_inside = token == self._thought.begin
      self._skips_token = not self._placed_inside
      end += self._before
      size = len(self._tokenizer.decode([token]))
      self._changes.append(_Change(end - size, end, self._placed_inside))
      return False
    if self._placed_inside:
      return False
    if self._skips_token and not self._tokenizer.decode([token]).strip():
      return None
    self._skips_token = False
    return True

  def split(self, text: str) -> tuple[str, str]:
    """Returns the reasoning and the answer in the next released characters."""
    parts = {True: '', False: ''}
    while text:
      is_in_mark = False
      end = self._shown + len(text)
      if self._changes:
        change = self._changes[0]
        is_in_mark = change.begin <= self._shown
        end = min(end, change.end if is_in_mark else change.begin)
      piece, text = text[: end - self._shown], text[end - self._shown :]
      self._shown = end
      if not is_in_mark:
        parts[self._shown_inside] += self._clean(piece)
      elif end == change.end:
        self._changes.popleft()
        self._shown_inside, self._skips_text = change.is_inside, True
        self._spaces = ''
    return parts[True], parts[False]

  def _clean(self, piece: str) -> str:
    """Returns a piece without the spaces around the reasoning."""
    if self._skips_text:
      piece = piece.lstrip()
      self._skips_text = not piece
    if not self._shown_inside:
      return piece
    piece = self._spaces + piece
    kept = piece.rstrip()
    self._spaces = piece[len(kept) :]
    return kept
