"""A seeded mutator of trace files: the damage that disks, editors, loggers and wrong tools do."""

from __future__ import annotations

import gzip
import random
import re

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_EXTREMES = (
    b"1e999",
    b"-5",
    b"nan",
    b"inf",
    b"99999999999999999999",
    b"1e12",
    b"0",
    b"",
    b"-1",
    b"1e-30",
    b"0x1F",
    b"1_000",
    b"1,5",
    "½".encode(),
    b"1e308",
    b"null",
    b"true",
    b"[]",
    b'"',
    b"2024-13-45 99:99",
    b"1.5e3",
)


def truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def cut_out(data: bytes, rng: random.Random) -> bytes:
    a = rng.randrange(len(data) + 1)
    return data[:a] + data[a + rng.randint(1, 60) :]


def repeat_piece(data: bytes, rng: random.Random) -> bytes:
    a = rng.randrange(len(data) + 1)
    piece = data[a : a + rng.randint(1, 200)]
    return data[:a] + piece * rng.randint(2, 5) + data[a:]


def shuffle_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    rng.shuffle(lines)
    return b"".join(lines)


def flip_bytes(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 20)):
        if out:
            out[rng.randrange(len(out))] = rng.randrange(256)
    return bytes(out)


def garbage(data: bytes, rng: random.Random) -> bytes:
    a = rng.randrange(len(data) + 1)
    return data[:a] + rng.randbytes(rng.randint(1, 3000)) + data[a:]


def nul_bytes(data: bytes, rng: random.Random) -> bytes:
    a = rng.randrange(len(data) + 1)
    return data[:a] + b"\0" * rng.randint(1, 300) + data[a:]


def odd_numbers(data: bytes, rng: random.Random) -> bytes:
    share = rng.choice((0.02, 0.2, 1.0))
    return _NUMBER.sub(lambda m: rng.choice(_EXTREMES) if rng.random() < share else m[0], data)


def wrong_scale(data: bytes, rng: random.Random) -> bytes:
    zeros = b"0" * rng.randint(1, 9)
    share = rng.choice((0.1, 1.0))
    return _NUMBER.sub(lambda m: m[0].split(b".")[0] + zeros if rng.random() < share else m[0], data)


def other_encoding(data: bytes, rng: random.Random) -> bytes:
    text = data.decode("utf-8", "replace")
    return text.encode(
        rng.choice(("utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "utf-32", "cp037", "latin-1")), "replace"
    )


def other_line_ends(data: bytes, rng: random.Random) -> bytes:
    return data.replace(b"\n", rng.choice((b"\r\n", b"\r", b"\r\r\n", b"\n\n", b"\x0b")))


def other_delimiter(data: bytes, rng: random.Random) -> bytes:
    return data.replace(rng.choice((b",", b";", b"\t")), rng.choice((b";", b"|", b"\t", b",", b" ")))


def no_header(data: bytes, rng: random.Random) -> bytes:
    return b"".join(data.splitlines(keepends=True)[rng.randint(1, 2) :])


def glued_lines(data: bytes, rng: random.Random) -> bytes:
    return data.replace(b"\n", b"", rng.randint(1, 5))


def compressed(data: bytes, rng: random.Random) -> bytes:
    packed = gzip.compress(data)
    return packed if rng.random() < 0.3 else truncate(packed, rng) if rng.random() < 0.5 else flip_bytes(packed, rng)


def brackets(data: bytes, rng: random.Random) -> bytes:
    a = rng.randrange(len(data) + 1)
    return data[:a] + rng.choice((b"[", b"{", b'{"a":', b"]", b"}")) * rng.randint(1, 5000) + data[a:]


def appended(data: bytes, rng: random.Random) -> bytes:
    return data + data[: rng.randrange(len(data) + 1)]


MUTATIONS = (
    truncate,
    cut_out,
    repeat_piece,
    shuffle_lines,
    flip_bytes,
    garbage,
    nul_bytes,
    odd_numbers,
    wrong_scale,
    other_encoding,
    other_line_ends,
    other_delimiter,
    no_header,
    glued_lines,
    compressed,
    brackets,
    appended,
)


def mutate(data: bytes, seed: int) -> bytes:
    """`data` after one to three mutations; the same seed gives the same bytes."""
    rng = random.Random(seed)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = rng.choice(MUTATIONS)(data, rng)
    return data
