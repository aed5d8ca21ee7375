"""Golden conversations: files, and what the shipped ones are worth."""

import collections
import dataclasses
import json
import pathlib
import re
import statistics
import types

import pytest

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.prompts import prompt as prompt_lib
from kaiju_jax.data import chat
from kaiju_jax.data import conversations as conversations_lib
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.data.dialogues import vocabulary
from kaiju_jax.evaluation.persona import dialogue
from kaiju_jax.evaluation.persona import golden
from kaiju_jax.evaluation.persona import responders
from kaiju_jax.evaluation.persona import rules
from kaiju_jax.storage import files
from kaiju_jax.tasks.dialogues import golden as generated

SHIPPED = (
  pathlib.Path(__file__).parents[3] / 'experiments/golden/conversations.jsonl'
)


@pytest.fixture(scope='module')
def shipped():
  return golden.load(SHIPPED)


def played(responder, conversations, **options):
  """Returns each conversation's scores by property."""
  replies = dialogue.play(responder, conversations, **options)
  return [rules.score(*one) for one in zip(conversations, replies)]


def means(scores):
  return [statistics.fmean(one.values()) for one in scores]


def test_eight_conversations_of_each_tier_are_shipped(shipped):
  assert collections.Counter(one.tier for one in shipped) == {
    'public': 8,
    'official': 8,
    'mature': 8,
  }
  assert len({one.character.name for one in shipped}) == 24
  assert {one.author for one in shipped} == {'kaiju_jax'}


def sets(shipped):
  return (shipped, generated.conversations(8))


def test_references_are_right_and_another_persona_is_wrong(shipped):
  for conversations in sets(shipped):
    references = responders.References()
    assert set(means(played(references, conversations))) == {5}
    swapped = responders.Swapped(references, conversations)
    found = list(zip(conversations, means(played(swapped, conversations))))
    for tier in golden.TIERS:
      own = [value for one, value in found if one.tier == tier]
      assert statistics.fmean(own) <= 2.5


class Changed:
  """References of which one kind of probe's replies are changed."""

  def __init__(self, conversations, property, change):
    self._turns = {
      one.id: {x.turn for x in one.probes if x.property == property}
      for one in conversations
    }
    self._change = change

  def answer(self, messages):
    found = responders.References().answer(messages)
    return [
      self._change(one.conversation, reply)
      if len(one.before) + 1 in self._turns[one.conversation.id]
      else reply
      for one, reply in zip(messages, found)
    ]


def without(property):
  """Returns a change that takes the expected phrases of a property away."""

  def change(conversation, reply):
    words = reply
    for probe in conversation.probes:
      for phrase in probe.expect if probe.property == property else ():
        for form in phrase, phrase.capitalize(), phrase.title(), phrase.upper():
          words = words.replace(form, 'hm')
    return words

  return change


@pytest.mark.parametrize('property', golden.PROPERTIES)
def test_a_fault_lowers_its_own_property(shipped, property):
  for conversations in sets(shipped):
    changed = Changed(conversations, property, without(property))
    found = played(changed, conversations)
    for name in golden.PROPERTIES:
      mean = statistics.fmean(one[name] for one in found)
      assert mean <= 4 if name == property else mean > 4.3, (name, mean)


class Says:
  """Says one text, or the references and the text behind them."""

  def __init__(self, text, is_added=False):
    self._text, self._is_added = text, is_added

  def answer(self, messages):
    said = responders.References().answer(messages)
    return [x * self._is_added + self._text for x in said]


def test_padding_hardly_moves_a_score(shipped):
  padding = ' Well, as it goes, so it goes. ' * 3
  assert min(means(played(Says(padding, True), shipped))) >= 4.9


@pytest.mark.parametrize('text', ['', '…', 'qzx wvu tsr'])
def test_who_says_nothing_or_noise_is_at_the_bottom(shipped, text):
  assert max(means(played(Says(text), shipped))) == 1


def test_generated_conversations_are_new_each_and_the_same_again():
  first, again = (generated.conversations(5, seed=3) for _ in range(2))
  assert first == again != generated.conversations(5, seed=4)
  assert len({one.character.description for one in first}) == 15
  assert {one.author for one in first} == {'generated'}
  assert collections.Counter(one.tier for one in first) == dict.fromkeys(
    golden.TIERS, 5
  )


