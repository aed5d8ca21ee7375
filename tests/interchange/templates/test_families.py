"""A compiled template writes what Jinja renders, or says what it does instead.

The oracle is Jinja itself, on random chats: any order of roles, empty texts,
texts with spaces at their ends, and texts that spell control tokens or words
that the template looks for.
"""

import random

import numpy as np
import pytest
import tokenizers

from kaiju_jax.data import chat
from kaiju_jax.data import conversations
from kaiju_jax.data import turns
from kaiju_jax.interchange.templates import glue as glue_lib
from tests.interchange.templates import families
from tests.interchange.templates import shapes

FAMILIES = families.FAMILIES
CHATS = 150
# They write no token behind a reply.
ENDLESS = (families.FALCON_PLAIN,)
# What texts are made of; the last ones are also whole texts.
_WORDS = ('sun', 'Zürich', '雨', '🙂', 'a\tb', 'x\n\ny', '{{ x }}', "'", '\\')
_SPECIAL = (
  *('', ' ', '\n', '\u2003', '/think', '/no_think x', 'x /system_override'),
  *('<think>\nhm\n</think>\n\nyes', '</think>', '!brief', '<tool_response>'),
  *('<s>', '</s>', '<|im_end|>\n<|im_start|>system\n', '[INST]', '<<SYS>>'),
  *('<|end|>', '<end_of_turn>', '<|role_sep|>', 'user', 'system', 'None'),
)
_STRUCTURE = ('<', '[INST]')


def variables_of(family):
  return {**shapes.VARIABLES, **family.settings}


def draw_chat(rng):
  """Returns a random chat; most have the order that all templates take."""
  if rng.random() < 0.5:
    roles = ['system'] * (rng.random() < 0.5)
    roles += ['user', 'assistant'] * rng.randrange(3) + ['user']
  else:
    roles = rng.choices(chat.ROLES, k=rng.randrange(1, 9))
  strange = rng.random() < 0.4
  empty = [('system', '')] * (rng.random() < 0.1)
  return (*empty, *((role, draw_text(rng, strange)) for role in roles))


def draw_text(rng, strange):
  words = rng.choices(_WORDS, k=rng.randrange(1, 6))
  if strange and rng.random() < 0.5:
    words.insert(rng.randrange(len(words) + 1), rng.choice(_SPECIAL))
    if rng.random() < 0.5:
      words = [rng.choice(_SPECIAL)]
  text = ' '.join(words)
  if strange and rng.random() < 0.3:
    text = rng.choice(['', ' ', '\n\n', '\u3000']) + text + rng.choice(' \n')
  return text


@pytest.fixture(scope='module')
def found(tmp_path_factory):
  """Returns the chats of all families, and their tokenizers."""
  made = {}
  for name, family in FAMILIES.items():
    content = shapes.with_tokens(
      shapes.byte_tokenizer(), family.tokens, family.added
    )
    settings = {'chat_template': family.template, **family.settings}
    path = shapes.write_folder(
      tmp_path_factory.mktemp(name), content, **settings
    )
    read, _ = shapes.read_folder(path)
    made[name] = read, tokenizers.Tokenizer.from_str(content)
  return made


@pytest.mark.parametrize('name', FAMILIES)
def test_a_chat_is_the_template_s_own_or_what_differs_is_named(found, name):
  family, (read, whole) = FAMILIES[name], found[name]
  glue, format = read.glue, read.format
  render = shapes.oracle(family.template, variables_of(family))
  rng, own, seen = random.Random(7), 0, dict.fromkeys(glue.adaptations, 0)
  for _ in range(CHATS):
    messages = draw_chat(rng)
    text, written = render(messages), glue.write(messages)
    notes = glue.describe_differences(messages)
    for note in notes:
      seen[note] += text != written
    if notes:
      always = [x.note for x in glue.differences if x.keys and not x.pattern]
      assert text != written or not set(notes).intersection(always), messages
      continue
    own += 1
    assert written == text, messages
    tokens_L = format.prompt(messages)
    if any(one in said for _, said in messages for one in _STRUCTURE):
      # What a text spells is no structure.
      messages = [
        (x, said if said.isspace() else said and 'x') for x, said in messages
      ]
      ids = whole.encode(glue.write(messages)).ids
      np.testing.assert_array_equal(
        tokens_L[np.isin(tokens_L, format.structure)],
        [one for one in ids if one in format.structure],
      )
    else:
      assert tokens_L.tolist() == whole.encode(text).ids
  # A template's own opening may lack what the model would write first.
  assert own > CHATS / 5 or 'replies are opened with' in str(glue.adaptations)
  told = 'replies lose their reasoning in the history'  # Of drawn replies.
  assert all(count for note, count in seen.items() if note != told), seen


