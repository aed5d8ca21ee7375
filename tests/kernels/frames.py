"""Frames of XLA's custom calls, made by hand for handlers of numba."""

import ctypes

_DTYPES = {'int8': 2, 'int32': 4, 'float32': 11}


class Memory:
  """Structs as XLA makes them, of words, and what is created as an error."""

  def __init__(self):
    self.errors = []
    self._kept = []
    create = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(self._create)
    self._kept.append(create)
    address = ctypes.cast(create, ctypes.c_void_p).value
    self.api = self.words(152, 0, 24, 0, 3 << 32, 0, address)

  def _create(self, address):
    size, _, message, code = (ctypes.c_int64 * 4).from_address(address)
    self.errors.append((size, ctypes.string_at(message).decode(), code))
    return 77

  def words(self, *values):
    """Returns the address of words that stay."""
    self._kept.append((ctypes.c_int64 * len(values))(*values))
    return ctypes.addressof(self._kept[-1])

  def buffer(self, array, shape=None):
    """Returns the address of an array's struct, of another shape if given."""
    shape = array.shape if shape is None else shape
    dtype = _DTYPES[array.dtype.name]
    dims = self.words(*shape, 0)
    self._kept.append(array)
    return self.words(48, 0, dtype, array.ctypes.data, len(shape), dims)

  def frame(self, extension, arguments, results):
    return self.words(
      *(168, extension, self.api, 0, 3),
      *(40, 0, len(arguments), 0, self.words(*arguments)),
      *(40, 0, len(results), 0, self.words(*results)),
      *(48, 0, 0, 0, 0, 0, 0),
    )


def get(address, place):
  return ctypes.c_int64.from_address(address + 8 * place).value


def put(address, place, value):
  ctypes.c_int64.from_address(address + 8 * place).value = value


def handle(kernel, frame):
  """Returns what a module's handler answers to a frame."""
  return kernel._handle.ctypes(
    ctypes.cast(frame, ctypes.POINTER(ctypes.c_int64))
  )
