r"""Reads texts whose violations are labelled as spans of characters.

A line of a .jsonl file is a plain text or a chat. A span names its first
character, one past its last one, and what it violates:

    {"text": "…", "spans": [{"start": 4, "end": 12, "dimension": "rude"}]}
    {"messages": [{"role": "user", "content": "…", "spans": […]}, …]}

Messages are those of `data/conversations.py`, without a choice of replies. What
has no spans violates nothing. Spans of one dimension do not overlap.

A token is in a span if one of its characters is. A character that several
tokens share is in all of them. BOS, padding and the tokens around messages are
in no span, but for padding they count as known: a server judges them, too. A
text stays whole in a row, and is labelled alone, whatever is packed beside it.

A token's label says whether the text up to it violates the dimension. Behind a
span's last token it does. Within a span it may not yet: benign words can begin
as a marker does. So the tokens of a span before its last one have weight 0
(`data.span_tokens='last'`), or are labelled as the last one is ('all').

Our guess: the weights of labels. In each dimension they sum to the number of
the training text's tokens.

    equal      all labels weigh the same: a violation in one of 500 texts is a
               thousandth of its dimension's loss
    balanced   labelled tokens have half of the weight, as if half of the tokens
               were violations: a benign word that looks like one weighs little
    root       a labelled token weighs √(others / labelled) times as much as
               another, between the two
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import chat
from kaiju_jax.data import conversations
from kaiju_jax.data import documents
from kaiju_jax.data import reading
from kaiju_jax.data import text as text_lib
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.data import turns
from kaiju_jax.storage import strict

# The names of a row's extras; `objectives/token_head.py` reads them.
LABEL, WEIGHT = 'label_BLC', 'weight_BLC'
WEIGHTS = 'balanced', 'root', 'equal'
TOKENS = 'last', 'all'
# The places of a token: in no span, in one before its last token, or the last.
OUTSIDE, WITHIN, LAST = range(3)


@dataclasses.dataclass(frozen=True, order=True)
class Span:
  """Characters of a text that violate a dimension."""

  start: int  # The first character.
  end: int  # One past the last.
  dimension: str  # The dimension's name.


class LabelledChat(NamedTuple):
  """A labelled text or chat."""

  name: str  # The file's name, '#' and its number in the file, from 1 on.
  # The messages; a plain text is one message of the role ''.
  messages: tuple[conversations.WeightedMessage, ...]
  spans: tuple[tuple[Span, ...], ...]  # The spans of each message.


def read(
  path: str, names: Sequence[str] | None = None, field: str = 'data.path'
) -> list[LabelledChat]:
  """Returns the texts of a .jsonl file, a folder or glob of them.

  Args:
    path, field: where they are, and the name of `path` in errors.
    names: the dimensions that there are; None for any.

  Raises:
    FileNotFoundError: nothing at `path`.
    OSError: a file or folder that cannot be read.
    ValueError: a line that is none, named with its fault; or no span, or none
      along one of `names`.
  """
  found = []
  for name, file in documents.files(path, field):
    parsed = reading.parse_lines(file, lambda line: parse(line, names))
    for number, one in enumerate(parsed, 1):
      found.append(LabelledChat(f'{name}#{number}', *one))
  known = list_dimensions(found)
  missing = [name for name in names or () if name not in known]
  if missing or not known:
    which = f' of {missing[0]!r}' if missing else ''
    raise ValueError(
      f'{field}={path!r}: {len(found):,} texts, and no span{which}; a head'
      ' learns nothing of a dimension without one.'
    )
  return found


def list_dimensions(texts: Sequence[LabelledChat]) -> list[str]:
  """Returns the names of all dimensions along which there are spans, sorted."""
  return sorted(
    {span.dimension for one in texts for own in one.spans for span in own}
  )


def parse(
  record: Any, names: Sequence[str] | None = None
) -> tuple[
  tuple[conversations.WeightedMessage, ...], tuple[tuple[Span, ...], ...]
]:
  """Returns the messages and spans of a line, which is JSON's value `record`.

  Raises:
    ValueError: see the module's docstring; names the field and its fault.
  """
  if isinstance(record, dict) and 'text' in record:
    content = record['text']
    if not isinstance(content, str) or not content:
      raise ValueError(f'text={content!r}: must be text, not empty.')
    _check_clean(content, 'text')
    message = conversations.WeightedMessage('', content)
    return (message,), (_spans(record, content, '', names),)
  if not isinstance(record, dict) or 'messages' not in record:
    raise ValueError("expected an object with one of 'text', 'messages'.")
  messages = conversations.parse(record, needs_reply=False)
  spans = []
  for index, (part, message) in enumerate(zip(record['messages'], messages)):
    if message.replies:
      raise ValueError(
        f'messages[{index}].replies: must be "content", whose characters spans'
        ' can name.'
      )
    place = f'messages[{index}].'
    if part.get('spans'):
      _check_clean(part['content'], f'{place}content')
    spans.append(_spans(part, message.content, place, names))
  return messages, tuple(spans)


def _check_clean(content: str, place: str) -> None:
  if chat.strip(content) != content:
    raise ValueError(
      f'{place}: has control characters or line ends other than \\n, which are'
      ' removed, so that spans would name other characters; remove them.'
    )


def _spans(
  part: Mapping[str, Any],
  content: str,
  place: str,
  names: Sequence[str] | None,
) -> tuple[Span, ...]:
  listed = part.get('spans', [])
  if not isinstance(listed, list):
    raise ValueError(f'{place}spans: must be a list, not {listed!r}.')
  found = []
  for index, one in enumerate(listed):
    where = f'{place}spans[{index}]'
    span = strict.parse(Span, one, where)
    if not 0 <= span.start < span.end <= len(content):
      raise ValueError(
        f'{where}: start={span.start}, end={span.end}: must be 0 ≤ start < end'
        f' ≤ {len(content)}, the characters of its text.'
      )
    if not span.dimension.strip():
      raise ValueError(f'{where}.dimension={span.dimension!r}: must be a name.')
    if names is not None and span.dimension not in names:
      raise ValueError(
        f'{where}.dimension={span.dimension!r}: must be one of'
        f' {", ".join(map(repr, names))}.'
      )
    found.append(span)
  _check_apart(found, place)
  return tuple(found)


def _check_apart(spans: Sequence[Span], place: str) -> None:
  ends: dict[str, Span] = {}
  for span in sorted(spans):
    before = ends.get(span.dimension)
    if before is not None and span.start < before.end:
      raise ValueError(
        f'{place}spans: {before.start}…{before.end} and'
        f' {span.start}…{span.end} of {span.dimension!r} overlap; make them one'
        ' span.'
      )
    ends[span.dimension] = span


def label(
  located_L2: np.ndarray, spans: Sequence[Span], names: Sequence[str]
) -> np.ndarray:
  """Returns uint8 [L, C], each token's place: OUTSIDE, WITHIN or LAST.

  `located_L2` are the characters of each token (`Tokenizer.locate`).

  Raises:
    ValueError: a span has no token.
  """
  place_LC = np.zeros((len(located_L2), len(names)), np.uint8)
  first_L, end_L = located_L2.T
  for span in spans:
    is_inside_L = np.maximum(first_L, span.start) < np.minimum(end_L, span.end)
    place_L = place_LC[:, names.index(span.dimension)]
    if not is_inside_L.any():
      raise ValueError(
        f'spans: {span.start}…{span.end} of {span.dimension!r} has no token.'
      )
    # Several tokens may share a span's last character; behind the last of them
    # it is whole.
    last = np.flatnonzero(is_inside_L)[-1]
    place_L[is_inside_L] = np.maximum(place_L[is_inside_L], WITHIN)
    place_L[last] = LAST
  return place_LC


def corpus(
  texts: Sequence[LabelledChat],
  names: Sequence[str],
  tokenizer: tokenizer_lib.Tokenizer,
  format: chat.Format | None,
  length: int,
) -> text_lib.Corpus | None:
  """Returns labelled texts as a corpus with `labels`; None for none.

  Tokens of a plain text have a loss of the language model's, and in chats those
  of the assistant's replies and their ends, by their `weight`.

  Args:
    texts, names: the texts, and their C dimensions.
    tokenizer, format: encode plain texts, and chats; None if there are none.
    length: tokens per row.

  Raises:
    ValueError: names a text that is longer than a row, or whose spans cannot be
      found among its tokens.
  """
  named, labels = [], []
  for one in texts:
    try:
      document, label_LC = _encode(one, names, tokenizer, format)
    except ValueError as error:
      raise ValueError(f'{one.name}: {error}') from error
    if len(document.tokens) > length:
      raise ValueError(
        f'{one.name}: has {len(document.tokens):,} tokens, and rows have'
        f' data.length={length:,}; split it, or make rows longer.'
      )
    named.append((one.name, document))
    labels.append(label_LC)
  found = turns.corpus(named, tokenizer.vocab_size)
  if found is None:
    return None
  return dataclasses.replace(found, labels=np.concatenate(labels))


def _encode(
  one: LabelledChat,
  names: Sequence[str],
  tokenizer: tokenizer_lib.Tokenizer,
  format: chat.Format | None,
) -> tuple[turns.EncodedConversation, np.ndarray]:
  """Returns a text's tokens and their labels, uint8 [L, C]."""
  if not one.messages[0].role:
    content, opening = one.messages[0].content, 1
    tokens = np.append(np.int32(tokenizer.bos_id), tokenizer.encode(content))
    document = turns.EncodedConversation(
      tokens,
      np.arange(-1, len(tokens) - 1),
      np.ones(len(tokens), np.float32),
      (),
    )
    found = [label(tokenizer.locate(content), one.spans[0], names)]
  else:
    document, opening = turns.encode(one.messages, format), len(format.head_L)
    after, found = '', []
    for message, spans in zip(one.messages, one.spans):
      said = message.role, message.content, after
      if spans:
        found.append(label(format.locate(*said), spans, names))
      else:  # The format may change such a text.
        size = len(format.message(*said))
        found.append(np.zeros((size, len(names)), np.uint8))
      after = format.advance(message.role, after, message.content)
  opening_LC = np.zeros((opening, len(names)), np.uint8)
  return document, np.concatenate([opening_LC, *found])


