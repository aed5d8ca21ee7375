"""What saves the points of a server in its folder."""

from kaiju_jax.serving.http import auth
from kaiju_jax.serving.replies import saved_points
from tests.decoding import saved_device

SECRET = b's' * 32
SIZE = 2**22  # Bytes of a folder, and of a file, at most.


def folder(path, secret=SECRET):
  return saved_points.Folder(path / 'points', secret, SIZE)


def points(
  path,
  kind='all',
  secret=SECRET,
  most=SIZE,
  root='root',
  interval_s=3600.0,
):
  """Returns what `running.server` makes `SavedPoints` by, of its folder."""

  def make(worker, store):
    return saved_points.SavedPoints(
      worker,
      saved_device.saving_of(worker.engine, root),
      folder(path, secret),
      most=most,
      texts=saved_points.SavedTexts(
        store, auth.Tokens(path / auth.FILE), kind == 'all'
      ),
      interval_s=interval_s,
    )

  return make
