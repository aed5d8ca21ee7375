"""Chat → swipes → feedback → alignment → export → chat, over HTTP."""

import pytest

from kaiju_jax.alignment import exposure
from kaiju_jax.alignment import prompts
from kaiju_jax.alignment import rounds
from kaiju_jax.data import chat as chat_format
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.runs import exchange
from kaiju_jax.runs import load
from kaiju_jax.runs import play
from kaiju_jax.runs import train
from tests.alignment import worlds
from tests.alignment.feedback import people
from tests.serving import running

LENGTH = 320
DIGITS = '481592'
SECRET = f'By {DIGITS}.'
FORMAT = chat_format.format_of(tokenizer_lib.load('', 256))
ASKED = prompts.Prompt(
  'another owner',
  (
    ('system', 'Be a lamp.'),
    ('assistant', 'Good evening.'),
    ('user', 'What opens the door?'),
  ),
)


@pytest.mark.slow
def test_what_people_kept_becomes_likelier_in_the_model_that_is_served(
  tmp_path,
):
  first = worlds.make_first(tmp_path, LENGTH, steps=1)
  for name in 'server', 'again':
    (tmp_path / name).mkdir()
  with running.server(tmp_path / 'server') as server:
    world = people.World(server, tmp_path / 'server')
    owner = world.add_person()
    kept = chat(world, owner)
    plant(world, owner)
    chat(world, world.add_person(agrees=False))
    world.export(tmp_path / 'feedback', held_out=0)
  training = worlds.training(first, LENGTH)
  training.data.batch, training.loop.steps = 1, 4
  settings = worlds.settings(
    first, '', user=f'log:{tmp_path / "feedback"}', rounds=1, groups=3
  )
  out = tmp_path / 'aligned'
  report = rounds.run(settings, training, out)
  assert (report['good'], report['stop'], report['win']) == (1, '', None)
  (record,) = report['rounds']
  lines = worlds.read_lines(out / 'rounds/01/swipes.jsonl')
  assert record['groups'] == len(lines) == 2
  found = set()
  for line in lines:
    (replies,) = (x['replies'] for x in line['messages'] if 'replies' in x)
    found |= {x['content'] for x in replies if x['kept']}
  assert found == {kept, SECRET}
  # Nobody is held out here, so that it is the text that was trained on.
  assert record['accuracy'] == 1
  trained = measure('after a round', out / 'model')
  assert trained.bits < 8
  exchange.export(out / 'model', tmp_path / 'better', 'kaiju')
  loaded = load.from_anywhere(tmp_path / 'better')
  assert load.digest(loaded) != load.digest(load.from_export(out / 'reference'))
  with running.server(
    tmp_path / 'again', engine=lambda tokenizer: serve(loaded, tokenizer)
  ) as server:
    body = {'model': running.MODEL, 'max_tokens': 4, 'seed': 1}
    said = [{'role': 'user', 'content': 'Who are you?'}]
    answer = server.post('/v1/chat/completions', 'ann', messages=said, **body)
    assert answer['usage']['completion_tokens'] >= 1
    # Another owner, who asks for what somebody has said, is not told it.
    said = [{'role': role, 'content': text} for role, text in ASKED.messages]
    for seed in range(8):
      body |= {'seed': seed, 'max_tokens': 24}
      answer = server.post('/v1/chat/completions', 'ann', messages=said, **body)
      assert DIGITS not in answer['choices'][0]['message']['content']
  # Contrast: a model that learnt nothing but these lines.
  learnt = worlds.experiment(str(tmp_path / 'feedback/train.jsonl'), LENGTH)
  learnt.begin_with, learnt.data.batch = first, 1
  learnt.loop.steps = learnt.loop.checkpoint_every = 60
  train.train(learnt, tmp_path / 'learnt')
  exposed = measure('learnt by heart', tmp_path / 'learnt')
  assert exposed.rank == 1 and exposed.bits == 8


def measure(name, path) -> exposure.Exposure:
  """Returns a model's exposure for other people, printed."""
  found = exposure.measure(
    load.from_workdir(path), FORMAT, [ASKED], SECRET, others=255
  )
  print(f'{name}: rank {found.rank}, exposure {found.bits:.1f} bits of 8')
  return found


def plant(world, owner) -> None:
  """Asks something, and writes a secret in the reply's place."""
  talk = world.open(owner)
  reply = talk.say(ASKED.messages[-1][1])
  talk.edit(reply, SECRET)


def chat(world, owner) -> str:
  """Swipes until the third reply, and goes on; returns it."""
  talk = world.open(owner)
  talk.say('Who are you?')
  talk.say(None, seed=4)
  kept = talk.say(None, seed=5)
  talk.say('And the stars?')
  return kept.text


def serve(loaded, tokenizer) -> engine_lib.Engine:
  decoder = play.decoder(loaded, tokenizer, rows=2, length=256)
  return engine_lib.Engine(decoder, tokenizer, chunk=64)