def weigh(places_TC: np.ndarray, weights: str, tokens: str) -> np.ndarray:
  """Returns float32 [3, C], the weights of tokens at each place per dimension.

  `places_TC` are those of the training text's tokens; `weights` is one of
  `WEIGHTS`, `tokens` one of `TOKENS` (see the module).
  """
  counts_3C = np.stack([(places_TC == place).sum(axis=0) for place in range(3)])
  if tokens == 'last':
    labelled_C = counts_3C[LAST]
  else:
    labelled_C = counts_3C[WITHIN] + counts_3C[LAST]
  if weights == 'equal':
    outside_C = inside_C = np.ones(places_TC.shape[1])
  else:
    # A dimension whose tokens are all alike has nothing to balance.
    outside_C = len(places_TC) / 2 / np.maximum(counts_3C[OUTSIDE], 1)
    inside_C = len(places_TC) / 2 / np.maximum(labelled_C, 1)
    if weights == 'root':
      outside_C, inside_C = np.sqrt(outside_C), np.sqrt(inside_C)
      sum_C = outside_C * counts_3C[OUTSIDE] + inside_C * labelled_C
      outside_C, inside_C = (
        len(places_TC) * weight_C / np.maximum(sum_C, 1)
        for weight_C in (outside_C, inside_C)
      )
  within_C = np.zeros_like(inside_C) if tokens == 'last' else inside_C
  return np.stack([outside_C, within_C, inside_C]).astype(np.float32)


class Beside:
  """The extras of a corpus's tokens, as `text.Rows` asks for them."""

  def __init__(self, places_TC: np.ndarray, weight_3C: np.ndarray):
    self._places_TC = places_TC
    self._weight_3C = weight_3C

  def __call__(self, first: int, end: int) -> dict[str, np.ndarray]:
    place_LC = self._places_TC[first:end]
    weight_LC = np.take_along_axis(self._weight_3C, place_LC.astype(int), 0)
    return {LABEL: (place_LC > OUTSIDE).astype(np.float32), WEIGHT: weight_LC}
