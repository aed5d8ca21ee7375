"""Preferences: formulas by an oracle in float64, and trees by lone rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.data import choices
from kaiju_jax.data import packing
from kaiju_jax.data import text
from kaiju_jax.data import turns
from kaiju_jax.model import batches
from kaiju_jax.model import config as model_config
from kaiju_jax.model import transformer
from kaiju_jax.objectives import config as objective_config
from kaiju_jax.objectives import objective as objective_lib
from kaiju_jax.objectives import preference
from kaiju_jax.quantization import config as quantization_config
from tests.data import talks
from tests.objectives import shallow

# Groups of 2, 3 and 5 replies in the first row, of 4 and 1 in the second.
SIZES = ((2, 3, 5), (4, 1))
LOSSES = 'kept', 'pairs', 'options'
SLOTS = 12
NONE = objective_lib.ZReg(0.0, 0.0)


def _drawn(seed=0):
  """Returns log p, the reference's, tokens, groups and kept ones, [B, Y]."""
  rng = np.random.default_rng(seed)
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
  """Returns a group's loss and margin: TRL's formulas, reply by reply."""
  log_p, reference = np.float64(log_p), np.float64(reference)
  sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
  chosen = int(np.argmax(kept))
  others = [n for n in range(len(kept)) if n != chosen]
  rewards = config.beta * (log_p - reference)
  if config.loss == 'options':
    rewards = config.beta * log_p / tokens
  loss = 0.0
  if config.loss == 'pairs' and others:
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
  elif others:
    loss = -np.log(np.exp(rewards[chosen]) / np.sum(np.exp(rewards)))
  loss -= config.nll * log_p[chosen] / tokens[chosen]
  margins = [rewards[chosen] - rewards[n] for n in others]
  return loss, min(margins, default=0)


def _slope(config, log_p, reference, tokens, kept):
  """Returns the gradient of `_oracle`'s loss by log p, in closed form."""
  log_p = np.float64(log_p)
  rewards = config.beta * (log_p - np.float64(reference))
  factor = np.full(len(log_p), config.beta)
  if config.loss == 'options':
    rewards, factor = config.beta * log_p / tokens, config.beta / tokens
  ahead = (rewards - rewards[np.argmax(kept)])[kept == 0]
  if config.loss == 'pairs':
    push = 1 / (1 + np.exp(-ahead)) / max(1, len(ahead))
  else:
    push = np.exp(ahead) / (1 + np.exp(ahead).sum())
  slope = np.full(len(log_p), -push.sum())
  slope[kept == 0] = push
  return slope * factor


def _of_groups(group, *values):
  """Yields (row, group's number, its replies' values) of [B, Y] arrays."""
  for row, sizes in enumerate(SIZES):
    for number in range(1, len(sizes) + 1):
      own = group[row] == number
      yield row, number, [one[row][own] for one in values]


def _found(config, log_p, reference, tokens, group, kept):
  return preference.losses(
    config,
    *(jnp.asarray(one, jnp.float32) for one in (log_p, reference, tokens)),
    jnp.asarray(group),
    jnp.asarray(kept, jnp.float32),
  )


@pytest.mark.parametrize('nll', [0.0, 0.5])
@pytest.mark.parametrize('loss', LOSSES)
def test_losses_are_those_of_an_oracle(loss, nll):
  config = objective_config.Preference(loss=loss, beta=0.3, nll=nll)
  log_p, reference, tokens, group, kept = _drawn()
  found = _found(config, log_p, reference, tokens, group, kept)
  wanted = np.zeros((2, *log_p.shape))
  values = log_p, reference, tokens, kept
  for row, number, own in _of_groups(group, *values):
    wanted[:, row, number] = _oracle(config, *own)
  np.testing.assert_allclose(found.loss_BG, wanted[0], rtol=1e-6, atol=1e-6)
  np.testing.assert_allclose(found.margin_BG, wanted[1], rtol=2e-6, atol=2e-6)
  two = group[0] == 1
  if loss == 'kept':  # DPO where a turn has two replies.
    pairs = objective_config.Preference(loss='pairs', beta=0.3, nll=nll)
    own = (one[0][two] for one in (log_p, reference, tokens, kept))
    same, _ = _oracle(pairs, *own)
    np.testing.assert_allclose(found.loss_BG[0, 1], same, rtol=1e-6)


