"""The text that a chat template puts between messages, as a table.

A *place* is what stands before a message: '' at the beginning of a chat,
otherwise the role of the message before, or another name where that is not
enough. The table holds a step for each place and role, and the opening of a
reply for each place. All else is the messages' own text.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import re
from typing import Any
from typing import NamedTuple

from kaiju_jax.data import chat as chat_lib

# Stands for the opening of a reply in (place, role).
REPLY = '>'
# What Python calls a space, without the control characters that `chat.strip`
# removes.
SPACES = (
  ' \t\n\xa0\u1680'
  + ''.join(map(chr, range(0x2000, 0x200B)))
  + '\u2028\u2029\u202f\u205f\u3000'
)
RAGGED = rf'\A[{SPACES}]|[{SPACES}]\Z'
EMPTY = rf'\A[{SPACES}]*\Z'

Key = tuple[str, str]  # (place, role)


class Step(NamedTuple):
  """What stands before a message's text."""

  text: str  # The template's own text.
  place: str  # The place behind the message.
  # Characters that are stripped from the text's left and right end.
  strips: tuple[str, str] = ('', '')
  # The place behind a message that is left out because nothing is left of its
  # text; None where such a message is written.
  skips_to: str | None = None

  def clean(self, text: str) -> str:
    """Returns a text without what the template strips."""
    left, right = self.strips
    return text.lstrip(left).rstrip(right)

  def skips(self, text: str) -> bool:
    """Returns whether a message of this text is left out."""
    return self.skips_to is not None and not self.clean(text)

  def find_place(self, text: str) -> str:
    """Returns the place behind a message of this text."""
    return self.skips_to if self.skips(text) else self.place


class Difference(NamedTuple):
  """Chats that are not written as the template renders them."""

  note: str  # What is done instead, in words.
  # The steps, and openings of replies, that such a chat has.
  keys: tuple[Key, ...]
  pattern: str = ''  # What the text of such a step holds, a regular expression.


class Glue(NamedTuple):
  """The text between messages."""

  steps: dict[Key, Step]  # The step by (place, role).
  replies: dict[str, str]  # The text that opens a reply, by place.
  # The text behind the last message of a chat that no reply follows, by place;
  # for places where the template renders such chats.
  ends: dict[str, str] = {}
  # The chats that are not the template's own.
  differences: tuple[Difference, ...] = ()

  @property
  def adaptations(self) -> tuple[str, ...]:
    """What differs from the template, in words."""
    return tuple(dict.fromkeys(one.note for one in self.differences))

  @property
  def starts(self) -> set[str]:
    """The places before which no message has been written."""
    written = {step.place for step in self.steps.values()}
    return {place for place, _ in self.steps} - written

  def write(self, messages: Sequence[chat_lib.Pair]) -> str:
    """Returns the text of messages and of a reply's opening."""
    parts = []
    for _, step, text in self._walk(messages):
      if not step.skips(text):
        parts += (step.text, step.clean(text))
    return ''.join([*parts, self.replies[self.find_place(messages)]])

  def find_place(self, messages: Sequence[chat_lib.Pair]) -> str:
    """Returns the place behind messages."""
    place = ''
    for _, step, text in self._walk(messages):
      place = step.find_place(text)
    return place

  def describe_differences(
    self, messages: Sequence[chat_lib.Pair]
  ) -> tuple[str, ...]:
    """Returns the adaptations because of which the template differs here.

    Without any, the template renders these messages and a reply's opening as
    `write` does.
    """
    said = [(key, text) for key, _, text in self._walk(messages)]
    said.append(((self.find_place(messages), REPLY), ''))
    return tuple(
      dict.fromkeys(
        one.note
        for one in self.differences
        if any(
          key in one.keys and re.search(one.pattern, text) for key, text in said
        )
      )
    )

  def can_write(self, messages: Sequence[chat_lib.Pair]) -> bool:
    """Returns whether all steps are there, and an opening of a reply."""
    try:
      return self.find_place(messages) in self.replies
    except KeyError:
      return False

  def is_own(self, messages: Sequence[chat_lib.Pair]) -> bool:
    """Returns whether the template renders these messages as `write` does."""
    return self.can_write(messages) and not self.describe_differences(messages)

  def replaced_keys(self) -> set[Key]:
    """Returns the steps and openings that are never the template's own."""
    return {
      key for one in self.differences if not one.pattern for key in one.keys
    }

  def _walk(
    self, messages: Sequence[chat_lib.Pair]
  ) -> Iterator[tuple[Key, Step, str]]:
    """Yields (place, role), the step and the text of each message."""
    place = ''
    for role, text in messages:
      step = self.steps[place, role]
      yield (place, role), step, text
      place = step.find_place(text)


def count_same(*several: Sequence[Any]) -> int:
  """Returns how many elements all sequences begin with."""
  pairs = enumerate(zip(*several))
  return next((n for n, x in pairs if len(set(x)) > 1), min(map(len, several)))


def differ(count: int, theirs: str, ours: str) -> ValueError:
  """Returns the error of a chat that is not the template's own.

  Args:
    count: number of its messages.
    theirs: what the template makes of it.
    ours: what we do.
  """
  same = count_same(theirs, ours)
  return ValueError(
    f'chat_template: differs from its pieces at character {same} of a chat of'
    f' {count} messages, {theirs[same : same + 20]!r} instead of'
    f' {ours[same : same + 20]!r}; give another template (--template=FILE).'
  )
