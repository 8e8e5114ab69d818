"""A child that a handler forked ends with the code that it asked for, as any Python program does."""

from __future__ import annotations

import os

import pytest

from fleet_consumer.handlers import call


class Ended(BaseException):
    """Stands for the end of a process."""


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (None, 0, ""),
        (SystemExit(), 0, ""),
        (SystemExit(3), 3, ""),
        (SystemExit(-1), 255, ""),
        (SystemExit("no more"), 1, "no more\n"),
        (ValueError("bad"), 1, "ValueError: bad\n"),
    ],
)
def test_child_ends_with_the_code_that_it_asked_for(
    monkeypatch: pytest.MonkeyPatch, error: BaseException | None, code: int, words: str
) -> None:
    codes, written = list[int](), list[bytes]()

    def end(code: int) -> None:
        codes.append(code)
        raise Ended

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(os, "write", lambda _, text: written.append(text))
    with pytest.raises(Ended):
        call.end_forked_child(os.getpid() + 1, error)
    assert codes == [code]
    assert b"".join(written).decode() == words


def test_parent_process_continues() -> None:
    call.end_forked_child(os.getpid(), SystemExit(3))