@pytest.mark.parametrize('name', FAMILIES)
def test_every_place_goes_on_with_every_role(found, name):
  glue = found[name][0].glue
  places = {place for place, _ in glue.steps}
  assert places >= {'', *(step.place for step in glue.steps.values())}
  assert glue.replies.keys() == places
  wanted = {(place, role) for place in places for role in chat.ROLES}
  assert glue.steps.keys() == wanted


@pytest.mark.parametrize('name', FAMILIES)
def test_a_chat_s_text_grows(found, name):
  """The next turn begins with this turn and its reply, for any chat."""
  glue, rng = found[name][0].glue, random.Random(1)
  cuts_thought = 'replies lose their reasoning' in str(glue.adaptations)
  for _ in range(30):
    messages, before = [], glue.write([])
    for number in range(7):
      role, text = rng.choice(chat.ROLES), f'text{number}'
      messages.append((role, text))
      written = glue.write(messages)
      assert written.count(text) == 1
      if role == 'assistant' and not cuts_thought:
        assert written.startswith(before)
      before = written


@pytest.mark.parametrize('name', families.REFUSED)
def test_what_is_no_glue_is_refused_with_its_first_difference(name):
  render = shapes.render_here(families.REFUSED[name])
  with pytest.raises(ValueError, match='differs from its pieces at character'):
    glue_lib.find(render)


SAID = ('Be brief.', 'Hello you', 'two teas', 'and more?', 'rain')


@pytest.mark.parametrize('has_system', [False, True])
@pytest.mark.parametrize('name', FAMILIES)
def test_a_trained_reply_ends_in_a_token_that_stops_it(found, name, has_system):
  family, (read, whole) = FAMILIES[name], found[name]
  roles = ('system', 'user', 'assistant', 'user', 'assistant')
  chat_ = [*zip(roles, SAID)][not has_system :]
  messages = [conversations.WeightedMessage(role, text) for role, text in chat_]
  if family.template in ENDLESS:
    with pytest.raises(ValueError, match='no token behind a reply'):
      turns.encode(messages, read.format)
    return
  document = turns.encode(messages, read.format, end_weight=0.5)
  learnt = np.flatnonzero(document.weights)
  ends = np.flatnonzero(document.weights == 0.5)
  assert len(ends) == 2
  assert np.isin(document.tokens[ends], read.format.stop_tokens).all()
  parts = np.split(learnt, np.searchsorted(learnt, ends[:1] + 1))
  for part, text in zip(parts, ('two teas', 'rain')):
    # All of the reply without a gap, its end, and nothing of the opening.
    assert np.diff(part).max(initial=1) == 1
    assert whole.decode(document.tokens[part[:-1]]).strip() == text
  # It is the template's own text, up to what follows the last end.
  if not read.glue.describe_differences(chat_):
    render = shapes.oracle(family.template, variables_of(family))
    ids = whole.encode(render(chat_, is_open=False)).ids
    assert document.tokens.tolist() == ids[: len(document.tokens)]


@pytest.mark.parametrize('name', FAMILIES)
def test_special_tokens_that_the_template_writes_end_a_reply(found, name):
  family, (read, whole) = FAMILIES[name], found[name]
  render = shapes.oracle(family.template, variables_of(family))
  texts = [render([('user', 'a'), ('assistant', 'b'), ('user', 'c')])]
  texts += [render([('system', 'a'), ('user', 'b')]) or '']
  special = [*('<s>', '</s>'), *family.tokens]
  written = {one for one in special if any(one in text for text in texts)}
  stops = {whole.id_to_token(one) for one in read.format.stop_tokens}
  assert written <= stops
  assert not stops & {*family.added, 'user'}
