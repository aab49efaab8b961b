"""A fake accelerator: a device of its own for torch, made in Python on the CPU build, that is as strict as a real one and counts.

Its tensors hold CPU tensors, so every number is the CPU's, bit for bit. What it adds is the separation: an operation between
devices raises, as do `numpy()` and a generator of another device. It counts what a program pays for on a real device: each time
the host waits (`Counts.syncs`), and the bytes that cross (`Counts.uploads`, `Counts.fetches`). By the rules of CUDA a copy to the
device waits too unless it comes from page-locked memory and says `non_blocking`.

`register` makes torch believe in it for the rest of the process: tests of it run in processes of their own.
"""

import traceback
from collections import Counter
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import torch
from torch.nn import functional
from torch.utils._pytree import tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

__all__ = ["COUNTS", "Counts", "DeviceError", "FakeTensor", "counting", "register"]

NAME = "fake"
aten = torch.ops.aten


class DeviceError(RuntimeError):
    """What a real accelerator would refuse."""


@dataclass
class Counts:
    """What a program has paid for.

    Attributes:
        syncs: for each time that the host waited for the device, the operation and where in the package it was.
        uploads: bytes that went to the device, by their type.
        fetches: bytes that came from it, by their type.
        products: of each type of number, how many matrix products and convolutions the device has made in it.
        launches: operations of the device.
    """

    syncs: list[str] = field(default_factory=list)
    uploads: Counter = field(default_factory=Counter)
    fetches: Counter = field(default_factory=Counter)
    products: Counter = field(default_factory=Counter)
    launches: int = 0


COUNTS = Counts()
_FREE = [1 << 40]  # bytes that the device says are free; a test puts another number there
_PINNED: WeakValueDictionary = WeakValueDictionary()  # page-locked tensors, by their address
_GENERATOR = torch.Generator()  # the device's own

