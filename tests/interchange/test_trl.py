"""The loss of two replies is the one that TRL's own trainer computes.

Needs the extra `interchange`; `make interchange` runs it.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.objectives import config as objective_config
from kaiju_jax.objectives import preference

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')
trl = pytest.importorskip('trl')

BETA = 0.3
WORDS = ('<pad>', '</s>', '<unk>', *'abcdefghijklm')
PROMPTS = 'a b', 'c d e'
# Of each prompt the kept reply, and two that were passed over.
REPLIES = (' f g h', ' i', ' j k'), (' l', ' m a b c', ' d')


def make_model(seed):
  torch.manual_seed(seed)
  config = transformers.LlamaConfig(
    vocab_size=len(WORDS), hidden_size=16, intermediate_size=32,
    num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
    initializer_range=0.4, pad_token_id=0, eos_token_id=1, bos_token_id=None,
  )  # fmt: skip
  return transformers.LlamaForCausalLM(config).eval()


def make_tokenizer():
  import tokenizers

  model = tokenizers.models.WordLevel(
    {word: n for n, word in enumerate(WORDS)}, unk_token='<unk>'
  )
  tokenizer = tokenizers.Tokenizer(model)
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  return transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer,
    pad_token='<pad>',
    eos_token='</s>',
    unk_token='<unk>',
  )


def read(model, prompt, reply) -> float:
  """Returns log p of a reply's words and the end, by logits alone."""
  ids = [[WORDS.index(x) for x in text.split()] for text in (prompt, reply)]
  tokens = torch.tensor([[*ids[0], *ids[1], 1]])
  with torch.inference_mode():
    log_p_LV = model(tokens).logits[0].double().log_softmax(-1)
  places = range(len(ids[0]), tokens.shape[1])
  return float(sum(log_p_LV[n - 1, tokens[0, n]] for n in places))


@pytest.fixture(scope='module')
def theirs(tmp_path_factory):
  """TRL's loss of each pair, the models, in the order of the prompts."""
  import datasets

  policy, reference = make_model(0), make_model(1)
  rows = [
    {'prompt': prompt, 'chosen': kept, 'rejected': other}
    for prompt, (kept, *others) in zip(PROMPTS, REPLIES)
    for other in others
  ]
  args = trl.DPOConfig(
    output_dir=str(tmp_path_factory.mktemp('trl')),
    beta=BETA,
    per_device_train_batch_size=1,
    use_cpu=True,
    bf16=False,
    report_to='none',
    dataloader_pin_memory=False,
    seed=0,
  )
  trainer = trl.DPOTrainer(
    model=policy,
    ref_model=reference,
    args=args,
    train_dataset=datasets.Dataset.from_list(rows),
    processing_class=make_tokenizer(),
  )
  policy.eval()
  found = []
  with torch.inference_mode():
    for row in trainer.train_dataset:
      batch = trainer.data_collator([row])
      found.append(float(trainer.compute_loss(policy, batch)))
  return found, policy, reference


@pytest.mark.parametrize('loss', ['pairs', 'kept'])
def test_the_loss_of_a_pair_is_trl_s(theirs, loss):
  found, policy, reference = theirs
  wanted = iter(found)
  for prompt, (kept, *others) in zip(PROMPTS, REPLIES):
    for other in others:
      assert ours(loss, policy, reference, prompt, (kept, other)) == (
        pytest.approx(next(wanted), abs=1e-6)
      )
  # Contrast: the other reply kept.
  swapped = ours(loss, policy, reference, PROMPTS[0], REPLIES[0][1::-1])
  assert abs(swapped - found[0]) > 1e-2


def test_pairs_of_three_replies_is_the_mean_of_trl_s_two(theirs):
  found, policy, reference = theirs
  for n, (prompt, replies) in enumerate(zip(PROMPTS, REPLIES)):
    wanted = np.mean(found[2 * n : 2 * n + 2])
    mean = ours('pairs', policy, reference, prompt, replies)
    assert mean == pytest.approx(wanted, abs=1e-6)
    # Contrast: a softmax over all three is another loss.
    assert abs(ours('kept', policy, reference, prompt, replies) - mean) > 1e-2


def ours(loss, policy, reference, prompt, replies) -> float:
  """Returns our loss of one group, whose first reply was kept."""
  log_p, before = (
    [0.0, *(read(model, prompt, one) for one in replies)]
    for model in (policy, reference)
  )
  slots = np.arange(len(replies) + 1)
  found = preference.losses(
    objective_config.Preference(loss=loss, beta=BETA),
    *(jnp.asarray([x], jnp.float32) for x in (log_p, before, slots)),
    jnp.asarray([slots > 0], jnp.int32),
    jnp.asarray([slots == 1], jnp.float32),
  )
  return float(found.loss_BG[0, 1])
