"""Encodes chats so that no text can spell a control token.

A control token is a special token, or an added token that the chat template
writes, such as `<think>`. `tokenizers` finds both in any text that it encodes.
Therefore texts are encoded by another tokenizer, in which the control tokens
have names that no text has. What stands between two control tokens, a *run*, is
encoded behind a guard token, because some tokenizers put a space before the
first word of a text, and a run is not the first.
"""

import itertools
import json
import pathlib
import re
from typing import Any

import numpy as np

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.data.guarded import client
from kaiju_jax.interchange import generation

_ADDED = 2**16  # Most added tokens, each of which is looked for in a template.
_GUARD = '\x02guard\x02'  # Control characters are removed from every text.


class Controls:
  """The control tokens of a `tokenizer.json`, and encoders.

  Attributes:
    tokens: the control tokens, token by name.
    special: those that the file calls special.
    opening: the tokens that the tokenizer itself puts before a text.
  """

  def __init__(
    self,
    path: pathlib.Path,
    template: str,
    tokenizer: tokenizer_lib.Tokenizer,
  ):
    """Reads the file.

    Args:
      path: the `tokenizer.json`.
      template: the chat template.
      tokenizer: the file's tokenizer, which decodes.

    Raises:
      OSError: the file cannot be read.
      ValueError: not a `tokenizer.json`, or one whose added tokens cannot be
        told from text.
    """
    self._tokenizer = tokenizer
    data = path.read_bytes()
    content = generation.read_object(path)
    self._whole = client.open_tokenizer(data)
    self.opening: list[int] = self._whole.opening
    added = content['added_tokens']
    if len(added) > _ADDED:
      raise ValueError(
        f'{path}: added_tokens: has {len(added):,}: at most {_ADDED:,}.'
      )
    controls = [
      one
      for one in added
      if one['special']
      or (one['content'].strip() and one['content'] in template)
    ]
    self.tokens: dict[str, int] = {
      one['content']: one['id'] for one in controls
    }
    self.special: set[str] = {
      one['content'] for one in controls if one['special']
    }
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
    guard = _guard(self._whole.vocab_size)
    content = {
      **content,
      'added_tokens': [*kept, guard],
      'post_processor': None,
      'truncation': None,
      'padding': None,
    }
    self._texts = client.open_tokenizer(json.dumps(content).encode())
    rests = content | {
      name: _without_first_space(content[name])
      for name in ('normalizer', 'pre_tokenizer')
    }
    # Reading a large vocabulary takes a second.
    self._rests = self._texts
    if rests != content:
      self._rests = client.open_tokenizer(json.dumps(rests).encode())
    for one in [*kept, guard]:
      if self._texts.added.get(one['content']) != one['id']:
        raise ValueError(
          f'{path}: added_tokens: {one["content"]!r} is not {one["id"]} once'
          ' control tokens are told from text; save the tokenizer again with'
          ' transformers.'
        )

  def encode(self, run: str) -> np.ndarray:
    """Returns the tokens of a run, int32 [L]."""
    return _encode(self._texts, _GUARD + run)[1:]

  def encode_rest(self, run: str) -> np.ndarray:
    """Returns the tokens of the rest of a run, behind its first words."""
    return _encode(self._rests, _GUARD + run)[1:]

  def encode_whole(self, text: str) -> np.ndarray:
    """Returns the tokens of a rendered chat, as `transformers` encodes it."""
    return _encode(self._whole, text)

  def decode(self, tokens: list[int]) -> str:
    """Returns the text of tokens, control tokens by their names."""
    names = {token: name for name, token in self.tokens.items()}
    return ''.join(
      ''.join(names[one] for one in run)
      if is_control
      else self._tokenizer.decode(list(run))
      for is_control, run in itertools.groupby(tokens, names.__contains__)
    )

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


def _guard(token: int) -> dict[str, Any]:
  """Returns the guard as an added token."""
  names = 'normalized', 'lstrip', 'rstrip', 'single_word'
  return {
    'id': token,
    'content': _GUARD,
    'special': True,
    **dict.fromkeys(names, False),
  }


def _encode(tokenizer: client.Tokenizer, text: str) -> np.ndarray:
  return np.concatenate([tokens for tokens, _ in tokenizer.encode(text)])


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
