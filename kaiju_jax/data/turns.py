"""Encodes conversations as rows' documents, with a weight on assistant turns.

    fine_tuning(…)   linear documents; one that is longer than a row loses its
                     earliest turns, not the system message
    choices(…)       trees: the replies that a user chose from are siblings, and
                     the conversation goes on below the one that was kept

Only the text of a trained reply and the token that ends it have a weight. The
tokens that open a reply, and everything that others say, have none. In a
choice all replies share the opening:

    … user ⟩ opening ─┬─ reply, end             swiped
                      └─ reply, end ─ … user    kept

Both packings keep a document whole in one row, because a part of a conversation
is another conversation.
"""

from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import chat
from kaiju_jax.data import conversations as conversations_lib
from kaiju_jax.data import text

_Message = conversations_lib.WeightedMessage


class Choice(NamedTuple):
  """The replies of one turn in a document."""

  # (first token, one past the last) of each reply, counted in its document: its
  # text and its end.
  spans: tuple[tuple[int, int], ...]
  kept: int  # The index of the reply that the user kept.


@dataclasses.dataclass
class Counts:
  """Counts of what was read, and what was left out."""

  conversations: int = 0  # Conversations with a reply to train on.
  replies: int = 0  # Replies with a weight.
  # Conversations that lost turns because they are longer than a row.
  cut: int = 0
  turns: int = 0  # Messages that they lost.
  # Conversations left out, because not even their last turn fits or they have
  # nothing to train on.
  dropped: int = 0
  # Turns with several kept replies, or whose replies are all the same text;
  # they are read as context.
  ties: int = 0
  repeated: int = 0  # Swiped replies with the text of another one, left out.
  single: int = 0  # Turns with one reply alone; they are context, too.

  def __add__(self, other: 'Counts') -> 'Counts':
    pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other))
    return Counts(*(a + b for a, b in pairs))


class EncodedConversation(NamedTuple):
  """An encoded conversation; arrays have one entry per token."""

  tokens: np.ndarray  # Its tokens.
  parents: np.ndarray  # The parent of each; -1 for the first.
  weights: np.ndarray  # The weight of each token's loss.
  choices: tuple[Choice, ...]  # The replies of each turn with a choice.


def fine_tuning(
  conversations: Iterable[conversations_lib.Conversation],
  format: chat.Format,
  length: int,
  end_weight: float = 1.0,
) -> tuple[text.Corpus | None, Counts]:
  """Returns conversations as linear documents of at most `length` tokens.

  With a choice, the reply that was kept is read alone. A reply's end has its
  weight times `end_weight`.

  Returns:
    The corpus, None if no conversation is left; and what was left out.

  Raises:
    ValueError: the format ends a reply with no token that stops one.
  """
  counts, named = Counts(), []
  for one in conversations:
    kept = _cut(_until_reply(one.messages), format, length)
    if not any(m.role == 'assistant' and m.weight for m in kept):
      counts.dropped += 1
      continue
    lost = len(_until_reply(one.messages)) - len(kept)
    counts.cut += lost > 0
    counts.turns += lost
    counts.conversations += 1
    counts.replies += sum(m.role == 'assistant' and m.weight > 0 for m in kept)
    messages = [m._replace(replies=()) for m in kept]
    named.append((one.name, encode(messages, format, end_weight)))
  return corpus(named, format.tokenizer.vocab_size), counts


def choices(
  conversations: Iterable[conversations_lib.Conversation],
  format: chat.Format,
) -> tuple[text.Corpus | None, Counts]:
  """Returns conversations as trees, whose choices alone have a weight.

  Returns:
    The corpus, None if no choice is left; and what was left out.

  Raises:
    ValueError: as `fine_tuning`.
  """
  counts, named = Counts(), []
  for one in conversations:
    messages = [_choosable(message, counts) for message in one.messages]
    last = max((i for i, m in enumerate(messages) if m.replies), default=-1)
    if last < 0:
      counts.dropped += 1
      continue
    document = encode(messages[: last + 1], format)
    counts.conversations += 1
    counts.replies += sum(len(one.spans) for one in document.choices)
    named.append((one.name, document))
  return corpus(named, format.tokenizer.vocab_size), counts


def _until_reply(messages: Sequence[_Message]) -> Sequence[_Message]:
  """Returns the messages up to the last reply with a weight."""
  count = len(messages)
  while count and not (
    messages[count - 1].role == 'assistant' and messages[count - 1].weight
  ):
    count -= 1
  return messages[:count]


