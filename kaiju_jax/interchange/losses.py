"""Lists what a Kaiju model does and `transformers`' Arcee class cannot express.

That class is a plain causal transformer: pre-RMSNorm, one rotary base, every
layer sees the whole past and makes its own keys and values, float arithmetic.
Squared ReLU, heads of keys and values, Bungee's scalars, the embedding's √D and
the norm's epsilon have a counterpart there or fold into the weights. Everything
else is a loss. Each loss has a name, by which the caller of an export may
accept it, but for parts of the model without which nothing of it is left
(`REFUSED`).

Z-Reg, Squinch, ternary updates (the replica's codes are the weights) and remat
are no losses, because a forward pass does not need them. Rounding to bfloat16
is the reader's choice in either format.
"""

from collections.abc import Collection

from kaiju_jax.model import config as model_config

# What a folder of any family loses: its arithmetic is float.
ROUNDED = (
  'int8_matmul',
  'int8_embedding',
  'int8_kv',
  'int8_qk',
  'clamp_hidden',
  'clamp_input',
)
NAMES = ('windows', 'shared_kv', 'rotary', *ROUNDED)


# Fields without which a folder would be another model.
REFUSED = (
  'feedforward',
  'norms',
  'qk_norm',
  'qkv_bias',
  'not_turned',
  'sink_logit',
)


def list_losses(
  config: model_config.ModelConfig, names: Collection[str] = REFUSED + NAMES
) -> dict[str, str]:
  """Lists what an Arcee folder of such a model would lose.

  Args:
    config: the model's config.
    names: what is looked for; `ROUNDED` for a folder of the model's own family.

  Returns:
    {name: a sentence} for each loss, in the order of `REFUSED` and `NAMES`;
    empty where the folder expresses all of the model's mathematics.
  """
  found = {
    'windows': _windows(config),
    'shared_kv': _shared_kv(config),
    'rotary': _rotary(config),
  }
  for name, (is_lost, why) in _describe(config).items():
    found[name] = why if is_lost else ''
  return {name: found[name] for name in names if found[name]}


def refuse(lost: dict[str, str], accepted: Collection[str]) -> None:
  """Refuses losses that were not accepted.

  Args:
    lost: what `list_losses` returned.
    accepted: some of `NAMES`; it may name what is not lost.

  Raises:
    ValueError: names each loss that was not accepted or cannot be, or an
      unknown name.
  """
  for name in accepted:
    if name not in NAMES:
      raise ValueError(f'accepted={name!r}: must be one of {", ".join(NAMES)}.')
  left = {name: why for name, why in lost.items() if name not in accepted}
  if left:
    remedy = f'Accept all by name ({",".join(lost)}), or write'
    if not left.keys().isdisjoint(REFUSED):
      remedy = 'Write'
    raise ValueError(
      'a model of transformers cannot express this one:\n'
      f'{lines(left)}\n{remedy} our own format instead.'
    )


def lines(lost: dict[str, str]) -> str:
  """Returns a line for each loss, to print."""
  return '\n'.join(f'  {name}: {why}' for name, why in lost.items())


def _windows(config) -> str:
  cut = [
    layer.window
    for layer in config.layers()
    if layer.window is not None and layer.window < config.max_length
  ]
  if not cut:
    return ''
  sizes = ' or '.join(map(str, sorted(set(cut))))
  return (
    f'{len(cut)} of {len(config.layers())} layers see {sizes} positions; in'
    ' Arcee all layers see everything.'
  )


def _shared_kv(config) -> str:
  layers = config.layers()
  readers = [i for i, layer in enumerate(layers) if layer.kv_from != i]
  if not readers:
    return ''
  return (
    f'{len(readers)} of {len(layers)} layers read the keys and values of'
    " another; in Arcee each makes its own, with that layer's weights."
  )


def _rotary(config) -> str:
  bases = rotary_bases(config)
  scaling, kinds = config.rope_scaling, {one.kind for one in config.layers()}
  if scaling.kind != 'none' and scaling.layers == 'global' and len(kinds) > 1:
    return "only global layers' rotary angles are scaled; in Arcee all are."
  if len(bases) == 1 and bases[0]:
    return ''
  drawn = ' and '.join(f'{base:g}' if base else 'none' for base in bases)
  return (
    f'layers use rotary bases {drawn}; in Arcee all use {base_of(config):g}.'
  )


def rotary_bases(config: model_config.ModelConfig) -> list[float]:
  """Returns the rotary bases of the layers, the global one first; 0 is none."""
  kinds = {layer.kind for layer in config.layers()}
  bases = {'global': config.rope_global, 'local': config.rope_local}
  return list(dict.fromkeys(bases[kind] for kind in bases if kind in kinds))


def base_of(config: model_config.ModelConfig) -> float:
  """Returns the one base that an Arcee folder gets: the global layers', if any.

  Otherwise the local layers', or 10,000 where no layer rotates.
  """
  return next((base for base in rotary_bases(config) if base), 10_000.0)


def _describe(config) -> dict[str, tuple[bool, str]]:
  """Returns by name whether something is lost, and what is then said."""
  quantization = config.quantization
  hidden, inputs = quantization.clamp_hidden, quantization.clamp_input
  return {
    'feedforward': (
      config.feedforward != 'relu2',
      f'the feed-forward is {config.feedforward}; in Arcee it is squared ReLU.',
    ),
    'norms': (
      config.norms != 'before',
      f'norms stand {config.norms} attention and feed-forward; in Arcee'
      ' before.',
    ),
    'qk_norm': (
      config.qk_norm != 'none',
      'queries and keys are normalized; in Arcee they are not.',
    ),
    'qkv_bias': (
      config.qkv_bias,
      'queries, keys and values have biases; in Arcee they have none.',
    ),
    'not_turned': (
      not all(layer.turned for layer in config.layers()),
      'some layers are not rotated; in Arcee all are.',
    ),
    'sink_logit': (
      any(layer.sink_logit for layer in config.layers()),
      'some layers have sink logits; in Arcee none has.',
    ),
    'int8_matmul': (
      quantization.matmul != 'none',
      'inputs of projections and feed-forward are rounded to int8; there'
      ' only the weights are.',
    ),
    'int8_embedding': (
      quantization.embedding == 'int8',
      "the output head's inputs are rounded to int8; there only its"
      ' weights are.',
    ),
    'int8_kv': (
      quantization.kv == 'int8',
      'keys and values are rounded to int8, with a scale per'
      f' {quantization.kv_scale}; there they are not.',
    ),
    'int8_qk': (
      quantization.qk == 'int8',
      'queries are rounded to int8; there they are not.',
    ),
    'clamp_hidden': (
      hidden != 'none',
      f'hidden activations are cut at {quantization.clamp_hidden_k:g} times'
      f' their {hidden}; there they are not.',
    ),
    'clamp_input': (
      inputs != 'none',
      f"projections' inputs are cut at {quantization.clamp_input_k:g} times"
      f' their {inputs}; there they are not.',
    ),
  }
