"""The layer tuple: drawn, checked, folded into its block, and counted."""

import dataclasses
import random
import re

import pytest

from kaiju_jax.model import layers as layers_lib

Layer = layers_lib.Layer

SEVEN = (
  Layer(1024, 0),
  Layer(1024, 0),
  Layer(1024, 0),
  Layer(1024, 3),
  Layer(1024, 3),
  Layer(1024, 3),
  Layer(None, 6),
)

FOURTEEN = (
  *SEVEN,
  Layer(1024, 7),
  Layer(1024, 7),
  Layer(1024, 7),
  Layer(1024, 10),
  Layer(1024, 10),
  Layer(1024, 10),
  Layer(None, 6),
)


def random_layers(seed: int) -> tuple[Layer, ...]:
  """Any stack that `check` accepts, of up to four windows, sinks and logits."""
  rng = random.Random(seed)
  windows = rng.sample([1, 3, 64, 1000], rng.randint(1, 4))
  layers = []
  for index in range(rng.randint(1, 24)):
    window, turned = rng.choice(
      [(None, True), (None, False), (rng.choice(windows), True)]
    )
    sinks = rng.choice([0, 0, 1, 4, 70]) if window else 0
    layer = Layer(window, index, turned, sinks, rng.random() < 0.3)
    same = [
      i
      for i, x in enumerate(layers)
      if x == dataclasses.replace(layer, kv_from=i)
    ]
    source = rng.choice([*same, index])
    layers.append(dataclasses.replace(layer, kv_from=source))
  return tuple(layers)


def test_seven_and_fourteen_layers_written_out():
  assert layers_lib.kaiju_layers(7, 1024) == SEVEN
  assert layers_lib.kaiju_layers(14, 1024) == FOURTEEN


@pytest.mark.parametrize(
  'arguments, drawing',
  [
    (dict(num_layers=14), 'L0 L0 L0 L3 L3 L3 G6 L7 L7 L7 L10 L10 L10 G6'),
    (dict(num_layers=5, period=0), 'L0 L0 L0 L3 L3'),
    (dict(num_layers=4, period=1, global_share=1), 'G0 G1 G2 G3'),
    (dict(num_layers=5, period=1, global_share=2), 'G0 G0 G2 G2 G4'),
    (dict(num_layers=6, period=3, local_share=1), 'L0 L1 G2 L3 L4 G2'),
    # A run of local layers ends at a global: no share reaches across it.
    (dict(num_layers=8, period=5, global_share=1), 'L0 L0 L0 L3 G4 L5 L5 L5'),
    (dict(num_layers=1), 'L0'),
  ],
)
def test_kaiju_layers_drawn(arguments, drawing):
  layers = layers_lib.kaiju_layers(window=8, **arguments)
  assert layers_lib.draw(layers) == drawing
  layers_lib.check(layers)


@pytest.mark.parametrize(
  'name, value',
  [
    ('num_layers', 0),
    ('window', 0),
    ('period', -1),
    ('local_share', 0),
    ('global_share', 0),
    ('sinks', -1),
  ],
)
def test_kaiju_layers_names_the_argument_out_of_range(name, value):
  arguments = dict(num_layers=7, window=8) | {name: value}
  with pytest.raises(ValueError, match=f'^{name}={value}: must be at least'):
    layers_lib.kaiju_layers(**arguments)


def test_draw_and_parse_are_inverse():
  several = 0
  for seed in range(300):
    layers = random_layers(seed)
    windows = {layer.window for layer in layers} - {None}
    several += len(windows) > 1
    # Stacks of several windows say them all.
    window = windows.pop() if len(windows) == 1 else 5
    assert layers_lib.parse(layers_lib.draw(layers), window) == layers
  assert 50 < several < 250
  assert layers_lib.parse(' L0\n  G1 N2 ', window=3) == (
    Layer(3, 0),
    Layer(None, 1),
    Layer(None, 2, turned=False),
  )


def test_windows_sinks_and_logits_are_drawn_after_the_source():
  layers = (
    Layer(8, 0, sinks=4),
    Layer(8, 0, sinks=4),
    Layer(None, 2, sink_logit=True),
    Layer(8, 3, sinks=1, sink_logit=True),
  )
  assert layers_lib.draw(layers) == 'L0+4 L0+4 G2s L3+1s'
  layers += Layer(128, 4, sinks=2, sink_logit=True), Layer(None, 5, False)
  drawing = 'L0:8+4 L0:8+4 G2s L3:8+1s L4:128+2s N5'
  assert layers_lib.draw(layers) == drawing
  assert layers_lib.parse(drawing, window=3) == layers
  assert layers_lib.parse('L0:12 L1+0', 9) == (Layer(12, 0), Layer(9, 1))


def test_the_interleaved_stack_gives_its_local_layers_sinks_and_logits():
  layers = layers_lib.kaiju_layers(
    4, 9, 3, local_share=1, sinks=2, sink_logit=True
  )
  assert layers_lib.draw(layers) == 'L0+2s L1+2s G2 L3+2s'


@pytest.mark.parametrize(
  'word',
  [
    *('X0', 'L', 'L-1', '0L', 'G1.5', 'Lx', 'L0:', 'L0+', 'L0s4', 'L0+4:8'),
    *('L0:-8', 'L0+-1', 'G1:8', 'N1:8s', 'L0ss', 'L0\u0663'),
  ],
)
def test_parse_names_the_word_it_cannot_read(word):
  with pytest.raises(ValueError, match=re.escape(f"'{word}' is not L")):
    layers_lib.parse(f'L0 {word}', window=8)


