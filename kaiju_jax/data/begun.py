"""Tokens of a reply that has begun, for a model to continue.

    prompt  |  opening  text so far
            └───── begin ─────────┘   no end of the message behind it

A text that the model drew keeps the tokens that it drew, and so its place in
the cache. Any other is encoded as in the history, as a text that ends here: the
model continues behind its last token, however a longer text would be encoded.
A template that strips the ends of texts leaves spaces at this end, because what
follows is written behind them.

Our guess: the sources do not say how a reply is continued.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import chat


class Begun(NamedTuple):
  """The beginning of a reply."""

  tokens: np.ndarray  # Of the opening and the text, int32 [L].
  count: int  # How many of them are the text's.
  # The tokens to keep for the text, before those that will be drawn; None where
  # the first ones belong to the opening, too.
  kept: tuple[int, ...] | None


def begin(
  format: chat.Format,
  text: str,
  tokens: Sequence[int] | None,
  after: str = '',
) -> Begun:
  """Returns the beginning of a reply.

  Args:
    format: the chat format.
    text: the text of the answer so far, without its reasoning.
    tokens: the tokens that the model drew for it, with its reasoning; None for
      a text that no model drew.
    after: the place behind which the reply stands; see `chat.Format`.

  Raises:
    TypeError, ValueError: see `chat.strip`.
  """
  opening_L = format.opening('assistant', after)
  if tokens is None:
    begun_L = _encode(format, text, after)
    is_apart = np.array_equal(begun_L[: len(opening_L)], opening_L)
    text_L = begun_L[len(opening_L) :] if is_apart else begun_L
    kept = tuple(text_L.tolist()) if is_apart else None
  else:
    kept_L = _without_structure(format, np.asarray(tokens, np.int32))
    text_L = _behind(format, opening_L, kept_L)
    begun_L, kept = np.concatenate([opening_L, text_L]), tuple(kept_L.tolist())
  return Begun(begun_L, len(text_L), kept)


def _encode(format: chat.Format, text: str, after: str) -> np.ndarray:
  """Returns the opening and the text, as the history has them."""
  step = format.steps[after, 'assistant']
  text = chat.strip(text)
  clean = step.clean(text)
  clean += text[len(text.rstrip()) :][len(clean) - len(clean.rstrip()) :]
  opening_L = step.before_L
  lead = step.lead
  if _is_inside(format, opening_L):
    # An answer that the client wrote has no reasoning.
    opening_L = [*opening_L, *step.encode(lead), format.thought.end]
    lead = ''
  text_L = step.encode(lead + clean)
  text_L = text_L[~np.isin(text_L, format.structure)]
  return np.concatenate([opening_L, text_L]).astype(np.int32)


def _behind(
  format: chat.Format, opening_L: np.ndarray, kept_L: np.ndarray
) -> np.ndarray:
  """Returns what stands of drawn tokens behind an opening."""
  if format.thought is None:
    return kept_L
  if _is_inside(format, opening_L):
    # Its first token is the mark that ends the opening.
    if kept_L[:1].tolist() == [format.thought.begin]:
      return kept_L[1:]
    return np.insert(kept_L, 0, format.thought.end)
  if np.isin(opening_L, format.thought).any():
    return format.cut_thoughts(kept_L)
  return kept_L


def _without_structure(format: chat.Format, text_L: np.ndarray) -> np.ndarray:
  is_kept_L = ~np.isin(text_L, format.structure)
  if format.thought is not None:
    is_kept_L |= np.isin(text_L, format.thought)
  return text_L[is_kept_L]


def _is_inside(format: chat.Format, tokens_L: np.ndarray) -> bool:
  """Returns whether the last mark of reasoning among tokens begins one."""
  if format.thought is None:
    return False
  marks_L = tokens_L[np.isin(tokens_L, format.thought)]
  return bool(len(marks_L) and marks_L[-1] == format.thought.begin)
