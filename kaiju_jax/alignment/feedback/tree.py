"""Turns a session's tree of messages into conversations with choices.

    greeting ─ user ┬ reply    passed over     one line: the user's message and
                    └ reply ─ user ─ reply     both replies, of which the second
                      kept                     is kept, and the turns below it

A turn is a user's message with its replies. Which of these are *kept* follows
from the first of these signs that the turn has:

    rated     replies rated good
    went_on   replies below which the person wrote on
    shown     the reply on the shown path, if there are several

A reply that is rated bad or wrongly refused is never kept. The turn's other
replies are *passed over*. A turn without a kept reply, or without one passed
over, is no choice. The signs, and that a kept reply is preferred to those
passed over, are our guess.

Each turn is trained on in one line. Other lines that need it as context give
its loss the weight 0; so do greetings, replies that were cut off, and replies
rated bad.

Left out: a reply that safety ended, what follows it, and the user's message too
if nothing of the reply was shown, because the prompt may have been refused;
reasoning; and all times.
"""

import collections
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
from typing import Any

from kaiju_jax.data import chat
from kaiju_jax.serving.stores import characters

FILTERED, CANCELLED = 'content_filter', 'cancelled'
# Lines of one session repeat what they share. Together they have at most so
# many times the session's bytes, and so many more (our guess).
_REPEATED, _LEAST = 4, 2**16

Message = dict[str, Any]  # Of a line.


@dataclasses.dataclass(frozen=True)
class SessionTree:
  """The exportable part of a session."""

  # The lists of messages, in the order of the tree.
  lines: tuple[list[Message], ...]
  counts: collections.Counter[str]  # By the names of `export.describe`.
  # (n, k) of each choice between n sampled replies: the k-th one, from 0 in the
  # order of sampling, was kept.
  places: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class _Turn:
  """A user's message and what became of its replies."""

  said: characters.Message  # The user's message.
  # The first kept reply, or the only one; None for no such reply.
  lead: characters.Message | None
  # The reply's message in the line that trains on the turn; None for none.
  full: Message | None
  # The replies that the conversation continues, and `lead`.
  follows: tuple[characters.Message, ...]


class _Tree:
  """A session's messages by their parents, and what is counted on the way."""

  def __init__(
    self,
    session: characters.Session,
    messages: Sequence[characters.Message],
    ratings: Mapping[int, str],
  ):
    self.counts: collections.Counter = collections.Counter()
    self.places: list[tuple[int, int]] = []
    self._texts = {one.id: chat.strip(one.text) for one in messages}
    self._ratings = ratings
    self._children: dict[int | None, list[characters.Message]] = (
      collections.defaultdict(list)
    )
    for one in messages:
      self._children[one.parent].append(one)
    self._shown = {one.id for one in characters.path(messages, session.head)}

  def children(
    self, parent: characters.Message | None, role: str
  ) -> list[characters.Message]:
    """Returns the children of a role that have a text and were not filtered."""
    found = self._children[None if parent is None else parent.id]
    return [
      one
      for one in found
      if one.role == role
      and one.finish != FILTERED
      and self._texts[one.id].strip()
    ]

  def make_context(self, message: characters.Message) -> Message:
    """Returns a message that no line trains on."""
    found: Message = {'role': message.role, 'content': self._texts[message.id]}
    if message.role == characters.ASSISTANT:
      found['weight'] = 0
    return found

  def make_turn(self, said: characters.Message) -> _Turn | None:
    """Returns a turn; None for one whose prompt may have been refused."""
    if self._is_refused(said):
      self.counts['turns_refused'] += 1
      return None
    replies = self.children(said, characters.ASSISTANT)
    whole = [one for one in replies if one.finish != CANCELLED]
    bad = {
      one.id
      for one in whole
      if self._ratings.get(one.id, characters.GOOD) != characters.GOOD
    }
    sign, kept = self._find_kept(whole, bad)
    lead, full = None, None
    if kept or (len(whole) == 1 and not bad):
      lead = whole[0] if not kept else kept[0]
      full = self._write(whole, {one.id for one in kept}, lead, sign)
    self._count(said, whole)
    goes_on = [one for one in replies if self.children(one, characters.USER)]
    also = [lead] if lead and lead not in goes_on else []
    return _Turn(said, lead, full, (*also, *goes_on))

  def _is_refused(self, said: characters.Message) -> bool:
    """Returns whether a reply was ended before any of it was shown."""
    filtered = [
      one for one in self._children[said.id] if one.finish == FILTERED
    ]
    self.counts['replies_filtered'] += len(filtered)
    for one in filtered:
      if one.id in self._ratings:
        self.counts[f'filtered_rated_{self._ratings[one.id]}'] += 1
    return any(not one.text.strip() for one in filtered)

  def _find_kept(self, whole, bad) -> tuple[str, list[characters.Message]]:
    """Returns the sign that says which replies are kept, and these."""
    free = [one for one in whole if one.id not in bad]
    good = [one for one in free if one.id in self._ratings]
    if good:
      return 'rated', good
    went_on = [one for one in free if self._goes_on(one)]
    if went_on:
      return 'went_on', went_on
    if len(whole) > 1:
      return 'shown', [one for one in free if one.id in self._shown]
    return '', []

  def _goes_on(self, reply: characters.Message) -> bool:
    return any(one.role == characters.USER for one in self._children[reply.id])

  def _write(self, whole, kept, lead, sign) -> Message:
    """Returns the assistant's message of a turn, with its choice if any."""
    by_text: dict[str, Message] = {}
    # Equal replies are one: what is kept and what is passed over differ.
    for place, one in enumerate(whole):
      made = self._write_reply(one, place, one.id in kept)
      held = by_text.setdefault(made['content'], made)
      if held is not made:
        self.counts['replies_repeated'] += 1
        if made['kept'] and not held['kept']:
          by_text[made['content']] = made
    replies = [*by_text.values()]
    passed = [one for one in replies if not one['kept']]
    if not passed or len(passed) == len(replies):
      found = self._write_reply(lead, 0, True)
      for name in 'kept', 'place':
        del found[name]
      return {'role': characters.ASSISTANT, **found}
    self.counts['choices'] += 1
    self.counts[f'choices_{sign}'] += 1
    self.counts['replies_kept'] += len(replies) - len(passed)
    self.counts['replies_passed_over'] += len(passed)
    if not any('written' in one for one in replies):
      first = min(one['place'] for one in replies if one['kept'])
      order = sorted(one['place'] for one in replies)
      self.places.append((len(replies), order.index(first)))
    # The conversation goes on below the first kept one, which is `lead`.
    replies.sort(key=lambda one: one['place'])
    return {'role': characters.ASSISTANT, 'sign': sign, 'replies': replies}

  def _write_reply(self, one, place: int, is_kept: bool) -> Message:
    found: Message = {
      'content': self._texts[one.id],
      'kept': is_kept,
      'place': place,
    }
    if one.finish is None:
      found['written'] = True  # By the person, who edited a reply.
    else:
      found['finish'] = one.finish
    if one.id in self._ratings:
      found['rating'] = self._ratings[one.id]
    if one.drawn is not None:
      found['drawn'] = one.drawn.fields()
    return found

  def _count(self, said, whole) -> None:
    drawn = [one for one in whole if one.finish is not None]
    self.counts['turns'] += 1
    self.counts['regenerations'] += max(0, len(drawn) - 1)
    self.counts['replies_edited'] += len(whole) - len(drawn)
    for one in drawn:
      self.counts[f'ended_{one.finish}'] += 1
      if one.id in self._ratings:
        self.counts[f'rated_{self._ratings[one.id]}'] += 1
    if not any(self._goes_on(one) for one in whole):
      self.counts['endings'] += 1


