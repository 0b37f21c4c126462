"""The scripted peer of a client: answers `add` in groups of WIDTH, each group in one write.

    grouped.py WIDTH serve

A client reads one group at once, however quick or busy the machine is.
"""

from __future__ import annotations

import sys

import msgspec

from bench.limits import minimum


def main(width: int) -> None:
    decode = msgspec.json.Decoder(minimum.Add).decode
    encode = msgspec.json.Encoder().encode
    answers: list[bytes] = []
    for found in minimum.bodies(0):
        for body in found:
            request = decode(body)
            reply = encode(minimum.Answer("2.0", request.id, request.call()))
            answers.append(minimum.HEADERS[len(reply)] + reply)
            if len(answers) == width:
                minimum.write(1, b"".join(answers))
                answers.clear()


if __name__ == "__main__":
    main(int(sys.argv[1]))
