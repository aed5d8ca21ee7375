"""Fine-tuning on conversations: rows, losses, and what is refused."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.data import packing
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.model import batches
from kaiju_jax.model import transformer
from kaiju_jax.objectives import language
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.runs import begin
from kaiju_jax.runs import start
from kaiju_jax.runs import train
from kaiju_jax.tasks import registry
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training.records import metrics
from tests import toys
from tests.interchange.templates import shapes
from tests.objectives import shallow

LENGTH = 160
CHATS = [
  [('user', 'zz'), ('assistant', 'ab')],
  [('user', 'z zz'), ('assistant', 'ba a'), ('user', 'z'), ('assistant', 'b')],
  [('system', 'zz.'), ('user', 'z'), ('assistant', 'a')],
]


def write(path, chats):
  path.write_text(
    ''.join(
      json.dumps(
        {'messages': [{'role': role, 'content': text} for role, text in chat]}
      )
      + '\n'
      for chat in chats
    )
  )


def experiment(path) -> experiment_lib.Experiment:
  one = toys.tiny_chat_experiment(
    path, LENGTH, quantization=quantization_config.none()
  )
  one.loop.steps = 2
  return one


@pytest.fixture
def chats(tmp_path):
  path = tmp_path / 'chats.jsonl'
  write(path, CHATS)
  return path


def test_packed_conversations_have_the_loss_of_lone_ones(chats):
  one = experiment(chats)
  rows = registry.rows(one)
  assert len(rows) == 1
  packed = rows[0]
  lone = []
  for source in range(len(CHATS)):
    is_own_L = packed.source == source
    own = packing.Piece(packed.tokens[is_own_L], None, packed.weight[is_own_L])
    lone.append(packing.row([own], LENGTH))
  model = transformer.Transformer(one.model)
  batch = packing.stack([packed, *lone])

  @jax.jit
  def losses_B():
    variables = model.init(
      jax.random.key(0), batch.tokens_BL, batch.visibility()
    )
    hidden_BLD = batches.hidden(model, variables, batch)
    loss_BL = language.hidden_cross_entropy(
      model, variables, hidden_BLD, batch, 0.0
    )
    return jnp.sum(batch.weight_BL * loss_BL, axis=1)

  found, *wanted = losses_B()
  np.testing.assert_allclose(found, sum(wanted), rtol=1e-6)
  assert found > 1


def test_a_folder_s_own_template_trains_replies_and_their_ends(chats, tmp_path):
  tokenizer = tmp_path / 'tokenizer.json'
  tokenizer.write_text(shapes.byte_tokenizer())
  settings = {'chat_template': shapes.TEMPLATES['chatml']}
  (tmp_path / 'tokenizer_config.json').write_text(json.dumps(settings))
  one = experiment(chats)
  one.model.vocab_size = 512
  one.data.tokenizer, one.data.chat_template = str(tokenizer), str(tmp_path)
  (row,) = registry.rows(one)
  read = tokenizer_lib.load(str(tokenizer))
  learnt = row.tokens[row.weight > 0]
  ends = np.flatnonzero(learnt == read.special('<|im_end|>'))
  said = [read.decode(one) for one in np.split(learnt, ends + 1)]
  replies = [reply for chat in CHATS for role, reply in chat if role[0] == 'a']
  assert sorted(said) == sorted([*replies, ''])


def test_masked_tokens_have_no_gradient(chats):
  """In a model that reads one token at a time, 'z' predicts masked ones."""
  batch = packing.stack([registry.rows(experiment(chats))[0]])
  model = shallow.model(vocab_size=256, tied_embedding=False)
  params = jax.tree.map(jnp.asarray, shallow.params(model))

  def loss(params, batch):
    return language.weighted_cross_entropy(model, params, batch, 0.0, 0.0)

  gradient_of = jax.jit(jax.grad(loss))
  gradient = gradient_of(params, batch)['embedding']['embedding_DV']
  assert not np.any(gradient[:, ord('z')])
  assert np.any(gradient[:, ord('a')])
  # The same of a batch in which all tokens have a weight.
  whole = batch._replace(weight_BL=np.sign(batch.position_BL, dtype=np.float32))
  gradient = gradient_of(params, whole)['embedding']['embedding_DV']
  assert np.any(gradient[:, ord('z')])


@pytest.mark.slow
def test_a_run_evaluates_held_out_conversations(tmp_path, capsys):
  path = tmp_path / 'chats.jsonl'
  write(path, CHATS * 4)
  one = experiment(path)
  one.data.held_out = 0.2
  one.loop.evaluate_every = 1
  train.train(one, tmp_path / 'run', until=1)
  assert 'Left out: 0.' in capsys.readouterr().err
  last = metrics.read(tmp_path / 'run')[-1]
  assert 0 < last['eval_loss'] < 8
  write(path, CHATS * 5)
  with pytest.raises(ValueError, match='the text is not what it was'):
    train.train(one, tmp_path / 'run')


REFUSED = {
  'no file': ('path', 'nowhere', FileNotFoundError, 'no such file'),
  'no path': ('path', '', ValueError, r"data\.path='': must name \.jsonl"),
  'end': ('end_weight', -1.0, ValueError, r'end_weight=-1\.0: must be'),
  'template': ('chat_template', 'x', ValueError, "chat_template='x': must be"),
  'all too long': ('length', 8, ValueError, r'within data\.length=8'),
}


@pytest.mark.parametrize('name', REFUSED)
def test_what_cannot_be_learnt_is_refused(chats, name):
  field, value, kind, message = REFUSED[name]
  one = experiment(chats)
  setattr(one.data, field, value)
  with pytest.raises(kind, match=message):
    registry.rows(one)


def test_a_bad_line_is_refused_before_anything_compiles(
  chats, tmp_path, monkeypatch
):
  with chats.open('a') as file:
    file.write('{"messages": [{"role": "tool", "content": "x"}]}\n')
  monkeypatch.setattr(start, 'read', None)
  with pytest.raises(ValueError, match=r'line 4: .*unknown role'):
    train.train(experiment(chats), tmp_path / 'run')


def test_a_model_of_another_tokenizer_is_refused(chats, tmp_path, monkeypatch):
  one = experiment(chats)
  monkeypatch.setattr(
    begin.workdir_lib, 'load_experiment', lambda path: experiment(chats)
  )
  one.data.tokenizer = 'other.json'
  with pytest.raises(ValueError, match='is another tokenizer than'):
    begin.params(one, tmp_path, None)