def read(
  session: characters.Session,
  messages: Sequence[characters.Message],
  ratings: Mapping[int, str],
  system: str,
) -> SessionTree:
  """Returns the exportable part of a session.

  Args:
    session: the session.
    messages: all its messages.
    ratings: by a message's id.
    system: the character's system message.
  """
  tree = _Tree(session, messages, ratings)
  opening = [{'role': 'system', 'content': chat.strip(system)}]
  if not opening[0]['content'].strip():
    opening = []
  most = _LEAST + _REPEATED * sum(len(one.text.encode()) for one in messages)
  lines, written = [], set()
  for turns, greeting in _walk(tree):
    if most < 0:
      tree.counts['lines_too_long'] += 1
      continue
    line = [*opening]
    if greeting is not None:
      line.append(tree.make_context(greeting))
    end = len(line)
    for turn, reply in turns:
      line.append(tree.make_context(turn.said))
      if turn.said.id not in written and reply is turn.lead:
        written.add(turn.said.id)
        line.append(turn.full)
        end = len(line)
      else:
        line.append(tree.make_context(reply))
    line = line[:end]
    if not any(
      'weight' not in one for one in line if one['role'] == 'assistant'
    ):
      continue
    most -= len(json.dumps(line))
    lines.append(line)
  return SessionTree(tuple(lines), tree.counts, tuple(tree.places))


def _walk(
  tree: _Tree,
) -> Iterator[
  tuple[
    list[tuple[_Turn, characters.Message]],
    characters.Message | None,
  ]
]:
  """Yields each path's turns, with the reply it takes, and its greeting."""
  stack: list[tuple[characters.Message, tuple | None, Any]] = []
  greetings = tree.children(None, characters.ASSISTANT)
  for greeting in [*greetings, None]:
    for said in tree.children(greeting, characters.USER):
      stack.append((said, None, greeting))
  stack.reverse()
  while stack:
    said, before, greeting = stack.pop()
    turn = tree.make_turn(said)
    below = []
    for reply in () if turn is None else turn.follows:
      way = (before, (turn, reply))
      asked = tree.children(reply, characters.USER)
      below += [(one, way, greeting) for one in asked]
      if not asked:
        yield _unwind(way), greeting
    is_end = turn is None or not turn.follows
    if is_end and before is not None:
      # What came before is whole without it.
      yield _unwind(before), greeting
    stack += reversed(below)


def _unwind(way: tuple | None) -> list[tuple[_Turn, characters.Message]]:
  found = []
  while way is not None:
    way, one = way
    found.append(one)
  return found[::-1]
