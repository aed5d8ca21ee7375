"""Preferences: formulas by an oracle in float64, and trees by lone rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.data import choices
from kaiju_jax.data import packing
from kaiju_jax.data import text
from kaiju_jax.data import turns
from kaiju_jax.model import config as model_config
from kaiju_jax.model import transformer
from kaiju_jax.objectives import config as objective_config
from kaiju_jax.objectives import objective as objective_lib
from kaiju_jax.objectives import preference
from kaiju_jax.quantization import config as quantization_config
from tests.data import test_choices
from tests.objectives import shallow

# Groups of 2, 3 and 5 replies in the first row, of 4 in the second.
SIZES = ((2, 3, 5), (4,))
SLOTS = 12
NONE = objective_lib.ZReg(0.0, 0.0)


def _drawn():
  """Returns log p, the reference's, tokens, groups and kept ones, [B, Y]."""
  rng = np.random.default_rng(0)
  log_p, reference = -rng.gamma(4.0, 5.0, (2, len(SIZES), SLOTS))
  tokens = rng.integers(2, 30, log_p.shape)
  group, kept = np.zeros((2, *log_p.shape), np.int32)
  for row, sizes in enumerate(SIZES):
    slot = 1
    for number, size in enumerate(sizes, 1):
      group[row, slot : slot + size] = number
      kept[row, slot + rng.integers(size)] = 1
      slot += size
  drawn = log_p, reference, tokens, group, kept
  in_use = group > 0
  return [np.where(in_use, one, 0) for one in drawn]


def _oracle(config, log_p, reference, tokens, kept):
  """Returns a group's loss in float64: TRL's formulas, reply by reply."""
  sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
  chosen = int(np.argmax(kept))
  others = [n for n in range(len(kept)) if n != chosen]
  rewards = config.beta * (log_p - reference)
  if config.loss == 'options':
    rewards = config.beta * log_p / tokens
  if config.loss == 'pairs':
    # sigmoid loss of TRL's DPOTrainer: −log σ(β (π log-ratio − ref log-ratio)).
    found = [
      -np.log(
        sigmoid(
          config.beta
          * ((log_p[chosen] - log_p[n]) - (reference[chosen] - reference[n]))
        )
      )
      for n in others
    ]
    loss = np.mean(found)
  else:
    loss = -np.log(np.exp(rewards[chosen]) / np.sum(np.exp(rewards)))
  loss -= config.nll * log_p[chosen] / tokens[chosen]
  return loss, min(rewards[chosen] - rewards[n] for n in others)


@pytest.mark.parametrize('loss', ['kept', 'pairs', 'options'])
def test_losses_are_those_of_a_float64_oracle(loss):
  nll = 0.5 if loss == 'options' else 0.0
  config = objective_config.Preference(loss=loss, beta=0.3, nll=nll)
  log_p, reference, tokens, group, kept = _drawn()
  found = preference.losses(
    config,
    *(jnp.asarray(one, jnp.float32) for one in (log_p, reference, tokens)),
    jnp.asarray(group),
    jnp.asarray(kept, jnp.float32),
  )
  wanted = np.zeros((2, *log_p.shape))
  for row, sizes in enumerate(SIZES):
    for number in range(1, len(sizes) + 1):
      own = group[row] == number
      wanted[:, row, number] = _oracle(
        config, *(one[row][own] for one in (log_p, reference, tokens, kept))
      )
  np.testing.assert_allclose(found.loss_BG, wanted[0], rtol=1e-6, atol=1e-6)
  np.testing.assert_allclose(found.margin_BG, wanted[1], rtol=2e-6, atol=2e-6)
  two = group[0] == 1
  if loss == 'kept':  # DPO where a turn has two replies.
    pairs = objective_config.Preference(loss='pairs', beta=0.3)
    own = (one[0][two] for one in (log_p, reference, tokens, kept))
    same, _ = _oracle(pairs, *own)
    np.testing.assert_allclose(found.loss_BG[0, 1], same, rtol=1e-6)