def test_who_practises_meets_no_character_of_the_test():
  """Its conversations are of the same form, and its values often no words."""
  records = list(generated.practice(60, seed=3))
  assert records == list(generated.practice(60, seed=3))
  talks = [
    [(one.role, one.content) for one in conversations_lib.parse(record)]
    for record in records
  ]
  described = {talk[0][1].split('\n\n')[1] for talk in talks}
  assert len(described) == 60
  tested = [x for n in (0, 3) for x in generated.conversations(20, seed=n)]
  assert not described & {one.character.description for one in tested}
  for talk in talks:
    roles = [role for role, _ in talk]
    assert roles == ['system', *['assistant', 'user'] * 8, 'assistant']
    # The last reply repeats the fact of the third.
    value = talk[5][1].split()[-1]
    assert value in talk[0][1] and value in talk[-1][1]

  # Words that are no names and in no tested character's description.
  known = set(vocabulary.list_words())
  for one in tested:
    known |= words_of(one.character.description)
  assert 15 < sum(bool(words_of(one) - known) for one in described) < 45


def words_of(text):
  """Returns the words of a text that are written small."""
  return set(re.findall(r'\b[a-z]+\b', text))


def test_a_file_is_read_back(shipped, tmp_path):
  path = tmp_path / 'golden.jsonl'
  files.write_json_lines(path, map(dataclasses.asdict, shipped))
  assert golden.load(path) == shipped


def first(**changes):
  """Returns a change of the first of some probes or turns."""
  return lambda x: [{**x[0], **changes}, *x[1:]]


@pytest.mark.parametrize(
  'field, change, message',
  [
    ('turns', lambda x: x[:7], 'turns: 7; must be 8'),
    ('tier', lambda _: 'secret', "tier='secret': "),
    ('author', lambda _: '', 'author: '),
    ('id', lambda _: '', 'id: '),
    ('note', lambda _: 'x', 'note'),
    ('turns', first(user=' '), r'turns\[1\]: user'),
    ('turns', lambda _: 7, 'turns=7: must be tuple'),
    ('probes', lambda x: x[:1], 'probes: none for'),
    (
      'probes',
      lambda x: [one for one in x if one['turn'] != 8],
      'none for backstory at turn 8',
    ),
    ('probes', first(turn=9), r'probes\[1\]\.turn=9: must be 1…8'),
    ('probes', first(property='wit'), r"probes\[1\]\.property='wit'"),
    ('probes', first(expect=[], forbid=[]), 'must expect or forbid'),
    ('probes', first(expect=['…']), r"probes\[1\]\.expect='…': "),
    ('probes', first(weight=0.0), r'probes\[1\]\.weight=0\.0'),
    ('character', lambda x: {**x, 'age': 3}, r'character\.age'),
  ],
)
def test_faults_are_named_with_their_line(
  shipped, tmp_path, field, change, message
):
  path = tmp_path / 'golden.jsonl'
  good, data = (
    json.loads(json.dumps(dataclasses.asdict(one))) for one in shipped[:2]
  )
  data[field] = change(data.get(field))
  files.write_json_lines(path, [good, data])
  with pytest.raises(ValueError, match=f'line 2: .*{message}'):
    golden.load(path)


def test_a_conversation_twice_and_an_empty_file_are_refused(shipped, tmp_path):
  path = tmp_path / 'golden.jsonl'
  path.write_text((json.dumps(dataclasses.asdict(shipped[0])) + '\n') * 2)
  with pytest.raises(ValueError, match=r'line 2: id=.* stands twice'):
    golden.load(path)
  path.write_text('\n')
  with pytest.raises(ValueError, match='holds no conversations'):
    golden.load(path)


# How they are played.


class Recorder:
  """Answers with the turn's number, and keeps what it was asked."""

  def __init__(self):
    self.batches = []

  def answer(self, messages):
    self.batches.append(messages)
    return [f'{len(one.before)} of {one.conversation.id}' for one in messages]


