"""A user with a token-level head: its values are the head's own."""

import jax
import numpy as np
import pytest

from kaiju_jax import visibility
from kaiju_jax.alignment import prompts
from kaiju_jax.alignment import users
from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer
from kaiju_jax.model import token_head
from kaiju_jax.model import transformer
from kaiju_jax.runs import load
from kaiju_jax.training import state
from tests.alignment import worlds

NAMES = 'quam', 'zorb'
PROMPT = prompts.Prompt('p', (('user', 'Hi there'),))
OTHER = prompts.Prompt('q', (('user', 'No'), ('assistant', 'b'), ('user', 'c')))


@jax.jit
def read(params, tokens_BL):
  model = transformer.Transformer(worlds.experiment('').model)
  seen = visibility.causal(worlds.LENGTH)
  return model.apply({'params': params}, tokens_BL, seen, method='hidden')


@pytest.fixture(scope='module')
def world(tmp_path_factory):
  """A model that has learned nothing, and a drawn head of two dimensions."""
  config = worlds.experiment('').model
  model = transformer.Transformer(config)
  params = state.init_params(model, 0)
  path = tmp_path_factory.mktemp('head') / 'head.safetensors'
  weights = {
    'w_DC': np.random.default_rng(0).normal(size=(32, 2)).astype(np.float32),
    'bias_C': np.array([0.5, -3.0], np.float32),
  }
  token_head.save(path, weights, token_head.TokenHeadConfig(NAMES))
  loaded = load.Loaded(params, config, None, '', 'runs/toy')
  return loaded, chat.format_of(tokenizer.load('')), weights, path


def user_of(world, text, temperature=0.0):
  loaded, format, _, _ = world
  described = users.parse(text, temperature)
  return users.Head(described, loaded, format, temperature)


def value(world, prompt, text, index):
  """Reads one conversation alone, in no packed row."""
  loaded, format, weights, _ = world
  before = format.prompt(prompt.messages)
  tokens_L = np.concatenate([before, np.frombuffer(text.encode(), np.uint8)])
  # Padding behind it is not seen, and one length compiles.
  padded_L = np.pad(tokens_L, (0, worlds.LENGTH - len(tokens_L)))
  hidden_BLD = read(loaded.params, padded_L[None].astype(np.int32))
  logits_LC = np.asarray(hidden_BLD)[0] @ weights['w_DC'] + weights['bias_C']
  return logits_LC[len(before) : len(tokens_L), index].max()


def test_a_reply_has_the_largest_logit_of_its_own_tokens(world):
  user = user_of(world, f'head:{world[3]}:zorb')
  # Of short replies, some would score more with their ends.
  texts = *'abcdefgh', 'Oh!', 'Well, well. And you?'
  asked = [(OTHER, 'Oh!'), *((PROMPT, text) for text in texts)]
  user.prefetch(asked)
  for prompt, text in asked:
    expected = value(world, prompt, text, 1)
    assert abs(user.judge(prompt, text) - expected) < 1e-4
  values = [user.rate(PROMPT, text) for text in ('Oh!', 'Ah', 'Mm.')]
  kept = user.choose(np.random.default_rng(0), PROMPT, ['Oh!', 'Ah', 'Mm.'])
  assert kept == int(np.argmax(values))
  # A head is another one where a weight is.
  assert user.digest != user_of(world, f'head:{world[3]}:quam').digest


def test_equal_values_are_a_tie_and_silence_is_worst(world):
  user = user_of(world, f'head:{world[3]}:zorb')
  rng = np.random.default_rng(0)
  assert user.choose(rng, PROMPT, ['Oh!', 'Oh!']) is None
  assert user.choose(rng, PROMPT, ['Oh!']) is None
  assert user.judge(PROMPT, ' ') < user.judge(PROMPT, 'Oh!')


def test_a_path_may_hold_a_colon(world, tmp_path):
  path = tmp_path / 'a:b'
  path.write_bytes(world[3].read_bytes())
  assert users.parse(f'head:{path}', 0.0) == users.Described('head', str(path))
  described = users.Described('head', str(path), 'zorb')
  assert users.parse(f'head:{path}:zorb', 0.0) == described


def test_another_head_is_refused_in_a_line(world, tmp_path):
  path = world[3]
  with pytest.raises(ValueError, match=r"'' is not one of quam, zorb; name"):
    user_of(world, f'head:{path}')
  with pytest.raises(ValueError, match=r"'glib' is not one of quam, zorb"):
    user_of(world, f'head:{path}:glib')
  with pytest.raises(FileNotFoundError, match=r'head:nowhere: no such file'):
    user_of(world, 'head:nowhere:quam')
  wide = {'w_DC': np.zeros((8, 1), np.float32), 'bias_C': np.zeros(1)}
  config = token_head.TokenHeadConfig(('quam',))
  token_head.save(tmp_path / 'wide', wide, config)
  with pytest.raises(ValueError, match=r'no head of runs/toy: .* 8 values'):
    user_of(world, f'head:{tmp_path / "wide"}')
