"""With the wheel alone one can train, resume, export, generate, run commands.

The wheel is built from a copy of the tree and installed into an environment of
its own, in a folder that is not the repository. Its dependencies are those of
this Python, found through one .pth file, which does not pass on the editable
installation of the repository.
"""

import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest

from experiments import __main__ as index
from tests import pages
from tests.experiments import forked

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = pathlib.Path(__file__).parents[1]
LINKED = 'experiments', 'kernels', 'tpu_gpu_configs'
# The ten lines need no extra.
_WITHOUT_EXTRAS = """
import sys
for name in 'matplotlib', 'tensorboardX', 'openai':
  sys.modules[name] = None
"""
# What every module of ours must come from, and what none may come from.
_PROOF = """
import pathlib, sys
home = pathlib.Path(sys.prefix).resolve()
ours = {n: m.__file__ for n, m in sys.modules.items() if n.startswith('kaiju_')}
strays = {n: f for n, f in ours.items() if home not in pathlib.Path(f).parents}
assert len(ours) > 50 and not strays, strays
assert 'experiments' not in sys.modules
assert 'tpu_gpu_configs' not in sys.modules
"""


@pytest.fixture(scope='module')
def source(tmp_path_factory):
  """A copy of the tree, in a folder of its own."""
  folder = tmp_path_factory.mktemp('wheel')
  skipped = shutil.ignore_patterns('.*', 'runs', 'build', '*.egg-info')
  # `runs` at the top is where commands write; the package's own is needed.
  shutil.copytree(
    ROOT,
    folder / 'source',
    symlinks=True,
    ignore=lambda path, names: (
      skipped(path, names) if path == str(ROOT) else {'__pycache__'}
    ),
  )
  return folder / 'source'


def _build(source, folder):
  """Returns the wheel that pip makes of a folder or an archive."""
  subprocess.run(
    [sys.executable, '-m', 'pip', 'wheel', '--quiet', '--no-deps']
    + [str(source), '--wheel-dir', str(folder)],
    check=True,
  )
  (path,) = folder.glob('kaiju_jax-*.whl')
  return path


@pytest.fixture(scope='module')
def wheel(source):
  return _build(source, source.parent)


@pytest.fixture(scope='module')
def python(wheel, tmp_path_factory):
  """The interpreter of an environment that holds the wheel."""
  home = tmp_path_factory.mktemp('environment')
  venv.create(home, symlinks=True)
  (site,) = home.glob('lib/python*/site-packages')
  zipfile.ZipFile(wheel).extractall(site)
  (site / 'dependencies.pth').write_text(sysconfig.get_path('purelib') + '\n')
  return home / 'bin' / 'python'


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
  names = set(zipfile.ZipFile(wheel).namelist())
  sources = {
    str(path.relative_to(ROOT))
    for folder in ('kaiju_jax', *LINKED)
    for path in (ROOT / folder).rglob('*.py')
    if folder != 'kaiju_jax' or path.relative_to(ROOT).parts[1] not in LINKED
  } | {
    str(path.relative_to(ROOT))
    for folder in (
      'kaiju_jax/serving/page',
      'kaiju_jax/serving/operations',
      'experiments/golden',
    )
    for path in (ROOT / folder).iterdir()
  }
  sources.add('kaiju_jax/py.typed')
  wanted = {
    f'kaiju_jax/{name}' if name.startswith(LINKED) else name for name in sources
  }
  assert {n for n in names if '.dist-info/' not in n} == wanted


def test_the_ten_lines_run_with_the_wheel_alone(python, tmp_path):
  # As the other tests compile, for one device.
  flags = [
    flag
    for flag in os.environ.get('XLA_FLAGS', '').split()
    if not flag.startswith('--xla_force_host_platform_device_count')
  ]
  done = subprocess.run(
    # -I: neither this folder nor PYTHONPATH.
    [python, '-I', '-c', _WITHOUT_EXTRAS + pages.TEN_LINES.text + _PROOF],
    cwd=tmp_path,
    env={**os.environ, 'XLA_FLAGS': ' '.join(flags)},
    capture_output=True,
    text=True,
    timeout=580,
  )
  assert done.returncode == 0, done.stderr
  assert 'stopped and saved at step 10 of 20' in done.stderr
  assert 'going on from step 10 of 20' in done.stderr
  assert 'step 20 of tiny → exported' in done.stdout
  assert done.stdout.splitlines()[-1].startswith('[')
  lines = [line for line in pages.TEN_LINES.text.splitlines() if line]
  assert len(lines) <= 10


def test_every_command_explains_itself_in_an_empty_folder(python, tmp_path):
  ours = 'kaiju_jax.experiments'
  commands = [[ours], *([ours, name, '--help'] for name in index.COMMANDS)]
  commands.append([ours, 'describe', '--config=token_head'])
  slice_ = '--preset=13b', '--accelerator=h100_64', '--nocompile'
  commands.append([ours, 'aot_report', *slice_])
  listed, *helps, described, reckoned = forked.run(
    commands, python=(python, '-I'), folder=tmp_path
  )
  assert listed.stdout == index.index() + '\n'
  for name, done in zip(index.COMMANDS, helps, strict=True):
    assert index.line(name) in done.stdout, (name, done.stderr)
    assert not done.jax, name
  assert described.returncode == 0, described.stderr
  assert reckoned.returncode == 0, reckoned.stderr
  assert 'h100_64' in reckoned.stdout
  assert not list(tmp_path.iterdir())


def test_the_wheel_has_the_command_kaiju(wheel):
  with zipfile.ZipFile(wheel) as opened:
    (name,) = [n for n in opened.namelist() if n.endswith('entry_points.txt')]
    text = opened.read(name).decode()
  assert 'kaiju = kaiju_jax.experiments.__main__:main' in text


def test_twine_takes_wheel_and_source_and_both_are_the_same(
  wheel, source, tmp_path
):
  for name in 'build', 'twine':
    pytest.importorskip(name, reason='it is in the extra test-slow')
  run = functools.partial(subprocess.run, check=True, cwd=source)
  run([sys.executable, '-m', 'build', '--sdist', f'--outdir={tmp_path}'])
  (archive,) = tmp_path.iterdir()
  run([sys.executable, '-m', 'twine', 'check', '--strict', wheel, archive])
  again = _build(archive, tmp_path)
  names = [zipfile.ZipFile(path).namelist() for path in (wheel, again)]
  assert sorted(names[0]) == sorted(names[1])


def test_what_the_package_exports_has_types(python, tmp_path):
  pytest.importorskip('pyright', reason='it is in the extra types')
  # pyright asks the first python of the path where packages are.
  path = f'{python.parent}{os.pathsep}{os.environ["PATH"]}'
  done = subprocess.run(
    [sys.executable, '-m', 'pyright', '--verifytypes', 'kaiju_jax']
    + ['--ignoreexternal', '--outputjson'],
    env={**os.environ, 'PATH': path},
    cwd=tmp_path,
    capture_output=True,
    text=True,
  )
  found = json.loads(done.stdout)['typeCompleteness']
  assert sum(found['exportedSymbolCounts'].values()) > 10_000
  assert found['completenessScore'] >= 0.95