def test_a_policy_like_its_reference_has_the_loss_log_n():
  log_p, _, tokens, group, kept = _drawn()
  for scale in (1.0, 1e3):  # Rewards that a plain exp would not survive.
    log_p_BY = jnp.asarray(scale * log_p, jnp.float32)
    found = preference.losses(
      objective_config.Preference(beta=scale),
      log_p_BY,
      log_p_BY,
      jnp.asarray(tokens, jnp.float32),
      jnp.asarray(group),
      jnp.asarray(kept, jnp.float32),
    )
    for row, sizes in enumerate(SIZES):
      wanted = np.log(sizes)
      own = found.loss_BG[row, 1 : len(sizes) + 1]
      np.testing.assert_allclose(own, wanted, atol=1e-6)


def _rows(told, length, is_tree=True):
  """Returns rows of choices, and the log-probabilities' places in them."""
  corpus, found, _ = turns.choices(told, test_choices.FORMAT)
  source = text.Rows(corpus, length, shuffle=False)
  return packing.stack([choices.Rows(source, found)[0]])


def test_a_tree_is_its_replies_alone():
  """Contrast: siblings that see each other."""
  length = 96
  told = test_choices.TALKS[0]
  tree = _rows([told], length)
  rows = []
  kept = [('user', '0?'), ('assistant', 'no'), ('user', '1?')]
  for before, own in (
    *((kept[:1], one) for one in ('yes!', 'no')),
    *((kept, one) for one in ('b', 'c', 'a')),
  ):
    size = len(own) + 1
    tokens = test_choices.FORMAT.document([*before, ('assistant', own)])
    reply_L = np.zeros(length, np.int32)
    reply_L[len(tokens) - size : len(tokens)] = 1
    row = packing.row([packing.Piece(tokens)], length)
    rows.append(row._replace(extras={choices.REPLY: reply_L}))
  crossed = tree._replace(
    limit_BL=np.where(tree.limit_BL > tree.start_BL, length, tree.limit_BL)
  )
  keep = lambda one: one._replace(  # noqa: E731
    extras={choices.REPLY: one.extras[choices.REPLY]}
  )
  parts = [keep(tree), keep(crossed), packing.stack(rows)]
  whole = jax.tree.map(lambda *x: np.concatenate(x), *parts)
  model = transformer.Transformer(
    model_config.ModelConfig(
      vocab_size=256, d_model=32, layout='G0', num_heads=2, head_dim=16,
      d_ff=32, max_length=length, dtype='float32',
      quantization=quantization_config.none(),
    )
  )  # fmt: skip

  @jax.jit
  def log_p_BY(batch):
    variables = model.init(
      jax.random.key(0), batch.tokens_BL, batch.visibility()
    )
    # A fresh model's logits hardly depend on what it reads.
    leaves, form = jax.tree.flatten(variables)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    drawn = [jax.random.normal(k, x.shape) / 4 for k, x in zip(keys, leaves)]
    variables = jax.tree.unflatten(form, drawn)
    return preference.log_probabilities(model, variables, batch, NONE)

  in_tree, mixed, *lone = np.asarray(log_p_BY(whole))
  wanted = [one[1] for one in lone]
  np.testing.assert_allclose(in_tree[1:6], wanted, rtol=1e-5)
  assert np.abs(mixed[1:6] - wanted).max() > 1e-2


@pytest.mark.parametrize('loss', ['kept', 'options'])
def test_every_mesh_has_the_same_gradient_and_weights_count(loss):
  length = 64
  told = test_choices.TALKS
  rows = []
  for one in (told[0], told[1]):
    corpus, found, _ = turns.choices([one], test_choices.FORMAT)
    reference = None
    if loss == 'kept':
      reference = [np.linspace(-30, -20, sum(len(c.spans) for c in found[0]))]
    source = text.Rows(corpus, length, shuffle=False)
    rows.append(choices.Rows(source, found, reference)[0])
  batch = packing.stack(rows)
  model = shallow.model(vocab_size=256)
  config = objective_config.Preference(loss=loss, nll=0.5)
  objective = preference.make(config, length, chunk=16)
  objective.check(batch)
  sums, gradient = shallow.gradient_on(model, objective, batch)
  others = shallow.gradient_on(model, objective, batch, (2, 2))
  shallow.assert_close(others[1], gradient, 2e-5)
  np.testing.assert_allclose(
    *map(jax.tree.leaves, (others[0], sums)), rtol=2e-5
  )
  # Two groups of weight 1, one of weight ½.
  assert sums.weight == 2.5
  assert sums.metrics['accuracy'][1] == 2.5
