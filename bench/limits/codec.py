"""The floor of every dispatcher: one msgspec decode and one encode, and nothing in between."""

from __future__ import annotations

import sys

import msgspec

from bench import driver


class Pair(msgspec.Struct, gc=False):
    a: int
    b: int


class Request(msgspec.Struct, gc=False):
    jsonrpc: str
    method: str
    params: Pair
    id: int | None = None


class Answer(msgspec.Struct, gc=False):
    jsonrpc: str
    id: int | None
    result: int


def dispatch() -> driver.Answer:
    encode = msgspec.json.Encoder().encode
    decode_one = msgspec.json.Decoder(Request).decode
    decode_batch = msgspec.json.Decoder(list[Request]).decode

    def request(data: bytes) -> bytes:
        return encode(Answer("2.0", decode_one(data).id, 3))

    def notification(data: bytes) -> None:
        decode_one(data)

    def batch(data: bytes) -> bytes:
        return encode([Answer("2.0", item.id, 3) for item in decode_batch(data)])

    return {"request": request, "notification": notification, "batch": batch}[sys.argv[2]]


if __name__ == "__main__":
    driver.main(dispatch=dispatch)
