"""A GGUF file's tokenizer splits texts as its metadata say."""

import itertools
import json
import random

import pytest
import tokenizers

from kaiju_jax.interchange.gguf import vocabulary

_KEY = 'tokenizer.ggml.'
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
_SCRIPTS = (
  (0x20, 0x7E),
  (0xA0, 0x24F),
  (0x370, 0x4FF),
  (0x590, 0x6FF),
  (0x900, 0x97F),
  (0x3040, 0x30FF),
  (0x4E00, 0x4EFF),
  (0x1F300, 0x1F64F),
)


def texts(count: int) -> list[str]:
  """Returns random texts of one script each, with spaces and digits."""
  rng = random.Random(0)
  found = []
  for _ in range(count):
    low, high = rng.choice(_SCRIPTS)
    found.append(
      ''.join(
        rng.choice((' ', '\n', '7', '42', "'s", "'LL", '  ', 'Aa', 'the'))
        if rng.random() < 0.4
        else chr(rng.randint(low, high))
        for _ in range(rng.randrange(60))
      )
    )
  return found


def steps_of(pre: str):
  """Returns the steps of the models' own tokenizers, as their authors say."""
  step = tokenizers.pre_tokenizers
  if pre in ('gpt-2', 'olmo'):
    return step.ByteLevel(add_prefix_space=False)
  if pre == 'smollm':
    return step.Sequence(
      [step.Digits(True), step.ByteLevel(add_prefix_space=False)]
    )
  digits = '' if pre == 'qwen2' else '{1,3}'
  words = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    + digits
    + r"""| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
  )
  return step.Sequence(
    [
      step.Split(tokenizers.Regex(words), 'isolated'),
      step.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
  )


@pytest.fixture(scope='module')
def trained():
  """A byte-level tokenizer that knows words across all borders."""
  found = tokenizers.Tokenizer(tokenizers.models.BPE())
  found.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
    add_prefix_space=False, use_regex=False
  )
  trainer = tokenizers.trainers.BpeTrainer(
    vocab_size=700,
    special_tokens=['<s>', '</s>'],
    initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  found.train_from_iterator(texts(400), trainer)
  return found


def metadata_of(trained, pre: str) -> dict:
  """Returns the metadata of a trained tokenizer, its table filled up."""
  vocabulary_of = trained.get_vocab()
  tokens = sorted(vocabulary_of, key=vocabulary_of.get)
  merges = json.loads(trained.to_str())['model']['merges']
  return {
    f'{_KEY}model': 'gpt2',
    f'{_KEY}pre': pre,
    f'{_KEY}tokens': [*tokens, '[PAD1]', '[PAD2]'],
    f'{_KEY}token_type': [
      *(CONTROL if one in ('<s>', '</s>') else NORMAL for one in tokens),
      UNUSED,
      UNUSED,
    ],
    f'{_KEY}merges': [' '.join(one) for one in merges],
    f'{_KEY}bos_token_id': tokens.index('<s>'),
    f'{_KEY}eos_token_id': tokens.index('</s>'),
  }


def open_(fields: dict) -> tokenizers.Tokenizer:
  return tokenizers.Tokenizer.from_str(json.dumps(vocabulary.files(fields)[0]))


@pytest.mark.parametrize(
  'pre', ['gpt-2', 'olmo', 'smollm', 'dbrx', 'smaug-bpe', 'qwen2']
)
def test_words_are_split_as_the_models_authors_do(trained, pre):
  ours = open_(metadata_of(trained, pre))
  trained.pre_tokenizer = steps_of(pre)
  trained.normalizer = tokenizers.normalizers.NFC() if pre == 'qwen2' else None
  different = 0
  for text in texts(300):
    got = ours.encode(text).ids
    assert got == trained.encode(text).ids, text
    different += len(got) > 0
    if pre != 'qwen2':
      assert ours.decode(got, skip_special_tokens=False) == text
  assert different > 200
  trained.normalizer = None


@pytest.mark.parametrize('pre', ['llama-bpe', 'tekken'])
def test_a_word_that_is_a_token_is_taken_whole(trained, pre):
  fields = metadata_of(trained, pre)
  word = 'zebraquilt'
  places = [*fields[f'{_KEY}tokens'][:-2], word]
  fields[f'{_KEY}tokens'] = places
  fields[f'{_KEY}token_type'] = fields[f'{_KEY}token_type'][:-2] + [NORMAL]
  fields[f'{_KEY}add_bos_token'] = False
  assert open_(fields).encode(word).ids == [len(places) - 1]
  fields[f'{_KEY}pre'] = 'dbrx'
  assert open_(fields).encode(word).ids != [len(places) - 1]


def test_texts_begin_with_the_first_token_where_the_file_says_so(trained):
  fields = metadata_of(trained, 'gpt-2')
  first = fields[f'{_KEY}bos_token_id']
  assert first not in open_(fields).encode('a').ids
  fields[f'{_KEY}add_bos_token'] = True
  assert open_(fields).encode('a').ids[0] == first
  fields[f'{_KEY}token_type'][5] = USER
  added = {
    one['id']: one['special']
    for one in vocabulary.files(fields)[0]['added_tokens']
  }
  assert added == {0: True, 1: True, 5: False}
  settings = vocabulary.files(
    fields | {'tokenizer.chat_template': 'x', f'{_KEY}padding_token_id': 1}
  )[1]
  assert settings['bos_token'] == '<s>'
  assert settings['eos_token'] == settings['pad_token'] == '</s>'
  assert settings['chat_template'] == 'x'


@pytest.mark.parametrize(
  ('pre', 'opens'),
  [('llama-bpe', True), ('tekken', True), ('smaug-bpe', False)],
)
def test_a_silent_file_opens_texts_as_llama_cpp_does(trained, pre, opens):
  fields = metadata_of(trained, pre)
  first = fields[f'{_KEY}bos_token_id']
  assert (open_(fields).encode('a').ids[0] == first) == opens
  del fields[f'{_KEY}bos_token_id']
  assert open_(fields).encode('a').ids[0] != first


def test_a_file_without_kinds_of_tokens_has_plain_ones(trained):
  fields = metadata_of(trained, 'gpt-2')
  want = open_(fields).encode('the zebra').ids
  del fields[f'{_KEY}token_type']
  assert open_(fields).encode('the zebra').ids == want
  assert vocabulary.files(fields)[0]['added_tokens'] == []


def pieces() -> dict:
  """Returns the metadata of a small SentencePiece vocabulary."""
  plain = ['▁', *'abcdeé', '▁a', 'ab', 'bc', 'abc', '▁ab', 'cd', 'de', 'cde']
  rng = random.Random(1)
  scores = [-rng.uniform(1, 9) for _ in plain]
  bytes_ = [f'<0x{byte:02X}>' for byte in range(256)]
  return {
    f'{_KEY}model': 'llama',
    f'{_KEY}tokens': ['<unk>', '<s>', '</s>', *bytes_, *plain],
    f'{_KEY}scores': [0.0] * 259 + scores,
    f'{_KEY}token_type': [UNKNOWN, CONTROL, CONTROL]
    + [BYTE] * 256
    + [NORMAL] * len(plain),
    f'{_KEY}unknown_token_id': 0,
    f'{_KEY}bos_token_id': 1,
    f'{_KEY}eos_token_id': 2,
  }


def merge(text: str, fields: dict) -> list[int]:
  """Returns a text's tokens: the neighbours of the best score become one."""
  place = {one: index for index, one in enumerate(fields[f'{_KEY}tokens'])}
  scores = fields[f'{_KEY}scores']
  parts = [*text.replace(' ', '▁')]
  while True:
    pairs = [
      (scores[place[a + b]], -index)
      for index, (a, b) in enumerate(itertools.pairwise(parts))
      if a + b in place
    ]
    if not pairs:
      break
    index = -max(pairs)[1]
    parts[index : index + 2] = [parts[index] + parts[index + 1]]
  return [
    token
    for part in parts
    for token in (
      [place[part]] if part in place else [3 + byte for byte in part.encode()]
    )
  ]


