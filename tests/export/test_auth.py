"""Passwords: who is let in, what it costs, and what is remembered."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable

import bcrypt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.export.auth import BUSY, MOST, OF_ONE_ADDRESS, UNAUTHORIZED, WAITING, Logins
from gpuledger.export.http import Response

USERS = {"alice": bcrypt.hashpw(b"wonder", bcrypt.gensalt(4)).decode(), "bob": "$2b$04$" + "b" * 53}


def basic_bytes(raw: bytes) -> str:
    """A header with any bytes in it."""
    return "Basic " + base64.b64encode(raw).decode()


def basic(user: str, password: str) -> str:
    """The header of a request."""
    return basic_bytes(f"{user}:{password}".encode())


class Compared:
    """Counts comparisons; `alice` has the password `wonder`."""

    def __init__(self) -> None:
        self.calls: list[tuple[bytes, bytes]] = []

    def __call__(self, password: bytes, hashed: bytes) -> bool:
        """In place of bcrypt."""
        self.calls.append((password, hashed))
        return (password, hashed) == (b"wonder", USERS["alice"].encode())


def test_real_bcrypt() -> None:
    """The right password passes; a wrong one, another user's and an unknown user do not."""
    logins = Logins()

    assert logins.refusal(USERS, basic("alice", "wonder")) is None
    for user, password in (("alice", "Wonder"), ("bob", "wonder"), ("carol", "wonder"), ("", ""), ("alice", "")):
        assert logins.refusal(USERS, basic(user, password)) is UNAUTHORIZED
    assert UNAUTHORIZED.status == 401
    assert ("WWW-Authenticate", "Basic") in UNAUTHORIZED.headers


@pytest.mark.parametrize("version", ["2a", "2b", "2y"])
def test_hashes_of_all_tools(version: str) -> None:
    """Apache's tool writes $2y$, Python $2b$, others $2a$."""
    users = {"alice": USERS["alice"].replace("$2b$", f"${version}$")}

    assert Logins().refusal(users, basic("alice", "wonder")) is None
    assert Logins().refusal(users, basic("alice", "wander")) is UNAUTHORIZED


def test_long_passwords() -> None:
    """Bcrypt looks at 72 bytes, here as in other exporters."""
    users = {"alice": bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4)).decode()}

    assert Logins().refusal(users, basic("alice", "x" * 100)) is None
    assert Logins().refusal(users, basic("alice", "x" * 71)) is UNAUTHORIZED


def test_what_was_found_is_remembered() -> None:
    """Good and bad passwords are compared once; a new hash of the same user is compared again."""
    compared = Compared()
    logins = Logins(compared)
    for _ in range(3):
        assert logins.refusal(USERS, basic("alice", "wonder")) is None
        assert logins.refusal(USERS, basic("alice", "guess")) is UNAUTHORIZED
    assert len(compared.calls) == 2

    assert logins.refusal({"alice": "$2b$04$" + "c" * 53}, basic("alice", "wonder")) is UNAUTHORIZED
    assert len(compared.calls) == 3
    assert logins.refusal({"bob": USERS["bob"]}, basic("alice", "wonder")) is UNAUTHORIZED


def test_guesses_do_not_push_out_the_right_one() -> None:
    """However many wrong ones come, memory stays bounded and who was let in need not wait again."""
    compared = Compared()
    logins = Logins(compared)
    assert logins.refusal(USERS, basic("alice", "wonder")) is None
    for guess in range(3 * MOST):
        logins.refusal(USERS, basic("alice", str(guess)))
    compared.calls.clear()

    assert logins.refusal(USERS, basic("alice", "wonder")) is None
    assert compared.calls == []
    assert sum(map(len, logins._remembered.values())) == MOST + 1