# Their result's size depends on the numbers, so the host must wait for them.
_WAITING = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten._unique2.default,
    aten.repeat_interleave.Tensor,
}
_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward", "mv", "addmv", "linear"}
_AUTOCAST = ("conv2d", "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "mv")  # as CUDA's and the CPU's


@contextmanager
def counting():
    """`COUNTS` of what happens inside."""
    global COUNTS
    before = COUNTS
    COUNTS = Counts()
    try:
        yield COUNTS
    finally:
        COUNTS = before


def _wait(reason):
    """The host waits: note who, outside of torch, asked."""
    frames = [f for f in traceback.extract_stack() if "-packages/torch/" not in f.filename and f.filename != __file__]
    COUNTS.syncs.append(f"{reason} at {frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else reason)


class FakeTensor(torch.Tensor):
    """A tensor of the fake device."""

    @staticmethod
    def __new__(cls, tensor):
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            tensor.size(),
            strides=tensor.stride(),
            dtype=tensor.dtype,
            device=torch.device(NAME, 0),
        )
        made._held = tensor
        return made

    def __init__(self, tensor):
        assert type(tensor) is torch.Tensor, type(tensor)

    def __repr__(self, *, tensor_contents=None):
        return f"FakeTensor({self._held})"

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (torch.Tensor.numpy, torch.Tensor.__array__):
            raise DeviceError("numpy() of a tensor of the fake device: copy it to the CPU first")
        if func is torch.Tensor.tolist:
            return args[0].cpu().tolist()
        if func is torch._VF.lstm:
            return _lstm(*args)
        if func == torch.Tensor.data.__set__:  # torch would move the storage, which is not where the numbers are
            into, new = args
            if not isinstance(new, FakeTensor):
                raise DeviceError("data of another device")
            into._held = new._held
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


def _run(func, args, kwargs):
    COUNTS.launches += 1
    name = func.overloadpacket.__name__
    if name in ("to", "item", "type_as"):  # in inference mode they arrive whole
        return func.decompose(*args, **kwargs)
    if func is aten._to_copy.default:
        return _to_copy(*args, **kwargs)
    if func is aten.copy_.default:
        return _copy(*args, **kwargs)
    if func.namespace != "aten":
        raise NotImplementedError(f"{func} is not made for the fake device")
    tensors: list[torch.Tensor] = []
    inner_args, inner_kwargs = _unwrap(args, tensors), {key: _unwrap(x, tensors) for key, x in kwargs.items()}
    for x in tensors:
        # Like CUDA, a number that lies on the CPU may take part, but not be written to.
        if not isinstance(x, FakeTensor) and (x.ndim > 0 or name in ("index", "index_put_", "index_select", "gather")):
            raise DeviceError(f"{func}: tensors of two devices, {NAME} and {x.device} {tuple(x.shape)}")
    generator = kwargs.get("generator")
    if generator is not None and generator is not _GENERATOR:
        raise DeviceError(f"{func}: the generator is one of {generator.device}")
    if torch.Tag.nondeterministic_seeded in func.tags and any(a.name == "generator" for a in func._schema.arguments):
        inner_kwargs["generator"] = _GENERATOR
    if func in _WAITING or (name in ("index", "index_put_") and any(_is_mask(x) for x in args[1])):
        _wait(name)
    if name in _PRODUCTS:
        COUNTS.products[str(tensors[-1].dtype)] += 1
    if func is aten.is_pinned.default:
        return False
    wrappers = {id(x._held): x for x in tensors if isinstance(x, FakeTensor)}
    if "device" in inner_kwargs:
        inner_kwargs["device"] = torch.device("cpu")
    result = func(*inner_args, **inner_kwargs)
    if func is aten._local_scalar_dense.default:
        return result

    # Of an ordinary tensor a view is an ordinary one too, also in inference mode; torch refuses any other.
    view = any(returned.alias_info is not None for returned in func._schema.returns) and isinstance(args[0], FakeTensor)
    with torch.inference_mode(False) if view and not args[0].is_inference() else nullcontext():
        return _wrap(result, wrappers)


def _unwrap(x, tensors):
    """What lies in the device's memory, in tuples and lists as torch's operators take them; `tensors` gets every tensor."""
    if isinstance(x, torch.Tensor):
        tensors.append(x)
        return x._held if isinstance(x, FakeTensor) else x
    return type(x)(_unwrap(part, tensors) for part in x) if type(x) in (tuple, list) else x


def _wrap(x, wrappers):
    if isinstance(x, torch.Tensor):
        return wrappers[id(x)] if id(x) in wrappers else FakeTensor(x)
    return type(x)(_wrap(part, wrappers) for part in x) if type(x) in (tuple, list) else x


def _lstm(inputs, state, weights, *settings):
    """One layer without dropout, from operators that the device has: torch would look for a kernel of the whole cell."""
    *_, batch_first = settings
    of_input, of_hidden, *biases = weights
    hidden, cell = state[0][0], state[1][0]
    outputs = []
    for step in functional.linear(inputs.transpose(0, 1) if batch_first else inputs, of_input, biases[0]).unbind():
        into, forget, new, out = (functional.linear(hidden, of_hidden, biases[1]) + step).chunk(4, dim=1)
        cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
        hidden = out.sigmoid() * cell.tanh()
        outputs.append(hidden)
    output = torch.stack(outputs)
    return output.transpose(0, 1) if batch_first else output, hidden[None], cell[None]


def _is_mask(index):
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


def _bytes(tensor):
    return tensor.numel() * tensor.element_size()


def _uploaded(source, non_blocking):
    COUNTS.uploads[str(source.dtype)] += _bytes(source)
    if not non_blocking:
        _wait("a copy to the device that says nothing of non_blocking")
    elif source.untyped_storage().data_ptr() not in _PINNED:
        _wait("a copy to the device from memory that is not page-locked")


def _fetched(source, reason):
    COUNTS.fetches[str(source.dtype)] += _bytes(source)
    _wait(reason)


def _to_copy(source, *, dtype=None, layout=None, device=None, pin_memory=None, non_blocking=False, memory_format=None):
    device = source.device if device is None else torch.device(device)
    into = {"dtype": dtype, "memory_format": memory_format}
    if isinstance(source, FakeTensor):
        inner = aten._to_copy.default(source._held, **into)
        if device.type != "cpu":
            return FakeTensor(inner)
        _fetched(source, "a copy to the CPU")
        return inner
    if device.type == "cpu":
        return aten._to_copy.default(source, **into)
    _uploaded(source, non_blocking)
    return FakeTensor(aten._to_copy.default(source, **into))


def _copy(into, source, non_blocking=False):
    if isinstance(into, FakeTensor):
        if isinstance(source, FakeTensor):
            into._held.copy_(source._held)
        else:
            _uploaded(source, non_blocking)
            into._held.copy_(source)
        return into
    _fetched(source, "a copy into a tensor of the CPU")
    into.copy_(source._held)
    return into


class _Module:
    """What torch asks a device's module for."""

    _is_in_bad_fork = staticmethod(lambda: False)
    is_available = staticmethod(lambda: True)
    is_initialized = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 2)
    current_device = staticmethod(lambda: 0)
    set_device = staticmethod(lambda device: None)
    get_device_name = staticmethod(lambda device=None: "fake accelerator")
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16, torch.float16])
    is_bf16_supported = staticmethod(lambda including_emulation=True: True)
    mem_get_info = staticmethod(lambda device=None: (_FREE[0], 1 << 40))
    get_rng_state = staticmethod(lambda device=None: _GENERATOR.get_state())
    set_rng_state = staticmethod(lambda state, device=None: _GENERATOR.set_state(state))
    manual_seed_all = staticmethod(lambda seed: _GENERATOR.manual_seed(seed))

    @staticmethod
    def synchronize(device=None):
        _wait("synchronize")


