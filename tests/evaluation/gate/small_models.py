"""Small models as the gates open them, and golden conversations for them."""

import dataclasses
import functools

from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.evaluation.persona import golden
from kaiju_jax.gates import players
from kaiju_jax.model import config as model_config
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import state

FORMAT = chat.format_of(tokenizer_lib.load(''))
LENGTH = 512


def conversation(number=0, tier='public', language='en'):
  probes = [golden.Probe(1, x, ('A',), (), 1.0) for x in golden.PROPERTIES]
  last = golden.Probe(8, 'backstory', ('A',), (), 1.0)
  return golden.check(
    golden.GoldenConversation(
      f'{tier}-{number}',
      tier,
      'test',
      golden.Character('ANN', f'{number} ANN IS A CAT.', 'SHY', '', 'HI!'),
      tuple(golden.GoldenTurn(f'Q{x}?', f'REPLY {x}') for x in range(8)),
      (*probes, last),
      language,
    )
  )


def config(**changes):
  quantization = dataclasses.replace(quantization_config.none(), **changes)
  return model_config.ModelConfig(
    d_model=32, num_layers=2, num_heads=2, head_dim=16, d_ff=32, period=2,
    window=9, max_length=LENGTH, dtype='float32', quantization=quantization,
  )  # fmt: skip


@functools.cache
def params(kv_scale: str = 'token'):
  kv = 'int8' if kv_scale == 'channel' else 'none'
  model = transformer.Transformer(config(kv=kv, kv_scale=kv_scale))
  drawn = state.init_params(model, 0)
  for layer in drawn['blocks'].values():
    if 'attention' in layer:
      layer['attention']['w_o_DHK'] = 30 * layer['attention']['w_o_DHK']
  # Logits as far apart as a trained model's.
  drawn['final_norm']['gain_D'] = 5 * drawn['final_norm']['gain_D']
  return drawn


def opened(origin='toy', drawn=None, **changes):
  drawn = params() if drawn is None else drawn
  decoder = decoder_lib.Decoder(drawn, config(**changes), rows=2, length=LENGTH)
  generator = generator_lib.Generator(decoder, FORMAT.tokenizer)
  return players.Opened(generator, decoder, FORMAT, origin, origin)