@pytest.mark.parametrize('loss', LOSSES)
def test_small_and_large_losses_keep_their_digits(loss):
  """Kept replies far ahead, far behind, and between; so do gradients."""
  config = objective_config.Preference(loss=loss, beta=0.7)
  log_p, reference, tokens, group, kept = _drawn()

  @jax.jit
  @functools.partial(jax.grad, has_aux=True)
  def slopes(log_p_BY):
    found = _found(config, log_p_BY, reference, tokens, group, kept)
    return jnp.sum(found.loss_BG), found.loss_BG

  for lead in -60.0, -3.0, 3.0, 11.5, 16.0, 21.0:
    ahead = lead / config.beta
    if loss == 'options':
      ahead = ahead * tokens
    # As the loss reads them, so that its own arithmetic alone is judged.
    before = 0 if loss == 'options' else reference
    moved = np.float32(log_p / 30 + before + ahead * kept)
    gradient, found_BG = slopes(moved)
    values = moved, np.float32(reference), tokens, kept
    for row, number, own in _of_groups(group, *values):
      wanted, _ = _oracle(config, *own)
      # What float32 rewards of this size can tell.
      near = 2e-5 if lead > 0 else 1e-6
      assert abs(found_BG[row, number] - wanted) <= near * wanted
      slope = _slope(config, *own)
      np.testing.assert_allclose(
        gradient[row][group[row] == number], slope, rtol=2e-5
      )


def test_a_policy_like_its_reference_has_the_loss_log_n():
  log_p, _, tokens, group, kept = _drawn()
  for scale in (1.0, 1e3):  # Rewards that a plain exp would not survive.
    config = objective_config.Preference(beta=scale)
    found = _found(config, scale * log_p, scale * log_p, tokens, group, kept)
    for row, sizes in enumerate(SIZES):
      wanted = np.log(sizes)
      own = found.loss_BG[row, 1 : len(sizes) + 1]
      np.testing.assert_allclose(own, wanted, atol=1e-6)
    # No reply of equal rewards leads.
    assert not np.any(found.margin_BG)


def _rows(told, length, is_tree=True):
  """Returns rows of choices, and the log-probabilities' places in them."""
  corpus, _ = turns.choices(told, talks.FORMAT)
  source = text.Rows(corpus, length, shuffle=False)
  return packing.stack([choices.ChoiceRows(source, corpus.choices)[0]])


def test_a_tree_is_its_replies_alone():
  """Contrast: siblings that see each other."""
  length = 96
  told = talks.TALKS[0]
  tree = _rows([told], length)
  rows = []
  kept = [('user', '0?'), ('assistant', 'no'), ('user', '1?')]
  for before, own in (
    *((kept[:1], one) for one in ('yes!', 'no')),
    *((kept, one) for one in ('b', 'c', 'a')),
  ):
    size = len(own) + 1
    tokens = talks.FORMAT.document([*before, ('assistant', own)])
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


# Groups of 2, 3, 2 and 4 replies, of as many weights.
WEIGHED = (
  talks.talk(
    talks.message('no', 'yes!', kept=(0,), weight=3.0),
    talks.message('b', 'c, d and e', 'a'),
  ),
  talks.talk(
    talks.message('x', 'y', weight=0.5),
    talks.message('p', 'qq', 'rrr', 's', kept=(2,), weight=0.0),
    name='a#2',
  ),
)