@pytest.mark.parametrize('is_forced', [False, True])
def test_a_turn_follows_the_own_replies_or_the_references(shipped, is_forced):
  two = shipped[:2]
  recorder = Recorder()
  replies = dialogue.play(recorder, two, is_forced)
  assert [len(one) for one in recorder.batches] == [2] * 8
  for place, one in enumerate(two):
    assert replies[place] == [f'{n} of {one.id}' for n in range(8)]
    last = recorder.batches[7][place]
    assert last.user == one.turns[7].user
    assert [x.user for x in last.before] == [x.user for x in one.turns[:7]]
    said = [x.reference for x in one.turns[:7]] if is_forced else replies[place]
    assert [x.reply for x in last.before] == said[:7]


def test_more_conversations_than_go_together_keep_their_order(shipped):
  recorder = Recorder()
  replies = dialogue.play(recorder, shipped[:7], together=3)
  assert [len(x) for x in recorder.batches] == [3] * 8 + [3] * 8 + [1] * 8
  assert replies == [
    [f'{n} of {one.id}' for n in range(8)] for one in shipped[:7]
  ]


def test_a_swapped_persona_hears_the_same_messages(shipped):
  recorder = Recorder()
  dialogue.play(responders.Swapped(recorder, shipped), shipped, together=24)
  for place, one in enumerate(recorder.batches[3]):
    assert one.user == shipped[place].turns[3].user
    other = shipped[(place + 1) % len(shipped)]
    assert one.conversation.character == other.character
  with pytest.raises(ValueError, match='has the same character'):
    responders.Swapped(recorder, shipped[:1])


def test_an_endpoint_gets_the_persona_and_what_was_said(shipped):
  calls = []

  def create(**fields):
    calls.append(fields)
    message = types.SimpleNamespace(content=None)
    choice = types.SimpleNamespace(message=message)
    return types.SimpleNamespace(choices=[choice])

  completions = types.SimpleNamespace(create=create)
  client = types.SimpleNamespace(
    chat=types.SimpleNamespace(completions=completions)
  )
  one = shipped[0]
  message = dialogue.Asked(one, (dialogue.Exchange('Hi', 'Hello'),), 'Where?')
  assert responders.Endpoint(client, 'm', 0.5).answer([message]) == ['']
  (found,) = calls
  roles = [x['role'] for x in found['messages']]
  assert roles == ['system', 'assistant', 'user', 'assistant', 'user']
  assert one.character.description in found['messages'][0]['content']
  assert found['messages'][-1]['content'] == 'Where?'
  assert (found['model'], found['temperature']) == ('m', 0.5)


def test_a_model_gets_the_prompts_of_a_server(shipped):
  """The tokens are those of the system message and of all that was said."""

  class Generator:
    forgotten = 0

    def forget(self):
      self.forgotten += 1

    def generate(self, requests):
      self.requests = list(requests)
      return [types.SimpleNamespace(text=f'{n}') for n in range(len(requests))]

  format = chat.format_of(tokenizer_lib.Bytes())
  generator = Generator()
  model = responders.Model(generator, format, 0.5, seed=7)
  messages = [
    dialogue.Asked(shipped[0], (), 'Where?'),
    dialogue.Asked(shipped[1], (dialogue.Exchange('Hi', 'Hmph'),), 'Who?'),
  ]
  assert model.answer(messages) == ['0', '1']
  for one, request in zip(messages, generator.requests):
    fields = card_fields.Fields(**vars(one.conversation.character))
    said = [('system', prompt_lib.persona(fields))]
    said.append(('assistant', fields.greeting))
    for exchange in one.before:
      said += [('user', exchange.user), ('assistant', exchange.reply)]
    said.append(('user', one.user))
    wanted = format.prompt(said)
    assert request.tokens.tolist() == wanted.tolist()
    assert request.stop_tokens == format.stop_tokens
    assert request.max_tokens == responders.REPLY
  # A message has its own seed, whatever is asked beside it.
  seeds = [one.sampling.seed for one in generator.requests]
  assert len(set(seeds)) == 2
  assert model.answer(messages[1:]) == ['0']
  assert generator.requests[0].sampling.seed == seeds[1]
  responders.Model(generator, format, 0.5, seed=8).answer(messages[1:])
  assert generator.requests[0].sampling.seed != seeds[1]
  assert {one.sampling.temperature for one in generator.requests} == {0.5}
  # What begins finds nothing of what ended; what goes on finds its beginning.
  assert generator.forgotten == 0
  model.answer(messages[:1])
  assert generator.forgotten == 1
