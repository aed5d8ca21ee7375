"""Glue of templates: what stands between messages, for all chats."""

import pytest

from kaiju_jax.interchange.templates import glue as glue_lib
from tests.interchange.templates import shapes


@pytest.fixture(scope='module')
def glues():
  return {
    name: glue_lib.find(shapes.render_here(template))
    for name, template in shapes.TEMPLATES.items()
  }


def _notes(glues, name):
  return ' '.join(glues[name].adaptations)


def test_what_is_adapted_is_named(glues):
  assert glues['chatml'].adaptations == glues['bars'].adaptations == ()
  assert 'share a turn' in _notes(glues, 'turns')
  assert 'the user says' in _notes(glues, 'turns')
  assert 'before the first user text' in _notes(glues, 'last')
  assert 'empty user texts' in _notes(glues, 'sys')
  assert '<think>' in _notes(glues, 'thinking')
  assert _notes(glues, 'headers') == ''


def test_a_system_text_that_has_no_role_opens_the_first_user_turn(glues):
  said = [('system', 'Be.'), ('user', 'a'), ('system', 'Rain.')]
  assert glues['turns'].write(said) == (
    '<s><start_of_turn>user\nBe.\n\na\n\nRain.<end_of_turn>\n'
    '<start_of_turn>model\n'
  )
  greeted = [('system', 'Be.'), ('assistant', 'Hi.'), ('user', 'a')]
  assert glues['turns'].write(greeted) == (
    '<s><start_of_turn>user\nBe.\n\nHello.<end_of_turn>\n'
    '<start_of_turn>model\nHi.<end_of_turn>\n'
    '<start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\n'
  )


def test_what_a_template_takes_in_most_chats_is_not_adapted(glues):
  steps = glues['thinking'].steps
  for before in 'system', 'user', 'assistant':
    assert steps[before, 'system'].text == '<|im_end|>\n<|im_start|>system\n'


def test_a_default_system_text_goes_where_the_chat_has_one(glues):
  glue = glues['default']
  assert 'You are a model.' in glue.write([('user', 'a')])
  assert 'You are a model.' not in glue.write(
    [('system', 'Be.'), ('user', 'a')]
  )


@pytest.mark.parametrize(
  'template, words',
  [
    (
      "{% for m in messages %}{{ m.content | replace('e', '3') }}{% endfor %}",
      'differs from its pieces at character',
    ),
    (
      '{{ messages | length }}'
      '{% for m in messages %}{{ m.content }}|{% endfor %}',
      'differs from its pieces at character',
    ),
    (
      '{% for m in messages %}{{ m.content | e }}|{% endfor %}',
      'differs from its pieces',
    ),
    (
      '{{ messages[-1].content }}',
      'chat of 3 messages: message 1 is moved or left out',
    ),
    (
      "{{ raise_exception('not for chats') }}",
      'chat of 1 messages: not for chats',
    ),
    ('{% for', 'chat of 1 messages: '),
    ("{% include '/etc/hostname' %}", 'no loader'),
    ("{{ ''.__class__.__mro__ }}", 'unsafe'),
    ("{{ 'a' * 99999 }}{{ messages[0].content }}", 'characters'),
  ],
)
def test_what_is_no_glue_is_refused(template, words):
  with pytest.raises(ValueError, match=f'chat_template: .*{words}'):
    glue_lib.find(shapes.render_here(template))