@pytest.mark.parametrize('begins', [True, False])
def test_sentence_pieces_merge_by_their_scores(begins):
  fields = pieces() | {f'{_KEY}add_space_prefix': begins}
  ours = open_(fields)
  rng = random.Random(2)
  for _ in range(300):
    text = ''.join(rng.choice('abcdeé  ß') for _ in range(rng.randrange(1, 20)))
    want = merge(' ' * begins + text, fields)
    assert ours.encode(text).ids == [1, *want], text
    assert ours.decode(want) == text


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'model': 'bert'}, "model='bert': must be 'gpt2' or 'llama'"),
    ({'pre': 'viking'}, "pre='viking': must be one of gpt-2, olmo"),
    ({'pre': None}, 'pre=None: must be one of'),
    ({'tokens': []}, 'tokens: must be a list of strings'),
    ({'tokens': ['a', 'a']}, 'token_type: must be a number for each'),
    ({'tokens': ['a', 'a'], 'token_type': [1, 1]}, 'must be different'),
    ({'merges': ['a b c']}, "merges: 'a b c': must be two tokens"),
    ({'merges': ['<s> </s>']}, "merges: '<s> </s>': must be two tokens"),
    ({'merges': None}, 'merges: must be a list of strings'),
    ({'eos_token_id': 702}, 'eos_token_id=702: must be one of'),
    ({'eos_token_id': -1}, 'eos_token_id=-1: must be one of'),
    ({'add_bos_token': True, 'bos_token_id': None}, 'bos_token_id: missing'),
    ({'model': 'llama'}, 'scores: must be a number for each token'),
  ],
)
def test_metadata_that_lie_are_refused(trained, changes, message):
  fields = metadata_of(trained, 'gpt-2')
  fields |= {f'{_KEY}{key}': value for key, value in changes.items()}
  with pytest.raises(ValueError, match=message):
    vocabulary.files(fields)