def test_an_unknown_user_costs_a_comparison() -> None:
    """With a hash of the file, always the same for a name: who asks cannot tell by the time which users there are."""
    compared = Compared()
    logins = Logins(compared)

    for guess in ("one", "two", "wonder"):
        assert logins.refusal(USERS, basic("mallory", guess)) is UNAUTHORIZED

    assert [password for password, _ in compared.calls] == [b"one", b"two", b"wonder"]
    assert {hashed.decode() for _, hashed in compared.calls} < set(USERS.values())


@pytest.mark.parametrize(
    "header",
    [None, "", "Basic", "Basic ", "Bearer abc", "Basic %%%", "Basic YWxpY2U=", "Basic YWxpY2U6d29uZGVy, Basic YTpi",
     "Digest YWxpY2U6d29uZGVy", "Basic ÿ"],
)  # fmt: skip
def test_no_credentials(header: str | None) -> None:
    """Whatever is no user and password is refused without a comparison."""
    compared = Compared()

    assert Logins(compared).refusal(USERS, header) is UNAUTHORIZED
    assert compared.calls == []


def test_the_scheme_has_no_case() -> None:
    """RFC 7235: it may be written in any."""
    header = basic("alice", "wonder").replace("Basic", "bAsIc")

    assert Logins(Compared()).refusal(USERS, header) is None


@given(st.text(alphabet=st.characters(max_codepoint=255)) | st.binary().map(basic_bytes))
def test_any_header(header: str) -> None:
    """Nobody gets in, and nothing breaks, by a header made of anything but the right password."""
    assert Logins(Compared()).refusal(USERS, header) is UNAUTHORIZED or header.endswith("YWxpY2U6d29uZGVy")


def _in_thread(ask: Callable[[], Response | None], answers: list[Response | None]) -> threading.Thread:
    thread = threading.Thread(target=lambda: answers.append(ask()))
    thread.start()
    return thread


def test_a_crowd_of_guesses() -> None:
    """One comparison at a time, a few wait, not all of one address; who is remembered passes meanwhile."""
    begun, go_on = threading.Semaphore(0), threading.Event()
    together, most = 0, 0

    def slow(password: bytes, _: bytes) -> bool:
        nonlocal together, most
        together += 1
        most = max(most, together)
        begun.release()
        assert password == b"wonder" or go_on.wait(10)
        together -= 1
        return password == b"wonder"

    logins = Logins(slow)
    assert logins.refusal(USERS, basic("alice", "wonder")) is None
    begun.acquire()
    answers: list[Response | None] = []
    threads = [
        _in_thread(lambda guess=str(guess): logins.refusal(USERS, basic("alice", guess), "a"), answers)  # type: ignore[misc]
        for guess in range(OF_ONE_ADDRESS)
    ]
    assert begun.acquire(timeout=10)
    while len(logins._waiting) < OF_ONE_ADDRESS:
        threading.Event().wait(0.01)
    assert logins.refusal(USERS, basic("alice", "one more"), "a") is BUSY
    threads += [
        _in_thread(lambda guess=f"b{guess}": logins.refusal(USERS, basic("alice", guess), guess), answers)  # type: ignore[misc]
        for guess in range(WAITING - OF_ONE_ADDRESS)
    ]
    while len(logins._waiting) < WAITING:
        threading.Event().wait(0.01)

    assert logins.refusal(USERS, basic("alice", "one more")) is BUSY
    assert logins.refusal(USERS, basic("alice", "wonder")) is None
    go_on.set()
    for thread in threads:
        thread.join()
    assert answers == [UNAUTHORIZED] * WAITING
    assert most == 1
    assert logins.refusal(USERS, basic("alice", "one more")) is UNAUTHORIZED


def test_the_same_password_at_the_same_time() -> None:
    """Two who ask the same cost one comparison."""
    compared = Compared()
    logins = Logins(compared)
    with logins._looking:
        answers: list[Response | None] = []
        threads = [_in_thread(lambda: logins.refusal(USERS, basic("alice", "wonder")), answers) for _ in range(2)]
        while len(logins._waiting) < 2:
            threading.Event().wait(0.01)
    for thread in threads:
        thread.join()

    assert answers == [None, None]
    assert len(compared.calls) == 1
