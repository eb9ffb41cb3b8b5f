"""A message as bytes: one msgpack header, then one buffer a tensor. No pickle: no code comes in with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from testbed.runtime.interface import Message

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
        torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool,
    )
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class Header(msgspec.Struct, array_like=True, gc=False):
    """What goes before the tensors.

    generation: the sender's; to_generation: of the receiver that the message is meant for.
    view: the version of the sender's membership view, so that a message never overtakes the view behind it.
    sequence: counts the messages between this pair of incarnations.
    tensors: (dtype, shape) of each buffer that follows.
    """

    source: str
    generation: int
    to_generation: int
    view: int
    sequence: int
    tag: str
    sent_s: float
    tensors: list[tuple[str, list[int]]]
    meta: dict[str, Any]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Header)
_meta_decoder = msgspec.msgpack.Decoder()


def describe(tensors: Sequence[torch.Tensor]) -> list[tuple[str, list[int]]]:
    """(dtype, shape) of each tensor.

    Raises:
        TypeError: not a tensor, or of a dtype that the wire doesn't carry.
    """
    described = []
    for t in tensors:
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"a message carries tensors; found {type(t).__name__} among them")
        name = _NAMES.get(t.dtype)
        if name is None:
            raise TypeError(f"{t.dtype} can't be sent; expected one of {', '.join(sorted(_DTYPES))}")
        described.append((name, list(t.shape)))
    return described


def encode_header(header: Header) -> bytes:
    """Raises TypeError when `meta` holds something that is not JSON-like."""
    try:
        return _encoder.encode(header)
    except TypeError as e:
        raise _no_json(header, e) from None


def decode_header(data: bytes | memoryview) -> Header:
    return _decoder.decode(data)


def as_received(header: Header) -> tuple[int, dict[str, Any]]:
    """(bytes of the encoded header, its `meta` as the receiver would read it); empties the header's `meta`.

    What encoding and decoding would give, for less. Raises TypeError like `encode_header`.
    """
    meta = header.meta
    if not meta:
        return len(_encoder.encode(header)), meta
    try:
        encoded = _encoder.encode(meta)
    except TypeError as e:
        raise _no_json(header, e) from None
    header.meta = {}  # one byte
    return len(_encoder.encode(header)) - 1 + len(encoded), _meta_decoder.decode(encoded)


def _no_json(header: Header, error: TypeError) -> TypeError:
    return TypeError(f"message {header.tag!r}: meta must be JSON-like: {error}")


def buffer(tensor: torch.Tensor) -> memoryview:
    """The tensor's bytes in C order; shares memory when the tensor is contiguous."""
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.numel() == 0:
        return memoryview(b"")
    return memoryview(flat.view(torch.uint8).numpy())


def tensor(data: Any, dtype: str, shape: Sequence[int]) -> torch.Tensor:
    """The tensor whose bytes are `data` (a buffer, writable if the tensor is to be). Shares the memory."""
    kind = _DTYPES[dtype]
    view = memoryview(data)
    if view.nbytes == 0:
        return torch.empty(tuple(shape), dtype=kind)
    flat = torch.frombuffer(view, dtype=torch.uint8)
    if flat.data_ptr() % kind.itemsize:  # libzmq hands out small messages at any offset of its receive buffer
        flat = flat.clone()
    return flat.view(kind).reshape(tuple(shape))


def message(header: Header, buffers: Sequence[Any], *, nbytes: int, received_s: float) -> Message:
    """The received message.

    Raises:
        ValueError: the buffers aren't those that the header announces.
    """
    if len(buffers) != len(header.tensors):
        raise ValueError(f"{header.tag!r}: {len(header.tensors)} tensors announced, {len(buffers)} came")
    tensors = [tensor(b, dtype, shape) for b, (dtype, shape) in zip(buffers, header.tensors)]
    return Message(
        source=header.source, tag=header.tag, tensors=tensors, meta=header.meta, generation=header.generation,
        bytes=nbytes, sent_s=header.sent_s, received_s=received_s,
    )  # fmt: skip
