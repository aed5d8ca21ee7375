r"""Encodes conversations: roles and texts between structural tokens.

A message is SOH role STX text ETX. These are the control characters 1, 2 and 3
of ASCII: start of heading, start of text and end of text. With the byte
tokenizer they are the tokens 1, 2 and 3:

    \x01user\x02Hello\x03\x01assistant\x02Hi!\x03

A `tokenizer.json` that has ChatML's two tokens gets ChatML instead; any other
must have a token of its own for each of the three characters.

    <|im_start|>user\nHello<|im_end|>\n

Structure and text are encoded separately. So a message's tokens depend on the
message alone, and a conversation's tokens are those of its messages, one after
another. Text never becomes structure: control characters are removed from it,
and structural tokens in an encoded text are dropped.

A conversation to train on is ordinary text, `text_of(messages)`, which the text
pipeline reads like any other. With bytes, and with a tokenizer of
`data/bpe.py`, it has exactly the tokens of `Format.document`. With another
tokenizer, merges across a control character could differ, and text cannot spell
ChatML's tokens.

Our guess: the sources describe no format of messages.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import re
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import tokenizer as tokenizer_lib

ROLES = ('system', 'user', 'assistant')
SOH, STX, ETX = '\x01', '\x02', '\x03'
_CHATML = ('<|im_start|>', '<|im_end|>')
_LINE_END = re.compile('\r\n?')
# C0 and C1 of Unicode without line feed and tab.
_CONTROL = re.compile('[\x00-\x08\x0b-\x1f\x7f-\x9f]')
_SURROGATE = re.compile('[\ud800-\udfff]')

Pair = tuple[str, str]  # (role, text)


def strip(text: str) -> str:
  r"""Returns a text without control characters, whose lines end in '\n'.

  Raises:
    TypeError: not a string.
    ValueError: a surrogate, which UTF-8 cannot encode.
  """
  if not isinstance(text, str):
    raise TypeError(f'text={text!r}: must be a string.')
  found = _SURROGATE.search(text)
  if found:
    raise ValueError(
      f'text holds the surrogate {found[0]!a} at character {found.start()}:'
      ' expected Unicode characters.'
    )
  return _CONTROL.sub('', _LINE_END.sub('\n', text))


def text_of(messages: Iterable[Pair]) -> str:
  """Returns (role, text) of each message as the text of a training document.

  Raises:
    TypeError, ValueError: an unknown role, or see `strip`.
  """
  return ''.join(
    f'{SOH}{_role(role)}{STX}{strip(text)}{ETX}' for role, text in messages
  )


class Step(NamedTuple):
  """The tokens between two messages, and where they lead."""

  # Tokens between the text before and this message's text.
  before_L: np.ndarray
  lead: str  # Characters that are encoded together with the text, before it.
  after: str  # The place behind the message; see `Format`.
  # Encodes the characters between two structural tokens.
  encode: Callable[[str], np.ndarray]
  clean: Callable[[str], str] = str  # Returns a text as it is encoded.
  # The place behind a message that is left out because `clean` leaves nothing
  # of it; None where such a message is written.
  skips_to: str | None = None


class Behind(NamedTuple):
  """The end of a message, whichever message follows."""

  tail: str  # Characters that are encoded together with the text, behind it.
  closing_L: np.ndarray  # Tokens behind that.


class Thought(NamedTuple):
  """The tokens around the reasoning that a reply begins with."""

  begin: int
  end: int


@dataclasses.dataclass(frozen=True, eq=False)
class Format:
  """The tokens of messages with one tokenizer.

  `format_of` makes our own two formats, and `interchange/templates` that of a
  folder's chat template. There the tokens before a message can depend on the
  message before it. Therefore most methods take the *place* `after` which the
  message stands: '' at the beginning of a conversation, then what `advance`
  returns for the message before. Our own formats have the place '' alone.
  """

  tokenizer: tokenizer_lib.Tokenizer  # Encodes roles and texts.
  name: str  # 'control', 'chatml' or 'template'.
  # Any of them ends a reply: the end of a message, and the other structural
  # tokens, so that a model that skips the end does not write the next message.
  stop_tokens: tuple[int, ...]
  # The tokens that open a conversation, int32 [L]; may be none.
  head_L: np.ndarray
  steps: Mapping[tuple[str, str], Step]  # The step by place and role.
  behind: Mapping[str, Behind]  # The end of a message by the place behind it.
  replies: Mapping[str, np.ndarray]  # The tokens before a reply, by place.
  structure: np.ndarray  # All structural tokens, which no text has.
  digest: str = ''  # Identifies a template; '' for our own formats.
  # The tokens around the reasoning of a reply; None for a model without.
  thought: Thought | None = None
  # Whether later prompts hold the reasoning of drawn replies.
  keeps_thoughts: bool = False

  def message(self, role: str, text: str, after: str = '') -> np.ndarray:
    """Returns the tokens of a message behind the place `after`, int32 [L].

    Raises:
      TypeError, ValueError: an unknown role, or see `strip`.
    """
    step = self.steps[after, _role(role)]
    clean = step.clean(strip(text))
    if step.skips_to is not None and not clean:
      return np.empty(0, np.int32)
    tail, closing_L = self.behind[step.after]
    text_L = step.encode(step.lead + clean + tail)
    return _join(step.before_L, self._without_structure(text_L), closing_L)

  def locate(self, role: str, text: str, after: str = '') -> np.ndarray:
    """Returns the characters of `text` in each token of `message`.

    Returns:
      int64 [L, 2], the first character and one past the last; they are equal
      for tokens around the text.

    Raises:
      TypeError, ValueError: as `message`; or the text is not encoded as it
        stands, so that its characters cannot be found.
    """
    step = self.steps[after, _role(role)]
    clean = step.clean(strip(text))
    if step.skips_to is not None and not clean:
      return np.empty((0, 2), np.int64)
    tail, closing_L = self.behind[step.after]
    written = step.lead + clean + tail
    text_L, found_L2 = step.encode(written), self.tokenizer.locate(written)
    if clean not in text or len(found_L2) != len(text_L):
      raise ValueError(
        f'the {self.name} format changes the text {text[:40]!r}, so that its'
        ' characters cannot be found among the tokens.'
      )
    # A template strips the ends of a text.
    first = text.index(clean)
    found_L2 = np.clip(found_L2 - len(step.lead), 0, len(clean)) + first
    found_L2 = found_L2[~np.isin(text_L, self.structure)]
    before_L2, closing_L2 = (
      np.zeros((len(one_L), 2), np.int64)
      for one_L in (step.before_L, closing_L)
    )
    return np.concatenate([before_L2, found_L2, closing_L2])

  def advance(self, role: str, after: str = '', text: str | None = None) -> str:
    """Returns the place behind a message.

    Args:
      role, after: the message's role, and the place that it stands behind.
      text: some templates leave out an empty one; None for one that is not.
    """
    step = self.steps[after, _role(role)]
    if step.skips_to is None or text is None or step.clean(strip(text)):
      return step.after
    return step.skips_to

  def length(self, role: str, text: str) -> int:
    """Returns the most tokens of `message`, whatever it stands behind.

    Raises:
      TypeError, ValueError: see `message`.
    """
    return max(len(self.message(role, text, one)) for one in self.places(role))

  def encode_drawn(
    self, role: str, tokens: Sequence[int], after: str = ''
  ) -> np.ndarray:
    """Returns a message whose text is given as tokens, int32 [L].

    Its text, encoded again, might have other tokens than those that the model
    drew, which a cache would not find.

    Args:
      role, after: see `message`.
      tokens: of the text. Structural ones are dropped, such as its stop token.

    Raises:
      ValueError: an unknown role.
    """
    opening_L = self.opening(role, after)
    if role == 'assistant' and self.opens_thought and not self.keeps_thoughts:
      # It begins a thought, which is left out.
      opening_L = self._begin_text(self.steps[after, role])
    text_L = self.cut_history(np.asarray(tokens, np.int32))
    if self.keeps_thoughts:
      is_text_L = ~np.isin(text_L, self.structure)
      text_L = text_L[is_text_L | np.isin(text_L, self.thought)]
      if self.opens_thought and text_L[:1].tolist() == [self.thought.begin]:
        text_L = text_L[1:]
    else:
      text_L = self._without_structure(text_L)
    closing_L = self.behind[self.advance(role, after)].closing_L
    return _join(opening_L, text_L, closing_L)

  @property
  def opens_thought(self) -> bool:
    """Whether the opening of a reply begins its reasoning."""
    if self.thought is None:
      return False
    found = [
      opening_L[np.isin(opening_L, self.thought)]
      for opening_L in self.replies.values()
    ]
    return any(one_L[-1:].tolist() == [self.thought.begin] for one_L in found)

  def cut_history(self, tokens: Sequence[int]) -> np.ndarray:
    """Returns a reply's tokens as later prompts hold them, int32 [L].

    In `tokens` a thought begins with `thought.begin`, even if its opening had
    begun it.
    """
    tokens_L = np.asarray(tokens, np.int32)
    if self.thought is None or self.keeps_thoughts:
      return tokens_L
    return self.cut_thoughts(tokens_L)

  def cut_thoughts(self, tokens_L: np.ndarray) -> np.ndarray:
    """Returns a reply's tokens, int32 [L], without its reasoning."""
    marks_L = np.isin(tokens_L, self.thought)
    if not marks_L.any():
      return tokens_L
    inside = bool(tokens_L[marks_L][0] == self.thought.end)
    skips, kept = False, []
    for token, is_mark in zip(tokens_L.tolist(), marks_L):
      if is_mark:
        inside = token == self.thought.begin
        skips = not inside
      elif not inside:
        skips = skips and not self.tokenizer.decode([token]).strip()
        kept += [] if skips else [token]
    return np.array(kept, np.int32)

  def length_drawn(self, role: str, tokens: Sequence[int]) -> int:
    """Returns the most tokens of `encode_drawn`, whatever it stands behind."""
    return max(
      len(self.encode_drawn(role, tokens, one)) for one in self.places(role)
    )

  def opening(self, role: str = 'assistant', after: str = '') -> np.ndarray:
    """Returns the tokens before a message that is drawn, int32 [L].

    Raises:
      ValueError: an unknown role.
    """
    if _role(role) == 'assistant':
      return self.replies[after].copy()
    return self._begin_text(self.steps[after, role])

  def document(self, messages: Iterable[Pair]) -> np.ndarray:
    """Returns the tokens of a conversation, int32 [L].

    Raises:
      TypeError, ValueError: see `message`.
    """
    return self._walk(messages)[0]

  def prompt(self, messages: Iterable[Pair]) -> np.ndarray:
    """Returns the tokens of a conversation and of a reply's opening, int32 [L].

    Raises:
      TypeError, ValueError: see `message`.
    """
    document_L, after = self._walk(messages)
    return _join(document_L, self.opening('assistant', after))

  def _walk(self, messages: Iterable[Pair]) -> tuple[np.ndarray, str]:
    """Returns the tokens of a conversation, and the place behind it."""
    parts, after = [self.head_L], ''
    for role, text in messages:
      parts.append(self.message(role, text, after))
      after = self.advance(role, after, text)
    return _join(*parts), after

  def places(self, role: str) -> list[str]:
    """Returns the places that a message of a role can stand behind."""
    return [after for after, one in self.steps if one == _role(role)]

  def _begin_text(self, step: Step) -> np.ndarray:
    return _join(step.before_L, step.encode(step.lead) if step.lead else ())

  def _without_structure(self, text_L: np.ndarray) -> np.ndarray:
    return text_L[~np.isin(text_L, self.structure)]


