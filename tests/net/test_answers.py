"""The limit of elements in answers, and fixes of failures."""

from __future__ import annotations

import pytest

from gpuledger.net.answers import MOST_ELEMENTS, Elements, ElementsError, load_json


def test_json_within_the_limit() -> None:
    """The limit itself is accepted; one element more is not."""
    body = b"[" + b"0," * (MOST_ELEMENTS - 1) + b"0]"

    assert len(load_json(body)) == MOST_ELEMENTS
    with pytest.raises(ElementsError, match="more than 500,000 elements"):
        load_json(body[:-1] + b",0]")


@pytest.mark.parametrize("element", [b"{}", b"[]", b'""', b'{"a":{"b":[0,1]}}'])
def test_all_kinds_of_elements_count(element: bytes) -> None:
    """Whatever the answer consists of."""
    with pytest.raises(ElementsError):
        load_json(b"[" + b",".join([element] * (MOST_ELEMENTS + 1)) + b"]")


def test_other_errors() -> None:
    """Text that is not JSON, or not UTF-8, is a ValueError; the caller may replace invalid bytes."""
    for body in (b"", b"no", b'"\xff"'):
        with pytest.raises(ValueError, match=r"Expecting|decode"):
            load_json(body)
    assert load_json(b'"\xff"', errors="replace") == "\ufffd"


def test_elements_of_one_answer_are_counted_together() -> None:
    """In any number of steps."""
    elements = Elements(3)
    elements.add()
    elements.add(2)
    with pytest.raises(ElementsError, match="more than 3 elements"):
        elements.add()