@pytest.mark.parametrize('loss', LOSSES)
def test_each_group_counts_by_its_weight_in_loss_metrics_and_z_reg(
  loss, monkeypatch
):
  # A model without layers does not apply attention's Z-Reg: it is noted here.
  heard, hidden = [], batches.hidden
  monkeypatch.setattr(
    batches, 'hidden', lambda *given: heard.append(given[3]) or hidden(*given)
  )
  length, Z = 96, objective_lib.ZReg(0.3, 0.2)
  config = objective_config.Preference(loss=loss, beta=0.7, nll=0.25)
  corpus, _ = turns.choices(WEIGHED, talks.FORMAT)
  rng = np.random.default_rng(0)
  reference = None
  if loss != 'options':
    counts = [sum(len(one.spans) for one in own) for own in corpus.choices]
    reference = [np.float32(rng.normal(-9, 3, count)) for count in counts]
  source = text.Rows(corpus, length, shuffle=False)
  rows = choices.ChoiceRows(source, corpus.choices, reference)
  batch = packing.stack([rows[n] for n in range(len(rows))])
  model = shallow.model(vocab_size=256)
  objective = preference.make(config, length)
  params = shallow.params(model)

  @jax.jit
  @functools.partial(jax.grad, has_aux=True)
  def slopes(params, z):
    sums = objective.loss(model, {'params': params}, batch, z)
    return sums.loss, (sums, heard.pop())

  plain, _ = slopes(params, NONE)
  shifted, (sums, z_attention) = slopes(params, Z)

  # By the definitions, group by group.
  log_p_BY = jax.jit(
    lambda params: preference.log_probabilities(
      model, {'params': params}, batch, NONE
    )
  )(params)
  extras = {name: np.asarray(x) for name, x in batch.extras.items()}
  group_BY, kept_BY = extras[choices.GROUP], extras[choices.KEPT]
  reference_BY = extras.get(choices.REFERENCE, np.zeros_like(kept_BY))
  wanted, spread_BL = [], np.zeros(batch.tokens_BL.shape)
  for row, groups in enumerate(group_BY):
    for number in range(1, groups.max() + 1):
      own = np.flatnonzero(groups == number)
      in_reply = [extras[choices.REPLY][row] == reply for reply in own]
      tokens = np.array([one.sum() for one in in_reply])
      (weight,) = {*batch.weight_BL[row][np.any(in_reply, axis=0)].tolist()}
      log_p, theirs = np.asarray(log_p_BY)[row][own], reference_BY[row][own]
      kept = kept_BY[row][own]
      value, margin = _oracle(config, log_p, theirs, tokens, kept)
      chosen = int(np.argmax(kept))
      wanted.append(
        (
          weight,
          value,
          margin > 0,
          margin,
          -log_p[chosen] / tokens[chosen],
          log_p[chosen] - theirs[chosen],
        )
      )
      spread_BL[row][np.any(in_reply, axis=0)] = weight / tokens.sum()
  wanted = np.array(wanted, np.float64)
  assert sorted(wanted[:, 0]) == [0, 0.5, 1, 3]
  total = wanted[:, 0].sum()
  sum_of = wanted[:, 0] @ wanted[:, 1:]
  np.testing.assert_allclose(sums.weight, total)
  np.testing.assert_allclose(sums.loss, sum_of[0], rtol=1e-5)
  names = ['accuracy', 'margin', 'kept_loss', 'drift']
  names = names[:3] if loss == 'options' else names
  assert sorted(sums.metrics) == sorted(names)
  for name, value in zip(names, sum_of[1:]):
    np.testing.assert_allclose(sums.metrics[name], (value, total), rtol=1e-5)

  def explicit(params):
    variables = {'params': params}
    hidden_BLD = hidden(model, variables, batch)
    logits_BLV = model.apply(
      variables, batches.predicting(hidden_BLD, batch), method='logits'
    )
    lse_BL = jax.nn.logsumexp(logits_BLV, axis=-1)
    return jnp.sum(spread_BL * lse_BL**2) * Z.logits / 2

  difference = jax.tree.map(np.subtract, shifted, plain)
  shallow.assert_close(difference, jax.jit(jax.grad(explicit))(params), 1e-4)
  # A token sees attention's as in a mean over all tokens.
  tokens = (batch.limit_BL > batch.start_BL).sum()
  np.testing.assert_allclose(z_attention, Z.attention * total / tokens)


@pytest.mark.parametrize('loss', ['kept', 'options'])
def test_every_mesh_has_the_same_gradient_and_weights_count(loss):
  length = 64
  told = talks.TALKS
  rows = []
  for one in (told[0], told[1]):
    corpus, _ = turns.choices([one], talks.FORMAT)
    reference = None
    if loss == 'kept':
      reference = [
        np.linspace(-30, -20, sum(len(c.spans) for c in corpus.choices[0]))
      ]
    source = text.Rows(corpus, length, shuffle=False)
    rows.append(choices.ChoiceRows(source, corpus.choices, reference)[0])
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
