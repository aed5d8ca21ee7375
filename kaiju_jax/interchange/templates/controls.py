"""Encodes chats so that no text can spell a control token.

A control token is a special token, or an added token that the chat template
writes, such as `<think>`. `tokenizers` finds both in any text that it encodes.
Therefore texts are encoded by another tokenizer, in which the control tokens
have names that no text has. What stands between two control tokens, a *run*, is
encoded behind a guard token, because some tokenizers put a space before the
first word of a text, and a run is not the first.
"""

import json
import pathlib
import re

import numpy as np

_GUARD = '\x02guard\x02'  # Control characters are removed from every text.


class Controls:
  """The control tokens of a `tokenizer.json`, and encoders.

  Attributes:
    tokens: the control tokens, token by name.
    special: those that the file calls special.
    opening: the tokens that the tokenizer itself puts before a text.
  """

  def __init__(self, path: pathlib.Path, template: str):
    """Reads the file.

    Args:
      path: the `tokenizer.json`.
      template: the chat template.

    Raises:
      OSError: the file cannot be read.
      ValueError: not a `tokenizer.json`, or one whose added tokens cannot be
        told from text.
    """
    import tokenizers

    text = path.read_text()
    content = json.loads(text)
    self._whole = tokenizers.Tokenizer.from_str(text)
    self._whole.no_truncation()
    self._whole.no_padding()
    self.opening = self._whole.encode('').ids
    added = content['added_tokens']
    controls = [
      one
      for one in added
      if one['special']
      or (one['content'].strip() and one['content'] in template)
    ]
    self.tokens = {one['content']: one['id'] for one in controls}
    self.special = {one['content'] for one in controls if one['special']}
    self._strips = {
      one['content'] for one in controls if one['lstrip'] or one['rstrip']
    }
    self._split = re.compile(
      '|'.join(map(re.escape, sorted(self.tokens, key=len, reverse=True)))
      or r'(?!)'
    )
    vocabulary = _vocabulary(content['model'])
    kept = []
    for one in added:
      if one['content'] in self.tokens:
        # A token of the model's vocabulary keeps its id without being added.
        if one['content'] in vocabulary:
          continue
        one = {**one, 'content': f'\x02{one["id"]}\x02'}
      kept.append(one)
    largest = max(self._whole.get_vocab(with_added_tokens=True).values())
    guard = {
      'id': largest + 1,
      'content': _GUARD,
      'special': True,
      'normalized': False,
      'lstrip': False,
      'rstrip': False,
      'single_word': False,
    }
    content = {
      **content,
      'added_tokens': [*kept, guard],
      'post_processor': None,
      'truncation': None,
      'padding': None,
    }
    self._texts = tokenizers.Tokenizer.from_str(json.dumps(content))
    rests = content | {
      name: _without_first_space(content[name])
      for name in ('normalizer', 'pre_tokenizer')
    }
    # Reading a large vocabulary takes a second.
    self._rests = self._texts
    if rests != content:
      self._rests = tokenizers.Tokenizer.from_str(json.dumps(rests))
    for one in [*kept, guard]:
      if self._texts.token_to_id(one['content']) != one['id']:
        raise ValueError(
          f'{path}: added_tokens: {one["content"]!r} is not {one["id"]} once'
          ' control tokens are told from text; save the tokenizer again with'
          ' transformers.'
        )

  def encode(self, run: str) -> np.ndarray:
    """Returns the tokens of a run, int32 [L]."""
    return self._encode(self._texts, run)

  def encode_rest(self, run: str) -> np.ndarray:
    """Returns the tokens of the rest of a run, behind its first words."""
    return self._encode(self._rests, run)

  def _encode(self, tokenizer, run: str) -> np.ndarray:
    if not run:
      return np.empty(0, np.int32)
    # A batch lets other threads run.
    (encoding,) = tokenizer.encode_batch_fast(
      [_GUARD + run], add_special_tokens=False
    )
    return np.array(encoding.ids[1:], np.int32)

  def encode_whole(self, text: str) -> np.ndarray:
    """Returns the tokens of a rendered chat, as `transformers` encodes it."""
    encoding = self._whole.encode(text, add_special_tokens=False)
    return np.array(encoding.ids, np.int32)

  def decode(self, tokens: list[int]) -> str:
    """Returns the text of tokens, control tokens by their names."""
    return self._whole.decode(tokens, skip_special_tokens=False)

  def split(self, text: str) -> list[str]:
    """Returns a text cut at control tokens: run, control, run, …, run.

    Raises:
      ValueError: a control token removes spaces beside it.
    """
    parts, end = [], 0
    for found in self._split.finditer(text):
      if found[0] in self._strips:
        raise ValueError(
          f'tokenizer.json: {found[0]!r} has lstrip or rstrip: must be false,'
          ' because the chat template writes it.'
        )
      parts += [text[end : found.start()], found[0]]
      end = found.end()
    return [*parts, text[end:]]


def _vocabulary(model: dict) -> set[str]:
  """Returns the names in a model's vocabulary, a table or a list of pairs."""
  found = model.get('vocab', {})
  return set(found) if isinstance(found, dict) else {name for name, *_ in found}


def _without_first_space(part: dict | None) -> dict | None:
  """Returns a normalizer or pre-tokenizer that puts no space before a text."""
  if part is None:
    return None
  kind = part['type']
  if kind == 'Sequence':
    (name,) = {'normalizers', 'pretokenizers'} & part.keys()
    kept = [_without_first_space(one) for one in part[name]]
    return {**part, name: [one for one in kept if one is not None]}
  if kind == 'Prepend':
    return None
  if kind == 'Metaspace':
    return {**part, 'prepend_scheme': 'never'}
  if kind == 'ByteLevel':
    return {**part, 'add_prefix_space': False}
  return part