_LIBRARIES = []  # what is registered lasts as long as these


def register():
    """Make torch know the device `fake`, in this process for good."""
    if _LIBRARIES:
        return
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    torch._C._set_only_lift_cpu_tensors(True)  # else torch.tensor(…, device=…) would copy into memory that is not there
    torch.Tensor.pin_memory = _pin_memory
    torch.accelerator.synchronize = _Module.synchronize
    # Both would ask for an allocator, which a device made in Python cannot have.
    torch.accelerator.memory_reserved = torch.accelerator.memory_allocated = lambda device: 0
    made = torch.library.Library("aten", "IMPL", "PrivateUse1")
    made.impl("empty.memory_format", _empty)
    made.impl("empty_strided", _empty_strided)
    unchanged = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    unchanged.fallback(torch.library.fallthrough_kernel)
    lowered = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
    for name in _AUTOCAST:
        lowered.impl(name, _lowered(getattr(aten, name).default))
    _LIBRARIES.extend([made, unchanged, lowered])


def _pin_memory(tensor, device=None):
    """A copy in page-locked memory, which is only noted: there is none without an accelerator."""
    assert not isinstance(tensor, FakeTensor), "only memory of the CPU can be page-locked"
    pinned = tensor.clone()
    _PINNED[pinned.untyped_storage().data_ptr()] = pinned
    return pinned


def _empty(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return FakeTensor(torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format))


def _empty_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
    return FakeTensor(torch.empty_strided(size, stride, dtype=dtype))


def _lowered(operator):
    """The operator under autocast: its floating tensors in autocast's type, as torch registers it for its own devices."""

    def kernel(*args, **kwargs):
        dtype = torch.get_autocast_dtype(NAME)
        with torch._C._DisableAutocast():
            return operator(*tree_map_only(torch.Tensor, lambda x: x.to(dtype) if x.is_floating_point() else x, args), **kwargs)

    return kernel
