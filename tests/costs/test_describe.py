"""The printed description: literal diagrams, complete, and without jax."""

import pathlib
import subprocess
import sys

import pytest

from kaiju_jax.costs import describe
from kaiju_jax.costs import footprint
from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import paging
from kaiju_jax.model import presets
from kaiju_jax.model import rope_scaling
from tests import printing

ROOT = pathlib.Path(__file__).parents[2]


def printed(*parts, width: int = 100) -> str:
  text = printing.printed(*parts, width=width)
  return '\n'.join(line.strip() for line in text.splitlines())


def rows(layers) -> list[str]:
  """Returns the diagram's lines of layers."""
  lines = printed(describe.diagram(layers)).splitlines()
  return [line for line in lines if ' local ' in line or ' global ' in line]


def test_diagram_of_fourteen_layers():
  layers = layers_lib.kaiju_layers(42, 1024)
  text = printed(describe.diagram(layers))
  assert text.startswith('42 layers = 3 × this block of 14')
  assert rows(layers) == [
    '0   local    last 1,024   ●    own',
    '1   local    last 1,024   ├    of layer 0',
    '2   local    last 1,024   ╰    of layer 0',
    '3   local    last 1,024   ●    own',
    '4   local    last 1,024   ├    of layer 3',
    '5   local    last 1,024   ╰    of layer 3',
    '6   global   all            ●  own',
    '7   local    last 1,024   ● │  own',
    '8   local    last 1,024   ├ │  of layer 7',
    '9   local    last 1,024   ╰ │  of layer 7',
    '10   local    last 1,024   ● │  own',
    '11   local    last 1,024   ├ │  of layer 10',
    '12   local    last 1,024   ╰ │  of layer 10',
    '13   global   all            ╰  of layer 6',
  ]


def test_rails_of_one_kind_that_overlap_stand_side_by_side():
  assert rows(layers_lib.parse('L0 L1 L0 L3 L1 G5', 64)) == [
    '0   local    last 64   ●      own',
    '1   local    last 64   │ ●    own',
    '2   local    last 64   ╰ │    of layer 0',
    '3   local    last 64   ● │    own',
    '4   local    last 64     ╰    of layer 1',
    '5   global   all           ●  own',
  ]


def test_a_line_says_what_a_layer_computes():
  plain = describe.mathematics(model_config.ModelConfig())
  assert 'relu²' in plain and plain.count('base 10,000') == 2
  other = model_config.ModelConfig(
    layout='L0+4s N1 G2',
    feedforward='geglu',
    norms='both',
    qk_norm='head',
    qkv_bias=True,
    scaled_embedding=False,
    rope_local=0.0,
    rope_scaling=rope_scaling.RopeScalingConfig('linear', 8.0, layers='global'),
  )
  said = describe.mathematics(other)
  for part in (
    *('gated', '(gelu)', 'before and after', 'over each head', 'biases'),
    *('base 10,000, linear × 8', 'local rotary angles: none', 'without √D'),
  ):
    assert part in said and part not in plain
  text = printed(describe.diagram(other.layers()))
  assert '0   local, sink logit     first 4, last 128   ●    own' in text
  assert '1   global, not rotated   all                   ●  own' in text


def test_everything_is_printed_at_eighty_columns_with_nothing_cut():
  page = describe.describe(
    presets.preset('110b'),
    name='110b',
    batch=64,
    fsdp=64,
    tensor=8,
  )
  text = printed(*page.parts, width=80)
  assert '110b: 110 B parameters' in text
  assert '70 layers = 5 × this block of 14' in text
  assert '110,105,358,336' in text
  assert 'w_in_DF × 70, w_out_DF × 70' in text
  assert '286,720 B/token' in text
  assert '144.8×' in text and '193.1×' in text
  assert "remat 'layer' (as configured)" in text
  assert '…' not in text
  lines = [line for line in text.splitlines() if 'feed-forward;' not in line]
  assert max(map(len, lines)) <= 80


def test_a_model_that_cannot_be_built_is_refused():
  with pytest.raises(ValueError, match='head_dim=33: must be even'):
    describe.describe(model_config.ModelConfig(head_dim=33))


def run(*flags: str) -> subprocess.CompletedProcess:
  """Runs the script where importing jax is an error."""
  source = (
    'import runpy, sys\n'
    "sys.modules['jax'] = sys.modules['flax'] = None\n"
    f'sys.argv = ["describe", *{flags!r}]\n'
    "runpy.run_module('experiments.describe', run_name='__main__')\n"
  )
  return subprocess.run(
    [sys.executable, '-c', source], cwd=ROOT, capture_output=True, text=True
  )


@pytest.mark.parametrize('name', list(presets.PRESETS))
def test_every_preset_is_described_on_its_mesh(name):
  fsdp, tensor = presets.MESHES.get(name, (1, 1))
  page = describe.describe(
    presets.preset(name), name=name, batch=fsdp, length=1024, fsdp=fsdp,
    tensor=tensor,
  )  # fmt: skip
  text = printed(*page.parts)
  assert f'{name}: ' in text
  assert f'fsdp {fsdp} × tensor {tensor}' in text


@pytest.mark.parametrize('name', list(presets.PRESETS))
def test_a_device_of_several_holds_its_share(name):
  config = presets.preset(name)
  for tensor in 2, 4, 8:
    if config.num_heads % tensor:
      with pytest.raises(ValueError, match=f'mesh.tensor={tensor}'):
        describe.decoding_table(config, tensor, (8192,))
      continue
    rows = describe.decoding_table(config, tensor, (1024, 8192)).rows
    assert rows[0][1] == footprint.weight_bytes(config, tensor)
    for row, length in zip(rows[1:], (1024, 8192), strict=True):
      pools = paging.pools(config.layers(), 1, length)
      whole = paging.page_bytes(config, pools)
      assert whole / tensor <= row[1] <= 1.05 * whole / tensor


def test_the_script_describes_replicas():
  done = run('--preset=13b', '--arm=ternary')
  assert done.returncode == 0, done.stderr
  # A preset is described on the mesh that it is for.
  assert 'fsdp 8 × tensor 8' in done.stdout
  assert 'Decoding on 8 devices' in done.stdout
  lines = [line.split() for line in done.stdout.splitlines()]
  # 13.2 G codes of one byte each, an eighth of them on each of 8 devices.
  assert ['replicas', '1.54', 'GiB', '1.54', 'GiB'] in lines


def test_the_script_describes_a_config_with_overrides():
  done = run(
    '--config=experiments/configs/tiny.py:bf16',
    '--config.model.window=32',
    '--lengths=64',
    '--batch=2',
  )
  assert done.returncode == 0, done.stderr
  assert 'last 32' in done.stdout
  assert 'microbatch of 2 × 512 tokens' in ' '.join(done.stdout.split())


@pytest.mark.parametrize(
  'flags, message',
  [
    (('--preset=7b',), '--preset=7b: '),
    ((), 'exactly one of --preset and --config'),
    (('--preset=1m', '--lengths=many'), "error: --lengths: 'many'"),
    (('--preset=1m', '--lengths='), 'error: --lengths=: '),
    (('--preset=1m', '--fsdp=3'), 'error: d_model=128: '),
  ],
)
def test_the_script_refuses(flags, message):
  done = run(*flags)
  assert done.returncode == 1
  assert message in done.stderr + done.stdout
