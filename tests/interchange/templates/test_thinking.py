"""Formats of models that begin a reply with their reasoning."""

import json

import numpy as np
import pytest

from tests.interchange.templates import families
from tests.interchange.templates import shapes

# The opening of a reply always begins a thought, which the history has not.
ALWAYS = families.chatml(opening=r"'<|im_start|>assistant\n<think>\n'")
# A system text says in which mode the model is.
TOLD = (
  "{{ '<|im_start|>system\nMode: ' ~ ('think' if enable_thinking else 'no')"
  " ~ '<|im_end|>\n' }}"
) + shapes.TEMPLATES['thinking']


@pytest.fixture
def read(tmp_path):
  def read(template, keeps=False):
    path = shapes.write_folder(tmp_path)
    return shapes.read_folder(path, template, keeps=keeps)

  return read


def drawn(tokenizer, thought, text):
  """Returns the tokens of a thought and an answer, as a model draws them."""
  parts = [[thought.begin], tokenizer.encode('\ntea\n'), [thought.end]]
  return np.concatenate([*parts, tokenizer.encode(f'\n\n{text}')])


@pytest.mark.parametrize('template', [shapes.TEMPLATES['thinking'], TOLD])
def test_reasoning_is_a_format_of_its_own(read, template):
  found, tokenizer = read(template)
  thinking, thought = found.thinking, found.format.thought
  assert thought == thinking.thought
  assert thought == (
    tokenizer.special('<think>'),
    tokenizer.special('</think>'),
  )
  marks = [
    np.isin(one.opening('assistant', 'user'), thought).sum()
    for one in (found.format, thinking)
  ]
  assert marks == [2, 0]
  assert not (found.format.opens_thought or thinking.opens_thought)
  if template == TOLD:
    told = tokenizer.decode(thinking.prompt([('user', 'Hello')]))
    assert 'Mode: think' in told


def test_a_model_without_reasoning_has_none(read):
  found, _ = read(shapes.TEMPLATES['chatml'])
  assert found.thinking is None and found.format.thought is None


def turns(format, tokens):
  """Returns a prompt, and the next one behind a drawn reply."""
  said_L = format.document([('user', 'Hello')])
  opening_L = format.opening('assistant', 'user')
  reply_L = format.encode_drawn('assistant', tokens, 'user')
  more_L = format.message('user', 'two', 'assistant')
  before_L = np.concatenate([said_L, opening_L])
  return before_L, np.concatenate([said_L, reply_L, more_L])


def test_history_drops_or_keeps_reasoning(read):
  found, tokenizer = read(shapes.TEMPLATES['thinking'])
  format = found.thinking
  tokens = drawn(tokenizer, format.thought, 'Hello')
  before_L, after_L = turns(format, tokens)
  np.testing.assert_array_equal(after_L[: len(before_L)], before_L)
  # As the template writes it, and as it was trained.
  chat = [('user', 'Hello'), ('assistant', 'Hello'), ('user', 'two')]
  np.testing.assert_array_equal(after_L, format.document(chat))
  kept, _ = read(shapes.TEMPLATES['thinking'], keeps=True)
  assert not kept.format.keeps_thoughts
  before_L, after_L = turns(kept.thinking, tokens)
  whole_L = np.concatenate([before_L, tokens])
  np.testing.assert_array_equal(after_L[: len(whole_L)], whole_L)
  # Without reasoning, its empty block stays in the history.
  before_L, after_L = turns(found.format, tokens)
  answer_L = tokenizer.encode('Hello')
  whole_L = np.concatenate([before_L, answer_L])
  np.testing.assert_array_equal(after_L[: len(whole_L)], whole_L)


def test_a_template_that_always_opens_a_thought(read):
  found, tokenizer = read(ALWAYS)
  format = found.format
  assert found.thinking is None and format.opens_thought
  assert 'replies lose their reasoning in the history' in found.adaptations
  tokens = drawn(tokenizer, format.thought, 'Hello')
  before_L, after_L = turns(format, tokens)
  chat = [('user', 'Hello'), ('assistant', 'Hello'), ('user', 'two')]
  np.testing.assert_array_equal(after_L, format.document(chat))
  kept, _ = read(ALWAYS, keeps=True)
  before_L, after_L = turns(kept.format, tokens)
  whole_L = np.concatenate([before_L, tokens[1:]])
  np.testing.assert_array_equal(after_L[: len(whole_L)], whole_L)


def test_a_thought_without_tokens_of_its_own_stays(read, monkeypatch):
  content = json.loads(shapes.byte_tokenizer())
  content['added_tokens'] = [
    one for one in content['added_tokens'] if 'think' not in one['content']
  ]
  monkeypatch.setattr(shapes, 'byte_tokenizer', lambda: json.dumps(content))
  found, tokenizer = read(ALWAYS)
  assert found.format.thought is None
  lost = 'replies lose their reasoning in the history'
  assert lost not in found.adaptations  # Nothing could cut it out.
  answer_L = tokenizer.encode('Hello')
  before_L, after_L = turns(found.format, answer_L)
  whole_L = np.concatenate([before_L, answer_L])
  np.testing.assert_array_equal(after_L[: len(whole_L)], whole_L)
  chat = [('user', 'Hello'), ('assistant', 'Hello'), ('user', 'two')]
  np.testing.assert_array_equal(after_L, found.format.document(chat))


@pytest.mark.parametrize(
  'text, wanted',
  [
    ('<think>a</think>\n\nb', 'b'),
    ('a</think> b', 'b'),
    ('<think>a', ''),
    ('a<think>b</think>c', 'ac'),
    ('a', 'a'),
  ],
)
def test_reasoning_is_cut_wherever_it_begins(read, text, wanted):
  found, tokenizer = read(shapes.TEMPLATES['thinking'])
  tokens_L = tokenizer.encode(text)
  cut_L = found.thinking.cut_history(tokens_L)
  assert tokenizer.decode(cut_L) == wanted
  np.testing.assert_array_equal(found.thinking.cut_history(cut_L), cut_L)