def format_of(tokenizer: tokenizer_lib.Tokenizer) -> Format:
  """Returns our own format of conversations with a tokenizer.

  Raises:
    ValueError: the tokenizer has neither ChatML's tokens nor a token of its own
      for each control character.
  """
  start, end = map(tokenizer.special, _CHATML)
  if start is not None and end is not None:
    openings = {
      role: _join([start], tokenizer.encode(f'{role}\n')) for role in ROLES
    }
    closing_L = _join([end], tokenizer.encode('\n'))
    structure = {start, end, tokenizer.bos_id}
    name = 'chatml'
  else:
    start, middle, end = (_own(tokenizer, one) for one in (SOH, STX, ETX))
    openings = {
      role: _join([start], tokenizer.encode(role), [middle]) for role in ROLES
    }
    closing_L = _join([end])
    structure = {start, middle, end, tokenizer.bos_id}
    name = 'control'
  return Format(
    tokenizer=tokenizer,
    name=name,
    stop_tokens=(end, *sorted(structure - {end})),
    head_L=_join([tokenizer.bos_id]),
    steps={
      ('', role): Step(openings[role], '', '', tokenizer.encode)
      for role in ROLES
    },
    behind={'': Behind('', closing_L)},
    replies={'': openings['assistant']},
    structure=np.array(sorted(structure), np.int32),
  )


def _own(tokenizer: tokenizer_lib.Tokenizer, character: str) -> int:
  """Returns the one token that reads as a control character.

  Some tokenizers put the token of a space before it, which is ignored.
  """
  tokens = tokenizer.encode(character).tolist()
  found = [one for one in tokens if tokenizer.decode([one]) == character]
  if len(found) != 1:
    raise ValueError(
      f'data.tokenizer: encodes the control character {character!a} as'
      f' {tokens}, which has no single token that reads as it; messages need a'
      f' tokenizer that keeps control characters, or one that has'
      f' {" and ".join(_CHATML)}.'
    )
  return found[0]


def _join(*parts) -> np.ndarray:
  return np.concatenate([np.asarray(part, np.int32) for part in parts])


def _role(role: str) -> str:
  if role not in ROLES:
    raise ValueError(f'role={role!r}: must be one of {", ".join(ROLES)}.')
  return role
