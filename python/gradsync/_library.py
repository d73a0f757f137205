"""The C interface of the library, gradsync/gradsync_c.h, by ctypes."""
import ctypes
import enum
import functools
import os
import pathlib
from collections.abc import Callable, Mapping
from ctypes import POINTER, c_char_p, c_int, c_int64, c_void_p

# Of gradsync/gradsync_c.h: what this file was written for. A library of the same hundred has at least that.
C_VERSION = 101


TIMES = ("timeout", "failure_timeout")


class Code(enum.IntEnum):
    """What kind of error: the numbers of gRPC's status codes, of which docs/use/library.md says what each means here."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Error(RuntimeError):
    """A failure of the library; str() is one line on what was expected, where, and what was found."""

    def __init__(self, code: int, text: str):
        super().__init__(text)
        self.code = Code(code) if code in Code.__members__.values() else Code.UNKNOWN

    def __reduce__(self):
        return Error, (int(self.code), str(self))


class Type(enum.IntEnum):
    """What elements are."""

    FLOAT32 = 0
    FLOAT64 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    INT8 = 4
    UINT8 = 5
    INT16 = 6
    INT32 = 7
    INT64 = 8
    BOOL = 9


BYTES = {Type.FLOAT32: 4, Type.FLOAT64: 8, Type.FLOAT16: 2, Type.BFLOAT16: 2, Type.INT8: 1, Type.UINT8: 1, Type.INT16: 2,
         Type.INT32: 4, Type.INT64: 8, Type.BOOL: 1}


class Op(enum.IntEnum):
    """What ranks' elements are combined by."""

    SUM = 0
    AVG = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7


class Tensor(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("numel", c_int64)]


Listening = ctypes.CFUNCTYPE(c_int, c_char_p, c_void_p)

# Arguments of the functions that return 0 or a code, and what the others take and return.
_CALLS = {
    "gradsync_join_with": [POINTER(c_char_p), Listening, c_void_p, POINTER(c_void_p)],
    "gradsync_all_reduce": [c_void_p, c_void_p, c_int64, c_int, c_int],
    "gradsync_broadcast_bytes": [c_void_p, c_void_p, c_int64, c_int],
    "gradsync_all_gather": [c_void_p, c_void_p, c_void_p, c_int64],
    "gradsync_reduce_scatter": [c_void_p, c_void_p, c_void_p, c_int64, c_int, c_int],
    "gradsync_all_to_all": [c_void_p, c_void_p, POINTER(c_int64), c_void_p, POINTER(c_int64)],
    "gradsync_send": [c_void_p, c_void_p, c_int64, c_int],
    "gradsync_recv": [c_void_p, c_void_p, c_int64, c_int],
    "gradsync_barrier": [c_void_p],
    "gradsync_bind": [c_void_p, POINTER(Tensor), c_int64, c_int64],
    "gradsync_place": [c_void_p, c_int64, POINTER(c_int), POINTER(c_int64)],
    "gradsync_broadcast": [c_void_p],
    "gradsync_launch": [c_void_p, c_int],
    "gradsync_wait": [c_void_p, c_int],
    "gradsync_fail": [c_void_p, c_char_p],
    "gradsync_leave": [c_void_p],
}
_OTHERS = {
    "gradsync_version": ([], c_int),
    "gradsync_error": ([], c_char_p),
    "gradsync_rank": ([c_void_p], c_int),
    "gradsync_world_size": ([c_void_p], c_int),
    "gradsync_buckets": ([c_void_p], c_int),
    "gradsync_bucket_gradients": ([c_void_p, c_int], c_void_p),
    "gradsync_bucket_parameters": ([c_void_p, c_int], c_void_p),
    "gradsync_bucket_numel": ([c_void_p, c_int], c_int64),
    "gradsync_free": ([c_void_p], None),
}


@functools.lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    """The shared library of this package. Nobody else in the process sees its symbols, or those of gRPC and the like in libs/, and these
    see each other before any that the process has loaded for all.

    Calls run without the interpreter's lock. ImportError where it cannot be loaded or is of another version.
    """
    path = pathlib.Path(__file__).with_name("libgradsync.so")
    try:
        loaded = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_DEEPBIND)
    except OSError as error:
        raise ImportError(f"gradsync: expected to load its library, found: {error}") from error
    loaded.gradsync_version.restype = c_int
    version = loaded.gradsync_version()
    if version // 100 != C_VERSION // 100 or version < C_VERSION:
        raise ImportError(f"{path}: expected a C interface of version {C_VERSION} to {C_VERSION // 100 * 100 + 99}, found {version}")
    for name, arguments in _CALLS.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, c_int
    for name, (arguments, result) in _OTHERS.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, result
    return loaded


def check(code: int) -> None:
    """Raises what a function of the library has just returned on this thread, unless that is success."""
    if code != 0:
        raise Error(code, library().gradsync_error().decode("utf-8", "replace"))


def option_text(name: str, value) -> str:
    """An option as the library reads it: True as true, a time (a timedelta, or a number of seconds) as 2.5s, a list with commas between."""
    if hasattr(value, "total_seconds"):
        value = value.total_seconds()
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, (int, float)) and name in TIMES:
        text = f"{value:.3f}s"
    elif isinstance(value, (list, tuple)):
        text = ",".join(map(str, value))
    else:
        text = str(value)
    return f"{name}={text}"


def join(options: Mapping[str, object], on_listening: Callable[[str], None] | None = None) -> c_void_p:
    """Joins a job (gradsync_join_with()) and returns the group. None among the values: that option is not given.

    `on_listening` is called on rank 0, with the address that the others give as `master`; what it raises, this raises.
    """
    texts = [option_text(name, value).encode() for name, value in options.items() if value is not None]
    raised = []

    def listening(address, _):
        try:
            if on_listening is not None:
                on_listening(address.decode())
            return 0
        except BaseException as error:  # no exception crosses the library
            raised.append(error)
            return int(Code.CANCELLED)

    group = c_void_p()
    array = (c_char_p * (len(texts) + 1))(*texts, None)
    code = library().gradsync_join_with(array, Listening(listening), None, ctypes.byref(group))
    if raised:
        if group:
            library().gradsync_free(group)
        raise raised[0]
    check(code)
    return group