def _choosable(message: _Message, counts: Counts) -> _Message:
  """Returns a message with a choice between different texts, or with none."""
  if not message.replies:
    return message
  others = {}
  for reply in message.replies:
    if not reply.is_kept and reply.content != message.content:
      others[reply.content] = reply
  kept = [one for one in message.replies if one.is_kept]
  if len(message.replies) == 1:
    counts.single += 1
  elif len(kept) > 1 or not others:
    counts.ties += 1
  else:
    counts.repeated += len(message.replies) - 1 - len(others)
    return message._replace(replies=(*others.values(), kept[0]))
  return message._replace(replies=())


def _cut(
  messages: Sequence[_Message], format: chat.Format, length: int
) -> Sequence[_Message]:
  """Returns the system message and the last turns that fit, () if none."""

  def fits(kept):
    pairs = [(one.role, one.content) for one in kept]
    return len(format.document(pairs)) <= length

  if fits(messages):
    return messages
  head = [one for one in messages[:1] if one.role == 'system']
  firsts = [i for i, one in enumerate(messages) if i and one.role == 'user']
  low, high = 0, len(firsts)  # The first of `firsts` from which all fits.
  while low < high:
    middle = (low + high) // 2
    if fits([*head, *messages[firsts[middle] :]]):
      high = middle
    else:
      low = middle + 1
  return [*head, *messages[firsts[low] :]] if low < len(firsts) else ()


def encode(
  messages: Sequence[_Message], format: chat.Format, end_weight: float = 1.0
) -> EncodedConversation:
  """Returns a conversation's tokens; a choice's last reply goes on.

  Raises:
    ValueError: as `fine_tuning`.
  """
  tokens, parents = [format.head_L], [np.arange(-1, len(format.head_L) - 1)]
  weights = [np.zeros(len(format.head_L), np.float32)]
  size, last, after, found = len(format.head_L), -1, '', []
  last = size - 1

  def add(part_L, weight_L) -> None:
    nonlocal size, last
    chain = np.arange(size - 1, size - 1 + len(part_L))
    chain[:1] = last
    tokens.append(part_L)
    parents.append(chain)
    weights.append(np.asarray(weight_L, np.float32))
    size += len(part_L)
    last = size - 1 if len(part_L) else last

  has_choice = any(one.replies for one in messages)
  for message in messages:
    said = [one.content for one in message.replies] or [message.content]
    encoded = [format.message(message.role, one, after) for one in said]
    if message.role != 'assistant':
      add(encoded[0], np.zeros(len(encoded[0])))
    else:
      opening_L = format.opening('assistant', after)
      begin = min(_shared(opening_L, one_L) for one_L in encoded)
      add(encoded[0][:begin], np.zeros(begin))
      branch, spans = last, []
      for one_L in encoded:
        last = branch
        end = _end(one_L, begin, format)
        weight_L = np.zeros(len(one_L) - begin)
        if message.replies or not has_choice:
          weight_L[: end - begin] = message.weight
          weight_L[end - begin - 1] *= end_weight
        spans.append((size, size + end - begin))
        add(one_L[begin:], weight_L)
      if message.replies:
        found.append(Choice(tuple(spans), len(spans) - 1))
    after = format.advance(message.role, after, message.content)
  return EncodedConversation(
    *map(np.concatenate, (tokens, parents, weights)), (*found,)
  )


def _shared(opening_L: np.ndarray, message_L: np.ndarray) -> int:
  """Returns how many tokens of a reply's opening a message begins with."""
  size = min(len(opening_L), len(message_L))
  differs_L = opening_L[:size] != message_L[:size]
  return int(np.argmax(differs_L)) if differs_L.any() else size


def _end(message_L: np.ndarray, begin: int, format: chat.Format) -> int:
  """Returns one past the token that ends a reply."""
  is_stop_L = np.isin(message_L[begin:], format.stop_tokens)
  if not is_stop_L.any():
    raise ValueError(
      'data.chat_template: the template writes no token behind a reply that'
      ' would stop it, so that no model could learn to end one.'
    )
  return begin + int(np.argmax(is_stop_L)) + 1


def corpus(
  named: Sequence[tuple[str, EncodedConversation]], vocab_size: int
) -> text.Corpus | None:
  """Returns documents as a corpus that keeps each whole; None for none."""
  if not named:
    return None
  sizes = [len(one.tokens) for _, one in named]
  own = [one.choices for _, one in named]
  dtype = np.min_scalar_type(vocab_size - 1)
  return text.Corpus(
    tokens=np.concatenate([one.tokens for _, one in named]).astype(dtype),
    begins=np.concatenate([[0], np.cumsum(sizes)]),
    # Trees are never cut, and neither is a conversation.
    parents={i: one.parents for i, (_, one) in enumerate(named)},
    names=tuple(name for name, _ in named),
    weights=np.concatenate([one.weights for _, one in named]),
    choices=own if any(own) else None,
  )
