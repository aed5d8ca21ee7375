"""Unpacks files that older code wrote (`tests/fixtures/df48abcd/README.md`)."""

import json
import pathlib
import shutil
import tarfile

import pytest

_ARCHIVE = (
  pathlib.Path(__file__).parents[1] / 'fixtures' / 'df48abcd' / 'files.tar.xz'
)


@pytest.fixture(scope='session')
def unpacked(tmp_path_factory):
  """Returns a folder of all files, which no test may change."""
  folder = tmp_path_factory.mktemp('older')
  with tarfile.open(_ARCHIVE) as archive:
    archive.extractall(folder, filter='data')
  for path in folder.glob('server/**/*'):
    path.chmod(0o700 if path.is_dir() else 0o600)
  return folder


@pytest.fixture(scope='session')
def expected(unpacked):
  """Returns what the older code computed of the files."""
  return json.loads((unpacked / 'expected.json').read_text())


@pytest.fixture
def here(unpacked, tmp_path, monkeypatch):
  """Returns a copy of the files, which is the working directory."""
  shutil.copytree(unpacked, tmp_path / 'files', symlinks=True)
  monkeypatch.chdir(tmp_path / 'files')
  return tmp_path / 'files'