@pytest.mark.parametrize(
  'layers, message',
  [
    ((), 'at least one layer'),
    ((Layer(0, 0),), 'layer 0: window=0'),
    ((Layer(8, 0), Layer(-3, 1)), 'layer 1: window=-3'),
    ((Layer(8, 1), Layer(8, 1)), 'layer 0: kv_from=1 points forward'),
    ((Layer(8, -1),), 'layer 0: kv_from=-1 points forward'),
    (
      (Layer(8, 0), Layer(8, 0), Layer(8, 1)),
      'layer 2: kv_from=1, but that layer makes no keys and values: it reads'
      ' those of layer 0',
    ),
    (
      (Layer(8, 0), Layer(None, 0)),
      'layer 1: kv_from=0 is of another kind: window 8 against None',
    ),
    (
      (Layer(8, 0), Layer(4, 0)),
      'layer 1: kv_from=0 is of another kind: window 8 against 4',
    ),
    (
      (Layer(None, 0, False), Layer(None, 0)),
      'layer 1: kv_from=0 has keys that are not turned; layers N and G share',
    ),
    ((Layer(2**30 + 1, 0),), 'layer 0: window=1073741825; .* at most 1073741'),
    ((Layer(8, 0, sinks=-1),), 'layer 0: sinks=-1; must be 0…1073741824'),
    ((Layer(8, 0, sinks=2**31),), 'layer 0: sinks=2147483648; must be'),
    ((Layer(None, 0, sinks=1),), 'layer 0: sinks=1; must be .* global layer'),
    (
      (Layer(8, 0, sinks=4), Layer(8, 0)),
      'layer 1: kv_from=0 has sinks=4 against 0',
    ),
    (
      (Layer(None, 0), Layer(None, 0, sink_logit=True)),
      'layer 1: kv_from=0 has sink_logit=False against True',
    ),
    ((Layer(8, 0, False),), 'layer 0: turned=False with window=8; only a glob'),
  ],
)
def test_check_says_what_is_wrong(layers, message):
  with pytest.raises(ValueError, match=message):
    layers_lib.check(layers)


def test_parse_checks_the_stack():
  with pytest.raises(ValueError, match='layer 0: kv_from=1 points forward'):
    layers_lib.parse('L1 L1', window=8)
  with pytest.raises(ValueError, match='at least one layer'):
    layers_lib.parse('  ', window=8)


@pytest.mark.parametrize(
  'layers, length',
  [
    # Global layers pair up across repeats of seven, so fourteen repeat.
    (layers_lib.kaiju_layers(42, 1024), 14),
    (layers_lib.kaiju_layers(42, 1024, global_share=1), 7),
    # Twenty-one layers leave the last global without its pair.
    (layers_lib.kaiju_layers(21, 1024), 21),
    (layers_lib.kaiju_layers(10, 1024, global_share=1), 10),
    (layers_lib.kaiju_layers(12, 8, period=0), 3),
    (layers_lib.kaiju_layers(5, 8, period=1, global_share=1), 1),
    # One pair of keys and values through the whole stack: nothing repeats.
    (layers_lib.parse('L0 L0 L0 L0', 8), 4),
    (layers_lib.parse('G0 N1 G2 G3', 8), 4),
    # Equal reading, unequal windows.
    ((Layer(8, 0), Layer(4, 1), Layer(8, 2), Layer(8, 3)), 4),
    (layers_lib.parse('L0+1 L1 L2+1 L3', 8), 2),
    (layers_lib.parse('L0 L1s L2 L3', 8), 4),
  ],
)
def test_repeating_block(layers, length):
  block = layers_lib.repeating_block(layers)
  assert block == layers[:length]
  layers_lib.check(block)


def test_repeating_block_unfolds_to_the_stack_and_is_smallest():
  for seed in range(100):
    unit = random_layers(seed)
    depth = len(unit)
    stack = tuple(
      dataclasses.replace(layer, kv_from=layer.kv_from + depth * repeat)
      for repeat in range(3)
      for layer in unit
    )
    block = layers_lib.repeating_block(stack)
    assert depth % len(block) == 0
    assert stack == tuple(
      dataclasses.replace(layer, kv_from=layer.kv_from + start)
      for start in range(0, len(stack), len(block))
      for layer in block
    )
    assert layers_lib.repeating_block(block) == block


def test_owners_are_the_layers_that_make_keys_and_values():
  assert layers_lib.owners(FOURTEEN) == (0, 3, 6, 7, 10)


def test_kv_bytes_against_a_count_of_every_stored_number():
  def counted(layers, length, head_dim, heads, value_bytes, scale_bytes):
    stored = set()
    for layer in layers:
      for position in range(length):
        in_window = layer.window is None or length - position <= layer.window
        if in_window or position < layer.sinks:
          stored.add((layer.kv_from, position))
    total = 0
    for _ in stored:
      for _ in ('k', 'v'):
        for _ in range(heads):
          total += scale_bytes + sum(value_bytes for _ in range(head_dim))
    return total

  for seed in range(20):
    layers = random_layers(seed)
    for length in (1, 63, 64, 65, 150):
      assert layers_lib.kv_bytes(layers, length, head_dim=6) == counted(
        layers, length, 6, 1, 1, 4
      )
      assert layers_lib.kv_bytes(
        layers, length, 4, num_kv_heads=3, bytes_per_value=2, bytes_per_scale=0
      ) == counted(layers, length, 4, 3, 2, 0)


def test_kv_bytes_literal():
  # Two local owners of 64 tokens and a global of 100, 2·(8 + 4) bytes each.
  layers = layers_lib.kaiju_layers(7, 64)
  assert layers_lib.kv_bytes(layers, 100, head_dim=8) == 24 * (64 + 64 + 100)
