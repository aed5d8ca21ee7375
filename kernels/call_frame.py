"""XLA's typed FFI without a compiler of C: numba functions as custom calls.

A handler gets the address of a call frame (`xla/ffi/api/c_api.h`), whose
structs numba reads as words of eight bytes. Their places are those of API 0.3
to 0.5 (JAX 0.10 to 0.12). `register` has XLA show its header to Python first,
and refuses any other. In each call a handler looks at the sizes of what it
reads (`buffer`), and answers with an error if they are others (`fail`).

What numba caches of a handler (`cache=True`) is compiled anew when the
handler's own file changes, and not when this one does: touch both.
"""

import ctypes

import jax
from llvmlite import ir
import numba
from numba import types
from numba.extending import intrinsic

# The signature of a `numba.cfunc`: from a frame to an error's address or 0.
HANDLER = types.int64(types.CPointer(types.int64))
S8, S32, F32 = 2, 4, 11  # XLA_FFI_DataType.

_OLDEST, _NEWEST = 3, 5  # Minor versions of API 0.
# Bytes of structs, without what newer versions have behind.
_FRAME, _ARGUMENTS, _BUFFER, _ERROR = 168, 40, 48, 28
_EXTENSION, _METADATA, _VERSION = 32, 36, 24
_IS_METADATA = 1  # XLA_FFI_Extension_Type.
_BAD_ARGUMENT = 3  # XLA_FFI_Error_Code.
_MESSAGE = "the custom call's frame or operands are not what its handler reads"


def _pointer(kind):
  """Returns numba's function from an address to a pointer to `kind`."""

  @intrinsic
  def pointer(_, address):
    def build(context, builder, signature, arguments):
      kind = context.get_value_type(signature.return_type)
      return builder.inttoptr(arguments[0], kind)

    return types.CPointer(kind)(types.int64), build

  return pointer


words = _pointer(types.int64)
integers = _pointer(types.int32)
codes = _pointer(types.int8)
floats = _pointer(types.float32)


@intrinsic
def _create_error(_, function):
  """Calls XLA_FFI_Error_Create, which is at the address `function`."""

  def build(context, builder, signature, arguments):
    word = ir.IntType(64)
    text = context.insert_const_string(builder.module, _MESSAGE)
    fields = builder.alloca(word, word(4))
    values = word(_ERROR), word(0), builder.ptrtoint(text, word)
    for place, value in enumerate((*values, word(_BAD_ARGUMENT))):
      builder.store(value, builder.gep(fields, [word(place)]))
    kind = ir.FunctionType(word, [word]).as_pointer()
    create = builder.inttoptr(arguments[0], kind)
    return builder.call(create, [builder.ptrtoint(fields, word)])

  return types.int64(types.int64), build


@numba.njit
def fail(frame):
  """Returns an error for XLA to raise."""
  return _create_error(words(frame[2])[6])


@numba.njit
def buffer(frame, place, dtype, rank):
  """Returns the address of an argument's struct, or of a result's: −1, −2, ….

  Returns 0 for another dtype or rank than are given, or an unknown struct.
  """
  start = 10 if place < 0 else 5
  place = max(place, ~place)
  if frame[0] != _FRAME or frame[start] != _ARGUMENTS:
    return 0
  if frame[start + 2] <= place:
    return 0
  address = words(frame[start + 4])[place]
  found = words(address)
  if found[0] != _BUFFER or found[2] & 0xFFFFFFFF != dtype or found[4] != rank:
    return 0
  return address


@numba.njit
def tell_version(frame):
  """Returns whether XLA asks for the handler's version, and answers it."""
  if frame[1] == 0 or words(frame[1])[1] & 0xFFFFFFFF != _IS_METADATA:
    return False
  metadata = words(words(frame[1])[3])
  metadata[3] = _OLDEST << 32
  metadata[4] = 0
  return True


def find_fault(address: int) -> str:
  """Returns what is not as it should be in a frame that asks for a version.

  Args:
    address: of the frame.
  """

  def at(address, place):
    return ctypes.c_int64.from_address(address + 8 * place).value

  def differ(name, found, wanted):
    return f'{name} has {found} bytes, not {wanted}'

  if (size := at(address, 0)) != _FRAME:
    return differ('XLA_FFI_CallFrame', size, _FRAME)
  api, extension = at(address, 2), at(address, 1)
  if not api or not extension:
    return 'XLA_FFI_CallFrame has no API or no extension'
  if (size := at(api, 2)) != _VERSION:
    return differ('XLA_FFI_Api_Version', size, _VERSION)
  major, minor = at(api, 4) & 0xFFFFFFFF, at(api, 4) >> 32
  if major or not _OLDEST <= minor <= _NEWEST:
    return f'API {major}.{minor} is none of 0.{_OLDEST} to 0.{_NEWEST}'
  if (size := at(extension, 0)) != _EXTENSION:
    return differ('XLA_FFI_Metadata_Extension', size, _EXTENSION)
  if at(extension, 1) & 0xFFFFFFFF != _IS_METADATA:
    return 'XLA_FFI_Extension_Base is of another type'
  metadata = at(extension, 3)
  for name, place, wanted in (
    ('XLA_FFI_Metadata', 0, _METADATA),
    ('XLA_FFI_Api_Version', 1, _VERSION),
  ):
    if (size := at(metadata, place)) != wanted:
      return differ(name, size, wanted)
  return ''


def register(name: str, handler) -> None:
  """Registers a `numba.cfunc` of the signature `HANDLER` for CPUs.

  Raises:
    ImportError: XLA's header is another one.
  """
  faults = []

  @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
  def look(address):
    faults.append(find_fault(address))
    if not faults[-1]:
      extension = ctypes.c_int64.from_address(address + 8).value
      metadata = ctypes.c_int64.from_address(extension + 24).value
      ctypes.c_int64.from_address(metadata + 24).value = _OLDEST << 32

  try:
    jax.devices('cpu')  # XLA looks at a handler once it has a client.
    _register(f'{name}_header', ctypes.cast(look, ctypes.c_void_p).value)
    if not any(faults):
      _register(name, handler.address)
  except Exception as error:  # XLA's own refusals: their classes differ.
    faults.append(str(error))
  if fault := next(filter(None, faults), ''):
    raise ImportError(f"XLA's custom calls are not as expected: {fault}.")


def _register(name, address):
  new = ctypes.pythonapi.PyCapsule_New
  new.restype = ctypes.py_object
  new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
  capsule = new(address, None, None)
  jax.ffi.register_ffi_target(name, capsule, platform='cpu', api_version=1)
